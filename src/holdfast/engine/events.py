"""Everything that happens, as values for whoever watches: logs, a terminal, metrics, a test that kills here."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from holdfast.clock import Clock

_log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Event:
    """Something that happened. `to_json_value` is the structured form."""

    def to_json_value(self) -> dict[str, Any]:
        """Return the event as plain values with its kind."""
        return {"event": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class StepStarted(Event):
    """A step of an epoch's protocol begins; `sink` names whose, where a step is per sink."""

    epoch: int
    step: str
    sink: str | None = None


@dataclass(frozen=True)
class StepFinished(Event):
    """A step is done."""

    epoch: int
    step: str
    seconds: float
    sink: str | None = None


@dataclass(frozen=True)
class EpochCommitted(Event):
    """An epoch is sealed and every sink shows it."""

    epoch: int
    checkpoint_id: int
    rows_in: int
    rows_out: dict[str, int]
    new_bytes: int
    total_bytes: int
    watermark_ms: int | None
    seconds: float
    steps: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SinkRetry(Event):
    """A sink did not answer; it is asked again after a pause."""

    sink: str
    epoch: int
    action: str
    attempt: int
    error: str
    pause_seconds: float


@dataclass(frozen=True)
class Recovered(Event):
    """A start chose where to go on from, and what it did about the sinks."""

    report: dict[str, Any]


@dataclass(frozen=True)
class EpochReplayed(Event):
    """An epoch that sinks already had was computed again, to rebuild state."""

    epoch: int


@dataclass(frozen=True)
class SourceProgress(Event):
    """A source was asked how far it has come; what lies before `kept_from` it may let go.

    `lag` is from the newest checkpoint to the head, `held_back` from the oldest checkpoint that recovery may fall
    back to, `held_by`, to the newest.
    """

    source: str
    offsets: dict[str, str]
    head: dict[str, str]
    lag: int
    unit: str
    kept_from: dict[str, str]
    held_back: int
    held_by: int


@dataclass(frozen=True)
class Stopped(Event):
    """The pipeline ended; `error` None means that it was asked to, or that there was nothing more to do."""

    epoch: int
    error: str | None


@contextlib.contextmanager
def step(
    observer: "Observer", clock: Clock, epoch: int, name: str, sink: str | None = None
) -> Iterator[Callable[[], float]]:
    """Report a step's begin and end; yields a stopwatch. A step that fails has no end."""
    observer.on_event(StepStarted(epoch, name, sink))
    start = clock.monotonic()
    yield lambda: clock.monotonic() - start
    observer.on_event(StepFinished(epoch, name, clock.monotonic() - start, sink))


class Observer(Protocol):
    """Whoever watches. Called on the thread that works: be quick, and do not raise."""

    def on_event(self, event: Event) -> None:
        """Take one event."""
        ...


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)

    def on_event(self, event: Event) -> None:
        """Pass the event on to each."""
        for observer in self._observers:
            observer.on_event(event)


class LogObserver:
    """Writes events to the `holdfast` logger: what people want to read at INFO, the rest at DEBUG."""

    def on_event(self, event: Event) -> None:
        """Write one line."""
        match event:
            case EpochCommitted():
                out = ", ".join(f"{sink} {rows}" for sink, rows in sorted(event.rows_out.items()))
                _log.info(
                    "epoch %d: checkpoint %d, %d rows in, out: %s, %.0f ms",
                    event.epoch, event.checkpoint_id, event.rows_in, out or "nothing", event.seconds * 1000,
                )  # fmt: skip
            case SinkRetry():
                _log.warning(
                    "sink %s: %s of epoch %d failed (%s), trying again in %.1f s",
                    event.sink, event.action, event.epoch, event.error, event.pause_seconds,
                )  # fmt: skip
            case Recovered() | EpochReplayed() | Stopped():
                _log.info("%s", event.to_json_value())
            case _:
                _log.debug("%s", event.to_json_value())
