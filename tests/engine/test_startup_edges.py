"""Starts whose world changes between asking and acting, and what was staged where."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.worlds import Point, Process, World
from holdfast.core.contracts import RewindOutcome
from holdfast.engine.events import StepStarted
from holdfast.engine.startup import StartOptions
from holdfast.errors import ForeignTimeline, SinkError


@pytest.fixture
def world() -> Iterator[World]:
    world = World(8)
    yield world
    for target in world.targets.values():
        target.let_go()


def going_back(world: World, epoch: int) -> StartOptions:
    return StartOptions(from_id=world.of_epoch(epoch).checkpoint_id)


def test_a_sink_that_cannot_be_rewound_after_all_is_not_gone_on_with(world: World) -> None:
    """Loss without this: epochs 3 and 4 are shown twice. Method: the target changes its mind after it was asked."""
    world.run()

    def refuse(point: Point) -> None:
        if point == Point(StepStarted, 2, "recovery.rewind", "a"):
            world.targets["a"].rewindable = False

    process = world.process(options=going_back(world, 2), on_point=refuse)
    with pytest.raises(SinkError, match="sink 'a' shows epoch 4, the pipeline goes on from epoch 2"):
        process.start()
    assert world.shown()["a"] == world.expected()["a"]


def test_a_commit_of_the_one_we_replace_does_not_undo_what_a_person_said_nor_ask_it_again(world: World) -> None:
    """Between our fence and our claim the process before shows what it had sealed: we look again, once."""
    world.run()
    target = world.targets["a"]
    shown = target.state
    target.lose_last_commit()
    seen: list[int] = []

    def commit(point: Point) -> None:
        if point.step == "recovery.claim" and point.kind is StepStarted and point.sink is None:
            seen.append(world.newest().epoch)
            if len(seen) == 1:
                target.state = shown

    process = world.process(options=going_back(world, 3), on_point=commit)
    process.run()
    assert seen == [3, 3]
    assert process.started.epoch == 3
    assert process.started.report["sinks"]["a"] == "rewound from epoch 4 to 3"
    assert world.shown() == world.expected()


def test_a_sink_that_never_stands_where_it_was_asked_is_refused_in_the_end(world: World) -> None:
    world.run()
    target = world.targets["a"]
    later = target.state
    target.lose_last_commit()
    earlier = target.state
    claims: list[int] = []

    def move(point: Point) -> None:
        if point.step == "recovery.claim" and point.kind is StepStarted and point.sink is None:
            assert target.state.ledger is not None
            at_3 = target.state.ledger.epoch == 3
            target.state = later if at_3 else earlier
            claims.append(4 if at_3 else 3)

    with pytest.raises(SinkError, match="'a' stands elsewhere whenever it is claimed than when it was asked"):
        world.process(on_point=move).start()
    assert claims == [4, 3, 4, 3, 4]


@pytest.mark.parametrize(
    ("options", "spools", "shown"),
    [
        (StartOptions(), True, [4]),
        (StartOptions(), False, [4]),
        (StartOptions(moved=True), True, []),
        (StartOptions(moved=True), False, [4]),
    ],
)
def test_only_what_was_spooled_beside_a_store_that_was_moved_is_computed_again(
    world: World, options: StartOptions, spools: bool, shown: list[int]
) -> None:
    world.run()
    world.targets["a"].lose_last_commit()
    world.damage_sidecar(world.of_epoch(4).sidecar)
    process = world.process(options=options)
    sink = process.sinks["a"]
    sink.guarantee = replace(sink.guarantee, spools=spools)
    intent = process.startup().ask(process.old_ranges)
    assert [token.epoch for token in intent.settling.sinks["a"].commits] == shown
    assert [record.epoch for record in intent.settling.replay.epochs] == [4]


def test_only_who_goes_on_from_an_epoch_is_told_what_adopting_there_means(world: World) -> None:
    world.run()
    foreign = {name: target.state for name, target in world.targets.items()}
    other = World(8)
    other.targets = world.targets
    with pytest.raises(ForeignTimeline) as fresh:
        other.run()
    assert "goes on from epoch" not in str(fresh.value)
    second = World(8)
    second.run()
    for name, state in foreign.items():
        second.targets[name].state = state
    with pytest.raises(ForeignTimeline, match="goes on from epoch 4, so of these only adopt is possible"):
        second.run()


def test_a_sink_is_asked_about_a_rewind_before_the_fence(world: World) -> None:
    world.run()
    world.targets["a"].rewindable = False
    ids = world.store().list_ids()
    process: Process = world.process(options=going_back(world, 2))
    with pytest.raises(SinkError, match="cannot be rewound"):
        process.start()
    assert world.store().list_ids() == ids
    assert process.sinks["a"].can_rewind(4) is RewindOutcome.DONE
