"""Metrics: what happens is counted, what is asked is answered at once, and nothing of it can hurt an epoch."""

import threading
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from holdfast import SinkCommitStatus
from holdfast.engine.events import (
    CheckpointFailed,
    CheckpointTaken,
    CheckpointVerified,
    EpochCommitted,
    EpochReplayed,
    Event,
    Recovered,
    SinkRetry,
    SourceProgress,
    StepFinished,
    StepStarted,
    Stopped,
    SyncFailed,
    SyncPulled,
    SyncPushed,
)
from holdfast.errors import Fenced, SinkError, StoreConfigurationError, TransientStoreError
from holdfast.interfaces.metrics import Metrics, StoreMetrics, merged, render
from holdfast.interfaces.metrics.remembered import Remembered
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import ManualClock
from interfaces.chains import START_MS, Chain
from interfaces.conftest import writable

STEPS = {"begin": 0.01, "compute": 1.0, "prepare": 0.2, "capture": 0.02, "seal": 0.03, "commit": 0.4, "record": 0.04}
DONE = {"lake": SinkCommitStatus.COMMITTED, "pg": SinkCommitStatus.COMMITTED}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    return Metrics("orders", clock=clock)


Values = dict[str, float]


def values(text: bytes) -> Values:
    """Return every sample of a text: `name` or `name{sink="lake"}`, without the pipeline and without buckets."""
    found: Values = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if "le" in sample.labels:
                continue
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items() if key != "pipeline")
            key = sample.name.removeprefix("holdfast_") + (f"{{{labels}}}" if labels else "")
            assert key not in found, f"{key} stands there twice"
            found[key] = sample.value
    return found


def told(metrics: Metrics, *events: Event) -> Values:
    for event in events:
        metrics.on_event(event)
    return values(metrics.render())


def committed(epoch: int = 1, **changes: object) -> EpochCommitted:
    fields: dict[str, object] = {
        "epoch": epoch,
        "checkpoint_id": epoch + 1,
        "rows_in": 10,
        "rows_out": {"lake": 7, "pg": 3},
        "new_bytes": 5000,
        "total_bytes": 90_000,
        "watermark_ms": START_MS - 60_000,
        "seconds": 1.7,
        "steps": STEPS,
    }
    return EpochCommitted(**{**fields, **changes})  # type: ignore[arg-type]


def recovered(**report: object) -> Recovered:
    known = {"fence_id": 9, "generation": 3, "chosen_id": 8, "epoch": 7, "seconds": 2.5, "skipped": []}
    return Recovered({**known, "sinks": {"lake": "has everything"}, **report})


# What is counted


def test_an_epoch(metrics: Metrics) -> None:
    found = told(metrics, committed(1), committed(2))
    assert found["checkpoints_completed_total"] == found["epochs_completed_total"] == 2
    assert (found["rows_in_total"], found['rows_out_total{sink="lake"}']) == (20, 14)
    assert (found["checkpoint_written_bytes_sum"], found["checkpoint_written_bytes_count"]) == (10_000, 2)
    assert (found["epoch"], found["checkpoint_id"], found["checkpoint_state_bytes"]) == (2, 3, 90_000)


def test_the_duration_of_a_checkpoint_and_what_the_pipeline_waits_for_it_are_apart(metrics: Metrics) -> None:
    found = told(metrics, committed())
    assert found["epoch_duration_seconds_sum"] == pytest.approx(1.7)
    assert found["checkpoint_duration_seconds_sum"] == pytest.approx(0.2 + 0.02 + 0.03 + 0.4 + 0.04)
    assert found["checkpoint_pipeline_stall_seconds_sum"] == pytest.approx(0.01 + 0.02 + 0.03 + 0.04)


def test_a_checkpoint_on_request_and_one_that_failed(metrics: Metrics) -> None:
    found = told(metrics, CheckpointTaken(1, 5, 0.5), CheckpointFailed(2, "no room"))
    assert (found["checkpoints_completed_total"], found["checkpoints_failed_total"]) == (1, 1)
    assert found["checkpoint_duration_seconds_sum"] == found["checkpoint_pipeline_stall_seconds_sum"] == 0.5
    assert (found["checkpoint_id"], found["epochs_completed_total"]) == (5, 0)


def test_counters_read_0_before_anything_happened(metrics: Metrics) -> None:
    found = told(metrics)
    for name in ("checkpoints_completed", "checkpoints_failed", "rows_in", "fences_lost", "epochs_replayed"):
        assert found[f"{name}_total"] == 0


