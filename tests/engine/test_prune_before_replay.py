"""A crash loop that never gets to its replay, and somebody who prunes meanwhile: nothing that was decided is lost."""

import pytest

from engine.worlds import Point, World
from holdfast.engine.events import StepFinished
from holdfast.testing import SimulatedCrash


@pytest.mark.parametrize("rewindable", [False, True], ids=["sinks that cannot be rewound", "sinks that can"])
def test_a_prune_before_the_replay_loses_no_epoch(rewindable: bool) -> None:
    world = World(8)
    for target in world.targets.values():
        target.rewindable = rewindable
    world.run()
    newest = world.newest()
    assert newest.sidecar is not None
    world.damage_sidecar(newest.sidecar)
    for _ in range(11):
        with pytest.raises(SimulatedCrash):
            world.run(dies_at=Point(StepFinished, 0, "recovery.fence"))
    world.store().prune_ids(10)
    world.lose_work()
    last = world.run()
    assert last.started.report["replays"]
    assert world.shown() == world.expected()
