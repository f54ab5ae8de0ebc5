"""Talks to sinks: several at once, each with its own thread, one time limit and bounded retries."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeVar

from holdfast.clock import Clock, jitter
from holdfast.core.contracts import CommitOutcome, LedgerState, Owner, Sink, Token
from holdfast.engine.events import Observer, SinkRetry
from holdfast.errors import Fenced, RetryableSinkError, SinkError, UnknownOutcome

Result = TypeVar("Result")
Work = Callable[[str, Sink, int], Result]
Around = Callable[[str], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class DeliverySettings:
    """How patient to be with sinks."""

    prepare_seconds: float = 600.0
    commit_seconds: float = 120.0
    attempts: int = 6
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 10.0


@dataclass
class Underway(Generic[Result]):
    """What sinks gave and what they raised, once they were waited for."""

    results: dict[str, Result] = field(default_factory=dict)
    failures: dict[str, Exception] = field(default_factory=dict)


class Delivery:
    """Runs one action on every sink at once. A sink that fails does not keep the others from finishing.

    There are never two calls at once in one sink: when one was given up and still hangs, the next waits for it. Only
    the ledger is asked beside it, since that is how the outcome of a call that hangs becomes known.
    """

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        settings: DeliverySettings,
        observer: Observer,
        clock: Clock,
        wrap: Callable[[Callable[[], object]], Callable[[], object]] = lambda work: work,
    ) -> None:
        self._sinks = sinks
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._wrap = wrap
        self._lanes: dict[tuple[str, bool], _Lane] = {}

    def on_all(
        self, names: list[str], epoch: int, action: str, seconds: float, work: Work[Result]
    ) -> tuple[dict[str, Result], dict[str, Exception]]:
        """Run `work(name, sink, attempt)` for each named sink; return what they gave and what they raised."""
        with self.begun(names, epoch, action, seconds, work) as underway:
            pass
        return underway.results, underway.failures

    def begun(
        self, names: list[str], epoch: int, action: str, seconds: float, work: Work[Result]
    ) -> contextlib.AbstractContextManager["Underway[Result]"]:
        """Begin what `on_all` does; leaving the context waits for it. What stands within runs beside it."""
        return self._on_lanes({name: self._lane(name) for name in names}, epoch, action, seconds, work)

    def commit(self, tokens: Mapping[str, Token], owner: Owner, around: Around) -> dict[str, Exception]:
        """Show what is sealed, all of one epoch; return why sinks do not show it. `around` encloses each call.

        An outcome that nobody knows is resolved by the target's ledger: a commit that is not there is tried again.
        """
        epoch = max((token.epoch for token in tokens.values()), default=0)

        def show(name: str, sink: Sink, attempt: int) -> CommitOutcome:
            with around(name):
                return _commit(sink, tokens[name], owner)

        _, failures = self.on_all(list(tokens), epoch, "commit", self._settings.commit_seconds, show)
        unknown = [name for name, error in failures.items() if isinstance(error, UnknownOutcome)]
        ledgers = self._ask(unknown, epoch)
        resolved = {name: _outcome(tokens[name], owner, ledgers.get(name), error) for name, error in failures.items()}
        return {name: _way_out(error) for name, error in resolved.items() if error is not None}

    def _ask(self, names: list[str], epoch: int) -> dict[str, LedgerState | None]:
        """Return the ledgers of those who answer, while another call of theirs may still hang."""
        lanes = {name: self._lane(name, asking=True) for name in names}
        seconds = self._settings.commit_seconds
        with self._on_lanes(lanes, epoch, "ask", seconds, lambda name, sink, attempt: sink.ledger()) as asked:
            pass
        return asked.results

    def _lane(self, name: str, *, asking: bool = False) -> "_Lane":
        if (name, asking) not in self._lanes:
            self._lanes[name, asking] = _Lane(f"holdfast-sink {name}{' asked' if asking else ''}")
        return self._lanes[name, asking]

    @contextlib.contextmanager
    def _on_lanes(
        self, lanes: Mapping[str, "_Lane"], epoch: int, action: str, seconds: float, work: Work[Result]
    ) -> Iterator["Underway[Result]"]:
        given_up, began = threading.Event(), self._clock.monotonic()
        futures = {name: self._submit(lane, name, epoch, action, work, given_up) for name, lane in lanes.items()}
        underway: Underway[Result] = Underway()
        try:
            yield underway
        finally:
            try:
                wait(futures.values(), timeout=max(0.0, seconds - (self._clock.monotonic() - began)))
            finally:
                given_up.set()  # Whoever has not answered by now is not tried again behind our back.
        for name, future in futures.items():
            try:
                underway.results[name] = _result(future, seconds)
            except Exception as error:
                underway.failures[name] = blamed(error, name, epoch, action)

    def _submit(
        self,
        lane: "_Lane",
        name: str,
        epoch: int,
        action: str,
        work: Work[Result],
        given_up: threading.Event,
    ) -> "Future[Result]":
        def patiently() -> Result:
            return self._with_retries(
                name, epoch, action, lambda attempt: work(name, self._sinks[name], attempt), given_up
            )

        wrapped: Callable[[], Result] = self._wrap(patiently)  # type: ignore[assignment]
        return lane.submit(wrapped)

    def _with_retries(
        self, name: str, epoch: int, action: str, work: Callable[[int], Result], given_up: threading.Event
    ) -> Result:
        pause = self._settings.first_pause_seconds
        for attempt in range(self._settings.attempts):
            try:
                return work(attempt)
            except RetryableSinkError as error:
                if attempt + 1 == self._settings.attempts:
                    raise
                waited = pause * jitter()
                self._observer.on_event(SinkRetry(name, epoch, action, attempt + 1, str(error), waited))
                self._clock.sleep(waited)
                pause = min(2 * pause, self._settings.longest_pause_seconds)
                if given_up.is_set():
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        """Let the threads go; one that hangs in a dead sink is left behind, and ends with the process."""
        for lane in self._lanes.values():
            lane.close()


class _Lane:
    """A thread that makes calls one after the other. A daemon: a call that hangs must not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, work: Callable[[], Result]) -> "Future[Result]":
        future: Future[Result] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(call)
        return future

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def close(self) -> None:
        self._calls.put(None)