def test_steps_of_sinks(metrics: Metrics) -> None:
    found = told(
        metrics,
        StepFinished(1, "prepare", 0.25, "lake"),
        StepFinished(1, "prepare", 0.3),
        StepFinished(1, "commit", 0.5, "lake"),
        StepFinished(1, "recovery.commit", 0.5, "lake"),
    )
    assert found['sink_prepare_duration_seconds_sum{sink="lake"}'] == 0.25
    assert found['sink_commit_duration_seconds_sum{sink="lake"}'] == 1.0
    assert found['epoch_step_duration_seconds_sum{step="prepare"}'] == 0.3


def test_retries_and_replays(metrics: Metrics) -> None:
    found = told(metrics, SinkRetry("pg", 1, "commit", 1, "busy", 0.1), committed(), EpochReplayed(1))
    assert found['sink_retries_total{action="commit",sink="pg"}'] == 1
    assert found["epochs_replayed_total"] == 1


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        ({"chosen_id": None, "epoch": 0}, "fresh"),
        ({}, "restore"),
        ({"skipped": [{"checkpoint_id": 9, "reason": "abandoned by checkpoint 10"}]}, "restore"),
        ({"skipped": [{"checkpoint_id": 9, "reason": "epoch is 0: nothing to restore"}]}, "restore"),
        ({"skipped": [{"checkpoint_id": 9, "reason": "state.bin checksum mismatch"}]}, "fallback"),
    ],
)
def test_recoveries_by_kind(metrics: Metrics, report: dict[str, object], kind: str) -> None:
    found = told(metrics, recovered(**report))
    assert found[f'recoveries_total{{kind="{kind}"}}'] == 1
    assert (found["generation"], found["recovery_duration_seconds"]) == (3, 2.5)


def test_ends_by_kind_and_lost_fences(metrics: Metrics) -> None:
    fenced, sink = Fenced("gone", checkpoint_id=4), SinkError("no such column")
    found = told(
        metrics, *(Stopped.by(3, error) for error in (fenced, sink, ValueError("?"), None, KeyboardInterrupt()))
    )
    assert found["fences_lost_total"] == 1
    assert found['failures_total{kind="Fenced"}'] == found['failures_total{kind="SinkError"}'] == 1
    assert found['failures_total{kind="other"}'] == 2


def test_verifications(metrics: Metrics) -> None:
    sound = CheckpointVerified(5, 4, START_MS, (), 100, 0.1)
    found = told(metrics, sound, sound, CheckpointVerified(4, 3, START_MS, ("digest mismatch",), 50, 0.1))
    assert found['verifications_total{outcome="sound"}'] == 2
    assert found['verifications_total{outcome="damaged"}'] == 1
    assert found["verified_bytes_total"] == 250


def test_copies_to_and_from_a_bucket(metrics: Metrics, clock: ManualClock) -> None:
    metrics.on_event(SyncPushed("u1", 4_000_000, 3, 2.0))
    clock.advance(30)
    found = told(
        metrics, SyncPulled("u1", 0, 0, 0.5), SyncFailed("push", "503", 10.0), SyncFailed("push", "503", 20.0)
    )
    assert found['sync_completed_total{direction="push"}'] == 1
    assert found['sync_transferred_bytes_sum{direction="push"}'] == 4_000_000
    assert found['sync_speed_bytes_per_second_sum{direction="push"}'] == 2_000_000
    assert found['sync_objects_total{direction="push"}'] == 3
    assert found['sync_duration_seconds_sum{direction="pull"}'] == 0.5
    assert 'sync_speed_bytes_per_second_count{direction="pull"}' not in found
    assert found['sync_failed_total{direction="push"}'] == 2
    assert (found['sync_age_seconds{direction="push"}'], found['sync_age_seconds{direction="pull"}']) == (30, 0)
    assert (found['sync_failing{direction="push"}'], found['sync_failing{direction="pull"}']) == (1, 0)
    assert told(metrics, SyncPushed("u2", 1, 1, 1.0))['sync_failing{direction="push"}'] == 0


# Where the pipeline is at this moment


