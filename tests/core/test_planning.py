"""What may change in a sealed manifest, and what retention may remove."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.entries import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest, checksum_of
from holdfast.core.planning import CheckpointFacts, Condition, RetentionPlan, merge_update, plan_retention
from holdfast.errors import ManifestConflict

PENDING, COMMITTED, FAILED = SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED, SinkCommitStatus.failed("boom")


# Updating a sealed manifest


def draft(**fields: Any) -> CheckpointManifest:
    """Return a manifest as the engine hands it to the store."""
    base: dict[str, Any] = {
        "version": 1,
        "checkpoint_id": 5,
        "epoch": 4,
        "timestamp_ms": 1000,
        "vnode_count": 256,
        "source_offsets": {"orders": ConnectorCheckpoint.with_offsets(4, {"0": "12"})},
        "sink_epochs": {"pg": 3, "out": 3},
        "sink_commit_statuses": {"pg": PENDING, "out": PENDING},
        "operator_states": {"op": OperatorCheckpoint.external(0, 4)},
        "dependencies": CheckpointDependencies(batches=("state-000001.bin",)),
    }
    return CheckpointManifest(**{**base, **fields})


def sealed(**fields: Any) -> CheckpointManifest:
    """Return a manifest as the store sealed it."""
    stamps = {
        "state_checksum": "ab" * 32,
        "dependencies": CheckpointDependencies(batches=("state-000001.bin",), state_files=("state-000005.bin",)),
        "size": 4,
    }
    return draft(**{**stamps, **fields}).stamped()


def statuses(**by_sink: SinkCommitStatus) -> dict[str, Any]:
    return {"sink_commit_statuses": by_sink}


@pytest.mark.parametrize(
    ("current", "proposed", "merged"),
    [
        (PENDING, PENDING, PENDING),
        (PENDING, FAILED, FAILED),
        (PENDING, COMMITTED, COMMITTED),
        (FAILED, PENDING, FAILED),
        (FAILED, COMMITTED, COMMITTED),
        (FAILED, SinkCommitStatus.failed("again"), SinkCommitStatus.failed("again")),
        (COMMITTED, PENDING, COMMITTED),
        (COMMITTED, FAILED, COMMITTED),
    ],
)
def test_a_status_only_moves_towards_committed(
    current: SinkCommitStatus, proposed: SinkCommitStatus, merged: SinkCommitStatus
) -> None:
    result = merge_update(sealed(**statuses(pg=current)), sealed(**statuses(pg=proposed)))
    assert result.sink_commit_statuses == {"pg": merged}


def test_two_updates_of_different_sinks_are_both_kept_in_any_order() -> None:
    start = sealed(**statuses(pg=PENDING, out=PENDING))
    one = sealed(**statuses(pg=COMMITTED, out=PENDING))
    other = sealed(**statuses(pg=PENDING, out=FAILED))
    assert merge_update(merge_update(start, one), other) == merge_update(merge_update(start, other), one)
    assert merge_update(merge_update(start, one), other).sink_commit_statuses == {"pg": COMMITTED, "out": FAILED}


def test_a_sink_that_the_update_does_not_mention_keeps_its_status() -> None:
    merged = merge_update(sealed(**statuses(pg=COMMITTED, out=FAILED)), sealed(**statuses(out=COMMITTED)))
    assert merged.sink_commit_statuses == {"pg": COMMITTED, "out": COMMITTED}


def test_sink_epochs_only_grow() -> None:
    merged = merge_update(sealed(sink_epochs={"pg": 3, "out": 4}), sealed(sink_epochs={"pg": 4, "out": 3, "new": 4}))
    assert merged.sink_epochs == {"pg": 4, "out": 4, "new": 4}


@pytest.mark.parametrize(
    ("current", "proposed", "merged"), [(None, "a", "a"), ("a", None, "a"), ("a", "b", "b"), (None, None, None)]
)
def test_a_name_given_meanwhile_is_not_lost(current: Any, proposed: Any, merged: Any) -> None:
    assert merge_update(sealed(identifier=current), sealed(identifier=proposed)).identifier == merged


def test_the_merged_manifest_has_a_true_checksum_and_the_others_are_untouched() -> None:
    current, proposed = sealed(), sealed(**statuses(pg=COMMITTED, out=COMMITTED))
    before = current.to_json(), proposed.to_json()
    merged = merge_update(current, proposed)
    assert merged.manifest_checksum == checksum_of(merged.to_json_value()) != current.manifest_checksum
    merged.sink_commit_statuses["pg"] = PENDING
    assert (current.to_json(), proposed.to_json()) == before


def test_an_update_that_says_nothing_new_changes_nothing() -> None:
    assert merge_update(sealed(), sealed()) == sealed()


def test_unknown_keys_stay() -> None:
    current = CheckpointManifest.from_json_value({**sealed().to_json_value(), "theirs": [1]}).stamped()
    merged = merge_update(current, current.model_copy(update=statuses(pg=COMMITTED, out=PENDING)))
    assert merged.to_json_value()["theirs"] == [1]


CHANGES: dict[str, Any] = {
    "checkpoint_id": 6,
    "epoch": 5,
    "timestamp_ms": 1001,
    "source_offsets": {"orders": ConnectorCheckpoint.with_offsets(4, {"0": "13"})},
    "table_offsets": {"rates": ConnectorCheckpoint.new(4)},
    "operator_states": {},
    "table_store_checkpoint_path": "/x",
    "watermark": 1,
    "source_watermarks": {"orders": 1},
    "source_names": ["orders"],
    "sink_names": ["pg"],
    "pipeline_hash": 1,
    "vnode_count": 64,
    "state_checksum": "cd" * 32,
    "uuid": "01976e2c-0000-7000-8000-000000000001",
    "timeline": "01976e2c-0000-7000-8000-000000000001",
    "generation": 1,
    "began": [(1, 1)],
    "parent": {"id": 1, "manifest_checksum": "ab"},
    "abandons": [1],
    "kind": "fence",
    "fingerprint": 1,
    "size": 5,
    "steps": 1,
    "processed_records": 1,
    "dependencies": CheckpointDependencies(batches=(), state_files=("state-000005.bin",)),
    "sink_tokens": {"pg": {}},
    "recovery": {"a": 1},
    "identity": {"a": 1},
}
CHANGEABLE = {"sink_commit_statuses", "sink_epochs", "identifier", "held_until", "manifest_checksum"}


def test_every_field_is_either_changeable_or_tried_here() -> None:
    assert set(CHANGES) | CHANGEABLE | {"version"} == set(CheckpointManifest.model_fields)


@pytest.mark.parametrize("key", CHANGES)
def test_any_other_change_is_refused_by_name(key: str) -> None:
    changed = sealed(**{key: CHANGES[key]})
    with pytest.raises(ManifestConflict, match=f"checkpoint 5 is sealed: {key} cannot change"):
        merge_update(sealed(), changed)


def test_every_refused_change_is_named() -> None:
    with pytest.raises(ManifestConflict, match="sealed: epoch, steps, watermark cannot change"):
        merge_update(sealed(), sealed(watermark=1, epoch=9, steps=2))


def test_an_unknown_key_cannot_change_either() -> None:
    current = CheckpointManifest.from_json_value({**sealed().to_json_value(), "theirs": [1]})
    with pytest.raises(ManifestConflict, match="theirs cannot change"):
        merge_update(current, sealed())


def test_a_copy_from_before_the_store_stamped_it_is_accepted_and_takes_no_stamp_away() -> None:
    merged = merge_update(sealed(), draft(**statuses(pg=COMMITTED, out=COMMITTED)))
    assert merged == sealed(**statuses(pg=COMMITTED, out=COMMITTED))


def test_a_copy_without_any_dependencies_is_accepted_too() -> None:
    assert merge_update(sealed(), draft(dependencies=None)) == sealed()


def test_an_unstamped_copy_with_other_earlier_sidecars_is_refused() -> None:
    other = draft(dependencies=CheckpointDependencies(batches=("state-000002.bin",)))
    with pytest.raises(ManifestConflict, match="dependencies cannot change"):
        merge_update(sealed(), other)


# Retention


def facts(id: int, *needs: str, condition: Condition = Condition.VALID, named: bool = False) -> CheckpointFacts:
    return CheckpointFacts(id, condition, named, frozenset(needs))


def chain(*ids: int, base: str = "base") -> list[CheckpointFacts]:
    """Return checkpoints that all rest on one base, each with a sidecar of its own."""
    return [facts(id, base, f"s{id}") for id in ids]


def test_nothing_goes_from_an_empty_store() -> None:
    assert plan_retention([], 3) == RetentionPlan((), (), (), frozenset(), False, None)


@pytest.mark.parametrize("keep", [0, 1])
def test_the_newest_valid_one_stays_whatever_is_asked(keep: int) -> None:
    plan = plan_retention([facts(1, "s1"), facts(2, "s2"), facts(3, "s3")], keep)
    assert plan.newest_valid == 3
    assert plan.keep == (2, 3)


def test_the_order_in_which_checkpoints_are_given_does_not_matter() -> None:
    some = chain(1, 2, 3, 4)
    assert {plan_retention(order, 2) for order in itertools.permutations(some)} == {plan_retention(some, 2)}


def test_keep_counts_valid_ones_only() -> None:
    damaged = [facts(id, condition=Condition.CORRUPT) for id in (5, 6, 7, 8)]
    plan = plan_retention([*chain(1, 2, 3, 4), *damaged], 2)
    assert {3, 4} <= set(plan.keep)
    assert plan.remove == (2,)


def test_what_is_not_among_the_recent_goes() -> None:
    plan = plan_retention([facts(id, f"s{id}") for id in range(1, 7)], 2)
    assert plan.keep == (5, 6)
    assert plan.remove == (1, 2, 3, 4)


def test_nothing_goes_when_there_are_no_more_than_keep() -> None:
    plan = plan_retention(chain(1, 2, 3), 3)
    assert (plan.keep, plan.remove, plan.verify_first) == ((1, 2, 3), (), ())


@pytest.mark.parametrize("condition", [Condition.VALID, Condition.BROKEN])
def test_a_named_one_stays(condition: Condition) -> None:
    named = facts(2, "s2", condition=condition, named=True)
    plan = plan_retention([facts(1, "s1"), named, facts(3, "s3"), facts(4, "s4"), facts(5, "s5")], 1)
    assert plan.keep == (2, 4, 5)
    assert "s2" in plan.needed_sidecars


@pytest.mark.parametrize("condition", [c for c in Condition if c is not Condition.VALID])
def test_everything_above_the_newest_valid_one_stays(condition: Condition) -> None:
    plan = plan_retention([*chain(1, 2, 3), facts(4, condition=condition), facts(5, condition=condition)], 1)
    assert plan.newest_valid == 3
    assert {4, 5} <= set(plan.keep)


def test_without_a_valid_one_nothing_goes_at_all() -> None:
    some = [facts(n, condition=c) for n, c in enumerate(Condition, 1) if c is not Condition.VALID]
    plan = plan_retention(some, 1)
    assert plan.keep == tuple(c.checkpoint_id for c in some)
    assert (plan.remove, plan.sidecars_may_go, plan.newest_valid) == ((), False, None)


def test_the_newest_one_that_shares_nothing_with_the_newest_stays() -> None:
    old = [facts(1, "a"), facts(2, "a", "b"), facts(3, "b", "c")]
    new = [facts(4, "c", "d"), facts(5, "d", "e"), facts(6, "d", "f")]
    plan = plan_retention([*old, *new], 1)
    assert 3 in plan.keep  # 4 and 5 share d with the newest
    assert plan.remove == (1, 2, 5)


def test_the_oldest_one_after_the_fallback_stays_to_take_its_place() -> None:
    plan = plan_retention([facts(1, "old"), *chain(2, 3, 4, 5)], 1)
    assert plan.keep == (1, 2, 5)


def test_without_a_fallback_the_oldest_stays_to_become_one() -> None:
    plan = plan_retention(chain(1, 2, 3, 4), 1)
    assert plan.keep == (1, 4)


def test_checkpoints_without_state_share_nothing() -> None:
    plan = plan_retention([facts(1), facts(2), facts(3)], 1)
    assert plan.keep == (2, 3)


def test_one_that_cannot_be_restored_is_no_fallback() -> None:
    some = [facts(1, "a"), facts(2, "b", condition=Condition.BROKEN), *chain(3, 4, 5)]
    assert plan_retention(some, 1).keep == (1, 3, 5)


@pytest.mark.parametrize("condition", [Condition.CORRUPT, Condition.BROKEN, Condition.ORPHAN])
def test_damage_among_the_recent_stays_and_older_damage_goes(condition: Condition) -> None:
    some = [
        facts(1, condition=condition),
        *chain(2, 3),
        facts(4, condition=condition),
        *chain(5, 6),
        facts(7, condition=condition),
        *chain(8),
    ]
    plan = plan_retention(some, 2)
    assert plan.keep == (2, 6, 7, 8)
    assert plan.remove == (1, 3, 4, 5)


def test_an_unreadable_one_never_goes_and_keeps_every_sidecar() -> None:
    plan = plan_retention([facts(1, condition=Condition.UNREADABLE), *chain(2, 3, 4)], 1)
    assert 1 in plan.keep
    assert not plan.sidecars_may_go


@pytest.mark.parametrize(("id", "may_go"), [(1, True), (5, False), (9, False)])
def test_sidecars_stay_as_long_as_a_damaged_manifest_does(id: int, may_go: bool) -> None:
    some = [*chain(2, 3, 4, 6), facts(id, condition=Condition.CORRUPT)]
    assert plan_retention(some, 2).sidecars_may_go is may_go


@pytest.mark.parametrize("condition", [Condition.BROKEN, Condition.ORPHAN])
def test_sidecars_may_go_beside_damage_whose_needs_are_known(condition: Condition) -> None:
    plan = plan_retention([*chain(1, 2), facts(3, "s3", condition=condition), *chain(4)], 3)
    assert 3 in plan.keep
    assert plan.sidecars_may_go


def test_the_sidecars_of_everything_that_stays_are_needed() -> None:
    some = [facts(1, "a"), facts(2, "b", named=True), facts(3, "c", "x"), facts(4, "x", condition=Condition.BROKEN)]
    plan = plan_retention([*some, facts(5, "x", "e")], 2)
    assert plan.remove == (1,)
    assert plan.needed_sidecars == {"b", "c", "x", "e"}


# Reading back before an independent third goes


def test_the_pair_that_everything_will_rest_on_is_read_back_when_a_third_goes() -> None:
    plan = plan_retention([facts(1, "a"), facts(2, "b"), facts(3, "c")], 1)
    assert plan.keep == (2, 3)
    assert plan.remove == (1,)
    assert plan.verify_first == (2, 3)


def test_nothing_is_read_back_when_only_dependent_ones_go() -> None:
    plan = plan_retention([facts(1, "old"), *chain(2, 3, 4, 5)], 1)
    assert plan.remove == (3, 4)
    assert plan.verify_first == ()


def test_nothing_is_read_back_when_two_independent_ones_stay_anyway() -> None:
    plan = plan_retention([facts(id, f"s{id}") for id in range(1, 6)], 3)
    assert plan.remove == (1, 2)
    assert plan.verify_first == ()


def test_a_damaged_third_needs_no_reading_back() -> None:
    plan = plan_retention([facts(1, "a", condition=Condition.BROKEN), facts(2, "b"), facts(3, "c")], 1)
    assert plan.remove == (1,)
    assert plan.verify_first == ()


# Properties


sidecar_sets = st.frozensets(st.sampled_from("abcdef"), max_size=3)
stores = st.lists(
    st.tuples(st.sampled_from(list(Condition)) | st.just(Condition.VALID), st.booleans(), sidecar_sets), max_size=12
).map(lambda rows: [CheckpointFacts(id, *row) for id, row in enumerate(rows, 1)])


@given(stores, st.integers(0, 5))
def test_every_plan_keeps_its_promises(store: list[CheckpointFacts], keep: int) -> None:
    plan = plan_retention(store, keep)
    kept = [c for c in store if c.checkpoint_id in plan.keep]
    removed = [c for c in store if c.checkpoint_id in plan.remove]
    valid = [c for c in store if c.valid]
    assert sorted(plan.keep + plan.remove) == [c.checkpoint_id for c in store]
    assert valid[-max(keep, 1) :] == [c for c in kept if c in valid[-max(keep, 1) :]]
    assert not any(c.named or c.condition is Condition.UNREADABLE for c in removed)
    assert plan.newest_valid == (valid[-1].checkpoint_id if valid else None)
    assert all(c.checkpoint_id < (plan.newest_valid or 0) for c in removed)
    assert not valid or all(c.needs <= plan.needed_sidecars for c in kept)
    assert set(plan.verify_first) <= set(plan.keep)


@given(stores, st.integers(0, 5))
def test_an_independent_second_survives_every_plan(store: list[CheckpointFacts], keep: int) -> None:
    def independent(of: list[CheckpointFacts]) -> list[CheckpointFacts]:
        valid = [c for c in of if c.valid]
        return [c for c in valid if c.shares_nothing_with(valid[-1])]

    plan = plan_retention(store, keep)
    kept = [c for c in store if c.checkpoint_id in plan.keep]
    assert bool(independent(kept)) == bool(independent(store))


@given(stores, st.integers(0, 5))
def test_pruning_again_at_once_removes_nothing(store: list[CheckpointFacts], keep: int) -> None:
    plan = plan_retention(store, keep)
    kept = [c for c in store if c.checkpoint_id in plan.keep]
    assert plan_retention(kept, keep).remove == ()


def disjoint_pair_exists(store: list[CheckpointFacts]) -> bool:
    valid = [c for c in store if c.valid]
    return any(a.shares_nothing_with(b) for a, b in itertools.combinations(valid, 2))


histories = st.lists(
    st.tuples(st.sets(st.integers(0, 5)), st.sampled_from([*[Condition.VALID] * 5, Condition.CORRUPT])), max_size=30
)


@given(histories, st.integers(1, 4))
def test_once_two_share_nothing_there_are_always_two(history: list[tuple[set[int], Condition]], keep: int) -> None:
    """Each new checkpoint cites some of what its predecessor cites, as the builder does, and prune runs each time."""
    store: list[CheckpointFacts] = []
    newest: list[str] = []
    for id, (cited, condition) in enumerate(history, 1):
        newest = [*[name for n, name in enumerate(newest) if n in cited], f"s{id}"]
        store.append(facts(id, *newest, condition=condition))
        before = disjoint_pair_exists(store)
        plan = plan_retention(store, keep)
        store = [c for c in store if c.checkpoint_id in plan.keep]
        assert disjoint_pair_exists(store) == before


def test_a_store_that_moves_its_bytes_stays_small_and_independent() -> None:
    """Every checkpoint cites the four sidecars before it: after a while there is always an independent second."""
    store: list[CheckpointFacts] = []
    for id in range(1, 101):
        store.append(facts(id, *(f"s{n}" for n in range(max(1, id - 4), id + 1))))
        plan = plan_retention(store, 3)
        store = [c for c in store if c.checkpoint_id in plan.keep]
        assert len(store) <= 3 + 2
        assert id < 6 or disjoint_pair_exists(store)
