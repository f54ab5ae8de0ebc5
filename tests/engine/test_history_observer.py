"""History is written beside the work: nobody waits for it, nothing stops by it, and the end of a run is in it."""

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from holdfast.engine.events import (
    EpochCommitted,
    EpochReplayed,
    Recovered,
    SinkRetry,
    StepFinished,
    StepStarted,
    Stopped,
)
from holdfast.engine.history import HistoryObserver, HistorySettings
from holdfast.errors import TransientStoreError
from holdfast.stores.history import History
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store
from holdfast.testing import ManualClock

NEVER = HistorySettings(every_seconds=3600, batch=1000)
PATIENCE = 30.0


def committed(epoch: int) -> EpochCommitted:
    return EpochCommitted(
        epoch=epoch,
        checkpoint_id=epoch + 1,
        rows_in=10 * epoch,
        rows_out={"lake": epoch},
        new_bytes=100,
        total_bytes=1000,
        watermark_ms=None,
        seconds=0.1234567,
        steps={"compute": 0.0123456, "commit:lake": 0.01},
    )


def recovered(generation: int = 3) -> Recovered:
    return Recovered({"fence_id": 7, "generation": generation, "chosen_id": 6, "skipped": []})


class Scripted(History):
    """A history that waits for a permit before each write, and fails as often as it is told."""

    def __init__(self, *, permits: int = 1000, failures: int = 0) -> None:
        super().__init__(open_store("memory://")._medium)
        self.permits = threading.Semaphore(permits)
        self.failures = failures
        self.asked = threading.Semaphore(0)
        self.written = threading.Semaphore(0)

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        self.asked.release()
        assert self.permits.acquire(timeout=PATIENCE)
        if self.failures > 0:
            self.failures -= 1
            raise TransientStoreError("no answer from https://me:secret@bucket")
        super().append(entries)
        self.written.release()

    @property
    def kinds(self) -> list[str]:
        return [entry["kind"] for entry in self.stored]

    @property
    def stored(self) -> list[dict[str, Any]]:
        """What another process sees."""
        return History(self._medium).entries()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


def test_what_is_worth_keeping_is_in_history_after_the_end(clock: ManualClock, store: DurableCheckpointStore) -> None:
    observer = HistoryObserver(store.history, clock)
    events = (
        recovered(),
        StepStarted(1, "compute"),
        StepFinished(1, "compute", 0.1),
        committed(1),
        EpochReplayed(1),
        Stopped(1, None),
    )
    for event in events:
        clock.advance(1)
        observer.on_event(event)
    observer.close()
    entries = store.history.entries()
    assert [entry["kind"] for entry in entries] == ["recovery", "epoch", "replay", "stop"]
    assert [entry["at_ms"] - 1_700_000_000_000 for entry in entries] == [1000, 4000, 5000, 6000]
    assert {entry["generation"] for entry in entries} == {3}
    assert len({entry["run"] for entry in entries}) == 1
    assert entries[0]["report"] == recovered().report
    assert entries[1] == {
        "v": 1,
        "kind": "epoch",
        "at_ms": 1_700_000_004_000,
        "run": entries[0]["run"],
        "generation": 3,
        "epoch": 1,
        "checkpoint_id": 2,
        "rows_in": 10,
        "rows_out": {"lake": 1},
        "new_bytes": 100,
        "total_bytes": 1000,
        "watermark_ms": None,
        "seconds": 0.1235,
        "steps": {"compute": 0.0123, "commit:lake": 0.01},
        "retries": [],
    }


def test_two_runs_are_told_apart(clock: ManualClock) -> None:
    history = Scripted()
    for _ in range(2):
        observer = HistoryObserver(history, clock)
        clock.advance(1)
        observer.on_event(Stopped(0, "refused"))
        observer.close()
    assert len({entry["run"] for entry in history.entries("stop")}) == 2


