"""Seals checkpoints: the sidecar with what is new, and the manifest at our own last id + 1."""

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from holdfast.clock import Clock, new_uuid
from holdfast.core.buffers import Buffer
from holdfast.core.contracts import Owner
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import REPLAY, CheckpointManifest, ParentRef
from holdfast.core.sidecar import BuiltSidecar, CapturedFile, Mover, StateCatalog, StateFile, build_sidecar
from holdfast.engine.branches import WENT_BACK
from holdfast.engine.recovery import APPROVED
from holdfast.engine.sequel import GIVEN_UP_AFTER
from holdfast.engine.witness import NO_WITNESS, Witness
from holdfast.errors import CorruptCheckpoint, Fenced, PipelineError, TransientStoreError
from holdfast.stores.store import DurableCheckpointStore

_STANDING = (APPROVED, REPLAY, GIVEN_UP_AFTER, WENT_BACK)
_log = logging.getLogger(__name__)


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
        beside: Executor | None = None,
        witness: Witness = NO_WITNESS,
    ) -> None:
        """Go on from a fence. What may wait until the next seal is done by `beside`, or at once."""
        self._store = store
        self._owner = owner
        self._clock = clock
        self._inline_threshold = inline_threshold
        self._last, self._began = fence, list(fence.began)
        self._in_doubt: CheckpointManifest | None = None
        self._catalog = store.state_reader.catalog(fence)
        self._sidecar_sizes = store.sidecars()
        self._mover = Mover()
        self._distrusted: set[StateFile] = set()
        self._hearing = threading.Lock()
        self._beside, self._witness = beside, witness
        self._waiting: Future[None] | None = None

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
        if newest <= self._last.checkpoint_id:
            return None
        fenced = self._store.fenced(newest)
        # What we sealed ourselves without getting to hear of it is no reason to believe in anybody else.
        found = fenced.owner.get("timeline"), fenced.owner.get("generation")
        return None if found == (str(self._owner.timeline), self._owner.generation) else fenced

    def seal(
        self, draft: CheckpointManifest, progress: bytes, operators: Mapping[str, Sequence[CapturedFile]]
    ) -> SealedCheckpoint:
        """Write what is new and create the manifest. After this the epoch has happened. First, `settle`."""
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
        self._witness.record(sealed, progress)
        total = sum(file.size for file in self._catalog.files)
        return SealedCheckpoint(sealed, built.new_bytes + built.moved_bytes, total)

    def seal_again(self) -> CheckpointManifest:
        """Seal the newest checkpoint once more under the next id: a checkpoint of now, when no data flows.

        What a person approved, what is still to be replayed and what was given up stands until an epoch is sealed.
        """
        self.settle()
        if self._last.epoch == 0:
            raise PipelineError("there is no checkpoint to take yet: no epoch was completed")
        standing = {key: value for key, value in (self._last.recovery or {}).items() if key in _STANDING}
        update = {"kind": "checkpoint", "identifier": None, "recovery": standing or None}
        self._in_doubt = self._last.model_copy(update={**self._stamp(), **update}, deep=True)
        self._resolve_doubt()
        return self._last

    def afterwards(self, work: Callable[[], None]) -> None:
        """Do what has to be done before the next seal, and not any sooner. What it raises, `settle` raises."""
        if self._beside is None:
            work()
        else:
            self._waiting = self._beside.submit(work)

    def settle(self) -> None:
        """Wait for what was put off, and for an answer that is still owed: only then `next_id` is certain."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.result()
        self._resolve_doubt()

    def _resolve_doubt(self) -> None:
        """Seal again what storage did not answer about: if it was sealed, its id would look like another writer's."""
        doubt, self._in_doubt = self._in_doubt, None
        if doubt is None:
            return
        try:
            sealed = self._store.save(doubt)
            self._witness.record(sealed)
            self._last = sealed
        except TransientStoreError:
            self._in_doubt = doubt
            raise

    def _stamp(self) -> dict[str, object]:
        """Return what is new in every manifest we seal."""
        return {
            "checkpoint_id": self.next_id,
            "timestamp_ms": self._clock.now_ms(),
            "uuid": new_uuid(self._clock),
            "timeline": self._owner.timeline,
            "generation": self._owner.generation,
            "began": self._began,
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
        with self._hearing:
            self._distrusted &= set(self._catalog.files)  # The others were written again, or are gone.
        live = self._catalog.live_bytes()
        self._sidecar_sizes = {name: size for name, size in self._sidecar_sizes.items() if name in live}
        self._sidecar_sizes[sealed.sidecar] = sum(memoryview(chunk).nbytes for chunk in built.chunks)

    def distrust(self, sidecars: Collection[str], sound: Collection[StateFile]) -> None:
        """Hear that sidecars are damaged, except for these files: what we cite of the rest is written again.

        It happens with the next epoch, from the files it captures. May be called on any thread.
        """
        with self._hearing:
            self._distrusted |= {
                file
                for file in self._catalog.files
                if file.location is not None and file.location.sidecar in sidecars and file not in sound
            }

    def _to_move(self, operators: Mapping[str, Sequence[CapturedFile]]) -> dict[StateFile, Buffer]:
        """Return the few live files that leave an old sidecar with this checkpoint, and all that are damaged."""
        captured = {(file.sha256, file.size): file for files in operators.values() for file in files}
        alive = StateCatalog(tuple(f for f in self._catalog.files if (f.sha256, f.size) in captured))
        known = alive.locations()
        new_bytes = sum(size for digest, size in captured if (digest, size) not in known)
        chosen = self._mover.choose(alive.files, alive.live_bytes(), self._sidecar_sizes, new_bytes)
        damaged = [file for file in alive.files if file in self._distrusted] if self._distrusted else []
        return {file: self._intact(file, captured[file.sha256, file.size]) for file in {*chosen, *damaged}}

    def _intact(self, file: StateFile, captured: CapturedFile) -> Buffer:
        """Return a file's bytes from the store, or what was captured of it if they are damaged there."""
        if file not in self._distrusted:
            try:
                return self._store.state_reader.read(file)
            except CorruptCheckpoint as error:
                _log.error("%s; it is written again, from the working directory", error)
        data = captured.open()
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise CorruptCheckpoint(
                f"{file.operator}/{file.path} is damaged in the store and in the working directory: start again, "
                "which goes back to a checkpoint that holds"
            )
        return data
