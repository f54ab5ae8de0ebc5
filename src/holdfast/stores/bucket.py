"""A store in a bucket, or in memory.

    <prefix>/manifests/manifest-000042.json        created only if absent: the seal
    <prefix>/manifests/latest.json                 a hint
    <prefix>/checkpoints/state-000042.bin          the sidecar
    <prefix>/checkpoints/state-000042-<attempt>.bin
    <prefix>/history/<name>                        segments of history; nothing else depends on them
    <prefix>/<name>.json                           documents, replaced by conditional requests

A small sidecar is created only if absent. When another one stands there, or when it is too large for one
conditional request, it goes up under a name of its own: two writers that fight for an id never share a sidecar,
and the manifest says which one is meant. Sidecars stay where they are when their manifest is removed.
"""

import contextlib
import json
from collections.abc import Iterable, Sequence

from holdfast.clock import SYSTEM_CLOCK, Clock, new_token
from holdfast.core import canonical_json
from holdfast.core.buffers import Buffer
from holdfast.core.names import manifest_id_of, manifest_name, sidecar_id_of, sidecar_name
from holdfast.errors import CheckpointStoreError, UnsupportedStore
from holdfast.stores.medium import AlreadySealed, Staged, VersionChanged, Versioned
from holdfast.stores.objects import PART_BYTES, ObjectChanged, ObjectExists, Objects, RequestConflict, StoredObject

_PROBES = "probes"
_PROBE_MS = 60 * 60 * 1000
_PROBE_ATTEMPTS = 3
_TOMBSTONE = b'{"pruned":true}'


