"""Talking to several sinks at once: limits, retries, and never two calls at once in one sink."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from engine.worlds import IMPATIENT, SETTINGS, Life
from holdfast import Fenced
from holdfast.core.contracts import EpochRef, LedgerState, Owner, Sink, Token
from holdfast.engine.delivery import Delivery, DeliverySettings, blamed, raise_first
from holdfast.engine.events import SinkRetry
from holdfast.errors import ForeignTimeline, RetryableSinkError, SinkError, UnknownOutcome
from holdfast.testing import ManualClock, RecordedTarget, RecordingSink, ScriptedRows, Trouble

TIMELINE = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
OWNER = Owner("shop", TIMELINE, 1)


class Lab:
    """Some targets, a sink on each, and a delivery to them."""

    def __init__(self, names: str = "ab", settings: DeliverySettings = IMPATIENT) -> None:
        self.targets = {name: RecordedTarget() for name in names}
        self.sinks: dict[str, Sink] = {name: RecordingSink(target) for name, target in self.targets.items()}
        self.life, self.clock, self.settings = Life(), ManualClock(), settings
        self.delivery = Delivery(self.sinks, settings, self.life, self.clock)
        self.released = threading.Event()
        for sink in self.sinks.values():
            sink.open(OWNER)

    def on_all(self, work: Any, names: str | None = None, seconds: float | None = None) -> Any:
        limit = self.settings.commit_seconds if seconds is None else seconds
        return self.delivery.on_all(list(names or self.sinks), 1, "prepare", limit, work)

    def token(self, name: str, epoch: int = 1) -> Token:
        sink = self.sinks[name]
        ledger = sink.ledger()
        assert ledger is not None
        prepared = sink.prepare(ScriptedRows([{"id": epoch}]), EpochRef(TIMELINE, 1, epoch, 0))
        return Token(epoch, 1, 0, ledger.epoch, prepared.rows, f"range {epoch}", prepared.payload)

    def commit(self, names: str | None = None, epoch: int = 1) -> dict[str, Exception]:
        tokens = {name: self.token(name, epoch) for name in names or self.sinks}
        return self.delivery.commit(tokens, OWNER, lambda name: contextlib.nullcontext())

    def hang(self, name: str, sink: Sink, attempt: int) -> str:
        self.released.wait()
        return name


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.released.set()
    for target in lab.targets.values():
        target.let_go()
    lab.delivery.close()


# --- at once


def test_sinks_work_at_the_same_time(lab: Lab) -> None:
    together = threading.Barrier(2, timeout=5)
    results, failures = lab.on_all(lambda name, sink, attempt: together.wait() >= 0, seconds=5.0)
    assert (results, failures) == ({"a": True, "b": True}, {})


def test_a_sink_that_fails_does_not_keep_the_others_from_finishing(lab: Lab) -> None:
    def work(name: str, sink: Sink, attempt: int) -> str:
        if name == "a":
            raise SinkError("no")
        return name

    results, failures = lab.on_all(work)
    assert results == {"b": "b"}
    assert str(failures["a"]) == "sink 'a', epoch 1, prepare: no"


def test_a_sink_that_hangs_does_not_keep_the_others_from_finishing(lab: Lab) -> None:
    results, failures = lab.on_all(lambda name, sink, attempt: lab.hang(name, sink, 0) if name == "a" else name)
    assert results == {"b": "b"}
    assert isinstance(failures["a"], UnknownOutcome)
    assert str(failures["a"]) == "sink 'a', epoch 1, prepare: no answer within 0.05 s"


def test_the_limit_is_for_all_together() -> None:
    """Five sinks that hang cost one time limit, not five."""
    lab = Lab("abcde")
    done = threading.Event()

    def patient() -> None:
        lab.on_all(lab.hang, seconds=0.3)
        done.set()

    threading.Thread(target=patient, daemon=True).start()
    assert done.wait(1.2)
    lab.released.set()
    lab.delivery.close()


def test_what_is_no_exception_ends_the_process_that_it_is_in(lab: Lab) -> None:
    def interrupted(name: str, sink: Sink, attempt: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab.on_all(interrupted)


# --- one call at a time


def test_the_next_call_waits_for_one_that_still_hangs(lab: Lab) -> None:
    inside: list[str] = []

    def first(name: str, sink: Sink, attempt: int) -> None:
        inside.append("first begins")
        lab.released.wait()
        inside.append("first ends")

    lab.on_all(first, "a")
    threading.Timer(0.1, lab.released.set).start()
    results, _ = lab.on_all(lambda name, sink, attempt: inside.append("second"), "a", seconds=5.0)
    assert "a" in results
    assert inside == ["first begins", "first ends", "second"]


def test_a_call_that_could_not_be_made_in_time_is_never_made(lab: Lab) -> None:
    made: list[str] = []
    lab.on_all(lab.hang, "a")
    _, failures = lab.on_all(lambda name, sink, attempt: made.append(name), "a")
    assert "an earlier call still hangs" in str(failures["a"])
    lab.released.set()
    lab.on_all(lambda name, sink, attempt: None, "a", seconds=5.0)
    assert made == []


def test_a_call_that_was_given_up_is_not_tried_again_behind_our_back(lab: Lab) -> None:
    attempts: list[int] = []

    def late(name: str, sink: Sink, attempt: int) -> None:
        attempts.append(attempt)
        lab.released.wait()
        raise RetryableSinkError("busy")

    lab.on_all(late, "a")
    lab.released.set()
    lab.on_all(lambda name, sink, attempt: None, "a", seconds=5.0)
    assert attempts == [0]


def test_hanging_calls_do_not_use_up_the_threads_of_others(lab: Lab) -> None:
    before = threading.active_count()
    for _ in range(5):
        lab.on_all(lab.hang, "a", seconds=0.01)
    assert threading.active_count() <= before + 1
    results, _ = lab.on_all(lambda name, sink, attempt: name, "b", seconds=5.0)
    assert results == {"b": "b"}


def test_a_call_that_hangs_for_good_does_not_keep_the_process_alive() -> None:
    program = (
        "import threading\n"
        "from holdfast.clock import SYSTEM_CLOCK\n"
        "from holdfast.engine.delivery import Delivery, DeliverySettings\n"
        "from holdfast.engine.events import LogObserver\n"
        "delivery = Delivery({'a': None}, DeliverySettings(), LogObserver(), SYSTEM_CLOCK)\n"
        "_, failures = delivery.on_all(['a'], 1, 'commit', 0.05, lambda *call: threading.Event().wait())\n"
        "print(failures['a'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "sink 'a', epoch 1, commit: no answer within 0.05 s\n"), done.stderr


# --- retries


def test_a_busy_sink_is_asked_again_with_growing_pauses() -> None:
    lab = Lab("a", DeliverySettings(attempts=5, first_pause_seconds=1.0, longest_pause_seconds=3.0))

    def busy(name: str, sink: Sink, attempt: int) -> int:
        if attempt < 4:
            raise RetryableSinkError(f"busy {attempt}")
        return attempt

    assert lab.on_all(busy) == ({"a": 4}, {})
    retries = [event for event in lab.life.events if isinstance(event, SinkRetry)]
    assert [(event.attempt, event.error) for event in retries] == [(n + 1, f"busy {n}") for n in range(4)]
    for event, longest in zip(retries, [1.0, 2.0, 3.0, 3.0], strict=True):
        assert longest / 2 <= event.pause_seconds <= longest
    assert lab.clock.monotonic() == pytest.approx(sum(event.pause_seconds for event in retries))


def test_retries_end(lab: Lab) -> None:
    def busy(name: str, sink: Sink, attempt: int) -> None:
        raise RetryableSinkError(f"busy {attempt}")

    _, failures = lab.on_all(busy, seconds=5.0)
    assert str(failures["a"]) == f"sink 'a', epoch 1, prepare: busy {SETTINGS.attempts - 1}"


@pytest.mark.parametrize("error", [SinkError("no"), UnknownOutcome("who knows"), ValueError("bug")])
def test_nothing_else_is_tried_again(lab: Lab, error: Exception) -> None:
    attempts: list[int] = []

    def fails(name: str, sink: Sink, attempt: int) -> None:
        attempts.append(attempt)
        raise error

    lab.on_all(fails, "a")
    assert attempts == [0]


# --- commits


def test_a_commit_that_is_done_has_no_failure(lab: Lab) -> None:
    assert lab.commit() == {}
    assert [target.rows for target in lab.targets.values()] == [[{"id": 1}], [{"id": 1}]]


@pytest.mark.parametrize("kind", [Trouble.UNKNOWN_AFTER, Trouble.HANG_AFTER])
def test_an_unknown_outcome_that_the_ledger_shows_is_no_failure(lab: Lab, kind: Trouble) -> None:
    lab.targets["a"].trouble("commit", kind)
    assert lab.commit() == {}
    assert len(lab.targets["a"].actions("ledger")) == 2
    assert len(lab.targets["b"].actions("ledger")) == 1


def test_a_commit_that_the_ledger_does_not_show_is_tried_again(lab: Lab) -> None:
    lab.targets["a"].trouble("commit", Trouble.UNKNOWN_BEFORE)
    assert lab.commit() == {}
    assert lab.targets["a"].rows == [{"id": 1}]


@pytest.mark.parametrize(("kind", "times"), [(Trouble.UNKNOWN_BEFORE, SETTINGS.attempts), (Trouble.HANG_BEFORE, 1)])
def test_one_that_it_never_shows_is_a_failure(lab: Lab, kind: Trouble, times: int) -> None:
    lab.targets["a"].trouble("commit", kind, times=times)
    failures = lab.commit()
    assert list(failures) == ["a"]
    assert "The epoch is sealed: repair the target and start again" in str(failures["a"])


def test_a_ledger_that_does_not_answer_either_proves_nothing(lab: Lab) -> None:
    lab.targets["a"].trouble("commit", Trouble.UNKNOWN_AFTER)
    tokens = {"a": lab.token("a")}
    lab.targets["a"].trouble("ledger", Trouble.HANG_BEFORE, times=2)
    failures = lab.delivery.commit(tokens, OWNER, lambda name: contextlib.nullcontext())
    assert "no answer within" in str(failures["a"])


@pytest.mark.parametrize(
    ("ledger", "kind"),
    [
        (LedgerState(TIMELINE, 1, 1, "another range"), SinkError),
        (LedgerState(TIMELINE, 1, 2, "range 1"), SinkError),
        (LedgerState(TIMELINE, 2, 1, "range 1"), Fenced),
        (LedgerState(UUID(int=7), 1, 1, "range 1"), Fenced),
        (LedgerState(UUID(int=7), 0, 1, "range 1"), Fenced),
        (LedgerState(TIMELINE, 0, 1, "another range"), SinkError),
    ],
)
def test_only_our_own_commit_of_that_range_counts(lab: Lab, ledger: LedgerState, kind: type[Exception]) -> None:
    lab.targets["a"].trouble("commit", Trouble.UNKNOWN_AFTER)
    tokens = {"a": lab.token("a")}
    lab.sinks["a"].ledger = lambda: ledger  # type: ignore[method-assign]
    failures = lab.delivery.commit(tokens, OWNER, lambda name: contextlib.nullcontext())
    assert type(failures["a"]) is kind


def test_committing_nothing_asks_nobody(lab: Lab) -> None:
    assert lab.delivery.commit({}, OWNER, lambda name: contextlib.nullcontext()) == {}


# --- blame


class OwnError(RetryableSinkError):
    """A connector's own kind, made in its own way."""

    def __init__(self, code: int, *, table: str) -> None:
        super().__init__(f"error {code} in {table}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (SinkError("no"), SinkError, "no"),
        (ForeignTimeline("whose?"), ForeignTimeline, "whose?"),
        (OwnError(7, table="t"), RetryableSinkError, "error 7 in t"),
        (ValueError("bad"), SinkError, "ValueError: bad"),
        (Fenced("replaced", checkpoint_id=3, owner={"generation": 4}), Fenced, "replaced"),
    ],
)
def test_an_error_names_sink_epoch_and_action_and_keeps_its_kind(
    error: Exception, kind: type[Exception], text: str
) -> None:
    named = blamed(error, "lake", 4, "commit")
    assert type(named) is kind
    assert str(named) == f"sink 'lake', epoch 4, commit: {text}"
    assert named.__cause__ is error
    if isinstance(named, Fenced):
        assert (named.checkpoint_id, named.owner) == (3, {"generation": 4})


def test_an_error_of_a_connector_s_own_kind_is_retried_and_then_named(lab: Lab) -> None:
    def fails(name: str, sink: Sink, attempt: int) -> None:
        raise OwnError(attempt, table="t")

    _, failures = lab.on_all(fails, "a", seconds=5.0)
    assert str(failures["a"]) == "sink 'a', epoch 1, prepare: error 2 in t"


def test_the_first_error_is_raised_with_the_others_beside_it() -> None:
    with pytest.raises(SinkError, match="one") as caught:
        raise_first({"a": SinkError("one"), "b": SinkError("two")})
    assert caught.value.__notes__ == ["also: two"]


def test_that_we_were_replaced_comes_first() -> None:
    with pytest.raises(Fenced):
        raise_first({"a": SinkError("one"), "b": Fenced("replaced", checkpoint_id=0)})


def test_without_failures_nothing_is_raised() -> None:
    raise_first({})
