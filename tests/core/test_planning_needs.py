"""What retention must not let go: what is still to be replayed, and the last bytes that nothing else stands for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.planning import CheckpointFacts, Condition, plan_retention
from holdfast.engine.sequel import Sequel


def facts(id: int, *needs: str, condition: Condition = Condition.VALID, named: bool = False) -> CheckpointFacts:
    return CheckpointFacts(id, condition, named, frozenset(needs))


def chain(*ids: int) -> list[CheckpointFacts]:
    """Return checkpoints that all rest on one base, each with a sidecar of its own."""
    return [facts(id, "base", f"s{id}") for id in ids]


sidecar_sets = st.frozensets(st.sampled_from("abcdef"), max_size=3)
stores = st.lists(
    st.tuples(st.sampled_from(list(Condition)) | st.just(Condition.VALID), st.booleans(), sidecar_sets), max_size=12
).map(lambda rows: [CheckpointFacts(id, *row) for id, row in enumerate(rows, 1)])


# What still has to be replayed


def test_what_a_kept_one_still_has_to_replay_stays() -> None:
    fences = [replace(facts(id, "s2"), replays=frozenset({3})) for id in range(4, 20)]
    given_up = facts(3, "s2", "s3", condition=Condition.BROKEN)
    plan = plan_retention([facts(1, "s1"), facts(2, "s2"), given_up, *fences], 5)
    assert plan.keep == (1, 2, 3, *range(15, 20))
    assert plan.needed_sidecars == {"s1", "s2", "s3"}


def test_what_only_a_removed_one_had_to_replay_goes() -> None:
    owing = replace(facts(3, "s3"), replays=frozenset({2}))
    plan = plan_retention([facts(2, "s2"), owing, *(facts(id, f"s{id}") for id in range(4, 9))], 3)
    assert plan.keep == (6, 7, 8)


@pytest.mark.parametrize("condition", [Condition.CORRUPT, Condition.ORPHAN])
def test_what_is_left_of_one_to_replay_stays_even_without_its_manifest(condition: Condition) -> None:
    owing = replace(facts(9, "s2"), replays=frozenset({3}))
    some = [facts(1, "s1"), facts(2, "s2"), facts(3, condition=condition), *chain(4, 5, 6, 7, 8), owing]
    assert 3 in plan_retention(some, 1).keep


def test_the_key_that_recovery_writes_is_the_one_that_retention_reads() -> None:
    recovery = Sequel({2: 7, 3: 9}).to_json_value()
    manifest = CheckpointManifest.new(1, 1)
    assert manifest.model_copy(update={"recovery": recovery}).replays == {7, 9}
    assert manifest.model_copy(update={"recovery": {"report": {}}}).replays == manifest.replays == frozenset()


# Independence is of bytes


def test_copies_of_one_checkpoint_count_once() -> None:
    """A fence and its original are damaged together: the last one beside them goes only after a look."""
    plan = plan_retention([facts(1, "s1"), facts(8, "s8"), facts(9, "s8"), facts(10, "s10")], 3)
    assert plan.remove == (1,)
    assert plan.verify_first == (9, 10)


def test_checkpoints_on_one_base_count_once() -> None:
    old = [facts(id, "s20", f"s{id}") for id in range(36, 43)]
    plan = plan_retention([facts(5, "s1", "s5"), *old, facts(43, "s40", "s43")], 5)
    assert 5 in plan.remove
    assert plan.verify_first == (42, 43)


def test_what_goes_with_what_stays_needs_no_look() -> None:
    """A copy goes: whatever damages the one that stays damages it as well."""
    plan = plan_retention([facts(1, "s1"), facts(2, "s2"), facts(3, "s2"), facts(4, "s2")], 1)
    assert (plan.keep, plan.remove, plan.verify_first) == ((1, 2, 4), (3,), ())


def test_what_was_read_back_before_is_not_read_again() -> None:
    some = [facts(1, "s1"), *(facts(id, *(f"s{n}" for n in range(id - 4, id + 1))) for id in range(6, 20))]
    plan = plan_retention(some, 10)
    assert plan.verify_first == (14, 19)
    assert plan_retention(some, 10, {14, 19}).verify_first == ()
    assert plan_retention(some, 10, {12, 17}).verify_first == ()
    assert plan_retention(some, 10, {13}).verify_first == (19,)


@given(stores, st.integers(0, 5), st.sets(st.sampled_from("abcdef"), max_size=2), st.sets(st.integers(1, 12)))
def test_two_damaged_objects_never_let_the_last_sound_one_go(
    store: list[CheckpointFacts], keep: int, damaged: set[str], read_before: set[int]
) -> None:
    """Goal: the promise of `plan_retention`. Method: silent damage, and plans until what is read back is sound."""

    def sound(some: list[CheckpointFacts]) -> list[CheckpointFacts]:
        return [c for c in some if c.valid and not c.needs & damaged]

    before = bool(sound(store))
    verified = {c.checkpoint_id for c in sound(store)} & read_before
    while True:
        plan = plan_retention(store, keep, verified)
        spoiled = {c.checkpoint_id for c in store if c.needs & damaged} & set(plan.verify_first)
        verified |= set(plan.verify_first) - spoiled
        if not spoiled:
            break
        store = [replace(c, condition=Condition.BROKEN) if c.checkpoint_id in spoiled else c for c in store]
    assert before == bool(sound([c for c in store if c.checkpoint_id in plan.keep]))
