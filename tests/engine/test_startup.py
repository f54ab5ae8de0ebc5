"""Start and recovery: every rule about what a start does with a store and with sinks that stand somewhere."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from engine.worlds import FailingMedium, Point, Process, World, records
from holdfast import CorruptCheckpoint, Fenced, NoValidCheckpoint, SinkCommitStatus
from holdfast.core.contracts import OnForeign
from holdfast.engine.events import Event, StepFinished, StepStarted
from holdfast.engine.identity import OnChange
from holdfast.engine.resolution import approve, discard_epoch
from holdfast.engine.startup import StartOptions
from holdfast.errors import (
    ApprovalNeeded,
    ForeignTimeline,
    InvalidRequest,
    PipelineError,
    ReplayMismatch,
    SinkBehind,
    SinkError,
)
from holdfast.testing import SimulatedCrash, Trouble

PENDING, COMMITTED = SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED


@pytest.fixture
def world() -> Iterator[World]:
    world = World(8)
    yield world
    for target in world.targets.values():
        target.let_go()


def crashed_at(world: World, point: Point, **options: Any) -> Process:
    process = world.process(dies_at=point, **options)
    with pytest.raises(SimulatedCrash):
        process.run()
    return process


def actions(process: Process) -> dict[str, str]:
    """Return what the start says it did about each sink."""
    return dict(process.started.report["sinks"])


def more(world: World, count: int = 10) -> None:
    """Let more records arrive."""
    world.source.records = records(count)


# --- the order


def test_nothing_is_touched_before_the_fence_is_sealed(world: World) -> None:
    crashed_at(world, Point(StepFinished, 3, "seal"))
    before = {name: target.state for name, target in world.targets.items()}
    fences: list[int] = []

    def look(point: Point) -> None:
        if point.step in ("recovery.fence", "recovery.ask", "recovery.can_claim"):
            assert {name: target.state for name, target in world.targets.items()} == before
        if point.step == "recovery.fence":
            fences.append(world.newest().generation or 0)

    world.run(on_point=look)
    assert fences == [1, 2]


def test_every_sink_is_claimed_before_any_is_changed(world: World) -> None:
    crashed_at(world, Point(StepFinished, 3, "seal"))
    before = world.shown()

    def look(point: Point) -> None:
        if point.step == "recovery.claim":
            assert world.shown() == before
        if point == Point(StepFinished, 3, "recovery.claim"):
            assert {target.state.ledger.generation for target in world.targets.values() if target.state.ledger} == {2}

    world.run(on_point=look)
    assert world.shown() == world.expected()


def test_a_start_that_is_overtaken_is_fenced_by_the_sinks(world: World) -> None:
    """A second process fences and claims while the first stands between its own fence and its claim."""
    world.run()

    def overtake(point: Point) -> None:
        if point == Point(StepStarted, 4, "recovery.claim"):
            world.process().start()

    late = world.process(on_point=overtake)
    with pytest.raises(Fenced, match="generation 3"):
        late.start()


@pytest.mark.parametrize("step", ["recovery.settle", "recovery.commit"])
def test_a_start_that_is_overtaken_after_its_claim_shows_nothing(world: World, step: str) -> None:
    crashed_at(world, Point(StepFinished, 3, "seal"))
    shown: list[Any] = []

    def overtake(point: Point) -> None:
        if point.step == step and point.kind is StepStarted and not shown:
            second = world.process()
            second.run()
            shown.append(world.shown())

    late = world.process(on_point=overtake, in_turn=False)
    with pytest.raises(Fenced):
        late.run()
    assert world.shown() == shown[0] == world.expected()


def test_an_empty_store_is_a_fresh_start_with_a_timeline_of_its_own(world: World) -> None:
    process = world.process()
    start = process.start()
    assert (start.chosen, start.epoch, start.replays) == (None, 0, ())
    assert (start.fence.checkpoint_id, start.owner.generation) == (1, 1)
    assert actions(process) == {"a": "new", "b": "new", "c": "new"}


def test_a_start_without_anything_to_do_changes_no_sink(world: World) -> None:
    world.run()
    before = world.shown()
    process = world.run()
    assert actions(process) == {"a": "has everything", "b": "has everything", "c": "has everything"}
    assert world.shown() == before
    assert process.started.owner.timeline == world.of_epoch(1).timeline


# --- sinks that are behind


@pytest.mark.parametrize("sink", ["a", "b", "c"])
def test_a_sink_behind_by_the_sealed_epoch_gets_what_was_sealed(world: World, sink: str) -> None:
    crashed_at(world, Point(StepStarted, 3, "commit", sink))
    process = world.run()
    assert actions(process)[sink] == "committed epoch 3"
    assert world.shown() == world.expected()


def test_every_sink_is_asked_also_those_that_the_manifest_says_have_it(world: World) -> None:
    """The statuses say Committed; the target was put back to before its last commit."""
    world.run()
    world.targets["b"].lose_last_commit()
    assert world.newest().sink_commit_statuses["b"] == COMMITTED
    crashed = world.process()
    with pytest.raises(SinkBehind, match=r"sink 'b' stands at epoch 1, but epoch 3 was committed.*epochs 2 to 3"):
        crashed.start()


def test_a_sink_that_lost_the_newest_epoch_gets_it_again_while_its_rows_are_staged(world: World) -> None:
    world.run()
    world.targets["a"].lose_last_commit()
    process = world.run()
    assert actions(process)["a"] == "committed epoch 4"
    assert world.shown() == world.expected()


def test_without_its_staged_rows_the_start_says_so(world: World) -> None:
    world.run()
    world.targets["a"].lose_last_commit(staged_rows_too=True)
    with pytest.raises(SinkError, match=r"staged rows of epoch 4 are gone\. The epoch is sealed"):
        world.run()


def test_a_sink_behind_by_more_is_refused_and_the_gap_named(world: World) -> None:
    world.run()
    for _ in range(3):
        world.targets["a"].lose_last_commit()
    before = world.shown()
    with pytest.raises(SinkBehind, match=r"sink 'a' stands at epoch 1, but epoch 3 was committed there.*--from"):
        world.run()
    assert world.shown() == before


def test_a_commit_of_the_recovery_without_an_answer_is_looked_up(world: World) -> None:
    crashed_at(world, Point(StepStarted, 3, "commit"))
    world.targets["a"].trouble("commit", Trouble.UNKNOWN_AFTER)
    world.run()
    assert world.shown() == world.expected()


def test_a_recovery_that_is_fenced_by_a_sink_says_fenced(world: World) -> None:
    crashed_at(world, Point(StepStarted, 3, "commit"))

    def overtake(point: Point) -> None:
        if point == Point(StepStarted, 3, "recovery.commit", "a"):
            ledger = world.targets["a"].state.ledger
            assert ledger is not None
            world.process(sinks=["a", "b", "c"]).recover()

    with pytest.raises(Fenced, match="sink 'a', epoch 3, commit"):
        world.run(on_point=overtake)


def test_what_a_recovery_did_is_in_its_fence(world: World) -> None:
    crashed_at(world, Point(StepStarted, 3, "commit"))
    process = world.process()
    start = process.recover()
    assert start.fence == world.newest()
    assert start.fence.sink_commit_statuses == {"a": COMMITTED, "b": COMMITTED, "c": COMMITTED}
    assert start.fence.sink_epochs == {"a": 3, "b": 3, "c": 3}


# --- sinks that are ahead


def damaged(world: World, what: str) -> int:
    """Damage the newest checkpoint; return its id."""
    newest = world.newest()
    if "manifest" in what:
        world.damage_manifest(newest.checkpoint_id)
    if "state" in what:
        world.damage_sidecar(newest.sidecar)
    if "progress" in what:
        world.damage_sidecar(newest.sidecar, progress=True)
    if "work" in what:
        world.lose_work()
    return newest.checkpoint_id


@pytest.mark.parametrize(
    ("what", "found_in"),
    [
        ("state", "checkpoint 5"),
        ("state work", "checkpoint 5"),
        ("progress", "checkpoint 5"),
        ("manifest", "the sidecar of checkpoint 5"),
        ("manifest work", "the sidecar of checkpoint 5"),
        ("manifest progress", "the old working directory"),
    ],
)
def test_a_damaged_newest_checkpoint_is_replayed_from_its_record(world: World, what: str, found_in: str) -> None:
    for target in world.targets.values():
        target.rewindable = False
    world.run()
    id = damaged(world, what)
    more(world)
    process = world.run()
    assert process.started.report["replays"] == [{"epoch": 4, "found_in": found_in}]
    assert process.started.report["skipped"][0]["checkpoint_id"] == id
    assert world.shown() == world.expected()


@pytest.mark.parametrize("what", ["manifest progress work", "progress work"])
def test_sinks_are_rewound_when_the_range_is_lost(world: World, what: str) -> None:
    world.run()
    damaged(world, what)
    more(world)
    process = world.run()
    assert process.started.replays == ()
    assert actions(process) == {
        "a": "rewound from epoch 4 to 3",
        "b": "has everything",
        "c": "rewound from epoch 4 to 3",
    }
    assert world.shown() == world.expected()


def test_a_sink_that_cannot_be_rewound_refuses_and_says_what_going_on_would_mean(world: World) -> None:
    world.targets["c"].rewindable = False
    world.run()
    damaged(world, "manifest progress work")
    with pytest.raises(
        SinkError, match=r"sink 'c' shows epoch 4.*ranges in between are lost.*rows of epochs 4 to 4 twice.*--fresh"
    ):
        world.run()
    assert world.shown()["c"] == world.expected()["c"]


def test_a_damaged_decision_is_still_carried_out_for_sinks_that_lack_it(world: World) -> None:
    """Its manifest is true, so its tokens count: they are shown before the replay, not computed again."""
    crashed_at(world, Point(StepStarted, 4, "commit", "c"))
    damaged(world, "state work")
    process = world.run()
    assert actions(process)["c"] == "committed epoch 4"
    assert len(world.targets["c"].actions("prepare")) == 4
    assert world.shown() == world.expected()


def test_an_epoch_that_was_decided_and_nowhere_shown_is_replayed_too(world: World) -> None:
    crashed_at(world, Point(StepFinished, 4, "seal"))
    damaged(world, "state")
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [4]
    assert world.shown() == world.expected()


def test_a_record_without_manifest_that_no_sink_shows_does_not_count(world: World) -> None:
    """Nobody knows whether that attempt was sealed: its tokens may belong to rows that are gone."""
    crashed_at(world, Point(StepFinished, 4, "seal"))
    damaged(world, "manifest")
    world.take = lambda generation: 1
    process = world.run()
    assert process.started.replays == ()
    assert world.shown() == world.expected()


def test_the_sidecar_of_a_writer_that_never_sealed_is_not_taken_for_a_decision(world: World) -> None:
    """It dies with its sidecar stored, the next start fences under the same id, and that fence is damaged."""
    medium = FailingMedium(world)
    writer = world.process(store=world.store(medium))
    writer.start()
    for _ in range(3):
        writer.next_epoch()
    medium.fail("seal", SimulatedCrash())
    with pytest.raises(SimulatedCrash):
        writer.next_epoch()
    crashed_at(world, Point(StepFinished, 4, "begin"))
    assert (world.newest().kind, world.newest().checkpoint_id) == ("fence", 5)
    assert world.store().state_reader.progress_records(5)[0].epoch == 4
    world.damage_manifest(5)
    world.run()
    assert world.shown() == world.expected()


def test_tokens_of_an_attempt_that_may_not_have_been_sealed_are_not_shown(world: World) -> None:
    """As before, but the epoch then happened, with the same range, and of that decision only one sink is left.

    What the dead writer had staged is gone; the other sinks get their rows from the replay.
    """
    medium = FailingMedium(world)
    writer = world.process(store=world.store(medium))
    writer.start()
    for _ in range(3):
        writer.next_epoch()
    medium.fail("seal", SimulatedCrash())
    with pytest.raises(SimulatedCrash):
        writer.next_epoch()
    crashed_at(world, Point(StepStarted, 4, "commit", "c"))
    world.damage_manifest(5)
    damaged(world, "manifest progress work")
    process = world.run()
    assert process.started.report["replays"] == [{"epoch": 4, "found_in": "the sidecar of checkpoint 5"}]
    assert world.shown() == world.expected()


def test_two_damaged_epochs_are_replayed_one_after_the_other(world: World) -> None:
    world.run()
    for epoch in (3, 4):
        world.damage_sidecar(world.of_epoch(epoch).sidecar)
    more(world)
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [3, 4]
    assert world.shown() == world.expected()


def test_replays_end_where_a_range_is_lost_and_sinks_are_rewound_to_there(world: World) -> None:
    world.run()
    world.damage_sidecar(world.of_epoch(3).sidecar)
    damaged(world, "progress work")
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [3]
    assert actions(process)["a"] == "rewound from epoch 4 to 3"
    assert world.shown() == world.expected()


def test_a_rewound_sink_must_have_the_range_that_is_replayed(world: World) -> None:
    """The rewind brings it to an epoch that it has, it says, of another range."""
    world.run()
    world.damage_sidecar(world.of_epoch(3).sidecar)
    damaged(world, "progress work")
    state = world.targets["a"].state
    shown = [replace(s, range_digest="another") if s.epoch == 3 else s for s in state.shown]
    world.targets["a"].state = replace(state, shown=tuple(shown))
    with pytest.raises(ReplayMismatch, match="sink 'a' has epoch 3 already, but of another source range"):
        world.run()


# --- a recovery that dies


@pytest.mark.parametrize("what", ["state work", "manifest work"])
@pytest.mark.parametrize("kind", [StepStarted, StepFinished])
@pytest.mark.parametrize(
    "step", ["recovery.fence", "recovery.claim", "recovery.settle", "begin", "compute", "capture", "seal"]
)
def test_a_recovery_that_dies_does_not_forget_what_it_was_to_replay(
    world: World, what: str, kind: type[Event], step: str
) -> None:
    """Its fence hides the damaged checkpoint from the next start. No sink here could be rewound."""
    for target in world.targets.values():
        target.rewindable = False
    world.run()
    damaged(world, what)
    epoch = 0 if step == "recovery.fence" else 3 if step.startswith("recovery") else 4
    crashed_at(world, Point(kind, epoch, step))
    world.lose_work()
    more(world)
    process = world.run()
    sealed_again = (kind, step) == (StepFinished, "seal")
    assert [record.epoch for record in process.started.replays] == ([] if sealed_again else [4])
    assert world.shown() == world.expected()


def test_a_replay_of_two_epochs_that_dies_between_them_goes_on_with_the_second(world: World) -> None:
    for target in world.targets.values():
        target.rewindable = False
    world.run()
    for epoch in (3, 4):
        world.damage_sidecar(world.of_epoch(epoch).sidecar)
    crashed_at(world, Point(StepFinished, 3, "seal"))
    world.lose_work()
    assert world.newest().recovery == {"replay": [{"epoch": 4, "checkpoint_id": 5}]}
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [4]
    assert world.newest().recovery is None
    assert world.shown() == world.expected()


def test_a_checkpoint_that_is_asked_for_in_between_keeps_what_is_to_be_replayed(world: World) -> None:
    world.run()
    for epoch in (3, 4):
        world.damage_sidecar(world.of_epoch(epoch).sidecar)
    process = world.process()
    first, _ = process.recover().replays
    process.replay(first)
    process.writer.seal_again()
    world.lose_work()
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [4]
    assert world.shown() == world.expected()


def test_what_is_to_be_replayed_survives_damage_of_the_checkpoint_that_said_so(world: World) -> None:
    """Epoch 4 is to be replayed on top of 3; then the replayed 3 is damaged as well, but its manifest is true."""
    world.run()
    for epoch in (3, 4):
        world.damage_sidecar(world.of_epoch(epoch).sidecar)
    crashed_at(world, Point(StepFinished, 3, "record"))
    world.damage_sidecar(world.newest().sidecar)
    world.lose_work()
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [3, 4]
    assert world.shown() == world.expected()


def test_after_a_rewind_the_old_epochs_are_not_replayed_on_top_of_the_new_ones(world: World) -> None:
    """The range of epoch 3 is lost, that of 4 is not: after the rewind a new epoch 3 has another range."""
    world.run()
    third = world.of_epoch(3)
    world.damage_manifest(third.checkpoint_id)
    world.damage_sidecar(third.sidecar, progress=True)
    world.damage_sidecar(world.newest().sidecar)
    world.lose_work()
    world.take = lambda generation: 1
    crashed_at(world, Point(StepFinished, 3, "record"))
    process = world.run()
    assert process.started.replays == ()
    assert world.shown() == world.expected()


def test_a_sink_that_was_rewound_twice_does_not_seem_to_have_lost_epochs(world: World) -> None:
    """Epoch 3 of two is replayed, the process dies, the range of 4 is lost, sinks are rewound, it dies again."""
    world.run()
    for epoch in (3, 4):
        world.damage_sidecar(world.of_epoch(epoch).sidecar)
    fourth = world.of_epoch(4)
    crashed_at(world, Point(StepFinished, 3, "record"))
    world.damage_manifest(fourth.checkpoint_id)
    world.damage_sidecar(fourth.sidecar, progress=True)
    world.lose_work()
    crashed_at(world, Point(StepFinished, 3, "recovery.settle"))
    world.run()
    assert world.shown() == world.expected()


def test_what_was_given_up_does_not_come_back_when_a_range_turns_up(world: World) -> None:
    """The range of epoch 4 is lost, sinks are rewound, a new epoch 4 chooses a range and dies: not the old one."""
    world.run()
    damaged(world, "progress work")
    world.take = lambda generation: 1
    crashed_at(world, Point(StepFinished, 4, "compute"))
    assert world.newest().kind == "fence"
    process = world.run()
    assert process.started.replays == ()
    assert world.shown() == world.expected()


def test_a_range_that_a_sink_contradicts_is_not_replayed(world: World) -> None:
    """Epoch 4 was decided twice, of other ranges; of the second decision nothing is left but what the sinks show."""
    crashed_at(world, Point(StepFinished, 4, "seal"))
    world.damage_manifest(world.newest().checkpoint_id)
    world.take = lambda generation: 1
    crashed_at(world, Point(StepFinished, 4, "record"))
    damaged(world, "manifest progress work")
    process = world.run()
    assert process.started.replays == ()
    assert actions(process)["a"] == "rewound from epoch 4 to 3"
    assert world.shown() == world.expected()


# --- ranges


def test_a_sink_that_has_the_newest_epoch_of_another_range_is_refused(world: World) -> None:
    world.run()
    state = world.targets["a"].state
    assert state.ledger is not None
    world.targets["a"].state = replace(state, ledger=replace(state.ledger, range_digest="another"))
    with pytest.raises(ReplayMismatch, match="sink 'a' has epoch 4, but of another source range"):
        world.run()


def test_going_back_to_an_abandoned_branch_is_noticed(world: World) -> None:
    """Epochs 3 and 4 exist twice, of other ranges: from checkpoint 2 the pipeline went on in smaller steps.

    A sink that had no rows in one of them could not even tell that it stands on the other branch.
    """
    world.run()
    old = world.of_epoch(3).checkpoint_id
    world.take = lambda generation: 1
    world.run(options=StartOptions(from_id=world.of_epoch(2).checkpoint_id))
    assert world.shown() == world.expected()
    shown = world.shown()
    with pytest.raises(InvalidRequest, match=r"it was given up by checkpoint .* which went on from epoch 2"):
        world.run(options=StartOptions(from_id=old))
    assert world.shown() == shown


# --- other timelines


def other_life(world: World, **options: Any) -> World:
    """Return a world of its own store whose targets are those of `world`."""
    other = World(len(world.source.records), world.source.outputs)
    other.targets = world.targets
    return other


def test_a_target_of_another_timeline_is_refused(world: World) -> None:
    world.run()
    before = {name: target.state for name, target in world.targets.items()}
    with pytest.raises(ForeignTimeline, match="sink 'a'"):
        other_life(world).run()
    assert {name: target.state for name, target in world.targets.items()} == before


def test_rewind_removes_what_the_other_timeline_wrote(world: World) -> None:
    world.run()
    other_life(world).run(options=StartOptions(on_foreign=OnForeign.REWIND))
    assert world.shown() == world.expected()


def test_append_writes_behind_what_is_there(world: World) -> None:
    world.run()
    other_life(world).run(options=StartOptions(on_foreign=OnForeign.APPEND))
    assert world.shown() == {name: rows + rows for name, rows in world.expected().items()}


def test_adopt_takes_what_is_there_for_its_own(world: World) -> None:
    """A store is cut loose from its targets by an import under a new timeline; then it adopts them."""
    world.run()
    newest = world.newest()
    moved = newest.model_copy(update={"timeline": UUID(int=7), "checkpoint_id": newest.checkpoint_id + 1})
    world.store().save(moved.model_copy(update={"manifest_checksum": None}))
    more(world)
    with pytest.raises(ForeignTimeline):
        world.run()
    world.run(options=StartOptions(on_foreign=OnForeign.ADOPT))
    assert world.shown() == world.expected()


def test_a_choice_that_dies_half_way_is_asked_for_again(world: World) -> None:
    world.run()
    other = other_life(world)
    crashed_at(other, Point(StepStarted, 0, "recovery.claim", "c"), options=StartOptions(on_foreign=OnForeign.REWIND))
    with pytest.raises(ForeignTimeline, match="sink 'c'"):
        other.run()
    other.run(options=StartOptions(on_foreign=OnForeign.REWIND))
    assert world.shown() == world.expected()


def test_appending_behind_somebody_else_does_not_hide_a_gap(world: World) -> None:
    """The target of a running pipeline was replaced by another one: its own epochs are missing there."""
    stranger = World(8)
    stranger.run()
    world.run()
    world.targets["a"].state = stranger.targets["a"].state
    with pytest.raises(ForeignTimeline, match=r"sink 'a'.*only adopt is possible"):
        world.run(options=StartOptions(on_foreign=OnForeign.APPEND))


@pytest.mark.parametrize("chosen", [OnForeign.APPEND, OnForeign.REWIND])
def test_what_an_earlier_life_showed_is_not_committed_again_behind_a_later_one(chosen: OnForeign) -> None:
    """The fence of a fresh start is damaged: the first epoch of the life before would follow an empty ledger."""
    world = World(2)
    world.run()
    world.process(options=StartOptions(fresh=True, on_foreign=OnForeign.APPEND)).start()
    world.damage_manifest(world.newest().checkpoint_id)
    before = world.objects.fingerprint(), world.shown()
    with pytest.raises(ForeignTimeline, match="start over with --fresh"):
        world.run(options=StartOptions(on_foreign=chosen))
    assert (world.objects.fingerprint(), world.shown()) == before


@pytest.mark.parametrize("chosen", [OnForeign.REFUSE, OnForeign.REWIND])
def test_a_lost_fresh_start_is_not_followed_by_advice_that_cannot_be_taken(world: World, chosen: OnForeign) -> None:
    """Its fence is damaged, so the store knows the old timeline only; the targets are of the new one."""
    world.run()
    anew = world.process(options=StartOptions(fresh=True, on_foreign=OnForeign.REWIND))
    anew.start()
    world.damage_manifest(world.newest().checkpoint_id)
    with pytest.raises((ForeignTimeline, SinkBehind), match=r"start over with --fresh|stands at epoch 0"):
        world.run(options=StartOptions(on_foreign=chosen))
    world.run(options=StartOptions(fresh=True, on_foreign=OnForeign.REWIND))
    assert world.shown() == world.expected()


# --- a person's word


def test_what_was_prepared_before_a_rewind_is_refused_before_anything_is_done(world: World) -> None:
    """The checkpoint is from before a person gave its epoch up, and the target was rewound since."""
    crashed_at(world, Point(StepStarted, 3, "commit", "a"))
    owing = world.newest()
    given_up = discard_epoch(world.store(), "a", 3, reason="tired", clock=world.clock)
    world.process(options=StartOptions(from_id=given_up.checkpoint_id)).start()
    before = {name: target.state for name, target in world.targets.items()}
    with pytest.raises(SinkError, match=r"'a' is owed epoch 3, but .* before generation 3 rewound .*before epoch 3"):
        world.run(options=StartOptions(from_id=owing.checkpoint_id))
    assert {name: target.state for name, target in world.targets.items()} == before
    world.run(options=StartOptions(from_id=world.of_epoch(2).checkpoint_id))
    assert world.shown() == world.expected()


def test_fresh_begins_a_new_timeline_and_abandons_everything(world: World) -> None:
    world.run()
    old = world.newest()
    process = world.run(options=StartOptions(fresh=True, on_foreign=OnForeign.REWIND))
    assert process.started.owner.timeline != old.timeline
    assert process.started.fence.abandons == [1, 2, 3, 4, 5]
    assert world.shown() == world.expected()


def test_a_fresh_start_does_not_touch_sinks_that_nobody_gave_up(world: World) -> None:
    world.run()
    before = world.shown()
    with pytest.raises(ForeignTimeline):
        world.run(options=StartOptions(fresh=True))
    assert world.shown() == before


def test_going_back_rewinds_the_sinks_and_does_it_again(world: World) -> None:
    world.run()
    process = world.run(options=StartOptions(from_id=world.of_epoch(2).checkpoint_id))
    assert actions(process)["a"] == "rewound from epoch 4 to 2"
    assert process.started.replays == ()
    assert world.shown() == world.expected()


def test_going_back_with_a_sink_that_cannot_says_why(world: World) -> None:
    world.run()
    world.targets["a"].rewindable = False
    id = world.of_epoch(2).checkpoint_id
    with pytest.raises(SinkError, match=r"goes on from epoch 2 because what followed was given up.*cannot be"):
        world.run(options=StartOptions(from_id=id))


def test_going_back_that_dies_is_not_undone_by_the_next_start(world: World) -> None:
    world.run()
    crashed_at(
        world,
        Point(StepStarted, 2, "recovery.rewind", "c"),
        options=StartOptions(from_id=world.of_epoch(2).checkpoint_id),
    )
    world.take = lambda generation: 1
    process = world.process()
    process.start()
    assert (process.started.epoch, process.started.replays) == (2, ())
    process.writer.seal_again()
    process = world.run()
    assert (process.started.epoch, process.started.replays) == (2, ())
    assert world.newest().recovery == {"went_back": [{"generation": 4, "epoch": 2}]}
    assert world.shown() == world.expected()


def test_going_back_stands_even_when_the_checkpoint_it_went_to_is_damaged(world: World) -> None:
    """The epochs that were given up have true manifests and known ranges, but a later decision took them back."""
    world.run()
    second = world.of_epoch(2)
    options = StartOptions(from_id=second.checkpoint_id)
    crashed_at(world, Point(StepStarted, 3, "begin"), options=options)
    world.damage_sidecar(second.sidecar)
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [2]
    assert world.shown() == world.expected()


def test_a_fresh_start_that_dies_does_not_replay_the_old_timeline(world: World) -> None:
    world.run()
    options = StartOptions(fresh=True, on_foreign=OnForeign.REWIND)
    crashed_at(world, Point(StepFinished, 0, "recovery.fence"), options=options)
    process = world.run(options=StartOptions(on_foreign=OnForeign.REWIND))
    assert (process.started.chosen, process.started.replays) == (None, ())
    assert world.shown() == world.expected()


def test_going_back_to_what_is_damaged_is_refused(world: World) -> None:
    world.run()
    id = world.of_epoch(2).checkpoint_id
    world.damage_sidecar(world.of_epoch(2).sidecar)
    with pytest.raises(CorruptCheckpoint):
        world.run(options=StartOptions(from_id=id))
    assert world.newest().epoch == 4


def test_a_destroyed_store_is_not_taken_for_an_empty_one(world: World) -> None:
    world.run()
    for id in world.store().list_ids():
        world.damage_manifest(id)
    with pytest.raises(NoValidCheckpoint):
        world.run()


# --- sinks that come and go


def test_a_new_sink_starts_with_the_next_epoch(world: World) -> None:
    world.run(sinks=["a", "b"])
    more(world)
    process = world.run()
    assert actions(process)["c"] == "new"
    assert world.targets["c"].rows == world.expected()["c"][8:]
    assert world.shown()["a"] == world.expected()["a"]


def test_a_sink_can_be_removed_and_join_again(world: World) -> None:
    world.run()
    more(world, 10)
    world.run(sinks=["a", "b"])
    assert "c" not in world.newest().sink_epochs
    more(world, 12)
    process = world.run()
    assert actions(process)["c"] == "joins again after epoch 4"
    expected = world.expected()
    assert world.shown() == {**expected, "c": expected["c"][:8] + expected["c"][10:]}


def test_a_removed_sink_that_is_owed_an_epoch_is_missed(world: World) -> None:
    crashed_at(world, Point(StepStarted, 3, "commit", "c"))
    with pytest.raises(PipelineError, match=r"sink 'c' was removed.*epoch 3 is sealed.*resolve --sink c --epoch 3"):
        world.run(sinks=["a", "b"])
    world.run()
    assert world.shown() == world.expected()


@pytest.mark.parametrize("what", ["state", "manifest"])
def test_a_removed_sink_that_is_owed_a_damaged_epoch_is_missed_too(world: World, what: str) -> None:
    crashed_at(world, Point(StepStarted, 4, "commit", "c"))
    damaged(world, what)
    with pytest.raises(PipelineError, match=r"sink 'c' was removed.*epoch 4 is to be replayed"):
        world.run(sinks=["a", "b"])
    world.run()
    assert world.shown() == world.expected()


def test_a_removed_sink_that_has_everything_is_not_missed(world: World) -> None:
    world.run()
    damaged(world, "state")
    more(world)
    world.run(sinks=["a", "b"])
    assert world.shown()["a"] == world.expected()["a"]


def test_a_sink_that_was_away_while_the_others_were_rewound_is_rewound_when_it_comes_back(world: World) -> None:
    """The range of epoch 4 is lost, and a new epoch 4 was tried since: what the sink shows is not that one."""
    world.run()
    damaged(world, "progress work")
    world.take = lambda generation: 1
    crashed_at(world, Point(StepFinished, 4, "compute"), sinks=["a", "b"])
    process = world.run()
    assert actions(process)["c"] == "rewound from epoch 4 to 3"
    assert world.shown() == world.expected()


def test_a_sink_of_a_branch_that_was_given_up_is_not_rewound_into_another(world: World) -> None:
    """It is ahead of where the pipeline goes on, but what it shows up to there was given up as well."""
    world.run()
    world.take = lambda generation: 1
    away = world.process(sinks=["a", "b"], options=StartOptions(from_id=world.of_epoch(2).checkpoint_id))
    away.start()
    away.next_epoch()
    before = world.targets["c"].state
    with pytest.raises(ReplayMismatch, match=r"'c' was away when the pipeline went back to epoch 2, .*epochs 3 to 4"):
        world.run()
    assert world.targets["c"].state == before
    world.targets["c"].lose_last_commit()
    world.targets["c"].lose_last_commit()
    world.run()
    assert [row["id"] for row in world.shown()["c"]] == [1, 2, 3, 4, 6, 7, 8]


@pytest.mark.parametrize("epochs", [0, 1, 2])
def test_a_sink_that_was_away_while_the_pipeline_went_back_is_noticed(world: World, epochs: int) -> None:
    """It shows epoch 4 of the old branch; of the new one some epochs are sealed, in smaller steps."""
    world.run()
    world.take = lambda generation: 1
    away = world.process(sinks=["a", "b"], options=StartOptions(from_id=world.of_epoch(3).checkpoint_id))
    away.start()
    for _ in range(epochs):
        away.next_epoch()
    if epochs == 0:
        assert actions(world.run())["c"] == "rewound from epoch 4 to 3"
        assert world.shown() == world.expected()
    else:
        with pytest.raises(
            ReplayMismatch, match=r"sink 'c' was away when the pipeline went back to epoch 3, and shows epochs 4 to 4"
        ):
            world.run()


# --- a pipeline that changed

STATEFUL = {"stateful": ["aggregate"], "views": {"sums": "sum"}, "state_partitions": 2}
CHANGED = {**STATEFUL, "views": {"sums": "max"}}


def changed_fingerprint(world: World) -> int:
    return world.process(identity=CHANGED).facts().fingerprint


def test_a_questionable_change_needs_a_person(world: World) -> None:
    world.run(identity=STATEFUL)
    ids = world.store().list_ids()
    with pytest.raises(ApprovalNeeded, match=r"(?s)was sum, is max.*holdfast approve memory://world [0-9a-f]{16}"):
        world.run(identity=CHANGED)
    assert world.store().list_ids() == ids


def test_with_reject_there_is_nothing_to_approve(world: World) -> None:
    world.run(identity=STATEFUL)
    with pytest.raises(ApprovalNeeded, match="on_change is 'reject'"):
        world.run(identity=CHANGED, options=StartOptions(on_change=OnChange.REJECT))


def test_with_allow_it_goes_on_and_says_so(world: World) -> None:
    world.run(identity=STATEFUL)
    more(world)
    process = world.run(identity=CHANGED, options=StartOptions(on_change=OnChange.ALLOW))
    assert (process.started.fence.recovery or {})["changes"] == ["view 'sums' changed: was sum, is max"]
    assert world.shown() == world.expected()


def test_an_approval_stands_until_an_epoch_is_sealed(world: World) -> None:
    world.run(identity=STATEFUL)
    approve(world.store(), changed_fingerprint(world), clock=world.clock)
    process = world.process(identity=CHANGED)
    process.start()
    process.writer.seal_again()
    more(world)
    world.run(identity=CHANGED)
    assert "approved" not in (world.newest().recovery or {})
    with pytest.raises(ApprovalNeeded):
        world.run(identity=STATEFUL)
    assert world.shown() == world.expected()


def test_an_approval_does_not_forget_what_is_to_be_replayed(world: World) -> None:
    world.run(identity=STATEFUL)
    damaged(world, "state work")
    approve(world.store(), changed_fingerprint(world), clock=world.clock)
    process = world.run(identity=CHANGED)
    assert [record.epoch for record in process.started.replays] == [4]
    assert world.shown() == world.expected()


def test_an_approval_is_for_that_change_alone(world: World) -> None:
    world.run(identity=STATEFUL)
    approve(world.store(), changed_fingerprint(world) ^ 1, clock=world.clock)
    with pytest.raises(ApprovalNeeded):
        world.run(identity=CHANGED)


def test_what_the_state_cannot_survive_is_refused_whatever_was_said(world: World) -> None:
    world.run(identity=STATEFUL)
    other = {**STATEFUL, "state_partitions": 3}
    with pytest.raises(PipelineError, match="state partitions: was 2, is 3"):
        world.run(identity=other, options=StartOptions(on_change=OnChange.ALLOW))
