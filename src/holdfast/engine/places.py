"""Where a pipeline keeps what belongs to the machine it runs on."""

import os

from holdfast.stores.store import DurableCheckpointStore


def local_base(store: DurableCheckpointStore, pipeline: str) -> str:
    """Return where local files go: beside the checkpoints, or below ./.holdfast when those are elsewhere."""
    place = store.describe()
    return os.path.abspath(place if "://" not in place else os.path.join(".holdfast", pipeline))


def spool_directory(store: DurableCheckpointStore, pipeline: str) -> str:
    """Return where rows wait for sinks whose target cannot hold them, a directory for each sink."""
    return os.path.join(local_base(store, pipeline), "spool")
