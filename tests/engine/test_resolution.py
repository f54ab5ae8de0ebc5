"""A person's word: an epoch that a sink will never show, and a change that was approved."""

from typing import Any

import pytest

from engine.worlds import Point, World, records
from holdfast import Fenced, InvalidRequest, NoValidCheckpoint, SinkCommitStatus
from holdfast.core.contracts import EpochRef, Prepared, Rows
from holdfast.engine.events import StepFinished, StepStarted
from holdfast.engine.resolution import approve, discard_epoch
from holdfast.testing import RecordingSink, SimulatedCrash

COMMITTED = SinkCommitStatus.COMMITTED


@pytest.fixture(params=["small tokens", "large tokens"])
def large(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "large tokens")


@pytest.fixture
def world(large: bool) -> World:
    """Return a world where epoch 3 is sealed for all sinks, and shown by none."""
    world = World(8)
    process = world.process(dies_at=Point(StepStarted, 3, "commit", "a"))
    if large:
        for name in process.sinks:
            process.sinks[name] = Wordy(world.targets[name], process.life.check)
    with pytest.raises(SimulatedCrash):
        process.run()
    assert bool(world.newest().sink_tokens) is not large
    return world


class Wordy(RecordingSink):
    """A sink whose tokens are too large for a manifest."""

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        prepared = super().prepare(rows, ref)
        return Prepared(prepared.rows, {**prepared.payload, "files": ["x" * 1000] * 300})


def discard(world: World, sink: str, epoch: int = 3) -> Any:
    return discard_epoch(world.store(), sink, epoch, reason="table dropped", clock=world.clock)


def without_epoch_3(world: World, *sinks: str) -> dict[str, Any]:
    """Return what is expected when sinks never show epoch 3, the records 5 and 6."""
    return {
        name: [row for row in rows if name not in sinks or row["id"] not in (5, 6)]
        for name, rows in world.expected().items()
    }


# --- giving an epoch up


@pytest.mark.parametrize("sink", ["a", "b", "c"])
def test_the_sink_never_shows_the_epoch_and_the_others_do(world: World, sink: str) -> None:
    discard(world, sink)
    process = world.run()
    assert process.started.report["sinks"][sink] == "has everything"
    assert world.shown() == without_epoch_3(world, sink)


def test_the_record_says_what_was_given_up_and_why(world: World) -> None:
    fence = discard(world, "b")
    record = (fence.recovery or {})["resolved"]
    assert (record["sink"], record["epoch"], record["action"]) == ("b", 3, "discard")
    assert record["reason"] == "table dropped"
    assert fence.sink_commit_statuses["b"] == COMMITTED
    assert fence.kind == "fence"


def test_the_ledger_is_not_touched_and_the_next_epoch_follows_it(world: World) -> None:
    before = world.targets["a"].state
    discard(world, "a")
    assert world.targets["a"].state == before
    process = world.process()
    process.start()
    process.next_epoch()
    assert world.newest().sink_tokens["a"]["previous"] == 2


def test_several_sinks_can_be_given_up_one_after_the_other(world: World) -> None:
    for sink in ("a", "b", "c"):
        discard(world, sink)
    world.run()
    assert world.shown() == without_epoch_3(world, "a", "b", "c")


def test_a_start_that_dies_afterwards_does_not_bring_it_back(world: World) -> None:
    """The next fence copies the checkpoint; the decision must be in the copy."""
    discard(world, "b")
    for point in (Point(StepFinished, 0, "recovery.fence"), Point(StepStarted, 3, "recovery.commit", "c")):
        with pytest.raises(SimulatedCrash):
            world.run(dies_at=point)
    world.run()
    assert world.shown() == without_epoch_3(world, "b")


def test_the_rows_do_not_come_back_with_a_replay(world: World) -> None:
    """The checkpoint is damaged later, so its epoch is computed again; also when that happens twice."""
    discard(world, "b")
    with pytest.raises(SimulatedCrash):
        world.run(dies_at=Point(StepFinished, 3, "recovery.settle"))
    for _ in range(2):
        world.damage_sidecar(world.newest().sidecar)
        process = world.process()
        process.start()
        assert [record.epoch for record in process.started.replays] == [3]
    world.run()
    assert world.shown() == without_epoch_3(world, "b")


def test_a_removed_sink_can_be_given_up(world: World) -> None:
    discard(world, "c")
    process = world.run(sinks=["a", "b"])
    assert process.started.report["sinks"] == {"a": "committed epoch 3", "b": "committed epoch 3"}


@pytest.mark.parametrize("sink", ["a", "c"])
def test_a_pipeline_that_still_runs_shows_nothing_twice_and_is_fenced(world: World, sink: str) -> None:
    """Somebody gives epoch 4 up while the pipeline is about to commit it: its next seal fails."""

    def give_up(point: Point) -> None:
        if point == Point(StepStarted, 4, "commit"):
            discard(world, sink, 4)

    running = world.process(on_point=give_up)
    running.start()
    running.next_epoch()
    world.source.records = records(10)
    with pytest.raises(Fenced):
        running.next_epoch()
    world.run()
    assert world.shown() == world.expected()


# --- refusing


def test_only_what_the_newest_checkpoint_owes_can_be_given_up(world: World) -> None:
    with pytest.raises(InvalidRequest, match="knows no sink 'nobody'"):
        discard(world, "nobody")
    with pytest.raises(InvalidRequest, match="owed nothing of epoch 2: the newest checkpoint is of epoch 3"):
        discard(world, "a", 2)
    ids = world.store().list_ids()
    world.run()
    with pytest.raises(InvalidRequest, match="the newest checkpoint is of epoch 4 and says Committed"):
        discard(world, "a", 4)
    assert world.store().list_ids()[: len(ids)] == ids


def test_it_is_given_up_once(world: World) -> None:
    discard(world, "a")
    with pytest.raises(InvalidRequest, match="owed nothing"):
        discard(world, "a")


# --- approving


def test_there_must_be_a_checkpoint_to_approve() -> None:
    world = World(8)
    with pytest.raises(NoValidCheckpoint):
        approve(world.store(), 7, clock=world.clock)
    assert world.store().list_ids() == []


def test_an_approval_seals_a_fence_and_says_whom_it_is_for(world: World) -> None:
    fence = approve(world.store(), 7, clock=world.clock)
    assert (fence.kind, fence.epoch) == ("fence", 3)
    assert (fence.recovery or {})["approved"] == ["0000000000000007"]
    world.run()
    assert world.shown() == world.expected()


def test_giving_an_epoch_up_keeps_an_approval(world: World) -> None:
    approve(world.store(), 7, clock=world.clock)
    assert (discard(world, "b").recovery or {})["approved"] == ["0000000000000007"]
