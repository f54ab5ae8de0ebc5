"""The checkpoint store, the same on every medium."""

import builtins
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.buffers import Buffer
from holdfast.core.checksums import Digest, inline_digest, sidecar_digest
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import DEFAULT_VNODE_COUNT, CheckpointManifest
from holdfast.core.names import sidecar_id_of, sidecar_name
from holdfast.core.planning import RetentionPlan, merge_update
from holdfast.core.sidecar import StateFile
from holdfast.core.validation import RecoveryReport, ValidationResult
from holdfast.errors import (
    CheckpointNotFound,
    CheckpointStoreError,
    CorruptCheckpoint,
    Fenced,
    InvalidRequest,
    ManifestFormatError,
    TransientStoreError,
)
from holdfast.stores.history import History
from holdfast.stores.late_seal import refuse_late_seal
from holdfast.stores.medium import AlreadySealed, Medium, Staged, VersionChanged
from holdfast.stores.retention import Retention
from holdfast.stores.state_reader import StateReader
from holdfast.stores.verification import ByteProgress, GivenUp, Verifier, parse_manifest, walk

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StorageOptions:
    """What storage was opened with, for whoever opens files beside the checkpoints. Secrets may be among it."""

    values: Mapping[str, str] = field(repr=False)


class DurableCheckpointStore:
    """A `CheckpointStore` on a medium. `retain` checkpoints are kept after each save; None keeps all."""

    def __init__(
        self,
        medium: Medium,
        *,
        retain: int | None = 10,
        vnode_count: int = DEFAULT_VNODE_COUNT,
        clock: Clock = SYSTEM_CLOCK,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._medium = medium
        self.options = StorageOptions(options or {})
        self._retain = retain
        self._vnode_count = vnode_count
        self._clock = clock
        self._verifier = Verifier(medium, vnode_count)
        self._retention = Retention(medium, self._verifier)
        self.state_reader = StateReader(medium)
        self.history = History(medium)

    @property
    def medium(self) -> Medium:
        """Where the bytes are: for whoever copies checkpoints as they are."""
        return self._medium

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
        _refuse_nonsense(manifest)
        if state_data is None:
            self._hold_base(manifest)
            manifest = self._joined(manifest)
        else:
            _refuse_ranges_beyond(manifest, total)
        digest = sidecar_digest(manifest.operator_states)
        chunks = None if state_data is None else _hashed(state_data, digest)
        try:
            staged = self._medium.stage(manifest.checkpoint_id, chunks, total)
        except AlreadySealed:
            for _ in chunks or ():
                """Feed the digest all the same: it tells our own earlier success from another writer."""
            sealed = _stamped(manifest, sidecar_name(manifest.checkpoint_id), digest, total)
            return self._already_ours(sealed)
        return self._seal(staged, _stamped(manifest, staged.sidecar, digest, total))

    def _hold_base(self, manifest: CheckpointManifest) -> None:
        """Keep what a fence goes on from, against a prune that planned before; refuse if that was quicker.

        A prune removes a manifest only as the version that it read, and the manifest before any sidecar: after this
        nothing that the fence needs can go. The hold ends by itself once anything stands under the fence's id.
        """
        base = manifest.parent
        if manifest.kind != "fence" or base is None or not manifest.needed_sidecars:
            return
        if base.id + 1 == manifest.checkpoint_id:
            return  # No prune removes the newest one.
        try:
            self.amend(base.id, lambda current: _held(current, manifest.checkpoint_id))
        except CheckpointNotFound:
            if self.newest_id() < manifest.checkpoint_id:  # Else it was sealed before, or the seal is refused.
                what = (
                    f"checkpoint {base.id} was removed before checkpoint {manifest.checkpoint_id} could go on from it"
                )
                raise Fenced(f"{what}; nothing was written", checkpoint_id=manifest.checkpoint_id) from None

    def _joined(self, manifest: CheckpointManifest) -> CheckpointManifest:
        """Return the manifest with the checksum of the sidecar that was stored before it; refuse if none was."""
        name = manifest.sidecar
        if name is None:
            return manifest
        size = self._medium.sidecar_size(name)
        if size is None and self.newest_id() >= manifest.checkpoint_id:
            # Whoever sealed that id may well have pruned what we wanted to go on from: it is theirs now.
            raise self.fenced(manifest.checkpoint_id)
        if size is None:
            states = ", ".join(f"'{o}'" for o, state in sorted(manifest.operator_states.items()) if state.external)
            raise InvalidRequest(
                f"checkpoint {manifest.checkpoint_id} needs {name}{f' for {states}' if states else ''}, "
                "which is not stored; use save_with_state"
            )
        _refuse_ranges_beyond(manifest, size)
        if manifest.state_checksum is not None:
            return manifest
        return manifest.model_copy(update={"state_checksum": self._verifier.state_checksum(manifest)})

    def _seal(self, staged: Staged, sealed: CheckpointManifest) -> CheckpointManifest:
        try:
            self._medium.seal(staged, sealed.to_json().encode())
        except AlreadySealed:
            self._discard(staged)
            return self._already_ours(sealed)
        except TransientStoreError:
            # The request may have been carried out all the same: our own manifest there means it was.
            existing_or_none = self._same_decision(sealed)
            if existing_or_none is None:
                raise
            sealed = existing_or_none
        if (pointed := self._after_seal(sealed)) != sealed.checkpoint_id - 1:
            refuse_late_seal(self, sealed, pointed)
        return sealed

    def _discard(self, staged: Staged) -> None:
        """Remove what we staged, unless what stands under the id names it or cannot be read."""
        with contextlib.suppress(CheckpointStoreError):
            winner = self.load_by_id(staged.checkpoint_id)
            if winner is not None and staged.sidecar not in winner.needed_sidecars:
                self._medium.discard(staged)

    def _already_ours(self, sealed: CheckpointManifest) -> CheckpointManifest:
        existing = self._same_decision(sealed)
        if existing is None:
            raise self.fenced(sealed.checkpoint_id)
        self._after_seal(sealed)
        return existing

    def _same_decision(self, sealed: CheckpointManifest) -> CheckpointManifest | None:
        """Return the manifest that stands under the id if it says the same as ours."""
        try:
            existing = self.load_by_id(sealed.checkpoint_id)
        except CorruptCheckpoint:
            return None
        if existing is None or not _says_the_same(existing, sealed):
            return None
        self._medium.confirm(sealed.checkpoint_id)
        return existing

    def fenced(self, checkpoint_id: int, what: str = "") -> Fenced:
        """Return the error for whoever finds an id taken: it names who took it."""
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
            f"{what or f'checkpoint {checkpoint_id}'} was sealed by another writer"
            f"{f' ({known})' if known else ''}; {'stop' if what else 'nothing was written'}",
            checkpoint_id=checkpoint_id,
            owner=owner,
        )

    def _after_seal(self, sealed: CheckpointManifest) -> int | None:
        """Pointer and retention: neither can make a sealed checkpoint fail. Returns the id the pointer named before.

        None: nobody knows.
        """
        named_before = None
        try:
            named_before = self._medium.advance_pointer(sealed.checkpoint_id)
            # After a fence nothing goes: recovery may still want to read what the fence abandons.
            if self._retain is not None and sealed.kind != "fence" and len(self.list_ids()) > self._retain:
                self.prune(self._retain)
        except CheckpointStoreError as error:
            _log.warning("checkpoint %d is sealed, but tidying up failed: %s", sealed.checkpoint_id, error)
        return named_before

    def save_state_data(self, checkpoint_id: int, chunks: Sequence[Buffer]) -> None:
        """Create a sidecar under its plain name."""
        _refuse_id_zero(checkpoint_id)
        total = sum(memoryview(chunk).nbytes for chunk in chunks)
        try:
            self._medium.create_sidecar(checkpoint_id, chunks, total)
        except AlreadySealed:
            if not self._holds_same_bytes(sidecar_name(checkpoint_id), chunks, total):
                raise self.fenced(checkpoint_id) from None
            self._medium.confirm(checkpoint_id)

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
            if current.manifest_checksum is None:
                raise InvalidRequest(
                    f"checkpoint {checkpoint_id} was written by another system and is not sealed: "
                    "bring it in with 'holdfast import' first"
                )
            changed = change(current)
            if changed.to_json_value() == current.to_json_value():
                # It may be a replace of ours that was cut off before it was durable.
                self._medium.confirm(checkpoint_id)
                return current
            try:
                self._medium.replace_manifest(checkpoint_id, changed.to_json().encode(), stored.version)
                return changed
            except VersionChanged:
                continue

    # Reading

    def load_latest(self) -> CheckpointManifest | None:
        """Follow the pointer, unless it is behind: then, or when it leads nowhere, the listing answers."""
        id = self._medium.read_pointer()
        if id is None or self._was_used(id + 1):
            return self._newest_listed()
        return self.load_by_id(id) or self._newest_listed()

    def _was_used(self, checkpoint_id: int) -> bool:
        """Whether anything at all is left of an id; a sidecar without manifest may be followed by a checkpoint."""
        if self._medium.read_manifest(checkpoint_id) is not None:
            return True
        return self._medium.sidecar_size(sidecar_name(checkpoint_id)) is not None

    def _newest_listed(self) -> CheckpointManifest | None:
        """Read the newest of a listing; list again when one of those that were newer was pruned meanwhile."""
        while True:
            ids = self.list_ids()
            found = next((m for id in reversed(ids) if (m := self.load_by_id(id)) is not None), None)
            if (found is not None and found.checkpoint_id == ids[-1]) or self.list_ids() == ids:
                return found

    def load_by_id(self, checkpoint_id: int) -> CheckpointManifest | None:
        """Read, parse and compare the checksum."""
        stored = self._medium.read_manifest(checkpoint_id)
        return None if stored is None else parse_manifest(stored.data, checkpoint_id)

    def manifest_bytes(self, checkpoint_id: int) -> bytes | None:
        """Return a manifest as it stands, damaged or not, for a person to look at."""
        stored = self._medium.read_manifest(checkpoint_id)
        return None if stored is None else stored.data

    def list_ids(self) -> builtins.list[int]:
        """One listing, no manifest read."""
        return self._medium.ids()

    def newest_id(self) -> int:
        """Return the highest id that was ever taken, as far as listing and pointer know; 0 on a fresh store.

        The next id to seal is one more. The pointer counts too: it follows the seal, so an id it names was used
        even if its manifest was lost since. Sidecars count only when nothing else is left: otherwise the newest may
        be that of a writer about to seal, who must find its id taken by our fence, not passed over.
        """
        newest = max([0, self._medium.read_pointer() or 0, *self.list_ids()[-1:]])
        return newest or max((sidecar_id_of(name) or 0 for name in self._medium.sidecars()), default=0)

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
        self,
        checkpoint_id: int,
        on_bytes: ByteProgress = lambda count: None,
        known: set[StateFile] | None = None,
    ) -> ValidationResult:
        """Read every byte the checkpoint depends on.

        Files in `known` were found sound a moment ago and are not read again; those that turn out sound join them.
        """
        return self._verifier.check(checkpoint_id, digests=True, on_bytes=on_bytes, known=known)

    def examine_checkpoint(self, checkpoint_id: int) -> ValidationResult:
        """As `validate_checkpoint`, without reading state: checksum of the manifest, presence, lengths, indexes."""
        return self._verifier.check(checkpoint_id, digests=False)

    def glance_at(self, manifest: CheckpointManifest) -> ValidationResult:
        """Say whether everything that a checkpoint needs is there and long enough; its bytes are not read."""
        return self._verifier.judge(manifest, digests=False)

    def damage_in(
        self,
        manifest: CheckpointManifest,
        sidecars: Collection[str],
        on_bytes: ByteProgress = lambda count: None,
    ) -> builtins.list[str]:
        """Read what a checkpoint, sealed or not, needs of some of its sidecars; return what is damaged there."""
        return [*self._verifier.damage_in(manifest, sidecars, on_bytes)]

    def recover_latest_validated(
        self,
        on_bytes: ByteProgress = lambda count: None,
        given_up: GivenUp = lambda timeline, generation, epoch: None,
    ) -> RecoveryReport:
        """Walk newest to oldest. `given_up` knows of checkpoints that count no more although no manifest says so."""
        return walk(self._medium, self._verifier, self._clock, on_bytes, given_up)

    def prune(self, keep_count: int) -> int:
        """Remove old checkpoints; return how many."""
        return len(self.prune_ids(keep_count))

    def prune_ids(self, keep_count: int) -> builtins.list[int]:
        """As `prune`, but return which."""
        if keep_count < 0:
            raise InvalidRequest(f"cannot keep {keep_count} checkpoints")
        return self._retention.prune(keep_count)

    def held(self, checkpoint_id: int) -> contextlib.AbstractContextManager[None]:
        """Keep a checkpoint from being pruned by this process for a while."""
        return self._retention.held(checkpoint_id)

    def remove_abandoned(self, fence: CheckpointManifest) -> builtins.list[int]:
        """Remove what a fence that starts afresh gives up; return the ids that went."""
        return self._retention.remove_abandoned(fence)

    def plan_prune(self, keep_count: int) -> RetentionPlan:
        """Return what `prune` would do now, and do nothing."""
        return self._retention.plan(keep_count)

    def cleanup_orphans(self) -> int:
        """Remove sidecars nobody needs and leftovers of dead writers."""
        return self._retention.clean()


