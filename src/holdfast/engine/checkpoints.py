"""Seals checkpoints: the sidecar with what is new, and the manifest at our own last id + 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.clock import Clock, new_uuid
from holdfast.core.contracts import Owner
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import CheckpointManifest, ParentRef
from holdfast.core.sidecar import BuiltSidecar, CapturedFile, Mover, StateCatalog, StateFile, build_sidecar
from holdfast.engine.recovery import APPROVED
from holdfast.engine.sequel import GIVEN_UP_AFTER, REPLAY
from holdfast.errors import Fenced, PipelineError
from holdfast.stores.store import DurableCheckpointStore

_STANDING = (APPROVED, REPLAY, GIVEN_UP_AFTER)


@dataclass(frozen=True)
class SealedCheckpoint:
    """What was sealed, and what it cost."""

    manifest: CheckpointManifest
    new_bytes: int
    total_bytes: int


class CheckpointWriter:
    """Writes the checkpoints of one owner, each on top of the one before."""

    def __init__(
        self,
        store: DurableCheckpointStore,
        owner: Owner,
        fence: CheckpointManifest,
        clock: Clock,
        *,
        inline_threshold: int,
    ) -> None:
        self._store = store
        self._owner = owner
        self._clock = clock
        self._inline_threshold = inline_threshold
        self._last = fence
        self._catalog = store.state_reader.catalog(fence)
        self._sidecar_sizes = store.sidecars()
        self._mover = Mover()

    @property
    def last(self) -> CheckpointManifest:
        """The newest manifest we sealed, or the fence."""
        return self._last

    @property
    def next_id(self) -> int:
        """The only id we may seal next: if somebody else takes it, we are fenced."""
        return self._last.checkpoint_id + 1

    def replaced(self) -> Fenced | None:
        """Return who sealed after us, None while the store is ours."""
        newest = self._store.newest_id()
        return self._store.fenced(newest) if newest > self._last.checkpoint_id else None

    def seal(
        self, draft: CheckpointManifest, progress: bytes, operators: Mapping[str, Sequence[CapturedFile]]
    ) -> SealedCheckpoint:
        """Write what is new and create the manifest. After this the epoch has happened."""
        built = build_sidecar(
            progress,
            operators,
            base=self._catalog,
            move=self._to_move(operators),
            inline_threshold=self._inline_threshold,
        )
        draft = draft.model_copy(
            update={
                **self._stamp(),
                "operator_states": built.operator_states,
                "dependencies": CheckpointDependencies(batches=built.batches, state_files=()),
            }
        )
        sealed = self._store.save_with_state(draft, built.chunks)
        self._remember(sealed, built)
        total = sum(file.size for file in self._catalog.files)
        return SealedCheckpoint(sealed, built.new_bytes + built.moved_bytes, total)

    def seal_again(self) -> CheckpointManifest:
        """Seal the newest checkpoint once more under the next id: a checkpoint of now, when no data flows.

        What a person approved, what is still to be replayed and what was given up stands until an epoch is sealed.
        """
        if self._last.epoch == 0:
            raise PipelineError("there is no checkpoint to take yet: no epoch was completed")
        standing = {key: value for key, value in (self._last.recovery or {}).items() if key in _STANDING}
        update = {"kind": "checkpoint", "identifier": None, "recovery": standing or None}
        again = self._last.model_copy(update={**self._stamp(), **update}, deep=True)
        self._last = self._store.save(again)
        return self._last

    def _stamp(self) -> dict[str, object]:
        """Return what is new in every manifest we seal."""
        return {
            "checkpoint_id": self.next_id,
            "timestamp_ms": self._clock.now_ms(),
            "uuid": new_uuid(self._clock),
            "timeline": self._owner.timeline,
            "generation": self._owner.generation,
            "parent": ParentRef(id=self._last.checkpoint_id, manifest_checksum=self._last.manifest_checksum or ""),
            "abandons": list(self._last.abandons),
            "manifest_checksum": None,
        }

    def updated(self, manifest: CheckpointManifest) -> None:
        """Note that statuses of the newest manifest were recorded."""
        if manifest.checkpoint_id == self._last.checkpoint_id:
            self._last = manifest

    def _remember(self, sealed: CheckpointManifest, built: BuiltSidecar) -> None:
        assert sealed.sidecar is not None
        self._last = sealed
        self._catalog = built.catalog(sealed.sidecar)
        live = self._catalog.live_bytes()
        self._sidecar_sizes = {name: size for name, size in self._sidecar_sizes.items() if name in live}
        self._sidecar_sizes[sealed.sidecar] = sum(memoryview(chunk).nbytes for chunk in built.chunks)

    def _to_move(self, operators: Mapping[str, Sequence[CapturedFile]]) -> dict[StateFile, bytes]:
        """Read the few live files that leave an old sidecar with this checkpoint."""
        wanted = {(file.sha256, file.size) for files in operators.values() for file in files}
        alive = StateCatalog(tuple(f for f in self._catalog.files if (f.sha256, f.size) in wanted))
        known = alive.locations()
        new_bytes = sum(size for digest, size in wanted if (digest, size) not in known)
        chosen = self._mover.choose(alive.files, alive.live_bytes(), self._sidecar_sizes, new_bytes)
        return {file: self._store.state_reader.read(file) for file in chosen}