class BucketMedium:
    """Checkpoints as objects, decided by conditional requests."""

    def __init__(self, objects: Objects, url: str, prefix: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self._objects = objects
        self._url = url
        self._clock = clock
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._pointer: StoredObject | None = None
        """What we put last as latest.json: going on from it saves a request, and fails if somebody else was there."""

    def describe(self) -> str:
        """Return the URL as it was shown to people."""
        return self._url

    def prepare(self) -> None:
        """Prove that a create does not overwrite and that a replace needs the right version.

        A conflict where there can be none comes from a client that repeats a request whose answer was lost, and
        proves nothing: the probe is repeated.
        """
        refusal = None
        for _ in range(_PROBE_ATTEMPTS):
            try:
                refusal = self._refusal()
                break
            except (ObjectExists, ObjectChanged):
                refusal = "the storage refuses conditional writes that should succeed, so no checkpoint can be sealed"
        if refusal is not None:
            raise UnsupportedStore(f"{self._url}: {refusal}; use a service that honours If-None-Match and If-Match")

    def _refusal(self) -> str | None:
        """Return why the storage will not do, None if it does as it should."""
        key = self._key(_PROBES, f"{self._clock.now_ms():015d}-{new_token()}")
        try:
            self._objects.create(key, b"first")
            if self._refuses_create(key) and self._refuses_replace(key):
                return None
            return "the storage ignores conditional writes, so two writers could both believe they own a checkpoint"
        finally:
            # A probe that stays is swept up later; what failed before is what the caller must hear.
            with contextlib.suppress(CheckpointStoreError):
                self._objects.delete(key)

    def _refuses_create(self, key: str) -> bool:
        try:
            self._objects.create(key, b"second")
        except ObjectExists:
            return True
        return False

    def _refuses_replace(self, key: str) -> bool:
        stored = self._objects.read(key)
        if stored is None:
            raise ObjectChanged
        self._objects.replace(key, b"third", stored.version)
        try:
            self._objects.replace(key, b"fourth", stored.version)
        except ObjectChanged:
            return True
        return False

    def stage(self, checkpoint_id: int, chunks: Iterable[Buffer] | None, total: int) -> Staged:
        """Upload the sidecar; where depends on its size and on who was there before."""
        attempt = new_token()
        if chunks is None:
            return Staged(checkpoint_id, None, attempt)
        name = sidecar_name(checkpoint_id)
        if total <= PART_BYTES:
            data = b"".join(chunks)
            try:
                self._objects.create(self._sidecar(name), data)
                return Staged(checkpoint_id, name, attempt)
            except (ObjectExists, RequestConflict):
                chunks = [data]
        name = sidecar_name(checkpoint_id, attempt)
        self._objects.upload(self._sidecar(name), chunks)
        return Staged(checkpoint_id, name, attempt)

    def seal(self, staged: Staged, manifest: bytes) -> None:
        """Create the manifest only if absent."""
        try:
            self._objects.create(self._manifest(staged.checkpoint_id), manifest)
        except ObjectExists:
            raise AlreadySealed from None

    def confirm(self, checkpoint_id: int) -> None:
        """Nothing to do: an object that can be read is durable."""

    def discard(self, staged: Staged) -> None:
        """Remove the sidecar; it was created by this attempt alone."""
        if staged.sidecar is not None:
            self._objects.delete(self._sidecar(staged.sidecar))

    def create_sidecar(self, checkpoint_id: int, chunks: Sequence[Buffer], total: int) -> None:
        """Create under the plain name: at once when it is small, else in parts after a look that nobody was there.

        The look and the upload are two requests: two writers that store a large sidecar under one id at the same
        moment can overwrite each other. `stage` has no such gap.
        """
        key = self._sidecar(sidecar_name(checkpoint_id))
        if total > PART_BYTES:
            if self._objects.size(key) is not None:
                raise AlreadySealed
            self._objects.upload(key, chunks)
            return
        try:
            self._objects.create(key, b"".join(chunks))
        except ObjectExists:
            raise AlreadySealed from None

    def put_sidecar(self, name: str, chunks: Iterable[Buffer], total: int) -> None:
        """Upload; a small one that is not there yet takes one request."""
        key = self._sidecar(name)
        if total <= PART_BYTES:
            data = b"".join(chunks)
            chunks = [data]
            with contextlib.suppress(ObjectExists):
                self._objects.create(key, data)
                return
        self._objects.upload(key, chunks)

    def ids(self) -> list[int]:
        """List the manifests."""
        found = (manifest_id_of(name) for name in self._objects.list(self._key("manifests")))
        return sorted(id for id in found if id is not None)

    def read_manifest(self, checkpoint_id: int) -> Versioned | None:
        """Get a manifest; its version is its entity tag."""
        stored = self._objects.read(self._manifest(checkpoint_id))
        if stored is None or stored.data == _TOMBSTONE:
            return None
        return Versioned(stored.data, stored.version)

    def replace_manifest(self, checkpoint_id: int, manifest: bytes, version: str) -> None:
        """Put over exactly that entity tag."""
        try:
            self._objects.replace(self._manifest(checkpoint_id), manifest, version)
        except ObjectChanged:
            raise VersionChanged from None

    def read_pointer(self) -> int | None:
        """Get latest.json."""
        stored = self._objects.read(self._key("manifests", "latest.json"))
        return None if stored is None else _pointed_id(stored.data)

    def advance_pointer(self, checkpoint_id: int) -> int | None:
        """Put latest.json over the version that was read, as long as it does not go backwards."""
        key = self._key("manifests", "latest.json")
        data = canonical_json.compact({"checkpoint_id": checkpoint_id})
        while True:
            stored, self._pointer = self._pointer, None
            if stored is None or _points_to(stored, checkpoint_id):
                # What we remember serves to go on. That there is nothing to do, only the bucket can say.
                stored = self._objects.read(key)
            current = None if stored is None else _pointed_id(stored.data)
            if current is not None and current >= checkpoint_id:
                return current
            try:
                if stored is None:
                    self._objects.create(key, data)
                else:
                    self._pointer = StoredObject(data, self._objects.replace(key, data, stored.version))
                return current
            except (ObjectExists, ObjectChanged):
                continue

    def sidecars(self) -> dict[str, int]:
        """List the sidecars."""
        listed = self._objects.list(self._key("checkpoints"))
        return {name: size for name, size in listed.items() if sidecar_id_of(name) is not None}

    def sidecar_size(self, name: str) -> int | None:
        """Ask for the head."""
        return self._objects.size(self._sidecar(name))

    def read_sidecar(self, name: str, offset: int, length: int) -> bytes | None:
        """Get a range."""
        return self._objects.read_range(self._sidecar(name), offset, length)

    def remove_checkpoint(self, checkpoint_id: int, version: str | None, keep_sidecars: frozenset[str]) -> None:
        """Turn the manifest into a tombstone, which is conditional, and delete that, which need not be."""
        if version is not None:
            self.replace_manifest(checkpoint_id, _TOMBSTONE, version)
        elif self.read_manifest(checkpoint_id) is not None:
            raise VersionChanged
        self._objects.delete(self._manifest(checkpoint_id))
        for name in self.sidecars():
            if sidecar_id_of(name) == checkpoint_id and name not in keep_sidecars:
                self._objects.delete(self._sidecar(name))

    def remove_sidecar(self, name: str) -> bool:
        """Delete a sidecar."""
        present = self.sidecar_size(name) is not None
        self._objects.delete(self._sidecar(name))
        return present

    def sweep(self) -> int:
        """Delete what a probe left behind, unless it may still be going on; uploads are invisible until whole."""
        before = f"{self._clock.now_ms() - _PROBE_MS:015d}"
        probes = [name for name in self._objects.list(self._key(_PROBES)) if name < before]
        for name in probes:
            self._objects.delete(self._key(_PROBES, name))
        return len(probes)

    def read_document(self, name: str) -> Versioned | None:
        """Get an object; its version is its entity tag."""
        stored = self._objects.read(self._key(name))
        return None if stored is None else Versioned(stored.data, stored.version)

    def write_document(self, name: str, data: bytes, version: str | None) -> None:
        """Create, or put over exactly that entity tag."""
        try:
            if version is None:
                self._objects.create(self._key(name), data)
            else:
                self._objects.replace(self._key(name), data, version)
        except (ObjectExists, ObjectChanged):
            raise VersionChanged from None

    def write_segment(self, name: str, data: bytes, *, durable: bool) -> None:
        """Create; whoever created it before wrote the same bytes. An object that can be read is durable."""
        with contextlib.suppress(ObjectExists):
            self._objects.create(self._segment(name), data)

    def segments(self) -> dict[str, int]:
        """List the segments."""
        return dict(sorted(self._objects.list(self._key("history")).items()))

    def read_segment(self, name: str) -> bytes | None:
        """Get a segment."""
        stored = self._objects.read(self._segment(name))
        return None if stored is None else stored.data

    def remove_segment(self, name: str) -> None:
        """Delete a segment."""
        self._objects.delete(self._segment(name))

    def _segment(self, name: str) -> str:
        return self._key("history", name)

    def _manifest(self, checkpoint_id: int) -> str:
        return self._key("manifests", manifest_name(checkpoint_id))

    def _sidecar(self, name: str) -> str:
        return self._key("checkpoints", name)

    def _key(self, *parts: str) -> str:
        return self._prefix + "/".join(parts)


def _points_to(stored: StoredObject, checkpoint_id: int) -> bool:
    current = _pointed_id(stored.data)
    return current is not None and current >= checkpoint_id


def _pointed_id(data: bytes) -> int | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    id = value.get("checkpoint_id") if isinstance(value, dict) else None
    return id if type(id) is int and 0 <= id < 2**64 else None
