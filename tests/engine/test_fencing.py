"""Taking over a store: one seal that makes every older writer stop, and repeats what was decided after a crash."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from holdfast import CheckpointManifest, CorruptCheckpoint, Fenced, NoValidCheckpoint
from holdfast.core.manifest import ParentRef
from holdfast.engine.fencing import TakeOver, followed_by, take_over
from holdfast.engine.recovery import RecoveryDecision
from holdfast.engine.sequel import NOTHING_FOLLOWED, Sequel
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.survey import Survey
from stores.builders import PENDING, flipped, manifest, seal, state_of, with_state
from stores.jobs import TIMELINE, Job
from stores.places import Place


def seal_as(
    store: DurableCheckpointStore, owner: CheckpointManifest, id: int, epoch: int, **fields: Any
) -> CheckpointManifest:
    """Seal an epoch as the writer that a fence made."""
    draft = with_state(id, state_of(id), timeline=owner.timeline, generation=owner.generation, **fields)
    return store.save_with_state(draft.model_copy(update={"epoch": epoch}), [state_of(id)])


def is_taken_back(store: DurableCheckpointStore, id: int) -> bool:
    """Whether a checkpoint says itself that it never happened."""
    found = store.load_by_id(id)
    return found is not None and found.withdrawn and not store.validate_checkpoint(id).valid


# The fence


def test_on_an_empty_store_the_fence_is_id_1_epoch_0(store: DurableCheckpointStore) -> None:
    taken = take_over(store)
    fence = taken.fence
    assert (fence.checkpoint_id, fence.epoch, fence.kind, fence.generation) == (1, 0, "fence", 1)
    assert fence.timeline is not None
    assert taken.decision.chosen is None
    assert store.load_by_id(1) == fence


def test_a_fence_of_epoch_0_is_no_checkpoint(store: DurableCheckpointStore) -> None:
    take_over(store)
    assert store.recover_latest_validated().chosen_id is None
    again = take_over(store)
    assert again.decision.chosen is None
    assert (again.fence.checkpoint_id, again.fence.epoch) == (2, 0)


def test_the_timeline_stays_and_the_generation_grows(store: DurableCheckpointStore) -> None:
    first, second = take_over(store).fence, take_over(store).fence
    seal_as(store, second, 3, 1)
    third = take_over(store).fence
    assert first.timeline == second.timeline == third.timeline
    assert [first.generation, second.generation, third.generation] == [1, 2, 3]


def test_a_fence_is_the_chosen_checkpoint_again_without_new_bytes(
    store: DurableCheckpointStore, place: Place
) -> None:
    chosen = seal(store, 1, timeline=TIMELINE, generation=4, sink_commit_statuses={"a": PENDING}, watermark=7)
    before = set(store.sidecars())
    fence = take_over(store).fence
    assert set(store.sidecars()) == before
    assert (fence.checkpoint_id, fence.epoch, fence.generation, fence.timeline) == (2, 1, 5, TIMELINE)
    assert fence.parent is not None
    assert (fence.parent.id, fence.parent.manifest_checksum) == (1, chosen.manifest_checksum)
    assert fence.sink_commit_statuses == chosen.sink_commit_statuses
    assert (fence.watermark, fence.state_checksum, fence.sidecar) == (7, chosen.state_checksum, chosen.sidecar)
    assert store.validate_checkpoint(2).valid
    assert store.load_state_data(2) == state_of(1)


def test_a_fence_of_a_checkpoint_whose_sidecar_was_stored_first_holds_too(store: DurableCheckpointStore) -> None:
    store.save_state_data(1, [b"first"])
    store.save(with_state(1, b"first"))
    take_over(store)
    assert store.validate_checkpoint(2).valid
    assert store.load_state_data(2) == b"first"


def test_a_fence_of_a_named_checkpoint_has_no_name(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    store.set_identifier(1, "before-upgrade")
    assert take_over(store).fence.identifier is None
    assert store.load_by_id(1).identifier == "before-upgrade"  # type: ignore[union-attr]


def test_the_plan_is_sealed_with_the_fence(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    fence = take_over(store, plan=lambda decision: {"sinks": {"delta": "commit"}}).fence
    loaded = store.load_by_id(2)
    assert loaded is not None
    assert loaded.recovery == fence.recovery
    assert loaded.recovery is not None
    assert loaded.recovery["sinks"] == {"delta": "commit"}
    assert loaded.recovery["report"]["chosen_id"] == 1


def test_what_is_to_follow_takes_the_place_of_what_was_and_of_nothing_else(store: DurableCheckpointStore) -> None:
    said = {"approved": "by a person", "replay": [{"epoch": 4, "checkpoint_id": 5}], "given_up_after": 3}
    fence = manifest(1, 1, kind="fence", recovery=said)
    assert followed_by(fence, NOTHING_FOLLOWED).recovery == {"approved": "by a person"}
    followed = followed_by(fence, Sequel(given_up_after=7)).recovery
    assert followed == {"approved": "by a person", "given_up_after": 7}
    assert followed_by(manifest(1, 1, kind="fence"), NOTHING_FOLLOWED).recovery == {}


def test_a_fence_outlives_the_checkpoint_it_was_made_of(store: DurableCheckpointStore) -> None:
    job = Job(store)
    for id in (1, 2, 3):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    fence = take_over(store).fence
    store.set_identifier(fence.checkpoint_id, "pinned")
    seal(store, 5, 6)
    store.prune(1)
    assert 3 not in store.list_ids()
    assert store.validate_checkpoint(4).valid
    assert job.restored(4) == job.state


# Older writers


def test_an_older_writer_is_told_to_stop_and_writes_nothing(store: DurableCheckpointStore, place: Place) -> None:
    old = take_over(store).fence
    seal_as(store, old, 2, 1)
    new = take_over(place.open()).fence
    before = {key: place.get(key) for key in place.contents()}
    with pytest.raises(Fenced, match=f"generation {new.generation}") as caught:
        seal_as(store, old, 3, 2)
    assert caught.value.owner["generation"] == new.generation
    assert {key: place.get(key) for key in place.contents()} == before


def test_a_writer_that_slept_through_a_prune_is_told_all_the_same(
    store: DurableCheckpointStore, place: Place
) -> None:
    """Goal: ids are never reused. Method: the fence that would have stopped it was pruned long ago."""
    old = take_over(store).fence
    seal_as(store, old, 2, 1)
    other = place.open()
    new = take_over(other).fence
    for id in range(4, 9):
        seal_as(other, new, id, id)
    other.prune(2)
    assert 3 not in other.list_ids()
    with pytest.raises(Fenced, match=f"checkpoint 3 came too late.*generation {new.generation}"):
        seal_as(store, old, 3, 2)
    assert is_taken_back(other, 3)
    assert other.recover_latest_validated().chosen_id == 8
    other.prune(2)
    assert 3 not in other.list_ids()


def test_a_late_checkpoint_is_taken_back_although_the_fence_that_had_its_id_was_somebodys_parent(
    store: DurableCheckpointStore, place: Place
) -> None:
    """The parent was the fence, which is pruned: nobody has ever seen what the late writer seals under its id."""
    old = take_over(store).fence
    seal_as(store, old, 2, 1)
    other = place.open()
    new = take_over(other).fence
    parent = ParentRef(id=new.checkpoint_id, manifest_checksum=new.manifest_checksum or "")
    for id in (4, 5):
        seal_as(other, new, id, id, parent=parent)
    other.prune(2)
    with pytest.raises(Fenced, match="checkpoint 3 came too late"):
        seal_as(store, old, 3, 2)
    assert is_taken_back(other, 3)


def test_a_late_writer_is_told_although_what_came_later_is_damaged(
    store: DurableCheckpointStore, place: Place
) -> None:
    old = take_over(store).fence
    other = place.open()
    new = take_over(other).fence
    seal_as(other, new, 3, 1)
    other.prune(1)
    place.put(place.manifest(3), b"garbage")
    with pytest.raises(Fenced, match="checkpoint 2 came too late"):
        seal_as(store, old, 2, 1)
    assert is_taken_back(other, 2)


def test_a_late_writer_is_told_although_the_pointer_is_damaged(store: DurableCheckpointStore, place: Place) -> None:
    old = take_over(store).fence
    other = place.open()
    new = take_over(other).fence
    for id in (3, 4):
        seal_as(other, new, id, id)
    other.prune(1)
    place.put(place.pointer, b"garbage")
    with pytest.raises(Fenced, match="checkpoint 2 came too late"):
        seal_as(store, old, 2, 1)
    assert is_taken_back(other, 2)


def test_a_late_writer_is_told_although_all_later_manifests_are_lost(
    store: DurableCheckpointStore, place: Place
) -> None:
    """The pointer names a later id, and a later sidecar is there: each alone could be damage, or a dead attempt."""
    old = take_over(store).fence
    other = place.open()
    new = take_over(other).fence
    for id in (3, 4):
        seal_as(other, new, id, id)
    other.prune(1)
    for id in other.list_ids():
        place.delete(place.manifest(id))
    with pytest.raises(Fenced, match="checkpoint 2 came too late: checkpoint 4"):
        seal_as(store, old, 2, 1)
    assert is_taken_back(other, 2)


def test_a_pointer_alone_fences_nobody(store: DurableCheckpointStore, place: Place) -> None:
    owner = take_over(store).fence
    place.put(place.pointer, place.pointer_to(7))
    seal_as(store, owner, 2, 1)
    assert store.validate_checkpoint(2).valid


def test_a_checkpoint_stays_as_it_is_when_a_damaged_fence_may_go_on_from_it(place: Place) -> None:
    """Somebody took over between our seal and our pointer: what we sealed was decided, and he shows it."""
    other = place.open()
    owner = take_over(other).fence

    def overtake() -> None:
        take_over(other)
        place.put(place.manifest(3), b"garbage")

    store = place.interposed("advance_pointer", overtake)
    with pytest.raises(Fenced, match="checkpoint 2 came too late"):
        seal_as(store, owner, 2, 1)
    assert other.validate_checkpoint(2).valid


def test_what_came_too_late_is_not_gone_on_from_whatever_else_is_lost(
    store: DurableCheckpointStore, place: Place
) -> None:
    """A start falls back to what was decided, retention does not count it, and a person is told why."""
    old = take_over(store).fence
    seal_as(store, old, 2, 1)
    other = place.open()
    new = take_over(other).fence
    seal_as(other, new, 4, 2)
    other.set_identifier(4, "kept")
    for id in range(5, 8):
        seal_as(other, new, id, id - 2)
    other.prune(2)
    with pytest.raises(Fenced, match="checkpoint 3 came too late"):
        seal_as(store, old, 3, 2)
    for id in other.list_ids():
        if id > 4:
            place.put(place.manifest(id), b"garbage")
    chosen = take_over(other).decision.chosen
    assert chosen is not None
    assert chosen.checkpoint_id == 4
    with pytest.raises(CorruptCheckpoint, match=r"3 cannot be used: .*sealed too late, by a writer that had been"):
        take_over(other, from_id=3)


def test_what_came_too_late_is_known_by_those_who_came_before_it(store: DurableCheckpointStore, place: Place) -> None:
    """The late writer dies before it can take it back; the newest checkpoints are damaged, the next ones readable."""
    old = take_over(store).fence
    seal_as(store, old, 2, 1)
    other = place.open()
    new = take_over(other).fence
    for id in range(4, 8):
        seal_as(other, new, id, id - 2, began=new.began)
    other.prune(2)
    died = place.interposed("advance_pointer", _die)
    with pytest.raises(KeyboardInterrupt):
        seal_as(died, old, 3, 2)
    assert other.validate_checkpoint(3).valid
    for id in other.list_ids():
        if id > 3:
            place.edit(place.sidecar(f"state-{id:06d}.bin"), flipped)
    assert other.recover_latest_validated().chosen_id is None
    with pytest.raises(CorruptCheckpoint, match=r"3 cannot be used: .*sealed too late"):
        take_over(other, from_id=3)
    facts = {
        each.checkpoint_id: each.valid for each in Survey(other.medium, other._verifier, lambda id: False).facts()
    }
    assert not facts[3]


def test_where_a_generation_began_is_known_when_nothing_else_of_it_is_left(
    store: DurableCheckpointStore, place: Place
) -> None:
    """Its fence and all that it sealed is pruned; a later generation still says it."""
    old = take_over(store).fence
    seal_as(store, old, 2, 1)
    other = place.open()
    second = take_over(other).fence
    third = take_over(other).fence
    assert third.began == [(1, 1), (2, second.checkpoint_id), (3, third.checkpoint_id)]
    for id in range(5, 8):
        seal_as(other, third, id, id - 2, began=third.began)
    other.prune(2)
    assert not {second.checkpoint_id, third.checkpoint_id} & set(other.list_ids())
    with pytest.raises(KeyboardInterrupt):
        seal_as(place.interposed("advance_pointer", _die), old, second.checkpoint_id, 2)
    for id in other.list_ids():
        if id > third.checkpoint_id:
            place.edit(place.sidecar(f"state-{id:06d}.bin"), flipped)
    assert other.validate_checkpoint(second.checkpoint_id).valid
    assert other.recover_latest_validated().chosen_id in (None, 2)


def test_no_more_than_the_last_generations_are_remembered(store: DurableCheckpointStore) -> None:
    for _ in range(40):
        fence = take_over(store).fence
    assert [generation for generation, _ in fence.began] == list(range(9, 41))


def _die() -> None:
    raise KeyboardInterrupt


def test_a_writer_may_fill_a_gap_of_its_own_generation(store: DurableCheckpointStore) -> None:
    owner = take_over(store).fence
    seal_as(store, owner, 5, 5)
    seal_as(store, owner, 3, 3)
    assert store.list_ids() == [1, 3, 5]


def test_a_writer_overtaken_right_after_its_seal_is_told(place: Place) -> None:
    """Goal: no doubt about who owns the store. Method: somebody takes over between our seal and our pointer."""
    other = place.open()
    owner = take_over(other).fence
    taken: list[TakeOver] = []
    store = place.interposed("advance_pointer", lambda: taken.append(take_over(other)))
    with pytest.raises(Fenced):
        seal_as(store, owner, 2, 1)
    assert taken[0].decision.chosen is not None
    assert taken[0].decision.chosen.checkpoint_id == 2
    assert other.validate_checkpoint(2).valid


# Races


def test_an_epoch_sealed_between_decision_and_fence_is_decided_again(store: DurableCheckpointStore) -> None:
    old = take_over(store).fence
    seal_as(store, old, 2, 1)
    seen: list[int | None] = []

    def plan(decision: RecoveryDecision) -> dict[str, Any]:
        if not seen:
            seal_as(store, old, 3, 2)
        seen.append(decision.chosen.checkpoint_id if decision.chosen else None)
        return {}

    taken = take_over(store, plan=plan)
    assert seen == [2, 3]
    assert (taken.fence.checkpoint_id, taken.fence.epoch, taken.fence.abandons) == (4, 2, [])


@pytest.mark.parametrize("started", [False, True], ids=["empty store", "with a checkpoint"])
def test_of_those_who_take_over_at_once_each_has_a_generation_of_its_own(place: Place, started: bool) -> None:
    if started:
        seal(place.open(), 1, timeline=TIMELINE, generation=1)
    stores = [place.open() for _ in range(4)]
    start = Barrier(len(stores))

    def take(store: DurableCheckpointStore) -> CheckpointManifest:
        start.wait()
        return take_over(store).fence

    with ThreadPoolExecutor(len(stores)) as pool:
        fences = sorted(pool.map(take, stores), key=lambda fence: fence.checkpoint_id)
    assert len({fence.checkpoint_id for fence in fences}) == len({fence.generation for fence in fences}) == 4
    assert [fence.generation for fence in fences] == sorted(fence.generation or 0 for fence in fences)
    assert len({fence.timeline for fence in fences}) == 1
    owner = fences[-1]
    for loser in fences[:-1]:
        with pytest.raises(Fenced):
            seal_as(stores[0], loser, loser.checkpoint_id + 1, 9)
    seal_as(stores[0], owner, owner.checkpoint_id + 1, 2)
    assert stores[0].validate_checkpoint(owner.checkpoint_id + 1).valid


# Crashes and damage


def test_a_crash_after_the_fence_repeats_the_decision(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, timeline=TIMELINE, generation=1)
    place.edit(place.sidecar(2), flipped)
    first = take_over(store)
    second = take_over(place.open())
    assert (first.fence.epoch, first.fence.abandons) == (second.fence.epoch, second.fence.abandons) == (1, [2])
    assert second.decision.chosen == first.fence


def test_a_damaged_newest_one_is_given_up_for_good(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: an abandoned checkpoint never comes back. Method: it is repaired, and the fence's state is damaged."""
    seal(store, 1, 2, timeline=TIMELINE, generation=1)
    good = place.get(place.sidecar(2))
    place.edit(place.sidecar(2), flipped)
    assert take_over(store).fence.abandons == [2]
    place.put(place.sidecar(2), good)
    assert take_over(store).decision.chosen.epoch == 1  # type: ignore[union-attr]
    place.delete(place.sidecar(1))
    with pytest.raises(NoValidCheckpoint, match="--fresh"):
        take_over(store)


