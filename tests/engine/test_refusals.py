"""Goal: a start that is refused has changed nothing. Method: every refusal there is, and a look before and after."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engine.worlds import Point, Process, World, records
from holdfast.core.contracts import OnForeign
from holdfast.engine.events import StepStarted
from holdfast.engine.identity import OnChange
from holdfast.engine.startup import AskOthers, Intent, StartOptions
from holdfast.errors import HoldfastError, SourceHistoryLost
from holdfast.testing import SimulatedCrash, Trouble


@dataclass
class Scene:
    """A world in which a start is refused, and how it is started."""

    world: World
    options: StartOptions = field(default_factory=StartOptions)
    says: str = ""
    sinks: list[str] | None = None
    identity: dict[str, Any] = field(default_factory=dict)
    ask_others: AskOthers = lambda intent: None
    undone: Callable[[World], object] | None = None
    """What makes the plain start go on after the refusal; None when it goes on at once."""

    def process(self) -> Process:
        return self.world.process(sinks=self.sinks, options=self.options, identity=self.identity)


def going_back(world: World, epoch: int = 2) -> StartOptions:
    return StartOptions(from_id=world.of_epoch(epoch).checkpoint_id)


def crashed_before(world: World, epoch: int, sink: str) -> None:
    with pytest.raises(SimulatedCrash):
        world.run(dies_at=Point(StepStarted, epoch, "commit", sink))


def stuck(world: World, sink: str) -> None:
    world.targets[sink].rewindable = False


def freed(world: World) -> None:
    for target in world.targets.values():
        target.rewindable = True


def damaged(world: World, *, all_of_it: bool = False) -> None:
    newest = world.newest()
    world.damage_manifest(newest.checkpoint_id)
    if all_of_it:
        world.damage_sidecar(newest.sidecar, progress=True)
        world.lose_work()


def lost_source(intent: Intent) -> None:
    raise SourceHistoryLost("records 5 to 6 are gone")


def one_sink_of_several_cannot_be_rewound(world: World) -> Scene:
    stuck(world, "c")
    return Scene(world, going_back(world), "cannot be rewound")


def a_lost_range_and_a_sink_that_cannot_be_rewound(world: World) -> Scene:
    stuck(world, "a")
    damaged(world, all_of_it=True)
    return Scene(world, says="ranges in between are lost.*cannot be rewound", undone=freed)


def the_source_lost_what_a_go_back_needs(world: World) -> Scene:
    return Scene(world, going_back(world), "records 5 to 6 are gone", ask_others=lost_source)


def the_source_lost_what_a_fall_back_needs(world: World) -> Scene:
    damaged(world, all_of_it=True)
    return Scene(world, says="records 5 to 6 are gone", ask_others=lost_source)


def nobody_said_what_becomes_of_another_timeline(world: World) -> Scene:
    return Scene(world, StartOptions(fresh=True), "written by timeline")


def one_sink_cannot_remove_what_another_timeline_wrote(world: World) -> Scene:
    stuck(world, "c")
    return Scene(world, StartOptions(fresh=True, on_foreign=OnForeign.REWIND), "cannot be removed here")


def a_target_lost_epochs(world: World) -> Scene:
    backup = world.targets["a"].state
    for _ in range(2):
        world.targets["a"].lose_last_commit()

    def put_back(world: World) -> None:
        world.targets["a"].state = backup

    return Scene(world, says="stands at epoch 2, but epoch 3 was committed there", undone=put_back)


def a_target_lost_epochs_and_another_is_owed_one(world: World) -> Scene:
    world.source.records = records(10)
    crashed_before(world, 5, "c")
    scene = a_target_lost_epochs(world)
    return replace(scene, says="sink 'a' stands at epoch")


def a_removed_sink_is_owed_an_epoch(world: World) -> Scene:
    world.source.records = records(10)
    crashed_before(world, 5, "c")
    return Scene(world, says="sink 'c' was removed", sinks=["a", "b"])


def a_removed_sink_is_owed_an_epoch_that_is_replayed(world: World) -> Scene:
    world.source.records = records(10)
    crashed_before(world, 5, "c")
    world.damage_sidecar(world.newest().sidecar)
    return Scene(world, says="sink 'c' was removed.*is to be replayed", sinks=["a", "b"])


def the_state_cannot_survive_the_change(world: World) -> Scene:
    return Scene(world, says="Undo the change", identity={"state": "another"})


def the_change_needs_a_person(world: World) -> Scene:
    return Scene(world, says="approve it with", identity={"output_mode": "another"})


def no_change_is_allowed(world: World) -> Scene:
    options = StartOptions(on_change=OnChange.REJECT)
    return Scene(world, options, "on_change is 'reject'", identity={"output_mode": "another"})


def a_sink_stands_on_another_branch(world: World) -> Scene:
    target = world.targets["a"]
    state = target.state
    assert state.ledger is not None
    target.state = replace(state, ledger=replace(state.ledger, range_digest="another"))

    def put_back(world: World) -> None:
        world.targets["a"].state = state

    return Scene(world, says="of another source range", undone=put_back)


def nothing_in_the_store_holds(world: World) -> Scene:
    before = world.objects.copy()
    for manifest in world.store().manifests():
        world.damage_manifest(manifest.checkpoint_id)

    def put_back(world: World) -> None:
        world.objects = before

    return Scene(world, says="none can be trusted", undone=put_back)


def there_is_no_such_checkpoint(world: World) -> Scene:
    return Scene(world, StartOptions(from_id=99), "99")


def the_checkpoint_is_damaged(world: World) -> Scene:
    world.damage_sidecar(world.of_epoch(2).sidecar)
    return Scene(world, going_back(world), "cannot be used")


def the_branch_was_given_up(world: World) -> Scene:
    options = going_back(world, 3)
    world.run(options=going_back(world))
    return Scene(world, options, "was given up by checkpoint")


def a_target_does_not_say_where_it_stands(world: World) -> Scene:
    world.targets["b"].trouble("ledger", Trouble.BROKEN)
    return Scene(world, says="sink 'b', epoch 0, ask: the target is broken")


def a_target_cannot_be_claimed(world: World) -> Scene:
    world.targets["b"].trouble("can_claim", Trouble.BROKEN)
    return Scene(world, says="sink 'b', epoch 4, can_claim: the target is broken")


def a_target_does_not_say_whether_it_can_be_rewound(world: World) -> Scene:
    world.targets["c"].trouble("can_rewind", Trouble.BROKEN)
    return Scene(world, going_back(world), "sink 'c', epoch 2, can_rewind: the target is broken")


SCENES = [
    one_sink_of_several_cannot_be_rewound,
    a_lost_range_and_a_sink_that_cannot_be_rewound,
    the_source_lost_what_a_go_back_needs,
    the_source_lost_what_a_fall_back_needs,
    nobody_said_what_becomes_of_another_timeline,
    one_sink_cannot_remove_what_another_timeline_wrote,
    a_target_lost_epochs,
    a_target_lost_epochs_and_another_is_owed_one,
    a_removed_sink_is_owed_an_epoch,
    a_removed_sink_is_owed_an_epoch_that_is_replayed,
    the_state_cannot_survive_the_change,
    the_change_needs_a_person,
    no_change_is_allowed,
    a_sink_stands_on_another_branch,
    nothing_in_the_store_holds,
    there_is_no_such_checkpoint,
    the_checkpoint_is_damaged,
    the_branch_was_given_up,
    a_target_does_not_say_where_it_stands,
    a_target_cannot_be_claimed,
    a_target_does_not_say_whether_it_can_be_rewound,
]


@pytest.fixture
def world() -> World:
    world = World(8)
    world.run()
    return world


def everything(world: World) -> Any:
    return world.objects.fingerprint(), {name: target.state for name, target in world.targets.items()}


@pytest.mark.parametrize("make", SCENES)
def test_a_refused_start_changes_nothing_and_the_next_one_goes_on(
    world: World, make: Callable[[World], Scene]
) -> None:
    scene = make(world)
    before = everything(world)
    with pytest.raises(HoldfastError, match=f"(?s){scene.says}"):
        scene.process().recover(scene.ask_others)
    assert everything(world) == before
    if scene.undone is not None:
        scene.undone(world)
    world.run()
    assert world.shown() == world.expected()


@pytest.mark.parametrize("make", SCENES)
def test_a_preview_refuses_what_the_start_refuses(world: World, make: Callable[[World], Scene]) -> None:
    scene = make(world)
    before = everything(world)
    with pytest.raises(HoldfastError, match=f"(?s){scene.says}"):
        scene.process().startup().ask(scene.process().old_ranges, scene.ask_others)
    assert everything(world) == before


def test_a_preview_of_a_start_that_would_go_on_changes_nothing_either(world: World) -> None:
    before = everything(world)
    process = world.process(options=going_back(world))
    intent = process.startup().ask(process.old_ranges)
    assert everything(world) == before
    assert {name: (s.found.epoch, s.rewind_to) for name, s in intent.settling.sinks.items()} == {
        "a": (4, 2),
        "b": (3, 2),
        "c": (4, 2),
    }
    assert (intent.fence.checkpoint_id, intent.fence.recovery and intent.fence.recovery["given_up_after"]) == (6, 2)
