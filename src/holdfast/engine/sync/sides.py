"""The two sides of a copy: the pipeline's own store, and a bucket. Both are stores, with files beside them."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.core.sources import Materials
from holdfast.engine.places import materials_of
from holdfast.stores.materials import FOLDER, open_materials
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_medium


@dataclass(frozen=True)
class Side:
    """A store, and what its checkpoints need beside it."""

    store: DurableCheckpointStore
    materials: Materials

    def __str__(self) -> str:
        return self.store.describe()


def local_side(store: DurableCheckpointStore, pipeline: str) -> Side:
    """Return the pipeline's own store as a side."""
    return Side(store, materials_of(store, pipeline))


def bucket_side(url: str, options: Mapping[str, str] | None, vnode_count: int) -> Side:
    """Return a bucket as a side. Nothing is asked and nothing written: whoever writes first makes it ready."""
    medium = open_medium(url, options or {}, read_only=False)
    store = DurableCheckpointStore(medium, retain=None, vnode_count=vnode_count)
    return Side(store, open_materials(f"{store.describe().rstrip('/')}/{FOLDER}", options))
