"""Where a running pipeline is at this moment, as far as its events tell."""

from holdfast.clock import Clock
from holdfast.engine.events import (
    CheckpointFailed,
    CheckpointTaken,
    EpochCommitted,
    Event,
    Recovered,
    SourceProgress,
    StepFinished,
    StepStarted,
    Stopped,
    SyncFailed,
    SyncPulled,
    SyncPushed,
)
from holdfast.interfaces.metrics.gauges import Gauges
from holdfast.interfaces.metrics.remembered import Heard
from holdfast.interfaces.verdict import StoreHealth

_COMMITS = ("commit", "recovery.commit")


def direction_of(event: SyncPushed | SyncPulled | SyncFailed) -> str:
    """Return which way a checkpoint was copied; taking over brings one here."""
    pushed = isinstance(event, SyncPushed) or (isinstance(event, SyncFailed) and event.action == "push")
    return "push" if pushed else "pull"


class Moment:
    """Remembers the newest of everything. Not for several threads at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.up = False
        self._recovery_seconds: float | None = None
        self._numbers: dict[str, float] = {}
        self._checkpoint_ms: int | None = None
        self._watermark_ms: int | None = None
        self._step: tuple[str, float] | None = None
        self._in_doubt: dict[str, bool] = {}
        self._sources: dict[str, tuple[SourceProgress, float]] = {}
        self._copied: dict[str, float] = {}
        self._failing: dict[str, bool] = {}

    def take(self, event: Event) -> None:
        """Remember what an event says."""
        match event:
            case StepStarted() | StepFinished():
                self._step_changed(event)
            case Recovered():
                self.up = True
                self._in_doubt = dict.fromkeys(event.report.get("sinks", {}), False)
                self._recovery_seconds = event.report.get("seconds")
                known = {name: event.report.get(name) for name in ("epoch", "generation")}
                self._numbers |= {name: number for name, number in known.items() if number is not None}
                self._numbers["checkpoint_id"] = event.report["fence_id"]
            case EpochCommitted():
                self.up = True
                self._sealed(event)
                self._in_doubt = dict.fromkeys(self._in_doubt, False)
                self._numbers["checkpoint_state_bytes"] = event.total_bytes
                self._watermark_ms, self._step = event.watermark_ms, None
            case CheckpointTaken():
                self._sealed(event)
            case CheckpointFailed():
                self._step = None
            case SourceProgress():
                self._sources[event.source] = event, self._clock.monotonic()
            case SyncPushed() | SyncPulled():
                direction = direction_of(event)
                self._copied[direction], self._failing[direction] = self._clock.monotonic(), False
            case SyncFailed():
                self._failing[direction_of(event)] = True
            case Stopped():
                self.up, self._step = False, None

    def _sealed(self, event: EpochCommitted | CheckpointTaken) -> None:
        self._numbers |= {"epoch": event.epoch, "checkpoint_id": event.checkpoint_id}
        self._checkpoint_ms = self._clock.now_ms()

    def _step_changed(self, event: StepStarted | StepFinished) -> None:
        begins = isinstance(event, StepStarted)
        if event.sink is None:
            self._step = (event.step, self._clock.monotonic()) if begins else None
        elif event.step in _COMMITS:
            self._in_doubt[event.sink] = begins
        elif not begins:
            self._in_doubt.setdefault(event.sink, False)

    def put(self, gauges: Gauges, heard: Heard[StoreHealth] | None) -> None:
        """Add what is known; what no event has told yet comes from a look at the store."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        gauges.put("pipeline_up", self.up)
        for name, number in self._numbers.items():
            gauges.put(name, number)
        gauges.put("checkpoint_age_seconds", self._checkpoint_age(now_ms, heard))
        if self._watermark_ms is not None:
            gauges.put("watermark_lag_seconds", (now_ms - self._watermark_ms) / 1000)
        if self._step is not None:
            gauges.put("step_running_seconds", now - self._step[1], self._step[0])
        gauges.put("recovery_duration_seconds", self._recovery_seconds)
        for sink, doubtful in self._in_doubt.items():
            gauges.put("sink_in_doubt", doubtful, sink)
        for name, (progress, answered) in self._sources.items():
            gauges.put("source_lag", progress.lag, name, progress.unit)
            gauges.put("source_held_back", progress.held_back, name, progress.unit)
            gauges.put("source_answer_age_seconds", now - answered, name)
        for direction, moment in self._copied.items():
            gauges.put("sync_age_seconds", now - moment, direction)
        for direction, failing in self._failing.items():
            gauges.put("sync_failing", failing, direction)

    def _checkpoint_age(self, now_ms: int, heard: Heard[StoreHealth] | None) -> float | None:
        if self._checkpoint_ms is not None:
            return (now_ms - self._checkpoint_ms) / 1000
        if heard is None or heard.answer is None or heard.answer.checkpoint is None:
            return None
        return heard.answer.checkpoint.age_seconds + heard.seconds_ago