def _held(manifest: CheckpointManifest, until: int) -> CheckpointManifest:
    """Return a manifest that stays until an id is taken."""
    return manifest.model_copy(update={"held_until": max(until, manifest.held_until or 0)}, deep=True).stamped()


def _hashed(chunks: Iterable[Buffer], digest: Digest) -> Iterator[Buffer]:
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _stamped(manifest: CheckpointManifest, sidecar: str | None, digest: Digest, total: int) -> CheckpointManifest:
    """Return a deep copy of the manifest with what only the store knows: the sidecar's name and the checksums."""
    manifest = manifest.model_copy(update={"held_until": None})  # That of a base, if anything.
    if sidecar is None:
        checksum = manifest.state_checksum
        if checksum is None and manifest.sidecar is None:
            checksum = inline_digest(manifest.operator_states)
        return manifest.model_copy(update={"state_checksum": checksum}).stamped()
    batches = manifest.dependencies.batches if manifest.dependencies else ()
    update = {
        "state_checksum": digest.hexdigest(),
        "dependencies": CheckpointDependencies(batches=tuple(batches), state_files=(sidecar,)),
        "size": total if manifest.size is None else manifest.size,
    }
    return manifest.model_copy(update=update).stamped()


def _says_the_same(existing: CheckpointManifest, ours: CheckpointManifest) -> bool:
    """Whether `existing` is what we wanted to seal, perhaps with a name or commits that were recorded since."""
    statuses, epochs = existing.sink_commit_statuses, existing.sink_epochs
    return (
        _decision(existing) == _decision(ours)
        and all(s in statuses and statuses[s].progress >= o.progress for s, o in ours.sink_commit_statuses.items())
        and all(epochs.get(sink, -1) >= epoch for sink, epoch in ours.sink_epochs.items())
        and ours.identifier in (None, existing.identifier)
    )


