"""What only the executed plan of a running batch knows: event times seen, ids of state versions, rows read.

Read once per batch, after the batch was consumed, by a few lines of Java: every question through py4j takes a third
of a millisecond, and a plan is some thirty questions. Janino, which Spark brings for its own code, compiles them.
Nothing here is public API of Spark; it is tied to Spark 4.3 and tested against what Spark itself writes afterwards.
"""

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from holdfast.core.completeness import OperatorStores

_FACTS_OF_A_BATCH = r"""
import java.util.ArrayDeque;
import java.util.IdentityHashMap;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeStats;
import org.apache.spark.sql.execution.streaming.operators.stateful.EventTimeWatermarkExec;
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOpStateStoreCheckpointInfo;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.util.AccumulatorV2;
import scala.Option;
import scala.collection.immutable.Seq;

StringBuilder facts = new StringBuilder();
ArrayDeque pending = new ArrayDeque();
pending.push(((StreamExecution) query).lastExecution().executedPlan());
while (!pending.isEmpty()) {
    SparkPlan node = (SparkPlan) pending.pop();
    Seq children = (Seq) node.children();
    if (node instanceof EventTimeWatermarkExec) {
        EventTimeWatermarkExec watermark = (EventTimeWatermarkExec) node;
        EventTimeStats seen = (EventTimeStats) ((AccumulatorV2) watermark.eventTimeStats()).value();
        facts.append("watermark");
        if (seen.count() > 0) facts.append(" ").append(seen.max() - watermark.delayMs());
        facts.append("\n");
    }
    if (node instanceof StateStoreWriter) {
        StateStoreWriter writer = (StateStoreWriter) node;
        // An operator over all rows has one partition, whatever its stateInfo says.
        facts.append("stores ").append(((StatefulOperatorStateInfo) writer.stateInfo().get()).operatorId());
        int partitions = node.outputPartitioning().numPartitions();
        for (int i = 0; partitions == 0 && i < children.size(); i++) {  // An operator in Python does not say.
            partitions = ((SparkPlan) children.apply(i)).outputPartitioning().numPartitions();
        }
        facts.append(" ").append(partitions);
        Seq names = (Seq) writer.stateStoreNames();
        for (int i = 0; i < names.size(); i++) facts.append(" ").append(names.apply(i));
        facts.append("\n");
    }
    // Checkpoint format 1 has no ids.
    if (node instanceof StateStoreWriter && StatefulOperatorStateInfo.enableStateStoreCheckpointIds(node.conf())) {
        StateStoreWriter writer = (StateStoreWriter) node;
        facts.append("state ").append(((StatefulOperatorStateInfo) writer.stateInfo().get()).operatorId());
        StatefulOpStateStoreCheckpointInfo[] partitions = writer.getStateStoreCheckpointInfo();
        for (int i = 0; i < partitions.length; i++) {
            facts.append(" ").append(String.join(",", (String[]) partitions[i].stateStoreCkptId().get()));
        }
        facts.append("\n");
    }
    if (children.isEmpty()) {
        Option rows = node.metrics().get("numOutputRows");
        facts.append("rows ").append(rows.isEmpty() ? "0" : ((AccumulatorV2) rows.get()).value()).append("\n");
    }
    for (int i = children.size() - 1; i >= 0; i--) pending.push(children.apply(i));
}
// A source that is read twice is there twice, and has one directory: they are numbered as they first appear.
Seq sources = (Seq) ((StreamExecution) query).sources();
IdentityHashMap numbers = new IdentityHashMap();
facts.append("sources");
for (int i = 0; i < sources.size(); i++) {
    if (!numbers.containsKey(sources.apply(i))) numbers.put(sources.apply(i), Integer.valueOf(numbers.size()));
    facts.append(" ").append(numbers.get(sources.apply(i)));
}
return facts.append("\n").toString();
"""


@dataclass(frozen=True)
class PlanFacts:
    """Facts of one batch, in plan order."""

    watermarks_ms: tuple[int | None, ...] = ()
    """For each watermark operator: newest event time minus its delay, None when it saw no row."""
    stores: dict[str, OperatorStores] = field(default_factory=dict)
    state_ids: dict[str, list[list[str]]] = field(default_factory=dict)
    rows_read: tuple[int, ...] = ()
    """For each source in the plan: rows it produced."""
    log_directories: tuple[str, ...] = ()
    """For each line of the offset log: the directory below `sources/` that is its source's."""


class PlanReader:
    """Reads the facts of one batch after the other."""

    def __init__(self, spark: SparkSession) -> None:
        jvm, gateway = spark._jvm, spark.sparkContext._gateway
        assert jvm is not None
        assert gateway is not None
        names = gateway.new_array(jvm.java.lang.String, 1)
        names[0] = "query"
        compiler = jvm.org.codehaus.janino.ScriptEvaluator()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        function = jvm.java.lang.Class.forName("org.apache.spark.api.java.function.Function")
        self._facts_of = compiler.createFastEvaluator(_FACTS_OF_A_BATCH, function, names)

    def read(self, streaming_query: Any) -> PlanFacts:
        """Return the facts of the query's current batch."""
        return _parsed(str(self._facts_of.call(streaming_query)))


def _parsed(text: str) -> PlanFacts:
    """Read lines of facts, which come in plan order."""
    watermarks: list[int | None] = []
    state_ids: dict[str, list[list[str]]] = {}
    rows_read: list[int] = []
    stores: dict[str, OperatorStores] = {}
    sources: tuple[str, ...] = ()
    for line in text.splitlines():
        kind, *values = line.split(" ")
        if kind == "watermark":
            watermarks.append(int(values[0]) if values else None)
        elif kind == "state":
            state_ids[values[0]] = [ids.split(",") for ids in values[1:]]
        elif kind == "stores":
            stores[values[0]] = OperatorStores(int(values[1]), tuple(values[2:]))
        elif kind == "sources":
            sources = tuple(values)
        else:
            rows_read.append(int(values[0]))
    for operator, ids in state_ids.items():
        known = stores[operator]
        stores[operator] = OperatorStores(max(known.partitions, len(ids)), known.names)
    return PlanFacts(tuple(watermarks), stores, state_ids, tuple(rows_read), sources)


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
