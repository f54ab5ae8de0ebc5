"""What followed a checkpoint: which decisions stand, and which a later one took back."""

from uuid import UUID

import pytest

from holdfast import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.engine.sequel import NOTHING_FOLLOWED, Sequel, find_sequel
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import manifest
from stores.places import BucketPlace

TIMELINE, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
def store(memory: BucketPlace) -> DurableCheckpointStore:
    return memory.open()


def seal(store: DurableCheckpointStore, id: int, epoch: int, sequel: Sequel = NOTHING_FOLLOWED) -> CheckpointManifest:
    recovery = sequel.to_json_value() or None
    return store.save(manifest(id, epoch, timeline=TIMELINE, recovery=recovery))


def test_a_manifest_says_what_followed_and_is_read_back(store: DurableCheckpointStore) -> None:
    sequel = Sequel({5: 7, 6: 8}, given_up_after=6)
    sealed = seal(store, 9, 4, sequel)
    assert sealed.recovery == {
        "replay": [{"epoch": 5, "checkpoint_id": 7}, {"epoch": 6, "checkpoint_id": 8}],
        "given_up_after": 6,
    }
    assert Sequel.of(store.load_by_id(9)) == sequel
    assert (Sequel.of(None), NOTHING_FOLLOWED.to_json_value()) == (NOTHING_FOLLOWED, {})


def test_what_was_replayed_is_not_replayed_again() -> None:
    assert Sequel({5: 7, 6: 8}, 6).after(5) == Sequel({6: 8}, 6)


def test_epochs_sealed_on_top_follow_in_order(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 1)
    seal(store, 2, 2)
    seal(store, 3, 3)
    assert find_sequel(store, chosen, [3, 2], TIMELINE) == Sequel({2: 2, 3: 3})


def test_a_later_decision_takes_back_what_followed_the_earlier_one(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 1)
    for id, epoch in [(2, 2), (3, 3), (4, 2)]:
        seal(store, id, epoch)
    assert find_sequel(store, chosen, [2, 3, 4], TIMELINE) == Sequel({2: 4})


def test_a_fence_brings_its_own_plan(store: DurableCheckpointStore) -> None:
    """A recovery died with epoch 3 still to be replayed, after it had replayed epoch 2."""
    chosen = seal(store, 1, 1)
    for id, epoch in [(2, 2), (3, 3)]:
        seal(store, id, epoch)
    seal(store, 4, 1, Sequel({2: 2, 3: 3}))
    seal(store, 5, 2, Sequel({3: 3}))
    assert find_sequel(store, chosen, [2, 3, 4, 5], TIMELINE) == Sequel({2: 5, 3: 3})


def test_the_plan_of_the_chosen_one_stands_until_something_is_sealed_on_top(store: DurableCheckpointStore) -> None:
    seal(store, 2, 2)
    chosen = seal(store, 3, 1, Sequel({2: 2}))
    assert find_sequel(store, chosen, [], TIMELINE) == Sequel({2: 2})
    seal(store, 4, 2)
    assert find_sequel(store, chosen, [4], TIMELINE) == Sequel({2: 4})


def test_what_was_given_up_stays_given_up_in_copies_and_not_beyond(store: DurableCheckpointStore) -> None:
    given_up = Sequel(given_up_after=1)
    chosen = seal(store, 1, 1, given_up)
    assert find_sequel(store, chosen, [], TIMELINE) == given_up
    seal(store, 2, 1, given_up)
    assert find_sequel(store, chosen, [2], TIMELINE) == given_up
    seal(store, 3, 2)
    assert find_sequel(store, chosen, [2, 3], TIMELINE) == Sequel({2: 3})


def test_other_timelines_and_fences_of_epoch_0_say_nothing(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 1, Sequel(given_up_after=1))
    store.save(manifest(2, 2, timeline=OTHER))
    store.save(manifest(3, 0, timeline=TIMELINE, kind="fence"))
    assert find_sequel(store, chosen, [2, 3], TIMELINE) == Sequel(given_up_after=1)


def test_without_its_manifest_a_sidecar_tells_the_epoch(store: DurableCheckpointStore, memory: BucketPlace) -> None:
    chosen = seal(store, 1, 1, Sequel(given_up_after=1))
    store.save_state_data(2, [ProgressRecord(TIMELINE, 2, 2, 1).to_bytes()])
    store.save_state_data(3, [ProgressRecord(OTHER, 3, 3, 1).to_bytes()])
    for id in (2, 3):
        memory.put(memory.manifest(id), b"garbage")
    assert find_sequel(store, chosen, [2, 3], TIMELINE) == Sequel({2: 2})


def test_of_what_cannot_be_read_at_all_only_that_it_happened_counts(
    store: DurableCheckpointStore, memory: BucketPlace
) -> None:
    seal(store, 2, 2)
    chosen = seal(store, 3, 1, Sequel({2: 2}, given_up_after=2))
    memory.put(memory.manifest(4), b"garbage")
    assert find_sequel(store, chosen, [4], TIMELINE) == Sequel({2: 2})


def test_what_came_too_late_is_told_by_what_came_after_it(store: DurableCheckpointStore) -> None:
    """Generation 2 began at id 3; a writer of generation 1 that slept sealed epoch 2 under id 4."""
    chosen = seal(store, 1, 1)
    for id, epoch, generation, began in ((4, 2, 1, []), (5, 3, 2, [(2, 3)])):
        store.save(manifest(id, epoch, timeline=TIMELINE, generation=generation, began=began))
    assert find_sequel(store, chosen, [4, 5], TIMELINE) == Sequel({3: 5})