def _decision(manifest: CheckpointManifest) -> dict[str, object]:
    """Return what never changes in a manifest, leaving out under which name an attempt put the sidecar."""
    document = manifest.to_json_value()
    for key in ("manifest_checksum", "sink_commit_statuses", "sink_epochs", "identifier", "held_until"):
        document.pop(key, None)
    if manifest.dependencies is not None:
        document["dependencies"] = [
            list(manifest.dependencies.batches),
            len(manifest.dependencies.state_files),
        ]
    return document


def _refuse_id_zero(checkpoint_id: int) -> None:
    if not 0 < checkpoint_id < 2**64:
        raise InvalidRequest(f"checkpoint id {checkpoint_id} is out of range: ids start at 1")


def _refuse_nonsense(manifest: CheckpointManifest) -> None:
    """Refuse what could be written and not be read back: `model_copy` and `recovery` take values unchecked."""
    _refuse_id_zero(manifest.checkpoint_id)
    try:
        CheckpointManifest.from_json(manifest.to_json())
    except (ManifestFormatError, ValueError, TypeError) as error:
        raise InvalidRequest(
            f"manifest of checkpoint {manifest.checkpoint_id} cannot be read back: {error}"
        ) from None


def _refuse_ranges_beyond(manifest: CheckpointManifest, total: int) -> None:
    for operator, state in manifest.operator_states.items():
        if state.external and state.external_offset + state.external_length > total:
            raise InvalidRequest(
                f"operator '{operator}' is said to end at byte "
                f"{state.external_offset + state.external_length} of a sidecar of {total}"
            )
