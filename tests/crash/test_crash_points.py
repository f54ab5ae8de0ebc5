"""Goal: a crash at any step of anything, with or without a power loss, costs nothing that was acknowledged.

Method: run each scenario once to count its steps, then once for each step with a crash before it, after it and in
the middle of a write. What is left is looked at as it is (the process died) and in many forms that a power loss may
give it; then a new process recovers, and the power goes once more, so that what it acknowledged must be durable too.
In the second test the recovery is crashed at each of its steps as well, and a third process has to cope.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from crash_lab import FULL, SEED, DiskWorld, Ledger, begin_phase, described, look, recover
from crash_scenarios import SCENARIOS, Scenario

from holdfast.testing import (
    NAMED_LOSSES,
    NOTHING,
    CrashPlan,
    CrashPoint,
    SimulatedCrash,
    When,
    seeded_loss,
    single_losses,
)

ALWAYS = ("process crash", "power loss: nothing")
SAMPLED_LOSSES = 10**9 if FULL else 1
SAMPLED_PAIRS = 300 if FULL else 15

Run = Callable[[DiskWorld, Ledger, CrashPlan], object]
Crashed = tuple[CrashPoint, DiskWorld, Ledger]


def crashed_everywhere(run: Run, base: DiskWorld, ledger: Ledger, points: Iterator[CrashPoint]) -> Iterator[Crashed]:
    """Yield what is left after a crash at each point; the same disk with the same promises comes only once."""
    seen = set()
    for point in points:
        world, promised = base.copy(), ledger.copy()
        with pytest.raises(SimulatedCrash):
            run(world, promised, CrashPlan(point))
        key = (world.disk.fingerprint(), promised.key())
        if key not in seen:
            seen.add(key)
            yield point, world, promised


def counted(run: Run, base: DiskWorld, ledger: Ledger) -> list[CrashPoint]:
    counting = CrashPlan()
    run(base.copy(), ledger.copy(), counting)
    return list(counting.crash_points())


def crashed_scenario(scenario: Scenario, tally: Counter[str], what: str) -> Iterator[Crashed]:
    world, ledger = scenario.prepared(DiskWorld())
    assert isinstance(world, DiskWorld)
    points = counted(scenario.run, world, ledger)
    tally[what] += len(points)
    yield from crashed_everywhere(scenario.run, world, ledger, iter(points))


def survivors(world: DiskWorld, chance: random.Random, sampled: int) -> Iterator[tuple[str, DiskWorld]]:
    """Yield the machine after the process died and after the power went, each different outcome once."""
    losses = [*NAMED_LOSSES, *single_losses(world.disk.pending)]
    losses += [seeded_loss(chance, f"seeded {i}") for i in range(4)]
    outcomes = {"process crash": world.disk.process_crash()}
    outcomes |= {f"power loss: {loss}": world.disk.power_loss(loss) for loss in losses}
    different = {disk.fingerprint(): name for name, disk in reversed(outcomes.items())}
    names = list(reversed(different.values()))
    others = [name for name in names if name not in ALWAYS]
    chosen = {*ALWAYS, *chance.sample(others, min(sampled, len(others)))}
    for name in names:
        if name in chosen:
            yield name, DiskWorld(outcomes[name])


def recovered(world: DiskWorld, ledger: Ledger) -> None:
    """Let a new process start, and take the power away after it has acknowledged its first epoch."""
    begin_phase("last recovery")
    recover(world, ledger)
    look(DiskWorld(world.disk.power_loss(NOTHING)), ledger)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_acknowledged_is_lost_by_a_crash(scenario: Scenario, tally: Counter[str]) -> None:
    chance = random.Random(SEED)
    for point, world, ledger in crashed_scenario(scenario, tally, "crash points on disk"):
        for how, survivor in survivors(world, chance, SAMPLED_LOSSES):
            promised = ledger.copy()
            with described(scenario.name, point, how):
                look(survivor, promised)
                recovered(survivor, promised)
            tally["different disks after a crash or power loss, recovered"] += 1


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_second_crash_during_recovery_costs_nothing_either(scenario: Scenario, tally: Counter[str]) -> None:
    chance = random.Random(SEED)
    seen = set()
    for point, how, start, ledger, second in pairs(scenario, chance):
        world, promised = start.copy(), ledger.copy()
        with described(scenario.name, point, how, "then in recovery", second):
            with pytest.raises(SimulatedCrash):
                first_recovery(world, promised, CrashPlan(second))
            tally["second crashes, during the recovery from a first"] += 1
            key = (world.disk.fingerprint(), promised.key())
            if key in seen:
                continue
            seen.add(key)
            again, left = chance.choice(list(survivors(world, chance, 1)))
            with described("then", again):
                recovered(left, promised)


def first_recovery(world: DiskWorld, ledger: Ledger, plan: CrashPlan) -> None:
    begin_phase("first recovery")
    recover(world, ledger, plan)


def pairs(
    scenario: Scenario, chance: random.Random
) -> Iterator[tuple[CrashPoint, str, DiskWorld, Ledger, CrashPoint]]:
    """Yield every pair of crashes of a small scenario, and a sample of the pairs of another."""
    sites = [
        (point, how, survivor, ledger)
        for point, world, ledger in crashed_scenario(scenario, Counter(), "")
        for how, survivor in survivors(world, chance, 10**9 if FULL else 0)
        if FULL or not scenario.small or how == "process crash"
    ]
    everything = scenario.small or (FULL and scenario.name in ("save", "first save", "two steps"))
    # A disk after a step is the disk before the next one, and what was acknowledged in between only asks for more.
    for site in sites if everything else chance.choices(sites, k=SAMPLED_PAIRS):
        points = counted(first_recovery, site[2], site[3])
        points = points if FULL else [point for point in points[:-1] if point.when is not When.AFTER] + points[-1:]
        for second in points if everything else chance.sample(points, 3):
            yield *site, second
