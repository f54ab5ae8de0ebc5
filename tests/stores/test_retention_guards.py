"""What a prune must not lose, each told by the loss it would be."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import CheckpointManifest, Fenced, TransientStoreError
from holdfast.core.manifest import ParentRef
from holdfast.core.names import sidecar_name
from holdfast.stores.medium import Medium
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import flipped, seal, state_of
from stores.jobs import Job
from stores.places import Place


class Before:
    """A medium on which something happens before each of some calls; it hears their arguments."""

    def __init__(self, medium: Medium, call: str, action: Callable[..., object]) -> None:
        self._medium, self._call, self._action = medium, call, action

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._medium, name)
        if name != self._call:
            return called

        def acting(*arguments: Any) -> Any:
            self._action(*arguments)
            return called(*arguments)

        return acting


def loaded(store: DurableCheckpointStore, id: int) -> CheckpointManifest:
    manifest = store.load_by_id(id)
    assert manifest is not None
    return manifest


def chained(store: DurableCheckpointStore, last: int) -> Job:
    """Seal a chain in which each checkpoint needs the bytes of all before it."""
    job = Job(store)
    for id in range(1, last + 1):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    return job


def fence(store: DurableCheckpointStore, of: int, id: int, **fields: Any) -> CheckpointManifest:
    """Seal a checkpoint again, as a start does."""
    return store.save(loaded(store, of).model_copy(update={"checkpoint_id": id, "kind": "fence", **fields}))


def owing(epoch: int, id: int) -> dict[str, Any]:
    return {"recovery": {"replay": [{"epoch": epoch, "checkpoint_id": id}]}, "abandons": [id]}


# What is still to be replayed


def test_what_the_newest_fence_still_has_to_replay_stays(store: DurableCheckpointStore, place: Place) -> None:
    """A crash loop: eleven starts that died before the replay, and then somebody prunes because the disk is full."""
    seal(store, 1, 2, 3)
    place.edit(place.sidecar(3), lambda data: flipped(data, len(data) - 1))
    for id in range(4, 15):
        fence(store, 2, id, **owing(3, 3))
    store.prune(10)
    store.cleanup_orphans()
    assert store.load_by_id(3) is not None
    assert sidecar_name(3) in store.sidecars()
    seal(store, *range(15, 27), abandons=[3])
    store.prune(10)
    assert 3 not in store.list_ids(), "it was replayed, and every checkpoint that a start may choose knows it"
    assert sidecar_name(3) not in store.sidecars()


def test_what_is_left_of_one_to_replay_stays_without_its_manifest(
    store: DurableCheckpointStore, place: Place
) -> None:
    """The progress record in its sidecar still tells the range."""
    seal(store, 1, 2, 3)
    place.delete(place.manifest(3))
    for id in range(4, 15):
        fence(store, 2, id, **owing(3, 3))
    store.prune(2)
    store.cleanup_orphans()
    assert sidecar_name(3) in store.sidecars()


# The last sound one


def test_damaged_copies_do_not_push_the_last_sound_one_out(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: copies are one. Method: the newest is damaged, the one before it and its fence too; 1 is sound."""
    seal(store, 1, 2)
    fence(store, 2, 3)
    seal(store, 4)
    for name in (sidecar_name(2), sidecar_name(4)):
        place.edit(place.sidecar(name), flipped)
    store.prune(3)
    assert store.recover_latest_validated().chosen_id == 1


