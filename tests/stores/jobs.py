"""A pretended streaming job: operators whose state is files, checkpointed incrementally."""

import hashlib
from collections.abc import Mapping
from uuid import UUID

from holdfast import CheckpointManifest
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile, Mover, StateCatalog, StateFile, build_sidecar
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import manifest

TIMELINE = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def captured(path: str, data: bytes, claimed: bytes | None = None) -> CapturedFile:
    """Return a file to be sealed; `claimed` is what its digest is of, when that is a lie."""
    digest = hashlib.sha256(data if claimed is None else claimed).hexdigest()
    return CapturedFile(path, len(data), digest, lambda: data)


class Job:
    """State by operator and path, sealed again and again, each time with only what is new."""

    def __init__(self, store: DurableCheckpointStore, mover: Mover | None = None) -> None:
        self.store = store
        self.mover = mover
        self.state: dict[str, dict[str, bytes]] = {}
        self.catalog = StateCatalog()
        self.written: list[int] = []

    def write(self, operator: str, files: dict[str, bytes]) -> None:
        """Add or change files."""
        self.state.setdefault(operator, {}).update(files)

    def seal(self, id: int, parts: Mapping[str, bytes] | None = None) -> CheckpointManifest:
        """Seal the state as it is now; `parts` are further ones of the progress record."""
        recorded = {f"offsets/{id - 1}": f"range of epoch {id}".encode(), **(parts or {})}
        progress = ProgressRecord(TIMELINE, id, id, 1, parts=recorded)
        operators = {
            name: [captured(path, data) for path, data in files.items()] for name, files in self.state.items()
        }
        built = build_sidecar(progress.to_bytes(), operators, base=self.catalog, move=self._to_move())
        draft = manifest(
            id,
            timeline=TIMELINE,
            operator_states=built.operator_states,
            dependencies=CheckpointDependencies(batches=built.batches),
        )
        sealed = self.store.save_with_state(draft, built.chunks)
        assert sealed.sidecar is not None
        self.catalog = built.catalog(sealed.sidecar)
        self.written.append(sum(memoryview(chunk).nbytes for chunk in built.chunks))
        return sealed

    def _to_move(self) -> dict[StateFile, bytes]:
        if self.mover is None:
            return {}
        wanted = {
            (hashlib.sha256(data).hexdigest(), len(data)) for files in self.state.values() for data in files.values()
        }
        alive = StateCatalog(tuple(file for file in self.catalog.files if (file.sha256, file.size) in wanted))
        new_bytes = sum(size for _, size in wanted - alive.locations().keys())
        chosen = self.mover.choose(alive.files, alive.live_bytes(), self.store.sidecars(), new_bytes)
        return {file: self.store.state_reader.read(file) for file in chosen}

    def restored(self, id: int) -> dict[str, dict[str, bytes]]:
        """Read a checkpoint's whole state back, verified."""
        loaded = self.store.load_by_id(id)
        assert loaded is not None
        found: dict[str, dict[str, bytes]] = {}
        for file in self.store.state_reader.catalog(loaded).files:
            found.setdefault(file.operator, {})[file.path] = self.store.state_reader.read(file)
        return found
