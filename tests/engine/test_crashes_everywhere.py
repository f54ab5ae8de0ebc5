"""Goal: no crash loses or doubles a row. Method: die at every event, die again during the recovery, then look.

Set HOLDFAST_CRASH=full for every pair of crashes and many more random schedules.
"""

import os
from typing import Any

import pytest

from engine.schedules import Schedule
from engine.worlds import World, records
from holdfast.testing import SimulatedCrash
from marks import long

FULL = os.environ.get("HOLDFAST_CRASH") == "full"
SEED = int(os.environ.get("HOLDFAST_CRASH_SEED") or 1)
STRIDE = 1 if FULL else 9
"""Of the pairs of crashes, one in so many."""
SCHEDULES = 400 if FULL else 20
"""Random schedules in each test."""


def crashed(world: World, dies_at: int, **options: Any) -> bool:
    """Run a process that dies at an event, counted from 0; False when it ends before."""
    try:
        world.run(dies_at=dies_at, **options)
    except SimulatedCrash:
        return True
    return False


def test_a_crash_at_every_event_loses_and_doubles_nothing() -> None:
    """Sinks act one after the other, in both orders, so that every split between them is met."""
    for sinks in (["a", "b", "c"], ["c", "b", "a"]):
        events = World(8).run(sinks=sinks).life.points
        assert len(events) == 122
        for number, point in enumerate(events):
            world = World(8)
            # An epoch that did not happen is not read again in the same steps.
            world.take = lambda generation: 1 + generation % 3
            assert crashed(world, number, sinks=sinks), point
            world.run()
            assert world.shown() == world.expected(), point


@pytest.mark.parametrize("part", range(4))
def test_a_second_crash_during_the_recovery_loses_and_doubles_nothing(part: int) -> None:
    events = len(World(6).run().life.points)
    for first in range(part, events, 4):
        before = World(6)
        assert crashed(before, first)
        for second in range(first % STRIDE, 200, STRIDE):
            world = before.copy()
            if not crashed(world, second):
                break
            world.run()
            assert world.shown() == world.expected(), (first, second)


DAMAGE = ["state", "manifest", "state of two", "manifest progress"]


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("unsettled", [False, True], ids=["all committed", "one pending"])
def test_a_crash_at_every_event_of_a_recovery_from_damage(what: str, unsettled: bool) -> None:
    """On another machine, without the old working directory, and no sink can be rewound unless the range is lost."""
    before = World(8)
    for target in before.targets.values():
        target.rewindable = "progress" in what
    events = [str(point) for point in World(8).run().life.points]
    assert crashed(before, events.index("StepStarted commit of c in epoch 4")) if unsettled else before.run()
    newest = before.newest()
    if "manifest" in what:
        before.damage_manifest(newest.checkpoint_id)
    if "state" in what:
        before.damage_sidecar(newest.sidecar)
    if "two" in what:
        before.damage_sidecar(before.of_epoch(3).sidecar)
    if "progress" in what:
        before.damage_sidecar(newest.sidecar, progress=True)
    before.source.records = records(10)
    before.lose_work()
    for number in range(0, 300, 1 if FULL else 2):
        world = before.copy()
        if not crashed(world, number):
            break
        world.lose_work()
        world.run()
        assert world.shown() == world.expected(), number


@pytest.fixture(params=[*range(4), *long(*range(4, 10))])
def seeds(request: pytest.FixtureRequest) -> range:
    start = (SEED * 10 + request.param) * SCHEDULES
    return range(start, start + SCHEDULES)


def test_random_lives_lose_and_double_nothing(seeds: range) -> None:
    for seed in seeds:
        Schedule(seed).run()


def test_sinks_that_act_at_the_same_time_lose_and_double_nothing() -> None:
    """As above, but nothing puts the sinks in order: what a crash finds half done differs from run to run."""
    for seed in range(8):
        Schedule(seed, in_turn=False).run()
