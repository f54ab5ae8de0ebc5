"""The protocol of one epoch: what is not sealed is not shown, what is sealed is shown, whatever a sink does."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.worlds import IMPATIENT, SETTINGS, FailingMedium, Point, Process, World
from holdfast import Fenced, SinkCommitStatus, TransientStoreError
from holdfast.core.contracts import EpochRef, Prepared, Rows
from holdfast.engine.coordinator import RecordedEpoch
from holdfast.engine.events import EpochCommitted, EpochReplayed, SinkRetry, StepFinished, StepStarted
from holdfast.errors import PipelineError, ReplayMismatch, RetryableSinkError, SinkError
from holdfast.testing import RecordingSink, SimulatedCrash, SinkCall, Trouble

PENDING, COMMITTED = SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED
NOTHING: dict[str, list[Any]] = {"a": [], "b": [], "c": []}


@pytest.fixture
def world() -> Iterator[World]:
    world = World(8)
    yield world
    for target in world.targets.values():
        target.let_go()


def started(world: World, **options: Any) -> Process:
    process = world.process(**options)
    process.start()
    return process


def crashed_at(world: World, point: Point) -> None:
    with pytest.raises(SimulatedCrash):
        world.run(dies_at=point)


def ledger_epochs(world: World) -> dict[str, int]:
    ledgers = {name: target.state.ledger for name, target in world.targets.items()}
    return {name: ledger.epoch for name, ledger in ledgers.items() if ledger is not None}


# --- the order


def test_every_row_arrives_once_and_in_order(world: World) -> None:
    world.run()
    assert world.shown() == world.expected()
    assert len(world.expected()["b"]) < len(world.expected()["a"])


def test_the_steps_come_in_the_order_of_the_protocol(world: World) -> None:
    process = world.run()
    found = [point for point in process.life.points if point.epoch == 2 and point.sink is None]
    order = ["begin", "compute", "prepare", "capture", "seal", "commit", "record"]
    assert [point.step for point in found if point.kind is StepStarted] == order
    finished = [point.step for point in found if point.kind is StepFinished]
    assert finished == ["begin", "compute", "capture", "prepare", "seal", "commit", "record"]


def test_the_epoch_is_asked_for_each_part_once(world: World) -> None:
    process = started(world)
    work = process.work(1, range(0, 2))
    process.run_epoch(work)
    assert work.calls == ["range_digest", "rows", "capture", "sealed"]


def test_no_sink_is_asked_to_show_an_epoch_before_its_manifest_is_there(world: World) -> None:
    """Look at the store when each commit begins."""
    sealed: list[int] = []

    def look(point: Point) -> None:
        if point.step == "commit" and point.sink is not None and point.kind is StepStarted:
            sealed.append(world.newest().epoch)
            assert world.newest().epoch == point.epoch

    world.run(on_point=look)
    assert sealed == [1, 1, 1, 2, 2, 3, 3, 3, 4, 4]


def test_the_epoch_hears_that_it_was_sealed_before_any_sink_shows_it(world: World) -> None:
    process = started(world)
    work = process.work(1, range(0, 2))
    work.fails["sealed"] = SimulatedCrash()
    with pytest.raises(SimulatedCrash):
        process.run_epoch(work)
    assert world.newest().epoch == 1
    assert world.shown() == NOTHING


def test_every_sink_has_its_rows_staged_and_invisible_before_the_seal(world: World) -> None:
    crashed_at(world, Point(StepStarted, 1, "seal"))
    assert world.shown() == NOTHING
    assert {name: len(target.state.staged) for name, target in world.targets.items()} == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("step", ["begin", "compute", "prepare", "capture", "seal"])
def test_an_epoch_that_dies_before_the_seal_never_happened(world: World, step: str) -> None:
    crashed_at(world, Point(StepStarted, 2, step))
    assert world.newest().epoch == 1
    assert ledger_epochs(world) == {"a": 1, "b": 1, "c": 1}
    world.run()
    assert world.shown() == world.expected()


@pytest.mark.parametrize("call", ["rows", "capture"])
def test_an_error_of_the_query_stops_before_anything_is_shown(world: World, call: str) -> None:
    process = started(world)
    work = process.work(1, range(0, 2))
    work.fails[call] = RuntimeError("the query failed")
    with pytest.raises(RuntimeError, match="the query failed"):
        process.run_epoch(work)
    assert world.newest().epoch == 0
    assert world.shown() == NOTHING


@pytest.mark.parametrize(("carried_out", "epoch"), [(False, 1), (True, 2)])
def test_a_seal_without_an_answer_stops_and_the_next_start_finds_out(
    world: World, carried_out: bool, epoch: int
) -> None:
    medium = FailingMedium(world)
    process = started(world, store=world.store(medium))
    process.next_epoch()
    medium.fail("seal", TransientStoreError("no answer"), carried_out=carried_out)
    with pytest.raises(TransientStoreError):
        process.next_epoch()
    assert world.newest().epoch == epoch
    assert ledger_epochs(world) == {"a": 1, "b": 1, "c": 1}
    world.run()
    assert world.shown() == world.expected()


def test_statuses_that_cannot_be_recorded_cost_nothing(world: World) -> None:
    medium = FailingMedium(world)
    process = started(world, store=world.store(medium))
    medium.fail("replace_manifest", TransientStoreError("no answer"))
    process.next_epoch()
    assert world.newest().sink_commit_statuses == {"a": PENDING, "b": PENDING, "c": PENDING}
    assert ledger_epochs(world) == {"a": 1, "b": 1, "c": 1}
    world.run()
    assert world.shown() == world.expected()


# --- what is in the manifest


def test_a_sealed_manifest_says_pending_and_where_each_sink_stood_before(world: World) -> None:
    crashed_at(world, Point(StepFinished, 3, "seal"))
    sealed = world.newest()
    assert sealed.sink_commit_statuses == {"a": PENDING, "b": PENDING, "c": PENDING}
    assert sealed.sink_epochs == {"a": 2, "b": 1, "c": 2}
    assert {name: token["previous"] for name, token in sealed.sink_tokens.items()} == {"a": 2, "b": 1, "c": 2}


def test_after_the_record_it_says_committed_and_where_each_sink_stands(world: World) -> None:
    process = started(world)
    for _ in range(3):
        process.next_epoch()
    assert world.newest().sink_commit_statuses == {"a": COMMITTED, "b": COMMITTED, "c": COMMITTED}
    assert world.newest().sink_epochs == {"a": 3, "b": 3, "c": 3}


def test_a_sink_without_rows_has_no_token_and_is_committed_at_once(world: World) -> None:
    crashed_at(world, Point(StepFinished, 2, "seal"))
    sealed = world.newest()
    assert sealed.sink_commit_statuses == {"a": PENDING, "b": COMMITTED, "c": PENDING}
    assert sealed.sink_tokens.keys() == {"a", "c"}
    assert sealed.sink_epochs["b"] == 1
    assert [call.epoch for call in world.targets["b"].actions("prepare")] == [1]


def test_an_epoch_without_any_rows_is_sealed_and_asks_no_sink(world: World) -> None:
    process = started(world)
    work = process.work(1, range(0, 0))
    process.run_epoch(work)
    assert world.newest().epoch == 1
    assert {target.calls[-1].action for target in world.targets.values()} == {"abort"}
    world.run()
    assert world.shown() == world.expected()


def test_steps_and_records_count_on_over_restarts(world: World) -> None:
    crashed_at(world, Point(StepFinished, 2, "commit"))
    world.run()
    assert (world.newest().steps, world.newest().processed_records) == (4, 8)


def test_what_happened_is_reported(world: World) -> None:
    process = started(world)
    process.next_epoch()
    (report,) = [event for event in process.life.events if isinstance(event, EpochCommitted)]
    assert (report.epoch, report.checkpoint_id, report.rows_in) == (1, 2, 2)
    assert report.rows_out == {"a": 2, "b": 2, "c": 2}
    assert {"begin", "prepare", "prepare:a", "seal", "commit:c"} <= report.steps.keys()


# --- retries and attempts


def test_a_busy_sink_is_asked_again_as_a_new_attempt(world: World) -> None:
    world.targets["b"].trouble("prepare", Trouble.BUSY, times=2)
    process = world.run()
    attempts = [call.attempt for call in world.targets["b"].actions("prepare") if call.epoch == 1]
    assert attempts == [0, 1, 2]
    retries = [event for event in process.life.events if isinstance(event, SinkRetry)]
    assert [(event.sink, event.action, event.attempt) for event in retries] == [
        ("b", "prepare", 1),
        ("b", "prepare", 2),
    ]
    assert world.of_epoch(1).sink_tokens["b"]["attempt"] == 2
    assert world.shown() == world.expected()


def test_a_new_attempt_removes_what_the_lower_ones_staged_and_nothing_else(world: World) -> None:
    """The first attempt stages its rows and then says that it failed."""
    process = started(world)
    broken = [RetryableSinkError("lost the answer")]
    process.sinks["a"] = _StagesAndFails(world, broken)
    process.sinks["a"].open(process.started.owner)
    process.next_epoch()
    assert world.targets["a"].state.staged == {}
    assert world.targets["a"].actions("abort")[-1] == SinkCall("abort", 1, 1, 1)
    assert len(world.targets["a"].rows) == 2


class _StagesAndFails(RecordingSink):
    def __init__(self, world: World, errors: list[Exception]) -> None:
        super().__init__(world.targets["a"])
        self._errors = errors

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        prepared = super().prepare(rows, ref)
        if self._errors:
            raise self._errors.pop()
        return prepared


def test_a_sink_that_stays_busy_stops_the_pipeline(world: World) -> None:
    world.targets["b"].trouble("prepare", Trouble.BUSY, times=3)
    with pytest.raises(RetryableSinkError, match="sink 'b', epoch 1, prepare"):
        world.run()
    assert world.newest().epoch == 0
    world.run()
    assert world.shown() == world.expected()


def test_a_sink_that_stages_another_number_of_rows_is_caught_before_the_seal(world: World) -> None:
    class DropsARow(RecordingSink):
        def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
            return Prepared(rows.count - 1, super().prepare(rows, ref).payload)

    process = started(world)
    process.sinks["a"] = DropsARow(world.targets["a"])
    with pytest.raises(SinkError, match="sink 'a', epoch 1, prepare: 1 rows are staged, expected 2"):
        process.next_epoch()
    assert world.newest().epoch == 0


def test_the_first_epoch_after_a_crash_removes_what_the_dead_attempt_staged(world: World) -> None:
    crashed_at(world, Point(StepFinished, 2, "prepare"))
    process = started(world)
    process.next_epoch()
    assert [target.state.staged for target in world.targets.values()] == [{}, {}, {}]
    assert all(SinkCall("abort", 2, 2, 0) in target.calls for target in world.targets.values())


def test_dead_attempts_are_looked_for_once(world: World) -> None:
    world.run()
    assert {len(target.actions("abort")) for target in world.targets.values()} == {1}


def test_dead_attempts_are_removed_after_a_replay_too(world: World) -> None:
    """Epoch 4 is shown and then damaged, epoch 5 was staged when the process died: first 4 is replayed."""
    world.source.records = [*world.source.records, {"id": 9}, {"id": 10}]
    crashed_at(world, Point(StepFinished, 5, "prepare"))
    world.damage_sidecar(world.of_epoch(4).sidecar)
    process = world.run()
    assert [record.epoch for record in process.started.replays] == [4]
    assert [target.state.staged for target in world.targets.values()] == [{}, {}, {}]
    assert world.shown() == world.expected()


# --- commits that go wrong


def test_a_busy_commit_is_repeated_with_the_same_token(world: World) -> None:
    world.targets["a"].trouble("commit", Trouble.BUSY, times=2)
    world.run()
    assert world.targets["a"].actions("commit")[:3] == [SinkCall("commit", 1, 1, 0)] * 3
    assert world.shown() == world.expected()


def test_an_unknown_outcome_is_resolved_by_the_ledger(world: World) -> None:
    world.targets["b"].trouble("commit", Trouble.UNKNOWN_AFTER)
    process = world.process()
    process.start()
    asked = len(world.targets["b"].actions("ledger"))
    while process.next_epoch():
        pass
    assert len(world.targets["b"].actions("ledger")) == asked + 1
    assert world.shown() == world.expected()


def test_a_commit_that_did_not_happen_stops_the_pipeline_and_the_next_start_does_it(world: World) -> None:
    world.targets["b"].trouble("commit", Trouble.UNKNOWN_BEFORE, times=SETTINGS.attempts)
    with pytest.raises(SinkError, match=r"sink 'b', epoch 1, commit.*epoch is sealed.*holdfast resolve"):
        world.run()
    assert ledger_epochs(world) == {"a": 1, "b": 0, "c": 1}
    world.run()
    assert world.shown() == world.expected()


@pytest.mark.parametrize("kind", [Trouble.HANG_BEFORE, Trouble.HANG_AFTER])
def test_a_commit_that_hangs_is_an_unknown_outcome(world: World, kind: Trouble) -> None:
    world.targets["b"].trouble("commit", kind)
    process = started(world, settings=IMPATIENT, in_turn=False)
    if kind is Trouble.HANG_BEFORE:
        with pytest.raises(SinkError, match=r"sink 'b', epoch 1, commit: no answer within 0.05 s"):
            process.next_epoch()
        assert ledger_epochs(world) == {"a": 1, "b": 0, "c": 1}
    else:
        process.next_epoch()
        assert ledger_epochs(world) == {"a": 1, "b": 1, "c": 1}
    world.targets["b"].let_go()
    world.run()
    assert world.shown() == world.expected()


def test_a_commit_that_arrives_after_another_process_recovered_changes_nothing(world: World) -> None:
    world.targets["b"].trouble("commit", Trouble.HANG_BEFORE)
    late = started(world, settings=IMPATIENT, in_turn=False)
    with pytest.raises(SinkError):
        late.next_epoch()
    world.run()
    world.targets["b"].let_go()
    late.delivery.close()
    assert world.shown() == world.expected()


def test_a_prepare_that_goes_on_writing_after_it_was_given_up_is_never_shown(world: World) -> None:
    world.targets["b"].trouble("prepare", Trouble.HANG_BEFORE)
    late = started(world, settings=IMPATIENT, in_turn=False)
    with pytest.raises(SinkError, match="sink 'b', epoch 1, prepare: no answer"):
        late.next_epoch()
    assert world.newest().epoch == 0
    world.run()
    world.targets["b"].let_go()
    late.delivery.on_all(["b"], 0, "wait", 5.0, lambda name, sink, attempt: None)
    assert [ref.generation for ref in world.targets["b"].state.staged] == [1]
    assert world.shown() == world.expected()


def test_a_ledger_of_somebody_else_proves_nothing(world: World) -> None:
    """Another pipeline took the target over, and happens to stand at the epoch of our lost commit."""
    process = started(world)
    other = World(8, {"b": world.source.outputs["b"]})
    stranger = started(other)

    def take_over(point: Point) -> None:
        if point == Point(StepStarted, 1, "commit", "b"):
            stranger.next_epoch()
            world.targets["b"].state = other.targets["b"].state
            world.targets["b"].trouble("commit", Trouble.UNKNOWN_BEFORE)

    process.life.on_point = take_over
    with pytest.raises(Fenced, match="belongs to generation 1 of timeline"):
        process.next_epoch()


def test_a_sink_that_fails_for_good_leaves_a_store_that_recovers(world: World) -> None:
    world.targets["b"].trouble("commit", Trouble.BROKEN, times=2)
    with pytest.raises(SinkError, match=r"sink 'b', epoch 1, commit: the target is broken\. The epoch is sealed"):
        world.run()
    statuses = world.newest().sink_commit_statuses
    assert (statuses["a"], statuses["b"].kind) == (COMMITTED, "Failed")
    assert "the target is broken" in str(statuses["b"])
    with pytest.raises(SinkError, match="the target is broken"):
        world.run()
    world.run()
    assert world.shown() == world.expected()


def test_nothing_follows_an_epoch_that_failed(world: World) -> None:
    """Sealing the next epoch would leave the sink without the one before, for good."""
    world.targets["b"].trouble("commit", Trouble.BROKEN)
    process = started(world)
    with pytest.raises(SinkError):
        process.next_epoch()
    process.epoch, process.position = 1, 2
    with pytest.raises(PipelineError, match="cannot follow one that failed"):
        process.next_epoch()
    assert world.newest().epoch == 1


def test_that_we_were_replaced_is_said_before_anything_else(world: World) -> None:
    process = started(world)

    def be_replaced(point: Point) -> None:
        if point == Point(StepStarted, 1, "commit"):
            world.targets["a"].trouble("commit", Trouble.BROKEN)
            RecordingSink(world.targets["c"]).open(replace(process.started.owner, generation=2))

    process.life.on_point = be_replaced
    with pytest.raises(Fenced, match="sink 'c', epoch 1, commit") as caught:
        process.next_epoch()
    assert "sink 'a', epoch 1, commit: the target is broken" in caught.value.__notes__[0]


# --- two writers


@pytest.mark.parametrize("step", ["begin", "compute", "prepare", "capture", "seal", "commit", "record"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_writer_that_was_replaced_is_told_and_changes_nothing(world: World, step: str, ahead: int) -> None:
    """A second process takes over while the first stands before a step, and may even run epochs of its own."""
    first = started(world)
    first.next_epoch()
    after: list[Any] = []

    def take_over(point: Point) -> None:
        if point == Point(StepStarted, 2, step):
            second = started(world)
            for _ in range(ahead):
                second.next_epoch()
            after.extend([world.shown(), world.newest()])

    first.life.on_point = take_over
    try:
        first.next_epoch()
        replaced = step == "record"  # Everything it had to do was done.
    except Fenced:
        replaced = True
    assert replaced
    assert [world.shown(), world.newest()] == after
    with pytest.raises((Fenced, PipelineError)):
        first.next_epoch()
    assert world.shown() == after[0]
    world.run()
    assert world.shown() == world.expected()


# --- replays


def replaying(world: World, epochs: int = 3) -> Process:
    """Return a process that has to replay the newest of some epochs, before it does so."""
    process = started(world)
    for _ in range(epochs):
        process.next_epoch()
    world.damage_sidecar(world.newest().sidecar)
    again = world.process()
    again.recover()
    return again


def test_sinks_that_have_a_replayed_epoch_are_skipped(world: World) -> None:
    process = replaying(world)
    (record,) = process.started.replays
    process.replay(record)
    assert [event for event in process.life.events if isinstance(event, EpochReplayed)] == [EpochReplayed(3)]
    assert {len(target.actions("prepare")) for target in world.targets.values()} == {2, 3}
    assert world.newest().epoch == 3
    assert world.newest().sink_epochs == {"a": 3, "b": 3, "c": 3}


def test_a_replay_of_another_range_is_no_reason_to_skip(world: World) -> None:
    process = replaying(world)
    (record,) = process.started.replays
    bare = RecordedEpoch(record.epoch, record.parts, record.found_in)
    with pytest.raises(ReplayMismatch, match="another source range"):
        process.run_epoch(process.work(3, range(4, 7)), bare)
    assert world.newest().epoch == 2


def test_a_replay_must_read_the_recorded_range(world: World) -> None:
    """Also when no sink stands at that epoch any more, which would notice by itself."""
    process = replaying(world)
    (record,) = process.started.replays
    for position in process.started.positions.values():
        position.epoch = 2
    with pytest.raises(ReplayMismatch, match="with another source range"):
        process.run_epoch(process.work(3, range(4, 7)), record)


def test_a_replay_must_give_as_many_rows_as_were_sealed(world: World) -> None:
    process = replaying(world)
    (record,) = process.started.replays
    world.source.outputs["c"] = lambda row, seen: row if seen % 2 else None
    with pytest.raises(ReplayMismatch, match="replaying epoch 3 gave 1 rows for sink 'c', which was given 2"):
        process.replay(record)
    assert world.newest().epoch == 2


def test_a_replay_must_not_give_rows_where_there_were_none(world: World) -> None:
    process = replaying(world, epochs=2)
    (record,) = process.started.replays
    world.source.outputs["b"] = world.source.outputs["a"]
    with pytest.raises(ReplayMismatch, match="replaying epoch 2 gave 2 rows for sink 'b', which was given 0"):
        process.replay(record)


def test_in_a_replay_no_sink_is_said_to_be_further_than_the_epoch(world: World) -> None:
    """Otherwise a sink that is rewound later would seem to have lost epochs."""
    process = started(world)
    for _ in range(4):
        process.next_epoch()
    for epoch in (3, 4):
        world.damage_sidecar(world.of_epoch(epoch).sidecar)
    crashed_at(world, Point(StepStarted, 4, "begin"))
    assert world.newest().epoch == 3
    assert world.newest().sink_epochs == {"a": 3, "b": 3, "c": 3}


# --- large tokens


def test_large_tokens_go_to_the_sidecar_and_are_committed_by_recovery(world: World) -> None:
    class Wordy(RecordingSink):
        def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
            prepared = super().prepare(rows, ref)
            return Prepared(prepared.rows, {**prepared.payload, "files": ["x" * 1000] * 300})

    process = world.process(dies_at=Point(StepStarted, 1, "commit", "a"))
    process.sinks["b"] = Wordy(world.targets["b"], process.life.check)
    with pytest.raises(SimulatedCrash):
        process.run()
    assert world.newest().sink_tokens == {}
    assert world.newest().sink_commit_statuses["b"] == PENDING
    assert world.shown() == NOTHING
    world.run()
    assert world.shown() == world.expected()
