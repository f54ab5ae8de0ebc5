"""How far event time had come after an epoch: what Spark forgets at a restart, sealed, and given back to it.

Spark writes down only the watermark of the next batch. How far each `withWatermark` had come, on which the one after
that depends when one input is idle, and that a batch without data is due, it knows as long as the query runs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.spark.state_files import OffsetLogEntry

if TYPE_CHECKING:  # A checkpoint can be exported where Spark is not installed.
    from holdfast.spark.plan_facts import PlanFacts, WatermarkOperator

EVENT_TIME_PART = "event_time"
"""Part of a progress record."""


@dataclass(frozen=True)
class EventTime:
    """Where event time stands after an epoch."""

    next_watermark_ms: int = 0
    far_ms: Mapping[str, int] = field(default_factory=dict)
    """How far each `withWatermark` had come, by what it is: its sources, its delay and its column."""
    another_batch: bool = False
    """Whether a batch without data is due, unless data comes first."""

    @classmethod
    def after(cls, facts: "PlanFacts", source_of: Mapping[str, str]) -> "EventTime":
        """Return where it stands after the batch whose facts these are."""
        names = operator_names(facts.watermarks, source_of)
        known = zip(names, facts.watermarks, strict=True)
        far_ms = {name: operator.far_ms for name, operator in known if operator.far_ms is not None}
        return cls(facts.next_watermark_ms, far_ms, facts.another_batch)

    @classmethod
    def sealed(cls, parts: Mapping[str, bytes], batch: int) -> "EventTime":
        """Read what the progress record of a batch says. The watermark is that of Spark's own log.

        Versions before recorded no more than that: then a batch is due that could change something.
        """
        next_ms = int(json.loads(parts[f"commits/{batch}"].split(b"\n", 1)[1]).get("nextBatchWatermarkMs", 0))
        if EVENT_TIME_PART not in parts:
            return cls(next_ms, {}, next_ms > OffsetLogEntry.parse(parts[f"offsets/{batch}"].decode()).watermark_ms)
        recorded = json.loads(parts[EVENT_TIME_PART])
        return cls(next_ms, recorded["far_ms"], recorded["another_batch"])

    def to_part(self) -> bytes:
        """Return the part of the progress record."""
        recorded = {"far_ms": dict(self.far_ms), "another_batch": self.another_batch}
        return json.dumps(recorded, separators=(",", ":"), sort_keys=True).encode()

    def remembered(
        self, operators: "Sequence[WatermarkOperator]", source_of: Mapping[str, str]
    ) -> tuple[int | None, ...]:
        """Return how far each operator of a plan had come; None for one that was not there."""
        return tuple(self.far_ms.get(name) for name in operator_names(operators, source_of))


def operator_names(operators: "Sequence[WatermarkOperator]", source_of: Mapping[str, str]) -> list[str]:
    """Return a name for each operator that is the same in the next process: Spark's own ids are random."""
    names: list[str] = []
    for operator in operators:
        sources = sorted({source_of.get(directory, "?") for directory in operator.directories})
        name = f"{'+'.join(sources)} {operator.delay_ms} {operator.column}"
        same = sum(known.split("#")[0] == name for known in names)
        names.append(f"{name}#{same}" if same else name)
    return names
