"""Families of gauges, put together at the moment they are read."""

from collections.abc import Iterable
from typing import Final

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

GAUGES: Final = {
    "pipeline_up": ("Whether the pipeline runs in this process.", ()),
    "build_info": ("The version of Holdfast; always 1.", ("version",)),
    "epoch": ("The newest epoch that every sink shows.", ()),
    "checkpoint_id": ("The id of the newest checkpoint.", ()),
    "generation": ("Which writer of the store this is: one more at every take-over.", ()),
    "checkpoint_state_bytes": ("The size of the whole state of the newest checkpoint.", ()),
    "checkpoint_age_seconds": ("How old the newest good checkpoint is.", ()),
    "verified_checkpoint_age_seconds": ("How old the newest checkpoint is that was read in full, and sound.", ()),
    "verification_age_seconds": ("How long ago that was read.", ()),
    "damaged_checkpoints": ("Checkpoints in the store that are known to be damaged.", ()),
    "step_running_seconds": ("How long the step that is being done has been going on.", ("step",)),
    "sink_in_doubt": ("Whether a sealed epoch is not known to be shown by the sink.", ("sink",)),
    "source_lag": ("How far the newest checkpoint is behind the head of the source.", ("source", "unit")),
    "source_held_back": (
        "What the source keeps because recovery may fall back to an older checkpoint.",
        ("source", "unit"),
    ),
    "source_answer_age_seconds": ("How long ago the source last told where its head is.", ("source",)),
    "watermark_lag_seconds": ("How far the watermark is behind the clock.", ()),
    "recovery_duration_seconds": ("How long the recovery of this run took.", ()),
    "sync_age_seconds": ("How long ago a checkpoint was last copied.", ("direction",)),
    "sync_failing": ("Whether the last copy failed.", ("direction",)),
    "store_reachable": ("Whether the store answered when it was last asked.", ()),
    "store_recoverable": ("The verdict on the store: 1 for the one that holds.", ("verdict",)),
    "store_checkpoints": ("Ids in the store, damaged ones included.", ()),
    "store_bytes": ("The size of all sidecars in the store.", ()),
    "store_fallbacks": ("Checkpoints that recovery could still choose if the newest did not hold.", ()),
    "store_independent_fallback": ("Whether one of them shares no bytes with the newest.", ()),
    "recovery_estimate_seconds": ("How long recovery would take now; absent when nobody can tell.", ()),
}
"""Name -> meaning, and labels besides the pipeline."""


class Gauges:
    """Collects values of one moment. A value that is not known is left out, not put as 0."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._families: dict[str, GaugeMetricFamily] = {}

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Add a value, unless it is None."""
        if name not in self._families:
            meaning, names = GAUGES[name]
            self._families[name] = GaugeMetricFamily(f"holdfast_{name}", meaning, labels=("pipeline", *names))
        if value is not None:
            self._families[name].add_metric((self._pipeline, *labels), float(value))

    def families(self) -> Iterable[Metric]:
        """Return those that have a value."""
        return [family for family in self._families.values() if family.samples]
