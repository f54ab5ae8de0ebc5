"""Where a pipeline goes on from: the newest checkpoint that holds, or a refusal that says what to do."""

import pytest

from holdfast import CheckpointNotFound, CorruptCheckpoint, NoValidCheckpoint, TransientStoreError
from holdfast.engine.fencing import take_over
from holdfast.engine.recovery import decide_recovery
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import flipped, manifest, seal, state_of, with_state
from stores.jobs import TIMELINE
from stores.places import DirectoryPlace, Place


def test_an_empty_store_is_a_fresh_start(store: DurableCheckpointStore) -> None:
    decision = decide_recovery(store)
    assert (decision.newest_id, decision.chosen, decision.abandons) == (0, None, ())
    assert (decision.generation, decision.timeline) == (0, None)


def test_the_newest_that_holds_is_chosen(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2, 3, timeline=TIMELINE, generation=4)
    decision = decide_recovery(store)
    assert decision.chosen == store.load_by_id(3)
    assert (decision.newest_id, decision.abandons) == (3, ())
    assert (decision.generation, decision.timeline) == (4, TIMELINE)


def test_what_is_passed_over_is_given_up(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3, 4)
    place.put(place.manifest(4), b"garbage")
    place.edit(place.sidecar(3), flipped)
    decision = decide_recovery(store)
    assert decision.chosen == store.load_by_id(2)
    assert (decision.newest_id, decision.abandons) == (4, (3, 4))
    assert [id for id, _ in decision.report.skipped] == [4, 3]


def test_what_was_given_up_before_stays_given_up(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2)
    seal(store, 3, abandons=[2])
    assert decide_recovery(store).abandons == (2,)


def test_deciding_writes_nothing(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.put(place.manifest(2), b"garbage")
    before = {key: place.get(key) for key in place.contents()}
    decide_recovery(store)
    decide_recovery(store, fresh=True)
    decide_recovery(store, from_id=1)
    assert {key: place.get(key) for key in place.contents()} == before


def test_storage_that_does_not_answer_is_no_fresh_start(place: Place) -> None:
    def outage() -> None:
        raise TransientStoreError("no answer")

    for call in ("ids", "read_pointer"):
        with pytest.raises(TransientStoreError):
            decide_recovery(place.interposed(call, outage))


# Refusing


def test_with_nothing_to_trust_it_refuses_and_says_what_to_do(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3, 4, 5)
    for id in (1, 2, 3, 4, 5):
        place.edit(place.sidecar(id), flipped)
    with pytest.raises(NoValidCheckpoint, match="--fresh") as caught:
        decide_recovery(store)
    message = str(caught.value)
    assert store.describe() in message
    assert "checkpoint 5: state.bin checksum mismatch" in message
    assert "(and 2 more)" in message
    assert "\n" not in message


@pytest.mark.parametrize("left", ["sidecar", "pointer", "corrupt manifest"])
def test_a_store_that_lost_its_manifests_is_not_empty(store: DurableCheckpointStore, place: Place, left: str) -> None:
    match left:
        case "sidecar":
            store.save_state_data(7, [b"state"])
        case "pointer":
            place.put(place.pointer, place.pointer_to(7))
        case "corrupt manifest":
            place.put(place.manifest(7), b"garbage")
    with pytest.raises(NoValidCheckpoint, match="--fresh"):
        decide_recovery(store)
    assert store.newest_id() == 7


def test_a_lost_first_epoch_is_not_an_empty_store(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: never start over by accident. Method: a fence of epoch 0, then two epochs whose manifests are lost."""
    fence = take_over(store).fence
    for id in (2, 3):
        seal(store, id, timeline=fence.timeline, generation=1)
    place.delete(place.manifest(2))
    place.delete(place.manifest(3))
    with pytest.raises(NoValidCheckpoint):
        decide_recovery(store)
    place.delete(place.pointer)
    with pytest.raises(NoValidCheckpoint):
        decide_recovery(store)


# Starting, and starting over


def test_a_store_that_never_sealed_an_epoch_is_still_empty(store: DurableCheckpointStore) -> None:
    fence = take_over(store).fence
    decision = decide_recovery(store)
    assert (decision.chosen, decision.newest_id, decision.abandons) == (None, 1, ())
    assert (decision.generation, decision.timeline) == (1, fence.timeline)


def test_a_writer_that_died_before_its_first_seal_left_an_empty_store(place: Place) -> None:
    """Goal: the first epoch can be tried again. Method: its sidecar was written, its manifest was not."""
    store = place.open()
    fence = take_over(store).fence
    place.medium().stage(2, [state_of(2)], len(state_of(2)))
    decision = decide_recovery(store)
    assert (decision.chosen, decision.timeline) == (None, fence.timeline)
    second = take_over(store).fence
    assert (second.checkpoint_id, second.generation) == (2, 2)
    seal(store, 3, timeline=fence.timeline, generation=2)
    assert decide_recovery(store).chosen == store.load_by_id(3)


def test_fresh_gives_up_everything_on_a_new_timeline(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3, timeline=TIMELINE, generation=5)
    place.put(place.manifest(3), b"garbage")
    decision = decide_recovery(store, fresh=True)
    assert (decision.chosen, decision.newest_id, decision.abandons) == (None, 3, (1, 2, 3))
    assert decision.timeline is None
    assert decision.generation >= 5


def test_going_back_chooses_that_one_and_gives_up_the_later_ones(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2, 3, 4)
    decision = decide_recovery(store, from_id=2)
    assert decision.chosen == store.load_by_id(2)
    assert (decision.newest_id, decision.abandons) == (4, (3, 4))


def test_going_back_to_what_is_not_there_is_refused(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    place.edit(place.sidecar(1), flipped)
    with pytest.raises(CheckpointNotFound, match="checkpoint 9 not found"):
        decide_recovery(store, from_id=9)
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint 1 cannot be used: state\.bin checksum mismatch"):
        decide_recovery(store, from_id=1)


# Generations


def test_a_damaged_manifest_may_have_been_a_fence(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, generation=3)
    take_over(store)
    place.put(place.manifest(3), b"garbage")
    assert decide_recovery(store).generation == 4


def test_a_lost_manifest_may_have_been_a_fence(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: two writers never share a generation. Method: the fence of the second one disappears altogether."""
    seal(store, 1, 2, generation=3)
    fence = take_over(store).fence
    place.delete(place.manifest(3))
    if isinstance(place, DirectoryPlace):
        (place.base / "checkpoints/checkpoint_000003").rmdir()
    assert store.newest_id() == 3
    third = take_over(store).fence
    assert (third.checkpoint_id, third.generation) == (4, 5)
    assert third.generation > (fence.generation or 0)


def test_fences_that_were_pruned_had_a_generation_each(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, generation=3)
    newest = [take_over(store).fence for _ in range(4)][-1]
    for id in (2, 3, 4):
        place.delete(place.manifest(id))
        if isinstance(place, DirectoryPlace):
            (place.base / f"checkpoints/checkpoint_{id:06}").rmdir()
    place.put(place.manifest(5), b"garbage")
    assert decide_recovery(store).generation == newest.generation == 7


def test_manifests_without_a_generation_count_as_none(store: DurableCheckpointStore) -> None:
    store.save(manifest(1))
    store.save_with_state(with_state(2, b"x"), [b"x"])
    assert decide_recovery(store).generation == 0
