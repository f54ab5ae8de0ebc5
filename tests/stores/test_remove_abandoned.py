"""Removing what a fresh start gave up: all of that, the newest first, and nothing of what came since."""

from typing import Any

from holdfast.core.names import sidecar_id_of
from holdfast.engine.fencing import take_over
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import seal, state_of
from stores.places import BucketPlace, Place


def sidecars(store: DurableCheckpointStore) -> set[int | None]:
    return {sidecar_id_of(name) for name in store.sidecars()}


class Watched:
    """A medium that notes what is removed, in order."""

    def __init__(self, medium: Any) -> None:
        self._medium = medium
        self.removed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium, name)

    def remove_checkpoint(self, checkpoint_id: int, *arguments: Any) -> None:
        self.removed.append(checkpoint_id)
        self._medium.remove_checkpoint(checkpoint_id, *arguments)


def test_what_the_new_timeline_wrote_already_stays(memory: BucketPlace) -> None:
    """Loss without this: the first epoch of the new timeline is sealed without its state."""
    store = memory.open()
    seal(store, 1, 2, 3)
    fence = take_over(store, fresh=True).fence
    assert fence.checkpoint_id == 4
    for id in (4, 5):
        store.save_state_data(id, [state_of(id)])
    assert store.remove_abandoned(fence) == [1, 2, 3]
    assert sidecars(store) == {4, 5}


def test_what_is_left_of_lost_manifests_goes_too(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    place.delete(place.manifest(2))
    fence = take_over(store, fresh=True).fence
    store.remove_abandoned(fence)
    assert sidecars(store) == set()
    assert store.list_ids() == [fence.checkpoint_id]


def test_only_what_was_there_is_said_to_be_removed(memory: BucketPlace) -> None:
    store = memory.open()
    seal(store, 1, 2, 3)
    fence = take_over(store, fresh=True).fence
    memory.delete(memory.manifest(2))
    memory.delete(memory.sidecar(2))
    assert memory.open().remove_abandoned(fence) == [1, 3]


def test_the_newest_goes_first(place: Place) -> None:
    """Loss without this: after a crash the newest checkpoints are left without those whose bytes they need."""
    other = place.open()
    seal(other, 1, 2, 3)
    fence = take_over(other, fresh=True).fence
    watched = Watched(place.medium())
    place.open(medium=watched).remove_abandoned(fence)
    assert watched.removed == [3, 2, 1]


def test_one_that_changes_meanwhile_goes_all_the_same(place: Place) -> None:
    """Method: somebody names a checkpoint between our look at it and its removal."""
    other = place.open()
    seal(other, 1, 2)
    fence = take_over(other, fresh=True).fence
    named: list[int] = []

    def name() -> None:
        if not named:
            manifest = other.load_by_id(2)
            assert manifest is not None
            named.append(other.update_manifest(manifest.model_copy(update={"identifier": "kept?"})).checkpoint_id)

    assert place.interposed("remove_checkpoint", name).remove_abandoned(fence) == [1, 2]
    assert other.list_ids() == [3]