def test_ages_and_lags_are_of_the_moment_they_are_asked_for(metrics: Metrics, clock: ManualClock) -> None:
    progress = SourceProgress("orders", {"0": "5"}, {"0": "9"}, 4, "records", {"0": "1"}, 7, 2)
    assert "checkpoint_age_seconds" not in told(metrics)
    told(metrics, committed(), progress)
    clock.advance(15)
    found = told(metrics)
    assert found["checkpoint_age_seconds"] == 15
    assert found["watermark_lag_seconds"] == 75
    assert found['source_lag{source="orders",unit="records"}'] == 4
    assert found['source_held_back{source="orders",unit="records"}'] == 7
    assert found['source_answer_age_seconds{source="orders"}'] == 15


def test_a_step_that_does_not_end_is_seen(metrics: Metrics, clock: ManualClock) -> None:
    told(metrics, StepStarted(3, "commit"), StepStarted(3, "commit", "pg"))
    clock.advance(90)
    found = told(metrics)
    assert found['step_running_seconds{step="commit"}'] == 90
    assert found['sink_in_doubt{sink="pg"}'] == 1
    found = told(metrics, StepFinished(3, "commit", 91.0, "pg"), StepFinished(3, "commit", 91.0))
    assert found['sink_in_doubt{sink="pg"}'] == 0
    assert not any(name.startswith("step_running") for name in found)


def test_a_sink_stays_in_doubt_when_its_commit_failed(metrics: Metrics) -> None:
    failed = StepStarted(3, "commit", "pg"), CheckpointFailed(3, "gone"), Stopped(2, "gone", "SinkError")
    found = told(metrics, recovered(), *failed)
    assert (found['sink_in_doubt{sink="pg"}'], found['sink_in_doubt{sink="lake"}']) == (1, 0)
    assert found["pipeline_up"] == 0


def test_a_commit_whose_outcome_was_found_out_leaves_no_doubt(metrics: Metrics) -> None:
    assert told(metrics, StepStarted(3, "commit", "pg"), committed(3))['sink_in_doubt{sink="pg"}'] == 0


def test_up_between_recovery_and_end(metrics: Metrics) -> None:
    assert told(metrics)["pipeline_up"] == 0
    assert told(metrics, recovered())["pipeline_up"] == 1
    assert told(metrics, Stopped(7, None))["pipeline_up"] == 0


# What a look at the store adds


@pytest.fixture
def settled(path: Path) -> Chain:
    chain = Chain(writable(path))
    for id in range(1, 4):
        chain.seal(id, sink_commit_statuses=DONE)
    return chain


def test_the_store_is_looked_at(settled: Chain) -> None:
    clock = ManualClock(START_MS + 240_000)
    found = told(Metrics("orders", store=settled.store, clock=clock))
    assert found["store_reachable"] == 1
    assert (found["store_checkpoints"], found["store_bytes"]) == (3, sum(settled.store.sidecars().values()))
    assert found['store_recoverable{verdict="yes"}'] == 1
    assert found['store_recoverable{verdict="no"}'] == 0
    assert (found["store_fallbacks"], found["store_independent_fallback"], found["damaged_checkpoints"]) == (2, 0, 0)
    assert found["checkpoint_age_seconds"] == 60, "until the first epoch of this run"
    assert "verified_checkpoint_age_seconds" not in found


def test_verified_when_comes_from_the_history(settled: Chain) -> None:
    entry = {"kind": "verification", "at_ms": START_MS + 200_000, "run": "r", "bytes": 1, "seconds": 0.1}
    settled.store.history.append(
        [{**entry, "checkpoint_id": 3, "epoch": 3, "sealed_ms": START_MS + 180_000, "problems": []}]
    )
    clock = ManualClock(START_MS + 240_000)
    metrics = Metrics("orders", store=settled.store, clock=clock)
    told(metrics)
    clock.advance(10)
    found = told(metrics)
    assert found["verification_age_seconds"] == 50
    assert found["verified_checkpoint_age_seconds"] == 70


def test_a_store_whose_pipeline_does_not_run(settled: Chain) -> None:
    settled.seal(4, sink_commit_statuses={**DONE, "pg": SinkCommitStatus.PENDING})
    clock = ManualClock(START_MS + 600_000)
    found = values(StoreMetrics("orders", lambda: settled.store, clock=clock).render())
    assert found["pipeline_up"] == 0
    assert (found["epoch"], found["checkpoint_id"], found["generation"]) == (4, 4, 1)
    assert found["checkpoint_age_seconds"] == 360
    assert found['sink_in_doubt{sink="pg"}'] == 1
    assert found['store_recoverable{verdict="degraded"}'] == 1