def test_with_everything_damaged_nothing_is_sealed(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2)
    for id in (1, 2):
        place.put(place.manifest(id), b"garbage")
    before = place.contents()
    with pytest.raises(NoValidCheckpoint, match="--fresh"):
        take_over(store)
    assert place.contents() == before


def test_fresh_starts_over_above_everything_there_was(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, timeline=TIMELINE, generation=3)
    place.put(place.manifest(2), b"garbage")
    taken = take_over(store, fresh=True)
    fence = taken.fence
    assert (fence.checkpoint_id, fence.epoch, fence.abandons) == (3, 0, [1, 2])
    assert fence.timeline not in (None, TIMELINE)
    assert (fence.generation or 0) > 3


def test_a_crash_after_a_fresh_start_does_not_bring_the_old_checkpoints_back(
    store: DurableCheckpointStore, place: Place
) -> None:
    seal(store, 1, 2, timeline=TIMELINE, generation=1)
    fresh = take_over(store, fresh=True).fence
    again = take_over(place.open())
    assert again.decision.chosen is None
    assert (again.fence.epoch, again.fence.timeline, again.fence.abandons) == (0, fresh.timeline, [1, 2])
    seal_as(store, again.fence, 5, 1)
    assert take_over(store).decision.chosen == store.load_by_id(5)


