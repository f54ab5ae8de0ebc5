"""Requested checkpoints: which snapshot satisfies which request, what is told while one waits, and how they end."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise

import pytest

from holdfast import CheckpointManifest
from holdfast.clock import utc_from_ms
from holdfast.core.status import (
    CheckpointDelayed,
    CheckpointIdle,
    CheckpointInProgress,
    PermanentSuspendError,
    SuspendError,
    TemporarySuspendError,
)
from holdfast.engine.events import EpochCommitted, Recovered, StepStarted
from holdfast.engine.requests import CheckpointRequests
from holdfast.errors import PipelineError, TransientStoreError
from holdfast.testing import ManualClock

PATIENCE = 10.0


class Sealer:
    """Seals when it is let; counts how often, and fails when told to."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.freely = True

    def __call__(self) -> CheckpointManifest:
        self.count += 1
        number = self.count
        self.begun.release()
        if not self.freely:
            assert self.go.acquire(timeout=PATIENCE)
        if self.error is not None:
            raise self.error
        return CheckpointManifest.new(number, 1)


class Asked:
    """Requests of a process that is past recovery, and the turn that epochs take."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.requests = CheckpointRequests(self.clock)
        self.sealer = Sealer()
        self.turn = threading.Lock()

    def serve(self, *permanent: PermanentSuspendError) -> "Asked":
        self.requests.serve(self.sealer, self.turn, permanent)
        return self

    def until(self, condition: Callable[[], bool]) -> None:
        ended = threading.Event()
        for _ in range(2000):
            if condition():
                return
            ended.wait(0.005)
        raise AssertionError("it never came")

    def success(self) -> int | None:
        return self.requests.status().success

    def epoch(self, number: int = 1) -> None:
        """Let an epoch run from the moment of its snapshot to its end."""
        self.capture(number)
        self.commit(number)

    def capture(self, number: int = 1) -> None:
        self.requests.on_event(StepStarted(number, "capture"))

    def commit(self, number: int = 1) -> None:
        self.requests.on_event(EpochCommitted(number, 100 + number, 1, {}, 0, 0, None, 0.1))


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.sealer.freely = True
    asked.sealer.go.release(100)
    asked.requests.close()


def test_numbers_begin_at_zero_and_grow_by_one(asked: Asked) -> None:
    assert [asked.requests.request() for _ in range(3)] == [0, 1, 2]


def test_every_process_has_an_incarnation_of_its_own_that_sorts_by_time() -> None:
    first, second = CheckpointRequests().incarnation_uuid, CheckpointRequests().incarnation_uuid
    assert (first.version, second.version) == (7, 7)
    assert first < second


def test_a_request_is_served_with_no_data_flowing(asked: Asked) -> None:
    asked.serve()
    number = asked.requests.request()
    asked.until(lambda: asked.success() == number)
    assert asked.requests.status().failure is None
    assert asked.requests.activity() == CheckpointIdle()
    assert [(each.first, each.last, each.checkpoint_id) for each in asked.requests.outcomes()] == [(0, 0, 1)]


def test_requests_that_wait_together_share_one_snapshot(asked: Asked) -> None:
    asked.serve()
    with asked.turn:
        for _ in range(5):
            asked.requests.request()
    asked.until(lambda: asked.success() == 4)
    assert asked.sealer.count == 1
    assert [(each.first, each.last) for each in asked.requests.outcomes()] == [(0, 4)]


def test_a_request_that_arrives_while_a_snapshot_is_written_gets_one_of_its_own(asked: Asked) -> None:
    """The snapshot that is being written began before it: it may lack what the request was made for."""
    asked.sealer.freely = False
    asked.serve()
    first = asked.requests.request()
    assert asked.sealer.begun.acquire(timeout=PATIENCE)
    second = asked.requests.request()
    asked.sealer.go.release()
    asked.until(lambda: asked.success() == first)
    assert asked.sealer.begun.acquire(timeout=PATIENCE)
    assert asked.success() == first
    asked.sealer.go.release()
    asked.until(lambda: asked.success() == second)
    assert [each.checkpoint_id for each in asked.requests.outcomes()] == [1, 2]


def test_a_request_that_arrives_while_an_epoch_nobody_asked_for_is_written_is_not_lost(asked: Asked) -> None:
    """The epoch's snapshot began before it, so that checkpoint answers nothing: the request still waits."""
    asked.serve()
    with asked.turn:
        asked.capture()
        number = asked.requests.request()
        asked.commit()
        assert asked.success() is None
        assert asked.requests.outcomes() == []
    asked.until(lambda: asked.success() == number)
    assert [(each.first, each.last) for each in asked.requests.outcomes()] == [(0, 0)]


