"""What a go-back gave up stays given up, although its fence is lost and nothing but later checkpoints remember it."""

import pytest

from engine.worlds import Process, World
from holdfast.engine.recovery import decide_recovery
from holdfast.engine.startup import StartOptions


@pytest.fixture
def world() -> World:
    """Return four epochs, of which the last two are given up by a process that is still to seal something."""
    world = World(8)
    world.run()
    return world


def gone_back(world: World) -> tuple[Process, list[int]]:
    given_up = [world.of_epoch(epoch).checkpoint_id for epoch in (3, 4)]
    process = world.process(options=StartOptions(from_id=world.of_epoch(2).checkpoint_id))
    fence = process.start().fence
    assert list(fence.abandons) == given_up
    return process, given_up


@pytest.mark.parametrize("sealed", ["again", "an epoch"])
def test_a_later_checkpoint_remembers_what_its_fence_gave_up(world: World, sealed: str) -> None:
    """Goal: the branch that was left never comes back. Method: fence lost, its state damaged, a start decides."""
    process, given_up = gone_back(world)
    if sealed == "again":
        process.writer.seal_again()
    else:
        process.next_epoch()
    process.delivery.close()
    newest = world.newest()
    assert list(newest.abandons) == given_up
    world.damage_manifest(process.started.fence.checkpoint_id)
    world.damage_sidecar(newest.sidecar)
    decision = decide_recovery(world.store())
    assert decision.chosen is not None
    assert decision.chosen.epoch <= 2
    assert set(given_up) <= set(decision.abandons)


def test_a_start_after_that_shows_no_row_of_the_branch_that_was_left(world: World) -> None:
    """Goal: rows given up stay away. Method: the source holds other records now than when they were shown."""
    process, _ = gone_back(world)
    process.writer.seal_again()
    process.delivery.close()
    world.source.records[4:] = [{"id": 100 + number} for number in range(4)]
    world.damage_manifest(process.started.fence.checkpoint_id)
    world.damage_sidecar(world.newest().sidecar)
    world.run()
    assert world.shown() == world.expected()