def test_a_damaged_base_does_not_push_the_last_sound_one_out(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: what rests on one base is one. Method: a sound checkpoint, a chain, and a damaged one on its own."""
    seal(store, 1)
    job = Job(store)
    for id in range(2, 7):
        job.write("agg", {"base": b"b" * 5000, f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    seal(store, 7)
    place.edit(place.sidecar(sidecar_name(2)), lambda data: flipped(data, len(data) - 1))
    place.edit(place.sidecar(sidecar_name(7)), flipped)
    store.prune(4)
    assert store.recover_latest_validated().chosen_id == 1


def test_what_was_read_back_once_is_not_read_at_every_prune(place: Place) -> None:
    read: list[str] = []

    def note(name: str, offset: int, length: int) -> None:
        if length == len(state_of(1)):
            read.append(name)

    store = place.open(medium=Before(place.medium(), "read_sidecar", note))
    seal(store, 1, 2, 3)
    store.prune(1)
    assert read == [sidecar_name(2), sidecar_name(3)]
    seal(store, 4)
    read.clear()
    store.prune(1)
    assert read == [sidecar_name(4)]


# What others say meanwhile


def test_a_name_given_while_pruning_keeps_what_the_checkpoint_needs(place: Place) -> None:
    """The bytes of checkpoint 3 lie with 1 and 2, which go after it in the same prune."""
    other = place.open()
    job = chained(other, 3)
    seal(other, 4, 5, 6)
    store = place.interposed("remove_checkpoint", lambda: other.set_identifier(3, "wanted"))
    store.prune(2)
    assert store.list_ids() == [3, 5, 6]
    assert store.validate_checkpoint(3).valid
    assert job.restored(3) == job.state


def test_a_fence_sealed_while_pruning_keeps_what_it_needs(place: Place) -> None:
    """It was sealed by somebody who held nothing: it is looked for before each removal."""
    other = place.open()
    seal(other, 1, 2, 3, 4, 5)
    done: list[int] = []

    def go_back(id: int, *rest: object) -> None:
        if not done:
            done.append(id)
            fence(other, 1, 6, abandons=[2, 3, 4, 5])

    store = place.open(medium=Before(place.medium(), "remove_checkpoint", go_back))
    store.prune(1)
    assert done
    assert store.validate_checkpoint(6).valid
    assert store.recover_latest_validated().chosen_id == 6


def test_a_manifest_that_turns_up_damaged_while_cleaning_keeps_every_sidecar(place: Place) -> None:
    """Goal: nobody knows what it needs. Method: bytes without a manifest, and a fence that cannot be read."""
    other = place.open()
    seal(other, 1, 2, 3)
    stored = other.medium.read_manifest(1)
    assert stored is not None
    kept = loaded(other, 1)
    other.medium.remove_checkpoint(1, stored.version, frozenset({sidecar_name(1)}))

    def seal_unreadably() -> None:
        other.save(kept.model_copy(update={"checkpoint_id": 4, "kind": "fence"}))
        good.append(place.get(place.manifest(4)))
        place.put(place.manifest(4), b"garbage")

    good: list[bytes] = []
    place.open(medium=Before(place.medium(), "sidecars", seal_unreadably)).cleanup_orphans()
    place.put(place.manifest(4), good[0])
    assert other.validate_checkpoint(4).valid


def test_what_was_given_up_by_one_that_was_given_up_can_be_gone_back_to(
    store: DurableCheckpointStore, place: Place
) -> None:
    """Goal: who abandoned the abandoning decided again. Method: 3 gave 2 up, 4 gave 3 up; then 4 is damaged."""
    seal(store, 1, 2)
    fence(store, 1, 3, abandons=[2])
    seal(store, 4, abandons=[3])
    store.prune(1)
    place.edit(place.sidecar(4), flipped)
    assert store.recover_latest_validated().chosen_id == 2


def test_a_manifest_that_storage_did_not_give_out_is_not_removed(place: Place) -> None:
    """Goal: silence is not damage. Method: the storage does not answer for the fallback's manifest, once."""
    seal(place.open(), 1, 2, 3, 4, 5)

    def silent(id: int, *rest: object) -> None:
        if id == 1:
            raise TransientStoreError("no answer")

    place.open(medium=Before(place.medium(), "read_manifest", silent)).prune(2)
    assert 1 in place.open().list_ids()
    assert place.open().validate_checkpoint(1).valid


def test_a_prune_that_dies_leaves_nothing_without_its_bytes(place: Place) -> None:
    """Goal: whatever stands is whole. Method: 2, given up, goes first, and 3 needs its bytes; the prune dies then."""
    other = place.open()
    job = chained(other, 3)
    fence(other, 3, 4, abandons=[2])
    seal(other, 5, 6)
    removed: list[int] = []

    def die_at_the_second(id: int, *rest: object) -> None:
        removed.append(id)
        if len(removed) == 2:
            raise TransientStoreError("died")

    with pytest.raises(TransientStoreError):
        place.open(medium=Before(place.medium(), "remove_checkpoint", die_at_the_second)).prune(1)
    assert removed[0] == 2
    assert job.restored(3) == job.state
    assert all(other.validate_checkpoint(id).valid for id in other.list_ids())


# What a start goes on from


def draft_fence(store: DurableCheckpointStore, of: int, id: int) -> CheckpointManifest:
    """Return what a start is about to seal."""
    base = loaded(store, of)
    parent = ParentRef(id=of, manifest_checksum=base.manifest_checksum or "")
    later = list(range(of + 1, id))
    return base.model_copy(update={"checkpoint_id": id, "kind": "fence", "parent": parent, "abandons": later})


def test_a_fence_whose_base_was_just_pruned_is_not_sealed(place: Place) -> None:
    other = place.open()
    seal(other, 1, 2, 3, 4)
    fence = draft_fence(other, 1, 5)
    store = place.interposed("replace_manifest", lambda: other.prune(1))
    with pytest.raises(Fenced, match="checkpoint 1 was removed before checkpoint 5 could go on from it; nothing was"):
        store.save(fence)
    assert store.list_ids() == [3, 4]
    assert store.recover_latest_validated().chosen_id == 4


def test_a_base_stays_until_anything_stands_under_the_id_of_the_fence(store: DurableCheckpointStore) -> None:
    """Goal: a start that died in between holds nothing for ever."""
    seal(store, 1, 2, 3, 4)
    store._hold_base(draft_fence(store, 1, 5))
    store.prune(1)
    assert store.list_ids() == [1, 3, 4]
    seal(store, 5)
    store.prune(1)
    assert 1 not in store.list_ids()


def test_a_fence_is_found_again_although_its_base_is_gone(store: DurableCheckpointStore) -> None:
    """Goal: a seal whose answer was lost is repeated. Method: its base is pruned in between."""
    seal(store, 1, 2, 3, 4)
    fence = draft_fence(store, 1, 5)
    sealed = store.save(fence)
    seal(store, 6, abandons=fence.abandons)
    store.prune(1)
    assert store.list_ids() == [5, 6]
    assert store.save(fence) == sealed
    assert store.validate_checkpoint(5).valid
    assert sealed.held_until is None


def test_a_start_that_goes_on_from_the_newest_holds_nothing(place: Place) -> None:
    """Goal: what every start does costs nothing more. Method: count what is replaced."""
    replaced: list[int] = []
    store = place.open(medium=Before(place.medium(), "replace_manifest", lambda id, *rest: replaced.append(id)))
    seal(store, 1, 2)
    store.save(draft_fence(store, 2, 3))
    assert replaced == []