def test_the_checkpoint_of_an_epoch_serves_those_that_asked_before_its_snapshot(asked: Asked) -> None:
    asked.serve()
    with asked.turn:
        early = asked.requests.request()
        asked.capture()
        late = asked.requests.request()
        assert asked.success() is None
        asked.commit()
        assert asked.success() == early
    asked.until(lambda: asked.success() == late)
    assert asked.sealer.count == 1, "the early one needs no checkpoint of its own"


def test_an_epoch_that_nobody_waits_for_changes_no_status(asked: Asked) -> None:
    asked.serve()
    asked.epoch()
    assert asked.success() is None
    assert asked.requests.outcomes() == []


def test_a_request_during_recovery_waits_for_coordination(asked: Asked) -> None:
    began = utc_from_ms(asked.clock.now_ms())
    number = asked.requests.request()
    asked.clock.advance(5.0)
    reasons = (TemporarySuspendError("Coordination"),)
    assert asked.requests.activity() == CheckpointDelayed(reasons=reasons, delayed_since=began)
    assert asked.requests.suspend_error() == SuspendError("Temporary", reasons)
    asked.serve()
    asked.until(lambda: asked.success() == number)


def test_a_request_during_a_replay_says_so_and_no_replayed_epoch_serves_it(asked: Asked) -> None:
    """What is replayed stands before what the sinks show: no checkpoint of now."""
    asked.requests.on_event(Recovered({"replays": [{"epoch": 1, "found_in": "checkpoint 2"}]}))
    number = asked.requests.request()
    asked.epoch()
    activity = asked.requests.activity()
    assert isinstance(activity, CheckpointDelayed)
    assert activity.reasons == (TemporarySuspendError("Replaying"),)
    assert asked.success() is None
    asked.serve()
    asked.until(lambda: asked.success() == number)


def test_while_an_epoch_runs_the_waiting_has_a_reason_and_a_beginning(asked: Asked) -> None:
    asked.serve()
    with asked.turn:
        since = utc_from_ms(asked.clock.now_ms())
        asked.requests.request()
        asked.clock.advance(2.0)
        asked.requests.request()
        activity = asked.requests.activity()
        assert activity == CheckpointDelayed(
            reasons=(TemporarySuspendError("TransactionInProgress"),), delayed_since=since
        )


def test_waiting_is_counted_from_the_oldest_that_is_left(asked: Asked) -> None:
    asked.serve()
    with asked.turn:
        began = utc_from_ms(asked.clock.now_ms())
        asked.requests.request()
        asked.capture()
        asked.clock.advance(3.0)
        asked.requests.request()
        asked.clock.advance(3.0)
        asked.requests.request()
        asked.commit()
        activity = asked.requests.activity()
        assert isinstance(activity, CheckpointDelayed)
        assert activity.delayed_since == began + timedelta(seconds=3)


def test_while_a_checkpoint_is_written_activity_says_since_when(asked: Asked) -> None:
    asked.sealer.freely = False
    asked.serve()
    since = utc_from_ms(asked.clock.now_ms())
    asked.requests.request()
    assert asked.sealer.begun.acquire(timeout=PATIENCE)
    asked.clock.advance(1.0)
    assert asked.requests.activity() == CheckpointInProgress(started_at=since)


def test_the_checkpoint_of_an_epoch_counts_as_activity(asked: Asked) -> None:
    asked.serve()
    asked.capture()
    assert isinstance(asked.requests.activity(), CheckpointInProgress)
    asked.commit()
    assert asked.requests.activity() == CheckpointIdle()


