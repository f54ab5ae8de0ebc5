"""Goal: what a go-back decided outlives its fence. Method: its manifests are damaged later, in every depth."""

from uuid import UUID

import pytest

from engine.worlds import Point, World
from holdfast.core.contracts import LedgerState
from holdfast.engine.branches import Branches
from holdfast.engine.events import StepStarted
from holdfast.engine.ledgers import Ledgers
from holdfast.engine.startup import StartOptions
from holdfast.testing import SimulatedCrash

TIMELINE = UUID(int=1)


@pytest.fixture
def world() -> World:
    """Return a pipeline of four epochs, which goes on in smaller steps from now on."""
    world = World(8)
    world.run()
    world.take = lambda generation: 1
    return world


def going_back(world: World) -> StartOptions:
    return StartOptions(from_id=world.of_epoch(2).checkpoint_id)


def lose(world: World, after: int, what: str) -> None:
    """Damage every checkpoint after an id."""
    for manifest in [manifest for manifest in world.store().manifests() if manifest.checkpoint_id > after]:
        if "progress" in what and manifest.kind != "fence":
            world.damage_sidecar(manifest.sidecar, progress=True)
        world.damage_manifest(manifest.checkpoint_id)
    if "work" in what:
        world.lose_work()


@pytest.mark.parametrize("what", ["manifests", "manifests work", "manifests progress", "manifests progress work"])
def test_the_branch_that_was_given_up_does_not_come_back(world: World, what: str) -> None:
    last = world.newest().checkpoint_id
    world.run(options=going_back(world))
    lose(world, last, what)
    process = world.run()
    assert process.started.epoch == 2
    assert world.shown() == world.expected()


@pytest.mark.parametrize("what", ["manifests", "manifests work"])
def test_a_go_back_that_died_half_way_stands_although_its_fence_is_lost(world: World, what: str) -> None:
    """One sink was rewound, and says so; another still shows what was given up."""
    last = world.newest().checkpoint_id
    with pytest.raises(SimulatedCrash):
        world.run(options=going_back(world), dies_at=Point(StepStarted, 2, "recovery.rewind", "c"))
    lose(world, last, what)
    process = world.process()
    start = process.start()
    assert (start.epoch, start.replays) == (2, ())
    assert start.report["sinks"]["c"] == "rewound from epoch 4 to 2"
    world.run()
    assert world.shown() == world.expected()


def test_no_generation_is_used_twice_although_the_store_forgot_those_in_between(world: World) -> None:
    """The store was put back to a copy from before some starts: only the targets know how many there were."""
    copy = world.objects.copy()
    for _ in range(5):
        world.process().start()
    ledger = world.targets["a"].state.ledger
    assert ledger is not None
    world.objects = copy
    process = world.run()
    assert process.generation == ledger.generation + 1


def state(generation: int, epoch: int, rewound_in: int = 0, rewound_to: int = 0) -> LedgerState:
    return LedgerState(TIMELINE, generation, epoch, rewound_in=rewound_in, rewound_to=rewound_to)


def test_points_that_a_later_one_covers_are_forgotten() -> None:
    ledgers = Ledgers({"a": state(9, 9, 2, 7), "b": state(9, 9, 4, 3), "c": state(9, 9, 6, 5)})
    branches = Branches().noted_in(ledgers, TIMELINE)
    assert branches.points == ((4, 3), (6, 5))
    assert branches.to_json_value() == {
        "went_back": [{"generation": 4, "epoch": 3}, {"generation": 6, "epoch": 5}],
    }


@pytest.mark.parametrize(
    ("generation", "epoch", "common"), [(3, 9, 3), (4, 9, 5), (5, 9, 5), (6, 9, 9), (3, 2, 2), (1, 4, 3), (5, 4, 4)]
)
def test_what_a_sink_shows_is_ours_up_to_the_first_go_back_that_it_missed(
    generation: int, epoch: int, common: int
) -> None:
    assert Branches(((4, 3), (6, 5))).common_until(state(generation, epoch)) == common


def test_a_rewind_counts_until_a_target_went_on_from_it() -> None:
    stood = Ledgers({"a": state(4, 3, 4, 3), "b": state(4, 8, 2, 1)})
    assert stood.last_rewind(TIMELINE) == state(4, 3, 4, 3)
    assert Ledgers({"a": state(4, 3, 4, 3), "b": state(4, 4, 4, 3)}).last_rewind(TIMELINE) is None
    assert Ledgers({"a": state(4, 3)}).last_rewind(TIMELINE) is None