def _result(future: "Future[Result]", seconds: float) -> Result:
    if future.cancel():
        raise UnknownOutcome(f"an earlier call still hangs: this one could not be made within {seconds:g} s")
    if not future.done():
        raise UnknownOutcome(f"no answer within {seconds:g} s")
    return future.result()


def _commit(sink: Sink, token: Token, owner: Owner) -> CommitOutcome:
    """Commit, and ask when the sink does not know how that ended."""
    try:
        return sink.commit(token)
    except UnknownOutcome as error:
        ledger = sink.ledger()
        failure = _outcome(token, owner, ledger, error)
        if failure is None:
            return CommitOutcome.ALREADY_DONE
        if failure is error and ledger is not None and ledger.epoch == token.previous:
            raise RetryableSinkError(f"{error}; the target does not show it") from error
        raise failure from error


def _outcome(token: Token, owner: Owner, ledger: LedgerState | None, error: Exception) -> Exception | None:
    """Return why a token is not shown, None if the ledger says that it is."""
    if ledger is None:
        return error
    if not ledger.belongs_to(owner) and (ledger.timeline != owner.timeline or ledger.generation >= owner.generation):
        return Fenced(
            f"{error}; the target belongs to generation {ledger.generation} of timeline {ledger.timeline} now",
            checkpoint_id=0,
        )
    shown = ledger.epoch == token.epoch and ledger.range_digest in (None, token.range_digest)
    return None if shown else error


def _way_out(error: Exception) -> Exception:
    """Name what a person can do about a sealed epoch whose sink will not show it."""
    if isinstance(error, Fenced):
        return error
    named = SinkError(f"{error}. The epoch is sealed: repair the target and start again, or see 'holdfast resolve'")
    named.__cause__ = error
    return named


def blamed(error: Exception, sink: str, epoch: int, action: str) -> Exception:
    """Return `error` with the sink, the epoch and the action in its message, its kind kept."""
    where = f"sink '{sink}', epoch {epoch}, {action}"
    if isinstance(error, SinkError):
        named: Exception = _kind(error)(f"{where}: {error}")
    elif isinstance(error, Fenced):
        named = Fenced(f"{where}: {error}", checkpoint_id=error.checkpoint_id, owner=error.owner)
    else:
        named = SinkError(f"{where}: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named


def _kind(error: SinkError) -> type[SinkError]:
    """Return the most special of our own kinds: nobody knows how a connector's own is made."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == SinkError.__module__)


def raise_first(failures: Mapping[str, Exception]) -> None:
    """Raise the worst of what several sinks said, the others in its notes: that we were replaced comes first."""
    worst = sorted(failures.values(), key=lambda error: not isinstance(error, Fenced))
    if worst:
        for other in worst[1:]:
            worst[0].add_note(f"also: {other}")
        raise worst[0]
