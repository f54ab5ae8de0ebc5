"""What every store keeps and what it removes: pruning and cleaning up, exact counts, nothing a reader needs."""

import pytest

from holdfast import InvalidRequest, TransientStoreError
from holdfast.core.sidecar import Mover
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import flipped, manifest, seal, state_of, with_state
from stores.jobs import Job
from stores.places import BucketPlace, Place


def inline(store: DurableCheckpointStore, *ids: int) -> None:
    """Seal checkpoints without a sidecar."""
    for id in ids:
        store.save(manifest(id))


# How many


def test_prune_keeps_the_newest_two_of_five(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2, 3, 4, 5)
    assert store.prune(2) == 3
    assert store.list_ids() == [4, 5]
    assert store.prune(2) == 0


@pytest.mark.parametrize("keep", [0, 1])
def test_prune_keeps_the_newest_and_one_that_shares_nothing_with_it(store: DurableCheckpointStore, keep: int) -> None:
    seal(store, 1, 2, 3, 4)
    assert store.prune(keep) == 2
    assert store.list_ids() == [3, 4]


def test_prune_under_the_limit_removes_nothing(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2)
    assert store.prune(5) == 0
    assert store.list_ids() == [1, 2]


def test_a_negative_number_to_keep_is_refused(store: DurableCheckpointStore) -> None:
    with pytest.raises(InvalidRequest):
        store.prune(-1)


def test_saving_prunes_to_what_the_store_retains(place: Place) -> None:
    store = place.open(retain=2)
    seal(store, 1, 2, 3, 4)
    assert store.list_ids() == [3, 4]
    assert store.validate_checkpoint(3).valid


def test_a_store_that_retains_all_prunes_nothing(place: Place) -> None:
    store = place.open(retain=None)
    inline(store, *range(1, 16))
    assert len(store.list_ids()) == 15


