"""Talks to sinks: several at once, each with its own time limit and bounded retries."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TypeVar

from holdfast.clock import Clock, jitter
from holdfast.core.contracts import Sink
from holdfast.engine.events import Observer, SinkRetry
from holdfast.errors import Fenced, RetryableSinkError, SinkError, UnknownOutcome

Result = TypeVar("Result")


@dataclass(frozen=True)
class DeliverySettings:
    """How patient to be with sinks."""

    prepare_seconds: float = 600.0
    commit_seconds: float = 120.0
    attempts: int = 6
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 10.0


class Delivery:
    """Runs one action on every sink at once. A sink that fails does not keep the others from finishing."""

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
        # Two threads per sink: one may hang in a call that timed out while another asks the ledger.
        self._pool = ThreadPoolExecutor(max_workers=max(2 * len(sinks), 1), thread_name_prefix="holdfast-sink")

    def on_all(
        self, names: list[str], epoch: int, action: str, seconds: float, work: Callable[[str, Sink, int], Result]
    ) -> tuple[dict[str, Result], dict[str, Exception]]:
        """Run `work(name, sink, attempt)` for each named sink; return what they gave and what they raised."""
        futures = {name: self._submit(name, epoch, action, work) for name in names}
        results: dict[str, Result] = {}
        failures: dict[str, Exception] = {}
        for name, future in futures.items():
            try:
                results[name] = self._result(future, seconds)
            except Exception as error:
                failures[name] = blamed(error, name, epoch, action)
        return results, failures

    def _submit(
        self, name: str, epoch: int, action: str, work: Callable[[str, Sink, int], Result]
    ) -> "Future[Result]":
        def patiently() -> Result:
            return self._with_retries(name, epoch, action, lambda attempt: work(name, self._sinks[name], attempt))

        wrapped: Callable[[], Result] = self._wrap(patiently)  # type: ignore[assignment]
        return self._pool.submit(wrapped)

    def _result(self, future: "Future[Result]", seconds: float) -> Result:
        try:
            return future.result(timeout=seconds)
        except FutureTimeout:
            raise UnknownOutcome(f"no answer within {seconds:.0f} s") from None

    def _with_retries(self, name: str, epoch: int, action: str, work: Callable[[int], Result]) -> Result:
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
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        """Let the threads go; one that hangs in a dead sink is left behind."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def blamed(error: Exception, sink: str, epoch: int, action: str) -> Exception:
    """Return `error` with the sink, the epoch and the action in its message, its kind kept."""
    where = f"sink '{sink}', epoch {epoch}, {action}"
    if isinstance(error, SinkError):
        named: Exception = type(error)(f"{where}: {error}")
    elif isinstance(error, Fenced):
        named = Fenced(f"{where}: {error}", checkpoint_id=error.checkpoint_id, owner=error.owner)
    else:
        named = SinkError(f"{where}: {type(error).__name__}: {error}")
    named.__cause__ = error
    return named
