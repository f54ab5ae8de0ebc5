"""The numbers of a pipeline that runs in this process: an observer that counts, and gauges of the moment."""

import logging
import threading
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from prometheus_client.metrics_core import Metric

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.engine.events import (
    CheckpointFailed,
    CheckpointTaken,
    CheckpointVerified,
    EpochCommitted,
    EpochReplayed,
    Event,
    Recovered,
    SinkRetry,
    StepFinished,
    Stopped,
    SyncFailed,
    SyncPulled,
    SyncPushed,
)
from holdfast.interfaces.metrics.exposition import render
from holdfast.interfaces.metrics.gauges import Gauges
from holdfast.interfaces.metrics.instruments import Instruments
from holdfast.interfaces.metrics.moment import Moment, direction_of
from holdfast.interfaces.metrics.stores import put_store, remembered_health
from holdfast.stores.store import DurableCheckpointStore

_log = logging.getLogger(__name__)
_CHECKPOINT_STEPS = ("prepare", "capture", "seal", "commit", "record")
_STALL_STEPS = ("begin", "capture", "seal", "record")
_OTHER = "other"


class Metrics:
    """Takes events on any thread; `render` may be called on any other, by many at once. Neither waits for an epoch.

    With a `store` it also tells what a look at that finds: the look is on a thread of its own and happens every half
    minute at most, however often somebody asks.
    """

    def __init__(
        self, pipeline: str, *, store: DurableCheckpointStore | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._pipeline, self._version = pipeline, version("holdfast")
        self._instruments = Instruments(pipeline)
        self._moment = Moment(clock)
        self._health = None if store is None else remembered_health(lambda: store, clock)
        self._lock = threading.Lock()
        self._complained = False

    def on_event(self, event: Event) -> None:
        """Count it. Never raises: numbers are not worth an epoch."""
        try:
            self._count(event)
            with self._lock:
                self._moment.take(event)
        except Exception:
            if not self._complained:
                _log.exception("metrics cannot take %s; said once", type(event).__name__)
            self._complained = True

    def begin_late(self) -> None:
        """Hear that the pipeline runs already, from whoever begins to watch after its recovery."""
        with self._lock:
            self._moment.up = True

    def render(self) -> bytes:
        """Return the text that Prometheus reads."""
        return render([self])

    def collect(self) -> Iterable[Metric]:
        """Return the families of now."""
        gauges = Gauges(self._pipeline)
        gauges.put("build_info", 1, self._version)
        heard = None if self._health is None else self._health.get()
        if heard is not None:
            put_store(gauges, heard)
        with self._lock:
            self._moment.put(gauges, heard)
        return [*self._instruments.registry.collect(), *gauges.families()]

    def _count(self, event: Event) -> None:
        count = self._instruments
        match event:
            case StepFinished():
                self._finished(event)
            case EpochCommitted():
                self._committed(event)
            case EpochReplayed():
                count.replayed.add()
            case CheckpointTaken():
                count.checkpoints_completed.add()
                count.checkpoint_duration.note(event.seconds)
                count.checkpoint_stall.note(event.seconds)
            case CheckpointFailed():
                count.checkpoints_failed.add()
            case CheckpointVerified():
                count.verifications.add(1, "damaged" if event.problems else "sound")
                count.verified_bytes.add(event.bytes)
            case SinkRetry():
                count.sink_retries.add(1, event.sink, event.action)
            case SyncPushed() | SyncPulled():
                self._copied(event)
            case SyncFailed():
                count.sync_failures.add(1, direction_of(event))
            case Recovered():
                count.recoveries.add(1, kind_of_recovery(event.report))
            case Stopped(error=str()):
                count.failures.add(1, event.kind or _OTHER)
                count.fences_lost.add(event.kind == "Fenced")

    def _finished(self, event: StepFinished) -> None:
        count, step = self._instruments, event.step.removeprefix("recovery.")
        if event.sink is None:
            count.step_duration.note(event.seconds, event.step)
        elif step == "prepare":
            count.sink_prepare.note(event.seconds, event.sink)
        elif step == "commit":
            count.sink_commit.note(event.seconds, event.sink)

    def _committed(self, event: EpochCommitted) -> None:
        count, steps = self._instruments, event.steps
        count.checkpoints_completed.add()
        count.epochs.add()
        count.rows_in.add(event.rows_in)
        for sink, rows in event.rows_out.items():
            count.rows_out.add(rows, sink)
        count.written_bytes.note(event.new_bytes)
        count.epoch_duration.note(event.seconds)
        count.checkpoint_duration.note(sum(steps.get(step, 0.0) for step in _CHECKPOINT_STEPS))
        count.checkpoint_stall.note(sum(steps.get(step, 0.0) for step in _STALL_STEPS))

    def _copied(self, event: SyncPushed | SyncPulled) -> None:
        count, direction = self._instruments, direction_of(event)
        count.syncs.add(1, direction)
        count.sync_duration.note(event.seconds, direction)
        count.sync_bytes.note(event.bytes, direction)
        count.sync_objects.add(event.objects, direction)
        if event.bytes and event.seconds > 0:
            count.sync_speed.note(event.bytes / event.seconds, direction)


def kind_of_recovery(report: Mapping[str, Any]) -> str:
    """Return `fresh`, `restore`, or `fallback` when newer checkpoints were damaged."""
    if report.get("chosen_id") is None:
        return "fresh"
    reasons = [str(item["reason"]) for item in report.get("skipped", ())]
    damaged = [r for r in reasons if not r.startswith("abandoned") and not r.endswith("nothing to restore")]
    return "fallback" if damaged else "restore"
