"""Where a running pipeline is, put together from its events. Whoever shows a run asks here."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.engine.events import EpochCommitted, Event, Recovered, SinkRetry, StepStarted, Stopped

_WINDOW_SECONDS = 30.0
_WINDOW_EPOCHS = 500


@dataclass(frozen=True)
class SinkProgress:
    """One sink since this start."""

    epoch: int | None = None
    """The last epoch with rows for this sink; None before the first."""
    rows: int = 0
    last_rows: int = 0
    prepare_seconds: float | None = None
    commit_seconds: float | None = None
    trouble: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment."""

    state: str
    epoch: int
    """The last committed epoch."""
    step: str | None
    """Where the epoch after it is while it runs, or `recovery.` and a step of the start."""
    epochs: int
    rows_in: int
    rows_per_second: float
    last: EpochCommitted | None
    sinks: Mapping[str, SinkProgress]
    checkpoint_age_seconds: float | None
    watermark_lag_seconds: float | None
    uptime_seconds: float
    recovery: Mapping[str, Any] | None = None


class RunProgress:
    """Takes events on any thread; `snapshot` may be asked on any other."""

    def __init__(self, sinks: Iterable[str] = (), clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = "starting Spark"
        self._started = clock.monotonic()
        self._step: str | None = None
        self._epoch = self._epochs = self._rows_in = 0
        self._last: EpochCommitted | None = None
        self._committed_at = 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW_EPOCHS)
        self._sinks = {name: SinkProgress() for name in sorted(sinks)}
        self._recovery: Mapping[str, Any] | None = None

    def enter(self, state: str) -> None:
        """Note what the run is about to do."""
        with self._lock:
            self._state = state

    def on_event(self, event: Event) -> None:
        """Take one event."""
        with self._lock:
            match event:
                case Recovered():
                    self._recovered(event)
                case StepStarted(sink=None):
                    self._step = event.step
                case EpochCommitted():
                    self._committed(event)
                case SinkRetry():
                    self._change(event.sink, trouble=f"{event.action} failed {event.attempt}x: {event.error}")
                case Stopped():
                    self._state, self._step = "stopped" if event.error is None else "failed", None

    def _recovered(self, event: Recovered) -> None:
        self._recovery = event.report
        self._epoch = int(event.report.get("epoch", 0))
        self._state, self._step = "running", None
        self._recent.append((self._clock.monotonic(), 0))

    def _committed(self, event: EpochCommitted) -> None:
        now = self._clock.monotonic()
        self._epoch, self._last, self._step = event.epoch, event, None
        self._epochs += 1
        self._rows_in += event.rows_in
        self._committed_at = now
        self._recent.append((now, event.rows_in))
        for name, rows in event.rows_out.items():
            self._change(
                name,
                epoch=event.epoch,
                rows=self._sinks.get(name, SinkProgress()).rows + rows,
                last_rows=rows,
                prepare_seconds=event.steps.get(f"prepare:{name}"),
                commit_seconds=event.steps.get(f"commit:{name}"),
                trouble=None,
            )

    def _change(self, sink: str, **changes: Any) -> None:
        self._sinks[sink] = replace(self._sinks.get(sink, SinkProgress()), **changes)

    def snapshot(self) -> Snapshot:
        """Return how things stand now."""
        with self._lock:
            now = self._clock.monotonic()
            state = self._state
            if state == "running" and self._step is None:
                state = "waiting for data"
            watermark = self._last.watermark_ms if self._last else None
            return Snapshot(
                state=state,
                epoch=self._epoch,
                step=self._step,
                epochs=self._epochs,
                rows_in=self._rows_in,
                rows_per_second=self._speed(now),
                last=self._last,
                sinks=dict(self._sinks),
                checkpoint_age_seconds=now - self._committed_at if self._last else None,
                watermark_lag_seconds=None if watermark is None else (self._clock.now_ms() - watermark) / 1000,
                uptime_seconds=now - self._started,
                recovery=self._recovery,
            )

    def _speed(self, now: float) -> float:
        """Return the rows per second of the last half minute."""
        while len(self._recent) > 1 and self._recent[1][0] < now - _WINDOW_SECONDS:
            self._recent.popleft()
        if not self._recent:
            return 0.0
        since = max(self._recent[0][0], now - _WINDOW_SECONDS)
        rows = sum(rows for moment, rows in list(self._recent)[1:] if moment >= since)
        return rows / (now - since) if now > since else 0.0
