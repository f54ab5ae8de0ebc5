"""Goal: a disk that fails for a moment never makes the store acknowledge what is not durable.

Method: run each scenario once to count its steps, then once for each step with an I/O error there: not carried out,
carried out although it says it was not, or no space left. The writer gives up, or repeats the call. In both cases
the power goes afterwards, and everything acknowledged must be there.
"""

import errno
import random
from collections import Counter

import pytest
from crash_lab import FULL, SEED, DiskWorld, Ledger, begin_phase, described, look, recover
from crash_scenarios import SCENARIOS, Scenario

from holdfast.errors import TransientStoreError
from holdfast.testing import NAMES_WITHOUT_BYTES, NOTHING, FaultPlan

KINDS = ((errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, False))


@pytest.mark.parametrize("patience", [0, 2], ids=["gives up", "is patient"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_is_acknowledged_beside_an_error_is_durable(
    scenario: Scenario, patience: int, tally: Counter[str]
) -> None:
    base, before = scenario.prepared(DiskWorld())
    counting = FaultPlan()
    scenario.run(base.copy(), before.copy(), counting)
    seen = set()
    for step, label in enumerate(counting.trace):
        for number, applied in KINDS if FULL else [random.Random(f"{SEED}/{step}").choice(KINDS)]:
            tally["disk errors"] += 1
            world, ledger = base.copy(), before.copy()
            with described(scenario.name, f"step {step}: {label}", errno.errorcode[number], f"applied={applied}"):
                try:
                    scenario.run(world, ledger, FaultPlan(step, number, applied=applied), patience=patience)
                except TransientStoreError:
                    assert patience == 0, "one error, and not even a second try succeeds"
                key = (world.disk.fingerprint(), ledger.key())  # type: ignore[union-attr]
                if key not in seen:
                    seen.add(key)
                    judge(world, ledger)


def judge(world: DiskWorld, ledger: Ledger) -> None:
    look(world, ledger.copy())
    for loss in (NOTHING, NAMES_WITHOUT_BYTES):
        look(DiskWorld(world.disk.power_loss(loss)), ledger.copy())
    begin_phase("recovery")
    recover(world, ledger)
    look(DiskWorld(world.disk.power_loss(NOTHING)), ledger)