def test_a_process_that_dies_does_not_wait_for_the_storage(clock: ManualClock) -> None:
    history = Scripted(permits=0)
    observer = HistoryObserver(history, clock)
    observer.on_event(recovered())
    assert history.asked.acquire(timeout=PATIENCE)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "holdfast-history"] == [True]
    history.permits.release()
    observer.close()


def test_nobody_waits_for_the_storage(clock: ManualClock) -> None:
    """Goal: an epoch never waits. Method: events come while a write is stuck, and all are taken."""
    history = Scripted(permits=0)
    observer = HistoryObserver(history, clock, NEVER)
    observer.on_event(recovered())
    assert history.asked.acquire(timeout=PATIENCE)
    for epoch in range(1, 4):
        clock.advance(1)
        observer.on_event(committed(epoch))
    assert history.kinds == []
    history.permits.release(2)
    observer.close()
    assert history.kinds == ["recovery", "epoch", "epoch", "epoch"]


def test_a_recovery_is_written_at_once(clock: ManualClock) -> None:
    history = Scripted()
    observer = HistoryObserver(history, clock, NEVER)
    observer.on_event(recovered())
    assert history.written.acquire(timeout=PATIENCE)
    assert history.kinds == ["recovery"]
    clock.advance(1)
    observer.on_event(committed(1))
    assert not history.written.acquire(timeout=0.05)
    observer.close()
    assert history.kinds == ["recovery", "epoch"]


def test_many_waiting_events_are_written_at_once(clock: ManualClock) -> None:
    history = Scripted()
    observer = HistoryObserver(history, clock, HistorySettings(every_seconds=3600, batch=5))
    for epoch in range(1, 6):
        clock.advance(1)
        observer.on_event(committed(epoch))
    assert history.written.acquire(timeout=PATIENCE)
    assert history.kinds == ["epoch"] * 5
    observer.close()


def test_few_events_are_written_after_a_while(clock: ManualClock) -> None:
    history = Scripted()
    observer = HistoryObserver(history, clock, HistorySettings(every_seconds=0.01))
    observer.on_event(committed(1))
    assert history.written.acquire(timeout=PATIENCE)
    observer.close()
    assert history.kinds == ["epoch"]


def test_what_waits_to_be_written_is_seen_in_the_same_process_and_once(clock: ManualClock) -> None:
    history = Scripted(permits=0)
    observer = HistoryObserver(history, clock, HistorySettings(every_seconds=3600, batch=2))
    observer.on_event(committed(1))
    assert [entry["epoch"] for entry in history.entries()] == [1]
    clock.advance(1)
    observer.on_event(committed(2))
    assert history.asked.acquire(timeout=PATIENCE)
    clock.advance(1)
    observer.on_event(committed(3))
    assert [entry["epoch"] for entry in history.entries("epoch")] == [1, 2, 3]
    assert [entry["epoch"] for entry in history.entries("epoch", last=2)] == [2, 3]
    assert history.entries("recovery") == []
    assert history.stored == []
    history.permits.release(2)
    observer.close()
    assert [entry["epoch"] for entry in history.entries("epoch")] == [1, 2, 3]
    assert [entry["epoch"] for entry in history.stored] == [1, 2, 3]


def test_what_is_written_while_somebody_reads_is_seen_once(clock: ManualClock) -> None:
    history = Scripted()
    observer = HistoryObserver(history, clock, NEVER)
    observer.on_event(committed(1))
    history.show(lambda: observer.close() or [])
    assert [entry["epoch"] for entry in history.entries()] == [1]
    assert history.kinds == ["epoch"]


def test_a_run_without_events_writes_nothing_and_starts_no_thread(clock: ManualClock) -> None:
    history = Scripted()
    before = threading.active_count()
    observer = HistoryObserver(history, clock)
    observer.on_event(StepStarted(1, "compute"))
    assert threading.active_count() == before
    observer.close()
    assert history.kinds == []


