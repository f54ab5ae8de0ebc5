"""Where a pipeline keeps what belongs to the machine it runs on."""

import os

from holdfast.core.sources import Materials
from holdfast.stores.materials import FOLDER, open_materials
from holdfast.stores.store import DurableCheckpointStore


def local_base(store: DurableCheckpointStore, pipeline: str) -> str:
    """Return where local files go: beside the checkpoints, or below ./.holdfast when those are elsewhere."""
    place = store.describe()
    return os.path.abspath(place if "://" not in place else os.path.join(".holdfast", pipeline))


def spool_directory(store: DurableCheckpointStore, pipeline: str) -> str:
    """Return where rows wait for sinks whose target cannot hold them, a directory for each sink."""
    return os.path.join(local_base(store, pipeline), "spool")


def materials_beside(store: DurableCheckpointStore) -> Materials | None:
    """Return the files beside the checkpoints; None for a store that is only in memory."""
    place = store.describe()
    return None if place.startswith("memory://") else open_materials(f"{place.rstrip('/')}/{FOLDER}")


def materials_of(store: DurableCheckpointStore, pipeline: str) -> Materials:
    """Return the files beside the checkpoints; beside the working directory for a store that is only in memory."""
    return materials_beside(store) or open_materials(os.path.join(local_base(store, pipeline), FOLDER))
