"""Export a checkpoint from a store into one file, and import one that came from elsewhere."""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

from holdfast.clock import Clock, new_uuid
from holdfast.core.buffers import Buffer
from holdfast.core.checksums import sidecar_digest, state_checksum
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.entries import OperatorCheckpoint
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_name
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import PROGRESS_OPERATOR, CapturedFile, StateFile, build_sidecar
from holdfast.errors import (
    CorruptCheckpoint,
    DeserializationError,
    Fenced,
    InvalidRequest,
    UnsupportedVersion,
)
from holdfast.interfaces import carried_files, carried_replays
from holdfast.interfaces.archive import (
    Package,
    map_file,
    open_package,
    translated,
    verify_package,
    write_archive,
)
from holdfast.interfaces.inspection import is_start
from holdfast.interfaces.placing import Candidate, placed
from holdfast.interfaces.reports import ExportReceipt, ImportReceipt
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.verification import ByteProgress, parse_manifest

_ATTEMPTS = 5
_OUR_KEYS = (
    "uuid", "timeline", "generation", "parent", "abandons", "identifier", "dependencies", "sink_tokens", "recovery",
    "identity", "fingerprint",
)  # fmt: skip


# Export


def export_checkpoint(
    store: DurableCheckpointStore, manifest: CheckpointManifest, path: str, on_bytes: ByteProgress
) -> ExportReceipt:
    """Write a checkpoint with all the bytes it depends on; each byte is verified while it is read."""
    if is_start(manifest):
        raise InvalidRequest(f"checkpoint {manifest.checkpoint_id} has nothing to restore: export a later one")
    if manifest.manifest_checksum is None:
        raise CorruptCheckpoint(
            f"checkpoint {manifest.checkpoint_id} has no manifest checksum: bring it in with 'holdfast import' first"
        )
    incremental = manifest.dependencies is not None and bool(manifest.dependencies.batches)
    # The temporary file stands where the archive will: /tmp may be small, or memory.
    directory = os.path.dirname(os.path.abspath(path))
    replays = carried_replays.gathered(store, manifest)
    with (
        translated(f"cannot write {path}"),
        tempfile.TemporaryFile(dir=directory) as scratch,
        carried_files.gathered(store, [manifest, *(r.manifest for r in replays if r.manifest)], directory) as files,
    ):
        gatherer = _Gatherer(store, manifest, scratch, on_bytes)
        chunks, states = gatherer.rebuilt() if incremental else gatherer.copied()
        total = sum(memoryview(chunk).nbytes for chunk in chunks or ())
        complete = _self_contained(manifest, chunks, states, total)
        records = carried_replays.members(replays)
        size = write_archive(path, complete, chunks, files, carried_files.index_of(files), records)
    return ExportReceipt(
        store=store.describe(),
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        file=path,
        file_bytes=size,
        state_bytes=total,
        rebuilt=incremental,
        files=len(files),
        notes=tuple(carried_replays.missing(manifest, replays)),
    )


def _self_contained(
    manifest: CheckpointManifest,
    chunks: Sequence[Buffer] | None,
    states: Mapping[str, OperatorCheckpoint],
    total: int,
) -> CheckpointManifest:
    if chunks is None:
        return manifest
    update = {
        "operator_states": dict(states),
        "state_checksum": state_checksum(states, chunks),
        "dependencies": CheckpointDependencies(batches=(), state_files=(sidecar_name(manifest.checkpoint_id),)),
        "size": total,
    }
    return manifest.model_copy(update=update, deep=True).stamped()