def test_a_fresh_start_on_a_ruined_store_reuses_no_id(store: DurableCheckpointStore, place: Place) -> None:
    store.save_state_data(40, [b"all that is left"])
    if 40 in store.list_ids():
        pytest.skip("here the orphan counts as an id itself")
    fence = take_over(store, fresh=True).fence
    assert fence.checkpoint_id == 41
    seal_as(store, fence, 42, 1)
    assert take_over(store).decision.chosen == store.load_by_id(42)


def test_going_back_gives_up_what_came_later_even_if_it_is_good(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3, timeline=TIMELINE, generation=1)
    fence = take_over(store, from_id=1).fence
    assert (fence.checkpoint_id, fence.epoch, fence.abandons) == (4, 1, [2, 3])
    assert take_over(store).fence.epoch == 1
    store.prune(1)
    place.delete(place.sidecar("state-000001.bin"))
    assert store.recover_latest_validated().chosen_id is None


def test_what_a_fence_gave_up_can_still_be_read_after_it(place: Place) -> None:
    """Goal: recovery may need its tokens and its range. Method: a store that retains a single checkpoint."""
    store = place.open(retain=1)
    seal(store, 1, 2, timeline=TIMELINE, generation=1)
    place.edit(place.sidecar(2), lambda data: flipped(data, len(data) - 1))
    take_over(store)
    assert store.load_by_id(2) is not None
    assert store.load_state_data(2) is not None


def test_a_manifest_that_says_nothing_of_its_timeline_gets_none(store: DurableCheckpointStore) -> None:
    store.save(manifest(1))
    assert take_over(store).fence.timeline is None
