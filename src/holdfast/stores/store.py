"""The checkpoint store, the same on every medium."""

import builtins
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.buffers import Buffer
from holdfast.core.checksums import Digest, inline_digest, sidecar_digest
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import DEFAULT_VNODE_COUNT, CheckpointManifest
from holdfast.core.names import sidecar_name
from holdfast.core.planning import merge_update
from holdfast.core.validation import RecoveryReport, ValidationResult
from holdfast.errors import (
    CheckpointNotFound,
    CheckpointStoreError,
    CorruptCheckpoint,
    Fenced,
    InvalidRequest,
    TransientStoreError,
)
from holdfast.stores.medium import AlreadySealed, Medium, Staged, VersionChanged
from holdfast.stores.retention import Retention
from holdfast.stores.state_reader import StateReader
from holdfast.stores.verification import ByteProgress, Verifier, parse_manifest, walk

_log = logging.getLogger(__name__)


class DurableCheckpointStore:
    """A `CheckpointStore` on a medium. `retain` checkpoints are kept after each save; None keeps all."""

    def __init__(
        self,
        medium: Medium,
        *,
        retain: int | None = 10,
        vnode_count: int = DEFAULT_VNODE_COUNT,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._medium = medium
        self._retain = retain
        self._vnode_count = vnode_count
        self._clock = clock
        self._verifier = Verifier(medium, vnode_count)
        self._retention = Retention(medium, self._verifier)
        self.state_reader = StateReader(medium)

    def describe(self) -> str:
        """Return where the store is, fit for a message."""
        return self._medium.describe()

    def vnode_count(self) -> int:
        """Return the expected number of state partitions."""
        return self._vnode_count

    # Writing

    def save(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Seal a manifest without a sidecar of its own."""
        return self.save_with_state(manifest, None)

    def save_with_state(
        self, manifest: CheckpointManifest, state_data: Sequence[Buffer] | None
    ) -> CheckpointManifest:
        """Sidecar first, then the manifest, then the pointer."""
        total = sum(memoryview(chunk).nbytes for chunk in state_data or ())
        _refuse_nonsense(manifest, None if state_data is None else total)
        digest = sidecar_digest(manifest.operator_states)
        chunks = None if state_data is None else _hashed(state_data, digest)
        try:
            staged = self._medium.stage(manifest.checkpoint_id, chunks, total)
        except AlreadySealed:
            for _ in chunks or ():
                """Feed the digest all the same: it tells our own earlier success from another writer."""
            sealed = _stamped(manifest, sidecar_name(manifest.checkpoint_id), digest, total)
            return self._already_ours(sealed)
        sealed = _stamped(manifest, staged.sidecar, digest, total)
        sealed = self._seal(staged, sealed)
        self._after_seal(sealed.checkpoint_id)
        return sealed

    def _seal(self, staged: Staged, sealed: CheckpointManifest) -> CheckpointManifest:
        try:
            self._medium.seal(staged, sealed.to_json().encode())
            return sealed
        except AlreadySealed:
            existing = self._already_ours(sealed, on_foreign=lambda: self._medium.discard(staged))
            if existing.sidecar != staged.sidecar:
                self._medium.discard(staged)
            return existing
        except TransientStoreError:
            # The request may have been carried out all the same: our own manifest there means it was.
            existing_or_none = self._same_decision(sealed)
            if existing_or_none is None:
                raise
            return existing_or_none

    def _already_ours(
        self, sealed: CheckpointManifest, on_foreign: Callable[[], None] = lambda: None
    ) -> CheckpointManifest:
        existing = self._same_decision(sealed)
        if existing is None:
            on_foreign()
            raise self._fenced(sealed.checkpoint_id)
        self._after_seal(sealed.checkpoint_id)
        return existing

    def _same_decision(self, sealed: CheckpointManifest) -> CheckpointManifest | None:
        """Return the manifest that stands under the id if it says the same as ours."""
        try:
            existing = self.load_by_id(sealed.checkpoint_id)
        except CorruptCheckpoint:
            return None
        return existing if existing is not None and _decision(existing) == _decision(sealed) else None

    def _fenced(self, checkpoint_id: int) -> Fenced:
        owner: dict[str, object] = {}
        try:
            if (winner := self.load_by_id(checkpoint_id)) is not None:
                owner = {
                    "timeline": str(winner.timeline) if winner.timeline else None,
                    "generation": winner.generation,
                    "epoch": winner.epoch,
                    "timestamp_ms": winner.timestamp_ms,
                }
        except CheckpointStoreError:
            pass  # The winner's manifest is only for the message.
        known = ", ".join(f"{key} {value}" for key, value in owner.items() if value is not None)
        return Fenced(
            f"checkpoint {checkpoint_id} was sealed by another writer{f' ({known})' if known else ''}; "
            "nothing was written",
            checkpoint_id=checkpoint_id,
            owner=owner,
        )

    def _after_seal(self, checkpoint_id: int) -> None:
        """Pointer and retention: neither can make a sealed checkpoint fail."""
        try:
            self._medium.advance_pointer(checkpoint_id)
            if self._retain is not None and len(self.list_ids()) > self._retain:
                self.prune(self._retain)
        except CheckpointStoreError as error:
            _log.warning("checkpoint %d is sealed, but tidying up failed: %s", checkpoint_id, error)

    def save_state_data(self, checkpoint_id: int, chunks: Sequence[Buffer]) -> None:
        """Create a sidecar under its plain name."""
        _refuse_id_zero(checkpoint_id)
        total = sum(memoryview(chunk).nbytes for chunk in chunks)
        try:
            self._medium.create_sidecar(checkpoint_id, chunks, total)
        except AlreadySealed:
            if not self._holds_same_bytes(sidecar_name(checkpoint_id), chunks, total):
                raise self._fenced(checkpoint_id) from None

    def _holds_same_bytes(self, name: str, chunks: Iterable[Buffer], total: int) -> bool:
        if self._medium.sidecar_size(name) != total:
            return False
        offset = 0
        for chunk in chunks:
            length = memoryview(chunk).nbytes
            if self._medium.read_sidecar(name, offset, length) != bytes(chunk):
                return False
            offset += length
        return True

    def update_manifest(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Merge statuses, sink epochs and a name into what stands there."""
        return self.amend(manifest.checkpoint_id, lambda current: merge_update(current, manifest))

    def set_identifier(self, checkpoint_id: int, identifier: str | None) -> CheckpointManifest:
        """Name a checkpoint, which pins it, or take its name away."""
        return self.amend(
            checkpoint_id,
            lambda current: current.model_copy(update={"identifier": identifier}, deep=True).stamped(),
        )

    def amend(
        self, checkpoint_id: int, change: Callable[[CheckpointManifest], CheckpointManifest]
    ) -> CheckpointManifest:
        """Apply `change` to a manifest, again and again until nobody else changed it in between."""
        while True:
            stored = self._medium.read_manifest(checkpoint_id)
            if stored is None:
                raise CheckpointNotFound(checkpoint_id, "it may have been pruned")
            current = parse_manifest(stored.data, checkpoint_id)
            changed = change(current)
            if changed.to_json_value() == current.to_json_value():
                return current
            try:
                self._medium.replace_manifest(checkpoint_id, changed.to_json().encode(), stored.version)
                return changed
            except VersionChanged:
                continue

    # Reading

    def load_latest(self) -> CheckpointManifest | None:
        """Follow the pointer, then look whether somebody sealed more since it was written."""
        id = self._medium.read_pointer()
        found = None if id is None else self.load_by_id(id)
        if found is None:
            return self._newest_listed()
        while (newer := self.load_by_id(found.checkpoint_id + 1)) is not None:
            found = newer
        return found

    def _newest_listed(self) -> CheckpointManifest | None:
        for id in reversed(self.list_ids()):
            if (manifest := self.load_by_id(id)) is not None:
                return manifest
        return None

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """Read, parse and compare the checksum."""
        stored = self._medium.read_manifest(checkpoint_id)
        return None if stored is None else parse_manifest(stored.data, checkpoint_id)

    def list_ids(self) -> builtins.list[int]:
        """One listing, no manifest read."""
        return self._medium.ids()

    def newest_id(self) -> int:
        """Return the highest id that was ever taken, as far as listing and pointer know; 0 on a fresh store.

        The next id to seal is one more. The pointer counts too: it follows the seal, so an id it names was used
        even if its manifest was lost since.
        """
        return max([0, self._medium.read_pointer() or 0, *self.list_ids()[-1:]])

    def list(self) -> builtins.list[tuple[int, int]]:
        """Read every manifest; damaged ones are left out."""
        return [(m.checkpoint_id, m.epoch) for m in self.manifests()]

    def manifests(self) -> Iterator[CheckpointManifest]:
        """Yield every readable manifest, oldest first."""
        for id in self.list_ids():
            try:
                manifest = self.load_by_id(id)
            except CorruptCheckpoint:
                continue
            if manifest is not None:
                yield manifest

    def load_state_data(self, checkpoint_id: int) -> bytes | None:
        """Return the sidecar that the manifest names, or the one under the plain name."""
        try:
            manifest = self.load_by_id(checkpoint_id)
        except CorruptCheckpoint:
            manifest = None
        name = (manifest.sidecar if manifest else None) or sidecar_name(checkpoint_id)
        size = self._medium.sidecar_size(name)
        return None if size is None else self._medium.read_sidecar(name, 0, size)

    def sidecars(self) -> dict[str, int]:
        """Return every sidecar and its size."""
        return self._medium.sidecars()

    # Judging and tidying

    def validate_checkpoint(
        self, checkpoint_id: int, on_bytes: ByteProgress = lambda count: None
    ) -> ValidationResult:
        """Read every byte the checkpoint depends on."""
        return self._verifier.check(checkpoint_id, digests=True, on_bytes=on_bytes)

    def recover_latest_validated(self, on_bytes: ByteProgress = lambda count: None) -> RecoveryReport:
        """Walk newest to oldest."""
        return walk(self._medium, self._verifier, self._clock, on_bytes)

    def prune(self, keep_count: int) -> int:
        """Remove old checkpoints; return how many."""
        return len(self.prune_ids(keep_count))

    def prune_ids(self, keep_count: int) -> builtins.list[int]:
        """As `prune`, but return which."""
        if keep_count < 0:
            raise InvalidRequest(f"cannot keep {keep_count} checkpoints")
        return self._retention.prune(keep_count)

    def cleanup_orphans(self) -> int:
        """Remove sidecars nobody needs and leftovers of dead writers."""
        return self._retention.clean()


def _hashed(chunks: Iterable[Buffer], digest: Digest) -> Iterator[Buffer]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _stamped(manifest: CheckpointManifest, sidecar: str | None, digest: Digest, total: int) -> CheckpointManifest:
    """Return the manifest with what only the store knows: the sidecar's name and the checksums."""
    if sidecar is None:
        checksum = manifest.state_checksum
        if checksum is None and manifest.sidecar is None:
            checksum = inline_digest(manifest.operator_states)
        return manifest.model_copy(update={"state_checksum": checksum}, deep=True).stamped()
    batches = manifest.dependencies.batches if manifest.dependencies else ()
    update = {
        "state_checksum": digest.hexdigest(),
        "dependencies": CheckpointDependencies(batches=tuple(batches), state_files=(sidecar,)),
        "size": total if manifest.size is None else manifest.size,
    }
    return manifest.model_copy(update=update, deep=True).stamped()


def _decision(manifest: CheckpointManifest) -> dict[str, object]:
    """Return what a manifest says, leaving out under which name an attempt put the sidecar."""
    document = manifest.to_json_value()
    document.pop("manifest_checksum", None)
    if manifest.dependencies is not None:
        document["dependencies"] = [
            list(manifest.dependencies.batches),
            len(manifest.dependencies.state_files),
        ]
    return document


def _refuse_id_zero(checkpoint_id: int) -> None:
    if not 0 < checkpoint_id < 2**64:
        raise InvalidRequest(f"checkpoint id {checkpoint_id} is out of range: ids start at 1")


def _refuse_nonsense(manifest: CheckpointManifest, total: int | None) -> None:
    _refuse_id_zero(manifest.checkpoint_id)
    if total is None:
        return
    for operator, state in manifest.operator_states.items():
        if state.external and state.external_offset + state.external_length > total:
            raise InvalidRequest(
                f"operator '{operator}' is said to end at byte "
                f"{state.external_offset + state.external_length} of a sidecar of {total}"
            )
