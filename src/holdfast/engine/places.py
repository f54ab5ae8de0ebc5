"""Where a pipeline keeps what belongs to the machine it runs on."""

import os
from dataclasses import dataclass

from holdfast.core.sources import Materials
from holdfast.stores.materials import FOLDER, open_materials
from holdfast.stores.store import DurableCheckpointStore

_SPOOL = "spool"


def local_base(store: DurableCheckpointStore, pipeline: str) -> str:
    """Return where local files go: beside the checkpoints, or below ./.holdfast when those are elsewhere."""
    place = store.describe()
    return os.path.abspath(place if "://" not in place else os.path.join(".holdfast", pipeline))


@dataclass(frozen=True)
class SpoolRoot:
    """Where rows wait for sinks whose target cannot hold them, a folder for each sink."""

    directory: str
    copies: Materials | None
    """The same beside checkpoints in object storage: the next process may run on another machine."""

    def of(self, sink: str) -> tuple[str, Materials | None]:
        """Return the places of one sink."""
        return os.path.join(self.directory, sink), None if self.copies is None else self.copies.below(sink)


def spool_root(store: DurableCheckpointStore, pipeline: str) -> SpoolRoot:
    """Return where rows wait."""
    copies = _files_beside(store, _SPOOL) if "://" in store.describe() else None
    return SpoolRoot(os.path.join(local_base(store, pipeline), _SPOOL), copies)


def materials_beside(store: DurableCheckpointStore) -> Materials | None:
    """Return the files beside the checkpoints; None for a store that is only in memory."""
    return _files_beside(store, FOLDER)


def _files_beside(store: DurableCheckpointStore, folder: str) -> Materials | None:
    place = store.describe()
    if place.startswith("memory://"):
        return None
    return open_materials(f"{place.rstrip('/')}/{folder}", store.options.values)


def materials_of(store: DurableCheckpointStore, pipeline: str) -> Materials:
    """Return the files beside the checkpoints; beside the working directory for a store that is only in memory."""
    return materials_beside(store) or open_materials(os.path.join(local_base(store, pipeline), FOLDER))
