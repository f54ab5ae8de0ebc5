"""Copies the files that checkpoints need beside them: copies of reference tables, snapshots of sources.

`materials.json` of a bucket says which files are there, with size and digest. It is written when the files are, and
before the manifest that needs them; whoever takes files from there compares each with what it says. A file of a
source that is gone from the pipeline's own store stays until every checkpoint in the bucket is younger than that.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Materials
from holdfast.core.tables import pins_of
from holdfast.engine.sync.copying import Vanished, in_parallel
from holdfast.engine.sync.documents import Documents
from holdfast.engine.sync.sides import Side
from holdfast.errors import CorruptCheckpoint
from holdfast.stores.verification import ByteProgress

INDEX = "materials.json"
_FILES = "files"
_GONE = "gone_ms"

Entry = dict[str, Any]
Index = dict[str, Entry]


def table_copies(manifests: Collection[CheckpointManifest]) -> set[str]:
    """Return where the copies of tables are that checkpoints name."""
    pins = (pin for manifest in manifests for pin in pins_of(manifest.table_offsets).values())
    return {pin.copy for pin in pins if pin.copy is not None}


def needed(names: Collection[str], manifest: CheckpointManifest) -> set[str]:
    """Return which of the files a checkpoint needs: its tables' copies, and all that its sources keep."""
    prefixes = (_sources_of(manifest), *(f"{copy}/" for copy in table_copies([manifest])))
    return {name for name in names if name.startswith(prefixes)}


class BucketMaterials:
    """The files of a bucket, with their digests. What was compared once in this process is not compared again."""

    def __init__(self, bucket: Side, clock: Clock) -> None:
        self._bucket, self._clock = bucket, clock
        self._document = Documents(bucket.store.medium, INDEX)
        self._compared: set[str] = set()

    def index(self) -> Index:
        """Return what is there."""
        found: Index = self._document.read().value.get(_FILES, {})
        return found

    # there

    def send(
        self, local: Materials, manifest: CheckpointManifest, on_bytes: ByteProgress, check: Callable[[], None]
    ) -> tuple[int, int]:
        """Bring the files that a checkpoint needs there, each read back; return how many and how many bytes.

        `check` raises when we may not write there.
        """
        index, names = self.index(), needed(local.names(), manifest)
        new: Index = {}
        with tempfile.TemporaryDirectory(prefix="holdfast-sync-") as scratch:

            def job(name: str) -> Callable[[], None]:
                return lambda: self._send_one(local, name, index.get(name), scratch, new, on_bytes)

            unknown = [name for name in sorted(names) if name not in self._compared or name not in index]
            if unknown:
                check()
            in_parallel(job(name) for name in unknown)
        self._compared = (self._compared & index.keys()) | names
        gone = {name for name in index if name.startswith(_sources_of(manifest)) and name not in names}
        if new or any(_GONE not in index[name] for name in gone):
            check()
            self._document.change(lambda value: {**value, _FILES: self._after(value.get(_FILES, {}), new, gone)})
        return len(new), sum(entry["size"] for entry in new.values())

    def _send_one(
        self, local: Materials, name: str, there: Entry | None, scratch: str, new: Index, on_bytes: ByteProgress
    ) -> None:
        path = _path_of(local, name, scratch)
        entry = entry_of(path)
        if there is not None and {key: there[key] for key in entry} == entry:
            return
        self._bucket.materials.put_file(name, path)
        with tempfile.TemporaryDirectory(prefix="holdfast-sync-") as back:
            _compare(_path_of(self._bucket.materials, name, back), name, entry)
        new[name] = entry
        on_bytes(entry["size"])

    def _after(self, files: Index, new: Index, gone: Collection[str]) -> Index:
        now = self._clock.now_ms()
        marked = {name: {_GONE: now, **entry} if name in gone else entry for name, entry in files.items()}
        return {**marked, **new}

    def remove_except(self, manifests: Collection[CheckpointManifest]) -> int:
        """Remove files that no checkpoint of the bucket can need; return how many."""
        copies = tuple(f"{copy}/" for copy in table_copies(manifests))
        sources = tuple({_sources_of(manifest) for manifest in manifests})
        oldest = min((manifest.timestamp_ms for manifest in manifests), default=0)

        def stays(name: str, entry: Entry) -> bool:
            return name.startswith(copies) or (name.startswith(sources) and entry.get(_GONE, oldest) >= oldest)

        unneeded = {name for name, entry in self.index().items() if not stays(name, entry)}
        if unneeded:
            self._document.change(
                lambda value: {**value, _FILES: {n: e for n, e in value.get(_FILES, {}).items() if n not in unneeded}}
            )
        for name in sorted(unneeded):
            self._bucket.materials.remove(name)
        return len(unneeded)

    # here

    def fetch(
        self,
        local: Materials,
        manifest: CheckpointManifest,
        on_bytes: ByteProgress,
        named: Callable[[str], str] = lambda name: name,
    ) -> tuple[int, int]:
        """Bring the files that a checkpoint needs here, each compared; return how many and how many bytes.

        `named` says under which name a file goes in here.
        """
        index, have = self.index(), set(local.names())
        wanted = {name: index[name] for name in needed(index, manifest)}
        missing = {name: entry for name, entry in wanted.items() if not self._has(local, named(name), entry, have)}

        def job(name: str, entry: Entry) -> Callable[[], None]:
            return lambda: self._take(local, name, named(name), entry, on_bytes)

        in_parallel(job(name, entry) for name, entry in sorted(missing.items()))
        self._compared = {f"{named(name)} {entry['sha256']}" for name, entry in wanted.items()}
        return len(missing), sum(entry["size"] for entry in missing.values())

    def _has(self, local: Materials, name: str, entry: Entry, have: Collection[str]) -> bool:
        if name not in have:
            return False
        if f"{name} {entry['sha256']}" in self._compared:
            return True
        with tempfile.TemporaryDirectory(prefix="holdfast-sync-") as scratch:
            return bool(entry_of(_path_of(local, name, scratch))["sha256"] == entry["sha256"])

    def _take(self, local: Materials, name: str, here: str, entry: Entry, on_bytes: ByteProgress) -> None:
        with tempfile.TemporaryDirectory(prefix="holdfast-sync-") as scratch:
            path = _path_of(self._bucket.materials, name, scratch)
            _compare(path, name, entry)
            local.put_file(here, path)
        on_bytes(entry["size"])


def _sources_of(manifest: CheckpointManifest) -> str:
    return f"{manifest.timeline}/sources/"


def _path_of(materials: Materials, name: str, scratch: str) -> str:
    try:
        return materials.local_copy(name, scratch)
    except FileNotFoundError:
        raise Vanished(f"{name} is gone from {materials.place}: it was removed meanwhile") from None


def entry_of(path: str) -> Entry:
    """Return what is said of a local file."""
    with open(path, "rb") as file:
        return {"size": os.stat(path).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _compare(path: str, name: str, entry: Mapping[str, Any]) -> None:
    found = entry_of(path)
    if any(found[key] != entry[key] for key in found):
        raise CorruptCheckpoint(f"{name} is not what was copied: its size or digest differs")
