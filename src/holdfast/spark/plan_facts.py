"""What only the executed plan of a running batch knows: event times seen, ids of state versions, rows read.

Read through py4j, once per batch, after the batch was consumed. Nothing here is public API of Spark; it is tied
to Spark 4.3 and tested against what Spark itself writes afterwards.
"""

from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError

_STATE_WRITERS = (
    "StateStoreSave",
    "StreamingDeduplicate",
    "StreamingSymmetricHashJoin",
    "StreamingGlobalLimit",
    "WithState",
)


@dataclass(frozen=True)
class PlanFacts:
    """Facts of one batch, in plan order."""

    watermarks_ms: tuple[int | None, ...] = ()
    """For each watermark operator: newest event time minus its delay, None when it saw no row."""
    state_ids: dict[str, list[list[str]]] = field(default_factory=dict)
    rows_read: tuple[int, ...] = ()
    """For each source in the plan: rows it produced."""


def read_plan_facts(streaming_query: Any) -> PlanFacts:
    """Walk the executed plan of the query's current batch."""
    watermarks: list[int | None] = []
    state_ids: dict[str, list[list[str]]] = {}
    rows: list[int] = []
    pending = [streaming_query.lastExecution().executedPlan()]
    while pending:
        node = pending.pop()
        name = str(node.nodeName())
        if name == "EventTimeWatermark":
            watermarks.append(_newest_event_time(node))
        elif any(word in name for word in _STATE_WRITERS):
            _collect_state_ids(node, state_ids)
        children = node.children()
        count = int(str(children.size()))
        if count == 0:
            rows.append(_rows_produced(node))
        pending.extend(children.apply(index) for index in range(count - 1, -1, -1))
    return PlanFacts(tuple(watermarks), state_ids, tuple(rows))


def _newest_event_time(node: Any) -> int | None:
    stats = node.eventTimeStats().value()
    if int(str(stats.count())) == 0:
        return None
    return int(str(stats.max())) - int(str(node.delayMs()))


def _collect_state_ids(node: Any, state_ids: dict[str, list[list[str]]]) -> None:
    try:
        operator = str(node.stateInfo().get().operatorId())
        partitions = [list(info.stateStoreCkptId().get()) for info in node.getStateStoreCheckpointInfo()]
    except Py4JError:
        return  # Checkpoint format 1 has no ids, and not every operator with such a name writes state.
    state_ids[operator] = [[str(id) for id in partition] for partition in partitions]


def _rows_produced(node: Any) -> int:
    try:
        return int(str(node.metrics().apply("numOutputRows").value()))
    except Py4JError:
        return 0


class WatermarkTracker:
    """Follows the watermark as Spark's own tracker does: a maximum per operator, the minimum over them.

    One per query run: a restart forgets the values per operator and keeps only the global one, as Spark does.
    """

    def __init__(self, start_ms: int = 0, *, policy: str = "min") -> None:
        self._global_ms = start_ms
        self._per_operator: dict[int, int] = {}
        self._choose = max if policy == "max" else min

    def advance(self, observed_ms: tuple[int | None, ...]) -> int:
        """Take what one batch saw and return the watermark of the next."""
        for index, value in enumerate(observed_ms):
            self._per_operator[index] = max(self._per_operator.get(index, 0), value or 0)
        if self._per_operator:
            self._global_ms = max(self._global_ms, self._choose(self._per_operator.values()))
        return self._global_ms
