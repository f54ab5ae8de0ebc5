"""What only the executed plan of a running batch knows: event times seen, ids of state versions, rows read.

Read through py4j, once per batch, after the batch was consumed. Nothing here is public API of Spark; it is tied
to Spark 4.3 and tested against what Spark itself writes afterwards.
"""

from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError

_WATERMARK = "EventTimeWatermark"
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


@dataclass(frozen=True)
class _Node:
    """A node of the plan that knows something, and its number in the tree."""

    number: int
    name: str
    node: Any
    is_leaf: bool

    def at(self, plan: Any) -> "_Node | None":
        """Return the node with the same number in the plan of another batch, None when it is another one."""
        found = plan.apply(self.number)
        if found is None or str(found.nodeName()) != self.name:
            return None
        return _Node(self.number, self.name, found, self.is_leaf)


class PlanReader:
    """Reads the facts of one batch after the other. Each question to the JVM takes a fraction of a millisecond.

    The plan of a query rarely changes its shape, so the first walk is remembered; after that only the nodes that
    know something are asked.
    """

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._size = 0

    def read(self, streaming_query: Any) -> PlanFacts:
        """Return the facts of the query's current batch."""
        plan = streaming_query.lastExecution().executedPlan()
        nodes = self._remembered(plan) or self._walked(plan)
        state_ids: dict[str, list[list[str]]] = {}
        for node in nodes:
            if _writes_state(node.name):
                _collect_state_ids(node.node, state_ids)
        return PlanFacts(
            tuple(_newest_event_time(node.node) for node in nodes if node.name == _WATERMARK),
            state_ids,
            tuple(_rows_produced(node.node) for node in nodes if node.is_leaf),
        )

    def _remembered(self, plan: Any) -> list[_Node]:
        """Return the nodes if the plan has the shape it had, else nothing."""
        if not self._nodes or plan.apply(self._size) is not None:
            return []
        found = [node.at(plan) for node in self._nodes]
        return [] if None in found else [node for node in found if node is not None]

    def _walked(self, plan: Any) -> list[_Node]:
        self._nodes, self._size = [], 0
        pending = [plan]
        while pending:
            node = pending.pop()
            name = str(node.nodeName())
            children = node.children()
            count = int(str(children.size()))
            if count == 0 or name == _WATERMARK or _writes_state(name):
                self._nodes.append(_Node(self._size, name, node, count == 0))
            pending.extend(children.apply(index) for index in range(count - 1, -1, -1))
            self._size += 1
        return self._nodes


def _writes_state(name: str) -> bool:
    return any(word in name for word in _STATE_WRITERS)


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
    """Follows the watermark as Spark's own tracker does: a maximum per operator, the policy's choice over them.

    One per query start: a restart forgets the values per operator and keeps only the global one, as Spark does.
    """

    def __init__(self, start_ms: int = 0) -> None:
        self.current_ms = start_ms
        self._per_operator: dict[int, int] = {}

    def begin(self, batch_ms: int) -> None:
        """Take the watermark a batch runs with: a recorded range brings its own, and Spark goes on from that."""
        self.current_ms = max(self.current_ms, batch_ms)

    def advance(self, observed_ms: tuple[int | None, ...], policy: str = "min") -> int:
        """Take what one batch saw and return the watermark of the next."""
        choose = max if policy == "max" else min
        for index, value in enumerate(observed_ms):
            self._per_operator[index] = max(self._per_operator.get(index, 0), value or 0)
        if self._per_operator:
            self.current_ms = max(self.current_ms, choose(self._per_operator.values()))
        return self.current_ms
