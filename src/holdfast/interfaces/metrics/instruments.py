"""Everything that is counted and timed while a pipeline runs, with names, meanings and labels.

Labels have few values: names from the pipeline's definition, and words of the engine. Each series has the pipeline's.
"""

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_BYTES = tuple(float(4**power) for power in range(5, 19))


class Instruments:
    """The counters and histograms of one pipeline, in a registry of their own: not the process-wide one."""

    def __init__(self, pipeline: str) -> None:
        self.registry = CollectorRegistry()
        self._pipeline = pipeline
        self.checkpoints_completed = self._counter(
            "checkpoints_completed", "Checkpoints whose sinks all show them, and those taken on request."
        )
        self.checkpoints_failed = self._counter(
            "checkpoints_failed", "Epochs that were not completed and requested checkpoints that were not taken."
        )
        self.checkpoint_duration = self._timer(
            "checkpoint_duration", "From the first row staged in a sink until every sink shows the epoch."
        )
        self.checkpoint_stall = self._timer(
            "checkpoint_pipeline_stall", "What the pipeline waits for keeping a checkpoint, sinks not counted."
        )
        self.written_bytes = self._sizes("checkpoint_written_bytes", "Bytes that a checkpoint added to the store.")
        self.epochs = self._counter("epochs_completed", "Epochs that every sink shows, replayed ones included.")
        self.replayed = self._counter("epochs_replayed", "Epochs that were computed again to rebuild state.")
        self.epoch_duration = self._timer("epoch_duration", "A whole epoch, from its begin to its record.")
        self.step_duration = self._timer("epoch_step_duration", "One step of an epoch, or of recovery.", "step")
        self.rows_in = self._counter("rows_in", "Rows read from sources.")
        self.rows_out = self._counter("rows_out", "Rows shown by a sink.", "sink")
        self.sink_prepare = self._timer("sink_prepare_duration", "Staging the rows of an epoch in a sink.", "sink")
        self.sink_commit = self._timer("sink_commit_duration", "Showing the rows of an epoch in a sink.", "sink")
        self.sink_retries = self._counter("sink_retries", "Calls of a sink that were tried again.", "sink", "action")
        self.fences_lost = self._counter("fences_lost", "Runs that ended because another process took over.")
        self.failures = self._counter("failures", "Runs that ended with an error, by its kind.", "kind")
        self.recoveries = self._counter(
            "recoveries", "Starts: from the newest checkpoint, from an older one, or from nothing.", "kind"
        )
        self.verifications = self._counter(
            "verifications", "Checkpoints read in full in the background, by what was found.", "outcome"
        )
        self.verified_bytes = self._counter("verified_bytes", "Bytes read by background verification.")
        self.syncs = self._counter("sync_completed", "Checkpoints copied to or from the bucket.", "direction")
        self.sync_failures = self._counter("sync_failed", "Copies that failed; they are tried again.", "direction")
        self.sync_duration = self._timer("sync_duration", "Copying one checkpoint.", "direction")
        self.sync_bytes = self._sizes("sync_transferred_bytes", "Bytes copied for one checkpoint.", "direction")
        self.sync_objects = self._counter("sync_objects", "Objects copied.", "direction")
        self.sync_speed = self._sizes(
            "sync_speed_bytes_per_second", "How fast the bytes of one checkpoint were copied.", "direction"
        )

    def _counter(self, name: str, meaning: str, *labels: str) -> "Instrument":
        return self._instrument(Counter, name, meaning, labels)

    def _timer(self, name: str, meaning: str, *labels: str) -> "Instrument":
        return self._instrument(Histogram, f"{name}_seconds", meaning, labels, buckets=_SECONDS)

    def _sizes(self, name: str, meaning: str, *labels: str) -> "Instrument":
        return self._instrument(Histogram, name, meaning, labels, buckets=_BYTES)

    def _instrument(
        self, kind: type[Counter | Histogram], name: str, meaning: str, labels: Sequence[str], **options: Any
    ) -> "Instrument":
        metric = kind(f"holdfast_{name}", meaning, ("pipeline", *labels), registry=self.registry, **options)
        return Instrument(metric, self._pipeline, bare=not labels)


class Instrument:
    """A counter or histogram whose first label, the pipeline, is given."""

    def __init__(self, metric: Counter | Histogram, pipeline: str, *, bare: bool) -> None:
        self._metric, self._pipeline = metric, pipeline
        if bare:
            metric.labels(pipeline)  # So that it reads 0 before anything happened, and a rate can see the first one.

    def add(self, amount: float = 1, *labels: str) -> None:
        """Count something."""
        self._metric.labels(self._pipeline, *labels).inc(amount)  # type: ignore[union-attr]

    def note(self, value: float, *labels: str) -> None:
        """Note one value of a distribution."""
        self._metric.labels(self._pipeline, *labels).observe(value)  # type: ignore[union-attr]