class Silent(DurableCheckpointStore):
    """A store that does not answer."""

    def list_ids(self) -> list[int]:
        raise TransientStoreError("no answer")


def test_a_store_that_does_not_answer_is_told_and_nothing_else_is_missing(settled: Chain, clock: ManualClock) -> None:
    found = told(Metrics("orders", store=Silent(settled.store._medium), clock=clock), committed())
    assert found["store_reachable"] == 0
    assert found["epoch"] == 1
    assert "store_checkpoints" not in found


def test_a_store_that_cannot_be_opened_is_one_that_does_not_answer(clock: ManualClock) -> None:
    def gone() -> DurableCheckpointStore:
        raise StoreConfigurationError("there is nothing here")

    found = values(StoreMetrics("orders", gone, clock=clock).render())
    assert (found["store_reachable"], found["pipeline_up"]) == (0, 0)


# Remembering


def test_answers_are_remembered_for_a_while(clock: ManualClock) -> None:
    asked: list[int] = []
    remembered = Remembered(lambda: asked.append(1) or len(asked), clock, fresh_seconds=30)
    assert [remembered.get().answer for _ in range(3)] == [1, 1, 1]
    clock.advance(30)
    assert remembered.get().answer == 2


def test_nobody_waits_long_for_an_answer_and_one_question_is_asked_at_a_time(clock: ManualClock) -> None:
    release, asked = threading.Event(), threading.Semaphore(0)

    def hang() -> str:
        asked.release()
        assert release.wait(30)
        return "at last"

    remembered = Remembered(hang, clock, fresh_seconds=0, patience_seconds=0.01)
    for _ in range(3):
        assert remembered.get().failed
    release.set()
    assert asked.acquire(timeout=30)
    assert not asked.acquire(blocking=False)
    patient = threading.Event()
    while not patient.wait(0.01):
        if remembered.get().answer == "at last":
            break


def test_the_last_answer_stays_when_the_next_one_fails(clock: ManualClock) -> None:
    answers = iter(["first"])
    remembered = Remembered(lambda: next(answers), clock, fresh_seconds=10)
    assert remembered.get().answer == "first"
    clock.advance(10)
    heard = remembered.get()
    assert (heard.answer, heard.failed, heard.seconds_ago) == ("first", True, 10)


# Robustness


def test_an_event_that_cannot_be_counted_stops_nobody(metrics: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    bad = committed(rows_in="many")
    metrics.on_event(bad)
    metrics.on_event(bad)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert told(metrics, committed())["epoch"] == 1


def test_events_come_on_many_threads_while_others_read(metrics: Metrics) -> None:
    def work(number: int) -> None:
        for epoch in range(200):
            metrics.on_event(StepStarted(epoch, "commit", f"sink{number}"))
            metrics.on_event(committed(epoch))
            metrics.on_event(StepFinished(epoch, "commit", 0.1, f"sink{number}"))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        values(metrics.render())
    assert values(metrics.render())["epochs_completed_total"] == 800


def test_the_global_registry_is_left_alone(metrics: Metrics) -> None:
    told(metrics, committed())
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("holdfast")]


# The text


def test_several_pipelines_are_one_text_in_which_each_family_stands_once(clock: ManualClock) -> None:
    one, two = Metrics("orders", clock=clock), Metrics("clicks", clock=clock)
    one.on_event(committed())
    for text in (render([one, two]), merged([one.render(), two.render()])):
        lines = text.decode().splitlines()
        types = [line for line in lines if line.startswith("# TYPE")]
        assert len(types) == len(set(types))
        assert 'holdfast_epochs_completed_total{pipeline="orders"} 1.0' in lines
        assert 'holdfast_epochs_completed_total{pipeline="clicks"} 0.0' in lines
        assert "# TYPE holdfast_epochs_completed_total counter" in lines


def test_merging_one_text_changes_nothing(metrics: Metrics) -> None:
    metrics.on_event(committed())
    assert values(merged([metrics.render()])) == values(metrics.render())


def test_when_counters_began_is_left_out(metrics: Metrics) -> None:
    assert b"_created" not in metrics.render()


def test_names_from_outside_are_escaped(clock: ManualClock) -> None:
    odd = Metrics('a "b"\\c\n', clock=clock)
    odd.on_event(SinkRetry('x"y', 1, "commit", 1, "?", 0.1))
    assert 'sink_retries_total{action="commit",sink="x"y"}' in values(odd.render())