class _Gatherer:
    """Collects the bytes of a checkpoint in a temporary file, and lends them from there."""

    def __init__(
        self,
        store: DurableCheckpointStore,
        manifest: CheckpointManifest,
        scratch: BinaryIO,
        on_bytes: ByteProgress,
    ) -> None:
        self._reader = store.state_reader
        self._sizes = store.sidecars()
        self._manifest = manifest
        self._scratch = scratch
        self._on_bytes = on_bytes

    def copied(self) -> tuple[Sequence[Buffer] | None, Mapping[str, OperatorCheckpoint]]:
        """Take the sidecar as it is: it holds everything."""
        if self._manifest.sidecar is None:
            return None, self._manifest.operator_states
        self._checked_sidecar(keep=True)
        return [self._mapped()], self._manifest.operator_states

    def rebuilt(self) -> tuple[Sequence[Buffer], Mapping[str, OperatorCheckpoint]]:
        """Build a sidecar without a base: the bytes of all earlier ones, as far as this checkpoint uses them."""
        states = self._manifest.operator_states
        files = self._reader.catalog(self._manifest).files
        places = self._spooled_files(file for file in files if file.location is not None)
        plain = self._spooled_plain({name for name in states if states[name].external} - {f.operator for f in files})
        content = self._mapped()
        operators: dict[str, list[CapturedFile]] = {}
        for file in files:
            if file.location is not None:
                start = places[file.sha256, file.size]
                operators.setdefault(file.operator, []).append(_captured(file, content[start : start + file.size]))
        built = build_sidecar(self._progress(), operators, inline_threshold=-1)
        return _with_plain(built.chunks, {**states, **built.operator_states}, content, plain)

    def _spooled_files(self, files: Iterable[StateFile]) -> dict[tuple[str, int], int]:
        """Write every distinct file once, verified; return where each starts."""
        places: dict[tuple[str, int], int] = {}
        for file in files:
            if (file.sha256, file.size) not in places:
                places[file.sha256, file.size] = self._spool(self._reader.stream(file))
        return places

    def _spooled_plain(self, operators: set[str]) -> dict[str, tuple[int, int]]:
        """Write the chunks of operators without an index; only the sidecar's own checksum vouches for them."""
        operators = operators - {PROGRESS_OPERATOR}
        if operators:
            self._checked_sidecar(keep=False)
        places = {}
        for name in sorted(operators):
            state = self._manifest.operator_states[name]
            pieces = self._reader.stream_range(
                self._manifest.sidecar or "", state.external_offset, state.external_length
            )
            places[name] = (self._spool(pieces), state.external_length)
        return places

    def _progress(self) -> bytes:
        data = self._reader.operator_bytes(self._manifest, PROGRESS_OPERATOR)
        try:
            ProgressRecord.from_bytes(data)
        except DeserializationError as error:
            raise CorruptCheckpoint(f"the progress record is damaged: {error}") from error
        return data

    def _checked_sidecar(self, *, keep: bool) -> None:
        """Read the own sidecar from end to end and compare its checksum."""
        name = self._manifest.sidecar or ""
        if name not in self._sizes:
            raise CorruptCheckpoint(f"sidecar {name} is missing")
        digest = sidecar_digest(self._manifest.operator_states)
        for piece in self._reader.stream_range(name, 0, self._sizes[name]):
            digest.update(piece)
            self._on_bytes(len(piece))
            if keep:
                self._scratch.write(piece)
        if digest.hexdigest() != self._manifest.state_checksum:
            raise CorruptCheckpoint(
                f"sidecar {name}: checksum mismatch: expected {self._manifest.state_checksum}, "
                f"got {digest.hexdigest()}"
            )

    def _spool(self, pieces: Iterable[bytes]) -> int:
        start = self._scratch.tell()
        for piece in pieces:
            self._scratch.write(piece)
            self._on_bytes(len(piece))
        return start

    def _mapped(self) -> memoryview:
        self._scratch.flush()
        return map_file(self._scratch)


def _captured(file: StateFile, data: memoryview) -> CapturedFile:
    return CapturedFile(file.path, file.size, file.sha256, lambda: data)


def _with_plain(
    chunks: Sequence[Buffer],
    states: dict[str, OperatorCheckpoint],
    content: memoryview,
    plain: Mapping[str, tuple[int, int]],
) -> tuple[list[Buffer], dict[str, OperatorCheckpoint]]:
    """Append the chunks of operators without an index."""
    result = list(chunks)
    position = sum(memoryview(chunk).nbytes for chunk in chunks)
    for name, (start, length) in plain.items():
        result.append(content[start : start + length])
        states[name] = OperatorCheckpoint.external(position, length)
        position += length
    return result, states


# Import


