"""Everything that happens, as values for whoever watches: logs, a terminal, metrics, a test that kills here."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.errors import HoldfastError

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
class CheckpointTaken(Event):
    """The newest epoch was sealed once more, under a new id, because somebody asked for a checkpoint of now."""

    epoch: int
    checkpoint_id: int
    seconds: float


@dataclass(frozen=True)
class CheckpointFailed(Event):
    """An epoch was not completed, or a checkpoint that was asked for not taken. What is sealed is not lost by it."""

    epoch: int
    error: str


@dataclass(frozen=True)
class CheckpointVerified(Event):
    """Every byte that a checkpoint needs was read in the background; no `problems` means that it is sound."""

    checkpoint_id: int
    epoch: int | None
    sealed_ms: int | None
    """Like the epoch None when not even the manifest can be read."""
    problems: tuple[str, ...]
    bytes: int
    seconds: float


@dataclass(frozen=True)
class SyncPushed(Event):
    """A checkpoint is in the bucket, whole; `bytes` and `objects` are what had to be sent for it."""

    checkpoint: str
    bytes: int
    objects: int
    seconds: float


@dataclass(frozen=True)
class SyncPulled(Event):
    """A checkpoint of the bucket is in the store, whole and verified."""

    checkpoint: str
    bytes: int
    objects: int
    seconds: float


@dataclass(frozen=True)
class SyncFailed(Event):
    """A `push` or a `pull` failed; it is tried again after a pause, or not at all when that is None."""

    action: str
    error: str
    pause_seconds: float | None = None


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
    kind: str | None = None
    """Which of our errors it was (`Fenced`, `SinkError`, ...); None for anything else."""

    @classmethod
    def by(cls, epoch: int, error: BaseException | None) -> "Stopped":
        """Return the event for what ended a run."""
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == HoldfastError.__module__)
        return cls(epoch, None if error is None else str(error), next(kinds, None))


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
        self._observers = tuple(observers)

    def add(self, observer: Observer) -> None:
        """Add one that hears of what comes from now on."""
        self._observers = (*self._observers, observer)

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
            case CheckpointVerified() if event.problems:
                _log.error("checkpoint %d is damaged: %s", event.checkpoint_id, "; ".join(event.problems))
            case SyncFailed():
                _log.warning("%s failed: %s", event.action, event.error)
            case Recovered() | EpochReplayed() | Stopped():
                _log.info("%s", event.to_json_value())
            case _:
                _log.debug("%s", event.to_json_value())