def test_a_failure_is_kept_with_its_time_and_a_later_success_leaves_it(asked: Asked) -> None:
    asked.serve()
    asked.sealer.error = TransientStoreError("the bucket does not answer: secret_key=hunter2")
    failed_at = utc_from_ms(asked.clock.now_ms())
    asked.requests.request()
    asked.until(lambda: asked.requests.status().failure is not None)
    asked.sealer.error = None
    asked.clock.advance(60.0)
    asked.requests.request()
    asked.until(lambda: asked.success() == 1)
    failure = asked.requests.status().failure
    assert failure is not None
    assert (failure.sequence_number, failure.failed_at) == (0, failed_at)
    assert failure.error == "the bucket does not answer: secret_key=***"


def test_a_fault_of_ours_fails_the_request_and_the_next_is_served(asked: Asked) -> None:
    asked.serve()
    asked.sealer.error = RuntimeError("boom")
    asked.requests.request()
    asked.until(lambda: asked.requests.status().failure is not None)
    asked.sealer.error = None
    asked.requests.request()
    asked.until(lambda: asked.success() == 1)
    assert asked.requests.outcomes()[0].error == "RuntimeError: boom"


def test_what_can_never_be_checkpointed_fails_every_request_at_once(asked: Asked) -> None:
    before = asked.requests.request()
    asked.serve(PermanentSuspendError("UnsupportedInputEndpoint", "clicks"))
    failure = asked.requests.status().failure
    assert failure is not None
    assert failure.sequence_number == before
    assert "input 'clicks' cannot be resumed" in failure.error
    after = asked.requests.request()
    assert asked.requests.status().failure is not None
    assert asked.requests.outcomes()[-1].last == after
    assert asked.sealer.count == 0
    assert asked.requests.permanent == (PermanentSuspendError("UnsupportedInputEndpoint", "clicks"),)


def test_the_end_of_the_pipeline_fails_those_that_wait_and_those_that_come(asked: Asked) -> None:
    asked.requests.request()
    asked.requests.close(PipelineError("sink db failed"))
    assert asked.requests.request() == 1
    outcomes = asked.requests.outcomes()
    assert [(each.first, each.last) for each in outcomes] == [(0, 0), (1, 1)]
    assert outcomes[0].error == "the pipeline ended before the checkpoint was taken: sink db failed"


def test_closing_waits_for_what_is_being_written(asked: Asked) -> None:
    asked.sealer.freely = False
    asked.serve()
    asked.requests.request()
    assert asked.sealer.begun.acquire(timeout=PATIENCE)
    closing = threading.Thread(target=asked.requests.close)
    closing.start()
    asked.sealer.go.release()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert asked.success() == 0


def test_somebody_who_holds_the_turn_takes_a_checkpoint_for_all_who_wait(asked: Asked) -> None:
    asked.serve()
    with asked.turn:
        number = asked.requests.request()
        assert asked.requests.take().checkpoint_id == 1
        assert asked.success() == number


def test_many_threads_ask_while_epochs_run_and_each_is_answered_once_and_in_order(asked: Asked) -> None:
    asked.serve()
    numbers: list[int] = []
    done = threading.Event()

    def ask() -> None:
        for _ in range(50):
            number = asked.requests.request()
            asked.until(lambda number=number: (asked.success() or 0) >= number)
            numbers.append(number)

    def epochs() -> None:
        number = 0
        while not done.is_set():
            with asked.turn:
                asked.epoch(number := number + 1)

    running = threading.Thread(target=epochs)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in (running, *threads):
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    done.set()
    running.join()
    assert sorted(numbers) == list(range(200))
    outcomes = asked.requests.outcomes()
    assert all(later.first == earlier.last + 1 for earlier, later in pairwise(outcomes))
    assert outcomes[-1].last == 199


def test_asking_without_end_takes_no_memory(asked: Asked) -> None:
    asked.serve()
    for _ in range(300):
        asked.requests.request()
        asked.until(lambda: asked.requests.activity() == CheckpointIdle())
    assert len(asked.requests.outcomes()) <= 100
