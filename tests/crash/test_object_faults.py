"""Goal: whatever a bucket answers, or does not, nothing acknowledged is lost and nobody is fenced without a rival.

Method: run each scenario once to count its requests, then once for each request and each fault that fits it. The
writer either gives up at the first error, and another one recovers, or it is patient and asks again. A request that
timed out may be carried out late: before the recovery, or after it.
"""

import contextlib
import random
from collections import Counter

import pytest
from crash_lab import FULL, SEED, BucketWorld, Ledger, begin_phase, described, look, recover
from crash_scenarios import SCENARIOS, Scenario

from holdfast.errors import TransientStoreError
from holdfast.testing import Fault, FaultSchedule, SimulatedCrash

RANDOM_SCHEDULES = 400 if FULL else 25


def prepared(scenario: Scenario) -> tuple[BucketWorld, Ledger, list[str]]:
    world, ledger = scenario.prepared(BucketWorld())
    assert isinstance(world, BucketWorld)
    counting = FaultSchedule()
    scenario.run(world.copy(), ledger.copy(), counting)
    return world, ledger, counting.trace


def is_new(world: BucketWorld, ledger: Ledger, seen: set[object]) -> bool:
    """Whether no schedule before left the same objects and the same promises."""
    key = (world.objects.fingerprint(), ledger.key())
    if key in seen:
        return False
    seen.add(key)
    return True


def recovered(world: BucketWorld, ledger: Ledger) -> None:
    begin_phase("recovery")
    recover(world, ledger)
    look(world, ledger)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_one_fault_and_the_writer_gives_up(scenario: Scenario, tally: Counter[str]) -> None:
    base, before, trace = prepared(scenario)
    seen: set[object] = set()
    recovered_from: set[object] = set()
    for number, label in enumerate(trace):
        for fault in (fault for fault in Fault if fault.fits(label)):
            tally["fault schedules on a bucket"] += 1
            world, ledger, schedule = base.copy(), before.copy(), FaultSchedule({number: fault})
            with described(scenario.name, f"request {number}: {label}", fault, "gives up"):
                with contextlib.suppress(TransientStoreError, SimulatedCrash):
                    scenario.run(world, ledger, schedule)
                if is_new(world, ledger, seen):
                    look(world, ledger.copy())
                schedule.deliver_late()
                if is_new(world, ledger, recovered_from):
                    look(world, ledger)
                    recovered(world, ledger)
            if fault is Fault.TIMEOUT_LATE:
                with described(scenario.name, f"request {number}: {label}", fault, "after the recovery"):
                    _deliver_after_recovery(scenario, base, before, number)


def _deliver_after_recovery(scenario: Scenario, base: BucketWorld, before: Ledger, number: int) -> None:
    world, ledger, schedule = base.copy(), before.copy(), FaultSchedule({number: Fault.TIMEOUT_LATE}, late_by=10**9)
    try:
        scenario.run(world, ledger, schedule)
    except TransientStoreError:
        recovered(world, ledger)
    schedule.deliver_late()
    look(world, ledger)
    recovered(world, ledger)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_one_fault_and_the_writer_is_patient(scenario: Scenario, tally: Counter[str]) -> None:
    base, before, trace = prepared(scenario)
    seen: set[object] = set()
    for number, label in enumerate(trace):
        for fault in (fault for fault in Fault if fault.fits(label) and not fault.name.startswith("CRASH")):
            tally["fault schedules on a bucket"] += 1
            world, ledger, schedule = base.copy(), before.copy(), FaultSchedule({number: fault})
            with described(scenario.name, f"request {number}: {label}", fault, "is patient"):
                scenario.run(world, ledger, schedule, patience=2)
                schedule.deliver_late()
                if is_new(world, ledger, seen):
                    look(world, ledger)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_many_faults(scenario: Scenario, tally: Counter[str]) -> None:
    base, before, trace = prepared(scenario)
    chance = random.Random(SEED)
    for _ in range(RANDOM_SCHEDULES):
        tally["fault schedules on a bucket"] += 1
        count = chance.randint(2, 4)
        faults = {chance.randrange(len(trace) + 5): chance.choice(list(Fault)) for _ in range(count)}
        in_recovery = {chance.randrange(60): chance.choice(list(Fault)) for _ in range(2)}
        world, ledger = base.copy(), before.copy()
        with described(scenario.name, faults, "then in recovery", in_recovery):
            schedule, second = FaultSchedule(faults), FaultSchedule(in_recovery)
            try:
                scenario.run(world, ledger, schedule, patience=chance.choice((0, 2)))
                begin_phase("first recovery")
                recover(world, ledger, second)
            except (TransientStoreError, SimulatedCrash):
                look(world, ledger)
            schedule.deliver_late()
            second.deliver_late()
            look(world, ledger)
            recovered(world, ledger)
