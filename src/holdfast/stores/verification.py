"""Looking at a checkpoint before trusting it."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from uuid import UUID

from holdfast.clock import Clock
from holdfast.core import canonical_json, completeness
from holdfast.core.checksums import sidecar_digest, state_checksum
from holdfast.core.generations import Generations
from holdfast.core.manifest import CheckpointManifest, checksum_of
from holdfast.core.sidecar import StateFile
from holdfast.core.validation import (
    TAKEN_BACK,
    TOO_LATE,
    IntegrityFailure,
    ManifestWarning,
    RecoveryReport,
    ValidationResult,
)
from holdfast.errors import CorruptCheckpoint, ManifestFormatError, UnsupportedVersion
from holdfast.stores.medium import Medium
from holdfast.stores.state_reader import READ_BYTES, StateReader

ByteProgress = Callable[[int], None]


def parse_manifest(data: bytes, checkpoint_id: int) -> CheckpointManifest:
    """Parse a stored manifest and compare its checksum and its id; CorruptCheckpoint if they do not fit.

    A manifest without a checksum was written by another system: it parses, and only `import` trusts it.
    """
    try:
        document = canonical_json.parse_object(data, "manifest")
        _compare_checksum(document, checkpoint_id)
        manifest = CheckpointManifest.from_json_value(document)
    except UnsupportedVersion:
        raise
    except ManifestFormatError as error:
        raise ManifestFormatError(f"corrupt manifest of checkpoint {checkpoint_id}: {error}") from None
    if manifest.checkpoint_id != checkpoint_id:
        raise CorruptCheckpoint(
            f"corrupt manifest of checkpoint {checkpoint_id}: it says it is checkpoint {manifest.checkpoint_id}"
        )
    return manifest


def _compare_checksum(document: dict[str, Any], checkpoint_id: int) -> None:
    """Refuse a document that is not what was sealed, in whatever format: a flipped version digit is damage too."""
    expected = document.get("manifest_checksum")
    if expected is not None and expected != checksum_of(document):
        raise CorruptCheckpoint(
            f"corrupt manifest of checkpoint {checkpoint_id}: manifest checksum mismatch: "
            f"expected {expected}, got {checksum_of(document)}"
        )


class Verifier:
    """Checks one checkpoint, with or without reading its state."""

    def __init__(self, medium: Medium, vnode_count: int) -> None:
        self._medium = medium
        self._vnode_count = vnode_count
        self._reader = StateReader(medium)

    def check(
        self,
        checkpoint_id: int,
        *,
        digests: bool,
        on_bytes: ByteProgress = lambda count: None,
        known: set[StateFile] | None = None,
    ) -> ValidationResult:
        """Return the verdict. Storage that does not answer raises; damage is reported.

        Without `digests`: checksum, presence and lengths. With them: every byte the checkpoint depends on, except for
        files of earlier sidecars that are `known` to be sound; all those that turn out to be are added to them.
        """
        stored = self._medium.read_manifest(checkpoint_id)
        if stored is None:
            return _failed(checkpoint_id, f"checkpoint {checkpoint_id} not found: it has no manifest")
        try:
            manifest = parse_manifest(stored.data, checkpoint_id)
        except CorruptCheckpoint as error:
            return _failed(checkpoint_id, str(error))
        return self.judge(manifest, digests=digests, on_bytes=on_bytes, known=known)

    def judge(
        self,
        manifest: CheckpointManifest,
        *,
        digests: bool,
        on_bytes: ByteProgress = lambda count: None,
        known: set[StateFile] | None = None,
    ) -> ValidationResult:
        """As `check`, for a manifest that was read and parsed."""
        issues: list[ManifestWarning | IntegrityFailure] = [
            ManifestWarning(f"manifest validation: {finding}") for finding in manifest.validate(self._vnode_count)
        ]
        sound = set() if known is None else known
        issues += [IntegrityFailure(message) for message in self._failures(manifest, digests, on_bytes, sound)]
        return ValidationResult(manifest.checkpoint_id, tuple(issues))

    def _failures(
        self, manifest: CheckpointManifest, digests: bool, on_bytes: ByteProgress, known: set[StateFile]
    ) -> Iterator[str]:
        if manifest.manifest_checksum is None:
            yield "manifest has no checksum: another system wrote it; bring it in with 'holdfast import'"
        if manifest.withdrawn:
            yield TAKEN_BACK
        if manifest.epoch == 0 or manifest.checkpoint_id == 0:
            yield f"checkpoint_id is {manifest.checkpoint_id} and epoch is {manifest.epoch}: nothing to restore"
        yield from _damaged_inline(manifest)
        missing = list(self._missing(manifest))
        yield from missing
        if missing:
            return
        try:
            files = self._reader.catalog(manifest).files
        except CorruptCheckpoint as error:
            yield str(error)
            return
        yield from self._short(files)
        if digests:
            wrong = list(self._wrong_state_checksum(manifest, on_bytes))
            yield from wrong
            if not wrong:
                known.update(f for f in files if f.location is not None and f.location.sidecar == manifest.sidecar)
                yield from self._incomplete(manifest, files)
            yield from self._wrong_digests(manifest, files, on_bytes, known)

    def _incomplete(self, manifest: CheckpointManifest, files: Iterable[StateFile]) -> Iterator[str]:
        """Yield what a start from here would miss, although everything that is here is sound."""
        if manifest.sidecar is None:
            return
        try:
            progress = self._reader.progress(manifest.sidecar)
        except CorruptCheckpoint:
            return  # Another system's checkpoint has none: what that needs is not known here.
        yield from completeness.problems(progress.epoch, progress.parts, {file.path for file in files})

    def damage_in(
        self, manifest: CheckpointManifest, sidecars: Collection[str], on_bytes: ByteProgress = lambda count: None
    ) -> Iterator[str]:
        """Read what a checkpoint needs of some of its sidecars, and yield what is not as it was sealed."""
        if manifest.sidecar in sidecars:
            yield from self._wrong_state_checksum(manifest, on_bytes)
        others = set(sidecars) - {manifest.sidecar}
        try:
            files = self._reader.catalog(manifest).files
        except CorruptCheckpoint as error:
            yield str(error)
            return
        wanted = (file for file in files if file.location is not None and file.location.sidecar in others)
        yield from self._reader.damaged(wanted, on_bytes)

    def _missing(self, manifest: CheckpointManifest) -> Iterator[str]:
        """Yield what is absent: sidecars, and ranges that reach beyond the end of the own one."""
        for name in sorted(manifest.needed_sidecars - {manifest.sidecar}):
            if self._medium.sidecar_size(name) is None:
                yield f"sidecar {name} is needed but not found"
        if manifest.sidecar is None:
            yield from (f"operator '{o}' is external, but there is no sidecar" for o in _external(manifest))
            return
        size = self._medium.sidecar_size(manifest.sidecar)
        if size is None:
            yield f"sidecar {manifest.sidecar} is referenced by checksum but not found"
            return
        for operator in _external(manifest):
            state = manifest.operator_states[operator]
            if state.external_offset + state.external_length > size:
                yield (
                    f"operator '{operator}' ends at byte {state.external_offset + state.external_length}, "
                    f"sidecar {manifest.sidecar} has {size}"
                )

    def _short(self, files: Iterable[StateFile]) -> Iterator[str]:
        ends: dict[str, int] = {}
        for file in files:
            if file.location is not None:
                name = file.location.sidecar
                ends[name] = max(ends.get(name, 0), file.location.offset + file.size)
        for name, end in sorted(ends.items()):
            size = self._medium.sidecar_size(name)
            if size is None or size < end:
                yield f"sidecar {name} is needed up to byte {end}, has {'none' if size is None else size}"

    def _wrong_state_checksum(self, manifest: CheckpointManifest, on_bytes: ByteProgress) -> Iterator[str]:
        has_inline = any(state.state_b64 is not None for state in manifest.operator_states.values())
        if manifest.sidecar is None and not has_inline:
            return
        if manifest.state_checksum is None:
            yield "state has no checksum"
            return
        found = self.state_checksum(manifest, on_bytes)
        if found != manifest.state_checksum:
            shape = "inline" if manifest.sidecar is None else "mixed" if has_inline else "state.bin"
            yield f"{shape} checksum mismatch: expected {manifest.state_checksum}, got {found}"

    def state_checksum(self, manifest: CheckpointManifest, on_bytes: ByteProgress = lambda count: None) -> str | None:
        """Return the checksum of the state as it is stored, read piece by piece."""
        if manifest.sidecar is None:
            return state_checksum(manifest.operator_states, None)
        digest = sidecar_digest(manifest.operator_states)
        size = self._medium.sidecar_size(manifest.sidecar) or 0
        for start in range(0, size, READ_BYTES):
            piece = self._medium.read_sidecar(manifest.sidecar, start, min(READ_BYTES, size - start)) or b""
            digest.update(piece)
            on_bytes(len(piece))
        return digest.hexdigest()

    def _wrong_digests(
        self,
        manifest: CheckpointManifest,
        files: Iterable[StateFile],
        on_bytes: ByteProgress,
        known: set[StateFile],
    ) -> Iterator[str]:
        """Read what stands in earlier sidecars or inline; the own sidecar's bytes are in its checksum already."""
        elsewhere = [f for f in files if f.location is None or f.location.sidecar != manifest.sidecar]
        return self._reader.damaged((f for f in elsewhere if f not in known), on_bytes, known.add)


