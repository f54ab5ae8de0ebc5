"""From what a person typed to a service on the store that is there."""

import os

from holdfast.core.manifest import DEFAULT_VNODE_COUNT
from holdfast.errors import CorruptCheckpoint, StoreConfigurationError
from holdfast.interfaces.service import CheckpointService
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store


def open_service(url: str, *, write: bool = False, create: bool = False) -> CheckpointService:
    """Open the store at a path or URL.

    Nothing is written unless `write`, and a store is made where there is none only if `create`. Checkpoints are
    judged by the number of state partitions of the pipeline that wrote here last, and never pruned on the side.
    """
    try:
        vnode_count = _vnode_count(_open_existing(url))
    except StoreConfigurationError:
        if not create:
            raise
        vnode_count = DEFAULT_VNODE_COUNT
    store = open_store(url, retain=None, vnode_count=vnode_count, read_only=not write)
    return CheckpointService(store)


def _open_existing(url: str) -> DurableCheckpointStore:
    try:
        return open_store(url, retain=None, read_only=True)
    except StoreConfigurationError as error:
        if "://" not in url and os.path.basename(os.path.abspath(url)) == "checkpoints":
            parent = os.path.dirname(os.path.abspath(url))
            raise StoreConfigurationError(f"{error}; did you mean {parent}?") from None
        if "://" not in url and os.path.isdir(url):
            raise StoreConfigurationError(f"{error}: a store is a directory that holds checkpoints/") from None
        raise


def _vnode_count(store: DurableCheckpointStore) -> int:
    """Return what the newest readable manifest says."""
    for id in reversed(store.list_ids()):
        try:
            manifest = store.load_by_id(id)
        except CorruptCheckpoint:
            continue
        if manifest is not None and manifest.vnode_count:
            return manifest.vnode_count
    return store.vnode_count()