def test_pruning_leaves_nothing_of_what_it_removes(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    kept = place.contents()
    seal(store, 4, 5)
    store.prune(2)
    gone = {key for key in kept if "000001" in key or "000002" in key or "000003" in key}
    assert gone.isdisjoint(place.contents())
    assert store.cleanup_orphans() == 0


def test_the_latest_is_never_dangling_after_a_prune(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    place.put(place.pointer, place.pointer_to(1))
    store.prune(1)
    assert store.load_latest() == store.load_by_id(3)
    assert place.get(place.pointer) == place.pointer_to(3)


def test_a_prune_that_fails_does_not_fail_the_save(place: Place) -> None:
    def outage() -> None:
        raise TransientStoreError("no answer")

    store = place.interposed("remove_checkpoint", outage)
    store._retain = 1
    seal(store, 1, 2, 3)
    assert store.load_latest() == store.load_by_id(3)


# What never goes


def test_a_named_checkpoint_stays_until_it_is_released(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2, 3, 4, 5)
    store.set_identifier(1, "before-upgrade")
    assert store.prune(2) == 2
    assert store.list_ids() == [1, 4, 5]
    assert store.validate_checkpoint(1).valid
    store.set_identifier(1, None)
    assert store.prune(2) == 1
    assert store.list_ids() == [4, 5]


def test_a_name_given_while_pruning_saves_the_checkpoint(place: Place) -> None:
    other = place.open()
    seal(other, 1, 2, 3)
    store = place.interposed("remove_checkpoint", lambda: other.set_identifier(1, "wait"))
    assert store.prune(2) == 0
    assert store.validate_checkpoint(1).valid


def test_the_newest_valid_one_stays_under_damaged_ones(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: damage does not count. Method: three good ones, then three that are corrupt, broken and orphaned."""
    seal(store, 1, 2, 3, 4, 5, 6)
    place.put(place.manifest(4), b"garbage")
    place.delete(place.sidecar(5))
    place.delete(place.manifest(6))
    assert store.prune(2) == 1
    assert store.list_ids()[:4] == [2, 3, 4, 5]
    assert store.recover_latest_validated().chosen_id == 3
    assert store.validate_checkpoint(2).valid


def test_nothing_goes_when_nothing_is_valid(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3)
    for id in (1, 2, 3):
        place.put(place.manifest(id), b"garbage")
    before = place.contents()
    assert store.prune(1) == 0
    assert store.cleanup_orphans() == 0
    assert place.contents() == before


def test_old_damage_goes_and_does_not_count(store: DurableCheckpointStore, place: Place) -> None:
    seal(store, 1, 2, 3, 4, 5)
    place.put(place.manifest(3), b"garbage")
    place.delete(place.sidecar(2))
    assert store.prune(2) == 3
    assert store.list_ids() == [4, 5]


def test_a_sidecar_that_a_kept_one_needs_stays_readable(store: DurableCheckpointStore) -> None:
    """Goal: an incremental chain survives pruning. Method: 3 needs bytes of 1 and 2, which both go."""
    job = Job(store)
    for id in (1, 2, 3):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    inline(store, 4, 5)
    store.set_identifier(3, "keep")
    assert store.prune(1) == 2
    assert store.list_ids() == [3, 4, 5]
    assert store.validate_checkpoint(3).valid
    assert job.restored(3) == job.state


def test_a_retained_sidecar_goes_when_nobody_needs_it_any_more(store: DurableCheckpointStore, place: Place) -> None:
    job = Job(store)
    job.write("agg", {"1.sst": b"1" * 5000})
    job.seal(1)
    job.write("agg", {"2.sst": b"2" * 5000})
    job.seal(2)
    seal(store, 3, 4)
    store.set_identifier(2, "keep")
    store.prune(2)
    assert set(store.sidecars()) == {f"state-00000{id}.bin" for id in (1, 2, 3, 4)}
    store.set_identifier(2, None)
    store.prune(2)
    assert set(store.sidecars()) == {"state-000003.bin", "state-000004.bin"}
    assert not any("000001" in key for key in place.contents())


def test_two_checkpoints_that_share_nothing_always_stay(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: one flipped bit must not take everything. Method: a new chain begins, the old one is pruned hard."""
    old, new = Job(store), Job(store)
    old.write("agg", {"base": b"o" * 5000})
    old.seal(1)
    old.write("agg", {"more": b"m" * 5000})
    old.seal(2)
    new.write("agg", {"base": b"n" * 5000})
    for id in (3, 4, 5):
        new.write("agg", {str(id): bytes([id]) * 5000})
        new.seal(id)
    store.prune(1)
    assert store.list_ids() == [2, 3, 5]
    place.edit(place.sidecar(3), lambda data: flipped(data, len(data) - 1))
    assert store.recover_latest_validated().chosen_id == 2
    assert old.restored(2) == old.state


def test_the_old_chain_goes_only_after_the_new_one_was_read_back(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: verify before letting go. Method: the newest is damaged in a way that lengths do not show."""
    seal(store, 1, 2, 3)
    place.edit(place.sidecar(3), flipped)
    place.edit(place.sidecar(2), flipped)
    store.prune(1)
    assert store.recover_latest_validated().chosen_id == 1


def test_the_fallback_is_one_that_recovery_would_choose(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: nothing rests on an abandoned checkpoint. Method: 3 is intact but given up; 1 is the real fallback."""
    seal(store, 1, 2, 3)
    second = store.load_by_id(2)
    assert second is not None
    store.save(second.model_copy(update={"checkpoint_id": 4, "abandons": [3], "kind": "fence"}))
    store.prune(1)
    place.edit(place.sidecar("state-000002.bin"), flipped)
    assert store.recover_latest_validated().chosen_id == 1


def test_an_abandoned_checkpoint_never_outlives_the_word_that_it_was_abandoned(
    store: DurableCheckpointStore, place: Place
) -> None:
    """Goal: given up is given up. Method: prune until only the abandoned one could be the fallback, then damage."""
    seal(store, 1, 2, 3)
    seal(store, 4, abandons=[3])
    job = Job(store)
    job.write("agg", {"base": b"b" * 5000})
    for id in range(5, 9):
        job.write("agg", {str(id): bytes([id]) * 5000})
        job.seal(id)
    store.prune(1)
    place.edit(place.sidecar("state-000005.bin"), lambda data: flipped(data, len(data) - 1))
    chosen = store.recover_latest_validated().chosen_id
    assert chosen != 3
    assert chosen is not None


def test_a_named_checkpoint_that_was_abandoned_keeps_the_word_that_it_was(
    store: DurableCheckpointStore, place: Place
) -> None:
    seal(store, 1, 2)
    store.set_identifier(2, "wrong turn")
    seal(store, 3, abandons=[2])
    seal(store, 4, 5, 6)
    store.prune(2)
    assert store.list_ids() == [2, 3, 5, 6]
    for id in (3, 5, 6):
        place.edit(place.sidecar(id), flipped)
    assert store.recover_latest_validated().chosen_id is None


def test_a_name_on_an_abandoned_checkpoint_does_not_pin_everything_since(store: DurableCheckpointStore) -> None:
    """Goal: the word is kept once. Method: every checkpoint repeats it, as the writer does."""
    seal(store, 1, 2)
    store.set_identifier(2, "wrong turn")
    seal(store, *range(3, 10), abandons=[2])
    store.prune(2)
    assert store.list_ids() == [2, 8, 9]


def test_a_fence_removes_nothing(place: Place) -> None:
    """Goal: recovery can still read what it abandons. Method: a store that retains one."""
    store = place.open(retain=1)
    seal(store, 1, 2)
    first = store.load_by_id(1)
    assert first is not None
    store.save(first.model_copy(update={"checkpoint_id": 3, "abandons": [2], "kind": "fence"}))
    assert store.list_ids() == [1, 2, 3]
    assert store.load_state_data(2) == state_of(2)


def test_no_sidecar_goes_while_a_manifest_cannot_be_read(store: DurableCheckpointStore, place: Place) -> None:
    """Goal: what nobody knows is not deleted. Method: the newest manifest is corrupt and may need any of them."""
    job = Job(store)
    job.write("agg", {"1.sst": b"1" * 5000})
    job.seal(1)
    inline(store, 2, 3, 4)
    job.write("agg", {"5.sst": b"5" * 5000})
    job.seal(5)
    good = place.get(place.manifest(5))
    place.put(place.manifest(5), b"garbage")
    store.save_state_data(6, [b"orphan"])
    store.prune(1)
    store.cleanup_orphans()
    assert 1 not in store.list_ids()
    assert {"state-000001.bin", "state-000005.bin", "state-000006.bin"} <= set(store.sidecars())
    place.put(place.manifest(5), good)
    assert store.validate_checkpoint(5).valid
    assert job.restored(5) == job.state


def test_no_sidecar_goes_while_a_manifest_does_not_answer(place: Place) -> None:
    seal(place.open(), 1, 2, 3)
    calls: list[int] = []

    class Unanswering:
        def __init__(self, medium: object) -> None:
            self._medium = medium

        def __getattr__(self, name: str) -> object:
            return getattr(self._medium, name)

        def read_manifest(self, id: int) -> object:
            if id == 2:
                calls.append(id)
                raise TransientStoreError("no answer")
            return self._medium.read_manifest(id)  # type: ignore[attr-defined]

    store = place.open(medium=Unanswering(place.medium()))
    store.prune(1)
    assert calls
    assert set(place.open().sidecars()) == {"state-000001.bin", "state-000002.bin", "state-000003.bin"}


# Cleaning up


def test_a_clean_store_needs_no_cleaning(store: DurableCheckpointStore) -> None:
    seal(store, 1, 2)
    assert store.cleanup_orphans() == 0
    assert store.list_ids() == [1, 2]


def test_orphan_sidecars_are_removed_and_counted(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    store.save_state_data(2, [b"orphan"])
    store.save_state_data(3, [b"orphan"])
    seal(store, 4)
    assert store.cleanup_orphans() == 2
    assert store.cleanup_orphans() == 0
    assert set(store.sidecars()) == {"state-000001.bin", "state-000004.bin"}
    assert store.list_ids() == [1, 4]


def test_a_sidecar_that_lost_its_manifest_stays_if_another_needs_it(
    store: DurableCheckpointStore, place: Place
) -> None:
    job = Job(store)
    job.write("agg", {"1.sst": b"1" * 5000})
    job.seal(1)
    job.write("agg", {"2.sst": b"2" * 5000})
    job.seal(2)
    place.delete(place.manifest(1))
    store.cleanup_orphans()
    assert store.validate_checkpoint(2).valid
    assert job.restored(2) == job.state


def test_what_lies_above_the_newest_valid_one_is_left_alone(store: DurableCheckpointStore) -> None:
    """Goal: a writer may be at work there. Method: a sidecar that waits for its manifest."""
    seal(store, 1)
    store.save_state_data(2, [b"about to be sealed"])
    assert store.cleanup_orphans() == 0
    assert store.prune(1) == 0
    store.save(with_state(2, b"about to be sealed"))
    assert store.validate_checkpoint(2).valid


def test_pruning_also_cleans_orphans(store: DurableCheckpointStore) -> None:
    seal(store, 1)
    store.save_state_data(2, [b"orphan"])
    seal(store, 3, 4)
    store.prune(2)
    assert set(store.sidecars()) == {"state-000003.bin", "state-000004.bin"}


def test_a_checkpoint_being_written_survives_prune_and_clean_up(place: Place) -> None:
    """Goal: safe beside a writer. Method: everything is tidied between its sidecar and its seal."""
    other = place.open()
    seal(other, 1, 2, 3)

    def tidy() -> None:
        other.prune(1)
        other.cleanup_orphans()

    store = place.interposed("seal", tidy)
    seal(store, 4)
    assert store.list_ids() == [2, 3, 4]
    assert store.validate_checkpoint(4).valid


def test_an_incremental_checkpoint_being_written_survives_a_prune(place: Place) -> None:
    """Goal: a new checkpoint cites only what the newest sealed one reaches. Method: prune before its seal."""
    other = place.open()
    job = Job(other)
    for id in range(1, 6):
        job.write("agg", {f"{id}.sst": bytes([id]) * 5000})
        job.seal(id)
    job.store = place.interposed("seal", lambda: other.prune(1))
    job.write("agg", {"6.sst": b"6" * 5000})
    job.seal(6)
    assert other.validate_checkpoint(6).valid
    assert job.restored(6) == job.state


def test_the_loser_of_a_race_leaves_nothing_behind(place: Place) -> None:
    other = place.open()
    seal(other, 1)
    store = place.interposed("seal", lambda: seal(other, 2))
    with pytest.raises(Exception, match="checkpoint 2 was sealed by another writer"):
        store.save_with_state(with_state(2, b"other"), [b"other"])
    assert other.validate_checkpoint(2).valid
    seal(other, 3)
    other.prune(2)
    assert len(other.sidecars()) == 2
    assert other.cleanup_orphans() == 0


def test_a_removal_that_was_cut_short_is_finished_by_the_next(place: Place) -> None:
    if not isinstance(place, BucketPlace):
        pytest.skip("a directory is removed by one rename")
    store = place.open()
    seal(store, 1, 2, 3)
    place.put(place.manifest(1), b'{"pruned":true}')
    assert store.load_by_id(1) is None
    assert store.list() == [(2, 2), (3, 3)]
    assert store.cleanup_orphans() >= 1
    assert store.list_ids() == [2, 3]
    assert set(store.sidecars()) == {"state-000002.bin", "state-000003.bin"}


def test_the_mover_frees_old_sidecars_in_the_end(store: DurableCheckpointStore) -> None:
    job = Job(store, Mover(chain_length=4))
    job.write("agg", {f"{i}.sst": bytes([i]) * 2000 for i in range(10)})
    for id in range(1, 13):
        job.write("agg", {"hot.sst": bytes([id]) * 9000})
        job.seal(id)
    assert store.validate_checkpoint(12).valid
    assert "state-000001.bin" not in job.catalog.live_bytes()