def _failed(checkpoint_id: int, message: str) -> ValidationResult:
    return ValidationResult(checkpoint_id, (IntegrityFailure(message),))


def _external(manifest: CheckpointManifest) -> list[str]:
    return sorted(name for name, state in manifest.operator_states.items() if state.external)


def _damaged_inline(manifest: CheckpointManifest) -> Iterator[str]:
    for operator, state in sorted(manifest.operator_states.items()):
        try:
            state.try_decode_inline()
        except ValueError as error:
            yield f"operator '{operator}': {error}"


GivenUp = Callable[[UUID | None, int | None, int], str | None]
"""Timeline, generation and epoch of a checkpoint -> who gave it up, although no manifest says so; None: nobody."""


def walk(
    medium: Medium,
    verifier: Verifier,
    clock: Clock,
    on_bytes: ByteProgress = lambda count: None,
    given_up: GivenUp = lambda timeline, generation, epoch: None,
) -> RecoveryReport:
    """Go from the newest checkpoint to the oldest and stop at the first that holds.

    An id that was abandoned is passed over, whether it holds or not: a recovery decided so before. Manifests say it,
    progress records where the manifest is damaged, and `given_up` where both are lost.
    When some did not hold and somebody sealed meanwhile, they may have been pruned under our eyes: walk again.
    """
    start = clock.monotonic()
    while True:
        ids = medium.ids()
        chosen, skipped = _Walk(medium, verifier, given_up).run(ids, on_bytes)
        if not skipped or medium.ids()[-1:] == ids[-1:]:
            return RecoveryReport(chosen, tuple(skipped), len(ids), clock.monotonic() - start)