def test_storage_that_fails_for_a_while_costs_nothing_but_one_warning(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    history = Scripted(failures=2)
    observer = HistoryObserver(history, clock, HistorySettings(every_seconds=0.01))
    observer.on_event(recovered())
    clock.advance(1)
    observer.on_event(committed(1))
    assert history.written.acquire(timeout=PATIENCE)
    observer.close()
    assert history.kinds == ["recovery", "epoch"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the pipeline goes on without: no answer from https://***@bucket" in caplog.text


def test_an_entry_that_cannot_be_written_stops_nobody(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    observer = HistoryObserver(Scripted(), clock, NEVER)
    observer.on_event(Recovered({"fence_id": object()}))
    observer.close()
    assert "history cannot be written" in caplog.text


def test_while_nothing_can_be_written_the_oldest_are_dropped_and_counted(clock: ManualClock) -> None:
    history = Scripted(permits=0, failures=2)
    settings = HistorySettings(every_seconds=3600, batch=1, most_waiting=3)
    observer = HistoryObserver(history, clock, settings)
    observer.on_event(committed(1))
    assert history.asked.acquire(timeout=PATIENCE)
    for epoch in range(2, 7):
        clock.advance(1)
        observer.on_event(committed(epoch))
    history.permits.release()
    assert history.asked.acquire(timeout=PATIENCE)
    history.permits.release(2)
    observer.close()
    assert [entry["epoch"] for entry in history.entries("epoch")] == [4, 5, 6]
    [gap] = history.entries("gap")
    assert (gap["dropped"], gap["at_ms"]) == (3, 1_700_000_003_000)


def test_the_end_does_not_wait_for_ever(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    history = Scripted(permits=0)
    observer = HistoryObserver(history, clock, HistorySettings(patience_seconds=0.05))
    observer.on_event(Stopped(1, None))
    observer.close()
    assert "the storage did not answer in time" in caplog.text
    history.permits.release()
    assert history.written.acquire(timeout=PATIENCE)


def test_the_retries_of_a_sink_are_added_up_and_kept_with_what_they_led_to(clock: ManualClock) -> None:
    history = Scripted()
    observer = HistoryObserver(history, clock, NEVER)
    observer.on_event(SinkRetry("db", 4, "claim", 1, "locked", 0.25))
    observer.on_event(recovered())
    for attempt in (1, 2, 3):
        observer.on_event(SinkRetry("lake", 5, "commit", attempt, f"busy {attempt}", 0.5))
        observer.on_event(SinkRetry("db", 5, "commit", attempt, "locked", 0.25))
    observer.on_event(committed(5))
    clock.advance(1)
    observer.on_event(committed(6))
    observer.on_event(SinkRetry("db", 7, "prepare", 1, "gone", 0.25))
    observer.on_event(Stopped(6, "sink 'db', epoch 7, prepare: gone"))
    observer.close()
    [started], [first, second], [ended] = (history.entries(kind) for kind in ("recovery", "epoch", "stop"))
    assert started["retries"] == [
        {"sink": "db", "action": "claim", "times": 1, "seconds": 0.25, "error": "locked"},
    ]
    assert first["retries"] == [
        {"sink": "lake", "action": "commit", "times": 3, "seconds": 1.5, "error": "busy 3"},
        {"sink": "db", "action": "commit", "times": 3, "seconds": 0.75, "error": "locked"},
    ]
    assert second["retries"] == []
    assert [retries["error"] for retries in ended["retries"]] == ["gone"]


def test_errors_are_kept_without_secrets_and_not_at_any_length(clock: ManualClock) -> None:
    history = Scripted()
    observer = HistoryObserver(history, clock, NEVER)
    observer.on_event(SinkRetry("lake", 1, "commit", 1, "password=hunter2 was wrong", 0.1))
    observer.on_event(Stopped(1, "cannot reach https://me:hunter2@host/ " + "x" * 10_000))
    observer.close()
    [stop] = history.entries()
    assert stop["retries"][0]["error"] == "password=*** was wrong"
    assert stop["error"].startswith("cannot reach https://***@host/ xxx")
    assert len(stop["error"]) == 2000