def import_checkpoint(
    store: DurableCheckpointStore, path: str, *, force: bool, clock: Clock, on_bytes: ByteProgress
) -> ImportReceipt:
    """Verify a checkpoint from elsewhere, then seal it as the newest of this store.

    Whoever writes to the store is fenced by that: its next seal meets an id that is taken. `force` takes a
    checkpoint of another timeline into a store that is not empty.
    """
    candidate = _trusted(open_package(path), clock)
    verdict = verify_package(candidate.manifest, candidate.state, on_bytes)
    if not verdict.valid:
        raise _damaged(path, "; ".join(failure.message for failure in verdict.failures) + _hint(candidate.manifest))
    for attempt in range(_ATTEMPTS):
        newest = store.newest_id()
        renamed, replays, notes = placed(candidate, store, newest, force, clock)
        try:
            # Before the seal: whoever finds the checkpoint finds what it needs.
            carried_files.put_down(store, candidate.files)
            carried_replays.put_down(store, replays)
            sealed = store.save_with_state(renamed, None if candidate.state is None else [candidate.state])
            return _receipt(store, candidate, sealed, first=newest == 0, notes=notes)
        except Fenced:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _damaged(source: str, reason: str) -> CorruptCheckpoint:
    return CorruptCheckpoint(f"{source} is damaged, nothing was imported: {reason}")


def _hint(manifest: CheckpointManifest) -> str:
    if manifest.dependencies is not None and manifest.dependencies.batches:
        return "; a checkpoint that builds on earlier ones travels with 'holdfast export'"
    return ""


def _trusted(package: Package, clock: Clock) -> Candidate:
    """Return the checkpoint with a true manifest checksum: its own, or ours if it is another system's."""
    try:
        unchecked = CheckpointManifest.from_json(package.manifest_bytes)
        manifest = parse_manifest(package.manifest_bytes, unchecked.checkpoint_id)
    except UnsupportedVersion:
        raise
    except CorruptCheckpoint as error:
        raise _damaged(package.source, str(error)) from None
    if manifest.manifest_checksum is None:
        return _adopted(manifest, package, clock)
    if package.state is not None and manifest.sidecar is None:
        raise _damaged(package.source, "there is a state.bin, but its manifest does not know it")
    carried_files.refuse_others(package.source, package.index, package.files)
    replays = carried_replays.opened(package.source, package.replays, manifest)
    notes = tuple(carried_replays.missing(manifest, replays))
    return Candidate(package.source, manifest, package.state, notes, files=package.files, replays=replays)


def _adopted(manifest: CheckpointManifest, package: Package, clock: Clock) -> Candidate:
    """Make another system's checkpoint ours: a uuid, checksums, and which file is its sidecar."""
    if package.from_archive or manifest.to_json_value().keys() & set(_OUR_KEYS):
        raise _damaged(
            package.source, "the manifest is Holdfast's but its checksum was removed: it may have been edited"
        )
    notes = ["another system wrote it: from now on a checksum covers its manifest"]
    computed = state_checksum(manifest.operator_states, None if package.state is None else [package.state])
    if manifest.state_checksum is None and computed is not None:
        notes.append("its state had no checksum, so nothing vouches for the bytes it came with")
    elif manifest.state_checksum not in (computed, _inline_only(manifest)):
        raise _damaged(package.source, f"state checksum mismatch: expected {manifest.state_checksum}, got {computed}")
    update: dict[str, Any] = {"state_checksum": computed, "uuid": new_uuid(clock)}
    if package.state is not None:
        own = sidecar_name(manifest.checkpoint_id)
        update["dependencies"] = CheckpointDependencies(batches=(), state_files=(own,))
        update["size"] = len(package.state)
    adopted = manifest.model_copy(update=update, deep=True).stamped()
    return Candidate(package.source, adopted, package.state, tuple(notes), foreign=True)


def _inline_only(manifest: CheckpointManifest) -> str | None:
    """Return the checksum of a manifest whose sidecar no operator refers to, as the other system computes it."""
    if any(state.external for state in manifest.operator_states.values()):
        return None
    return state_checksum(manifest.operator_states, None)


def _receipt(
    store: DurableCheckpointStore,
    candidate: Candidate,
    sealed: CheckpointManifest,
    *,
    first: bool,
    notes: Sequence[str],
) -> ImportReceipt:
    return ImportReceipt(
        store=store.describe(),
        checkpoint_id=sealed.checkpoint_id,
        original_id=candidate.manifest.checkpoint_id,
        epoch=sealed.epoch,
        timeline=sealed.timeline,
        generation=sealed.generation,
        name=sealed.identifier,
        state_bytes=len(candidate.state) if candidate.state is not None else 0,
        first=first,
        notes=(*candidate.notes, *notes),
        files=len(candidate.files),
    )