class _Walk:
    """One way through the ids, newest first."""

    def __init__(self, medium: Medium, verifier: Verifier, given_up: GivenUp) -> None:
        self._medium, self._verifier, self._given_up = medium, verifier, given_up
        self._abandoned: dict[int, int] = {}
        self._ids: frozenset[int] = frozenset()
        self._generations = Generations()

    def run(self, ids: list[int], on_bytes: ByteProgress) -> tuple[int | None, list[tuple[int, str]]]:
        self._ids = frozenset(ids)
        skipped: list[tuple[int, str]] = []
        for id in reversed(ids):
            reason = self._reason_against(id, on_bytes)
            if reason is None:
                return id, skipped
            skipped.append((id, reason))
        return None, skipped

    def _reason_against(self, id: int, on_bytes: ByteProgress) -> str | None:
        """Return why a checkpoint is not chosen, None when it is; take note of what it abandons."""
        if id in self._abandoned:
            return f"abandoned by checkpoint {self._abandoned[id]}"
        stored = self._medium.read_manifest(id)
        if stored is None:
            self._abandon(id, self._abandons_in_progress(id))
            return f"checkpoint {id} not found: it has no manifest"
        try:
            # A manifest of a newer format raises: that is no damage to fall back from, its writer goes on elsewhere.
            manifest = parse_manifest(stored.data, id)
        except UnsupportedVersion:
            raise
        except CorruptCheckpoint as error:
            self._abandon(id, self._abandons_in_progress(id))
            return str(error)
        if self._generations.overtook(manifest):
            return TOO_LATE
        if (who := self._given_up(manifest.timeline, manifest.generation, manifest.epoch)) is not None:
            return who  # What it abandons does not count: whoever gave it up decided again.
        verdict = self._verifier.judge(manifest, digests=True, on_bytes=on_bytes)
        # A true manifest is a decision, even when its state is damaged.
        self._abandon(id, manifest.gives_up(self._ids))
        return None if verdict.valid else verdict.reason

    def _abandons_in_progress(self, id: int) -> list[int]:
        """Return what the sidecar of a lost manifest says was abandoned before it was written."""
        return [
            other
            for record in StateReader(self._medium).progress_records(id)
            if self._given_up(record.timeline, record.generation, record.epoch) is None
            for other in record.abandons
        ]

    def _abandon(self, by: int, ids: Iterable[int]) -> None:
        for id in ids:
            self._abandoned.setdefault(id, by)
