"""What only a running query knows: how far event time has come, ids of state versions, rows read.

Read once per batch, after the batch was consumed, by a few lines of Java: a plan is some thirty questions.
What Spark decides after us is asked of Spark's own code, on a copy: a second opinion of ours would differ one day.
Nothing here is public API of Spark; it is tied to Spark 4.3 and tested against what Spark itself writes afterwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from holdfast.core.completeness import OperatorStores
from holdfast.spark.janino import compiled_function

_FACTS_OF_A_BATCH = r"""
import java.lang.reflect.Method;
import java.util.ArrayDeque;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.UUID;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.EventTimeWatermark;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.StreamSourceAwareSparkPlan;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.execution.streaming.StreamingQueryPlanTraverseHelper;
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata;
import org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOpStateStoreCheckpointInfo;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution;
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingExecutionRelation;
import org.apache.spark.sql.execution.streaming.runtime.WatermarkTracker;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.util.AccumulatorV2;
import scala.Function1;
import scala.Option;
import scala.Some;
import scala.collection.IterableOnce;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractPartialFunction;

StringBuilder facts = new StringBuilder();
MicroBatchExecution running = (MicroBatchExecution) query;
IncrementalExecution last = running.lastExecution();

// A source that is read twice may be one stream, or two: each stream has a directory, in the order of appearance.
Seq sources = (Seq) running.sources();
IdentityHashMap directories = new IdentityHashMap();
facts.append("sources");
for (int i = 0; i < sources.size(); i++) {
    Object stream = sources.apply(i);
    if (!directories.containsKey(stream)) directories.put(stream, Integer.valueOf(directories.size()));
    facts.append(" ").append(directories.get(stream));
}
facts.append("\n");

// As Spark looks for watermarks and state itself, so below what was planned adaptively or is cached, too.
AbstractPartialFunction everything = new AbstractPartialFunction() {
    public boolean isDefinedAt(Object node) { return true; }
    public Object applyOrElse(Object node, Function1 otherwise) { return node; }
};
Seq nodes = StreamingQueryPlanTraverseHelper.collectFromUnfoldedPlan(last.executedPlan(), everything);
for (int n = 0; n < nodes.size(); n++) {
    SparkPlan node = (SparkPlan) nodes.apply(n);
    Seq children = (Seq) node.children();
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
    if (node instanceof StreamSourceAwareSparkPlan) {
        Option stream = ((StreamSourceAwareSparkPlan) node).getStream();
        Option rows = node.metrics().get("numOutputRows");
        if (stream.isDefined() && rows.isDefined()) {
            facts.append("rows ").append(directories.get(stream.get()));
            facts.append(" ").append(((AccumulatorV2) rows.get()).value()).append("\n");
        }
    }
}

// Spark's tracker hears of the batch only after us. It is kept as it is, but for what a restart made it forget.
WatermarkTracker tracker = running.watermarkTracker();
Method ofTracker = WatermarkTracker.class.getDeclaredMethod("operatorToWatermarkMap", new Class[0]);
ofTracker.setAccessible(true);
scala.collection.mutable.Map known = (scala.collection.mutable.Map) ofTracker.invoke(tracker, new Object[0]);
WatermarkTracker next = WatermarkTracker.apply(((SparkSession) last.sparkSession()).conf(), running.logicalPlan());
scala.collection.mutable.Map ofNext = (scala.collection.mutable.Map) ofTracker.invoke(next, new Object[0]);
ArrayDeque watermarks = new ArrayDeque();
HashSet seen = new HashSet();
ArrayDeque pending = new ArrayDeque();
pending.push(running.logicalPlan());
while (!pending.isEmpty()) {
    LogicalPlan node = (LogicalPlan) pending.pop();
    if (node instanceof EventTimeWatermark && seen.add(((EventTimeWatermark) node).nodeId())) watermarks.add(node);
    Seq children = (Seq) node.children();
    for (int i = children.size() - 1; i >= 0; i--) pending.push(children.apply(i));
}
boolean asked = remembered != null;  // Otherwise nobody knows yet what there is to remember.
String[] told = !asked || ((String) remembered).isEmpty() ? new String[0] : ((String) remembered).split(" ");
Object[] inOrder = watermarks.toArray();
for (int i = 0; i < told.length && i < inOrder.length; i++) {
    UUID id = ((EventTimeWatermark) inOrder[i]).nodeId();
    Option before = (Option) known.apply(id);
    if (told[i].equals("-")) continue;
    if (before.isEmpty() || ((Long) before.get()).longValue() < Long.parseLong(told[i])) {
        known.put(id, new Some(Long.valueOf(told[i])));
    }
}
ofNext.addAll((IterableOnce) known);
next.setWatermark(tracker.currentWatermark());
next.updateWatermark(last.executedPlan());
for (int i = 0; i < inOrder.length; i++) {
    EventTimeWatermark watermark = (EventTimeWatermark) inOrder[i];
    Option far = (Option) ofNext.apply(watermark.nodeId());
    facts.append("watermark ").append(far.isEmpty() ? "-" : far.get()).append(" ");
    HashSet below = new HashSet();
    Seq leaves = (Seq) watermark.collectLeaves();
    for (int j = 0; j < leaves.size(); j++) {
        Object leaf = leaves.apply(j);
        Object stream = null;
        if (leaf instanceof StreamingExecutionRelation) stream = ((StreamingExecutionRelation) leaf).source();
        if (leaf instanceof StreamingDataSourceV2ScanRelation) {
            stream = ((StreamingDataSourceV2ScanRelation) leaf).stream();
        }
        if (stream != null && below.add(stream)) {
            facts.append(below.size() > 1 ? "," : "").append(directories.get(stream));
        }
    }
    facts.append(" ").append(EventTimeWatermark.getDelayMs(watermark.delay()));
    facts.append(" ").append(watermark.eventTime().name().replace('\n', ' ')).append("\n");
}
facts.append("next ").append(next.currentWatermark()).append("\n");
// Asked with one watermark, Spark refuses to be asked with another.
boolean another = asked && ((SQLConf) last.sparkSession().sessionState().conf()).streamingNoDataMicroBatchesEnabled()
    && last.shouldRunAnotherBatch(
        new OffsetSeqMetadata(next.currentWatermark(), 0L, last.offsetSeqMetadata().conf()));
return facts.append("another ").append(another).append("\n").toString();
"""


@dataclass(frozen=True)
class WatermarkOperator:
    """One `withWatermark` of the query, however many branches have it."""

    far_ms: int | None
    """The newest event time it ever saw, minus its delay; None before the first row."""
    directories: tuple[str, ...]
    """The streams whose rows it sees."""
    delay_ms: int
    column: str


@dataclass(frozen=True)
class PlanFacts:
    """Facts of one batch, in plan order."""

    watermarks: tuple[WatermarkOperator, ...] = ()
    next_watermark_ms: int = 0
    """What Spark will run the next batch with."""
    another_batch: bool = False
    """Whether Spark would run a batch without data now, to close windows, to fire timers, to drop state."""
    stores: dict[str, OperatorStores] = field(default_factory=dict)
    state_ids: dict[str, list[list[str]]] = field(default_factory=dict)
    rows_read: Mapping[str, int] = field(default_factory=dict)
    """Directory of a stream -> rows that it gave."""
    log_directories: tuple[str, ...] = ()
    """For each line of the offset log: the directory below `sources/` that is its stream's."""


class PlanReader:
    """Reads the facts of one batch after the other."""

    def __init__(self, spark: SparkSession) -> None:
        self._facts_of = compiled_function(spark, _FACTS_OF_A_BATCH, "query", "remembered")

    def streams(self, streaming_query: Any) -> PlanFacts:
        """Return the facts that are the same for all batches of a query: its streams and its watermark operators."""
        return _parsed(str(self._facts_of.call(streaming_query, None)))

    def read(self, streaming_query: Any, remembered_ms: Sequence[int | None] = ()) -> PlanFacts:
        """Return the facts of the query's current batch. To be called once for each.

        `remembered_ms` is how far each watermark operator had come before the query was started: Spark's own tracker,
        which begins with none of it, is told.
        """
        remembered = " ".join("-" if value is None else str(value) for value in remembered_ms)
        return _parsed(str(self._facts_of.call(streaming_query, remembered)))


def _parsed(text: str) -> PlanFacts:
    """Read lines of facts, which come in plan order."""
    lines = [line.split(" ", 4) if line.startswith("watermark ") else line.split(" ") for line in text.splitlines()]
    of_kind: dict[str, list[list[str]]] = {}
    for kind, *values in lines:
        of_kind.setdefault(kind, []).append(values)
    state_ids = {operator: [ids.split(",") for ids in parts] for operator, *parts in of_kind.get("state", [])}
    stores = {name: OperatorStores(int(count), tuple(names)) for name, count, *names in of_kind.get("stores", [])}
    for operator, ids in state_ids.items():
        known = stores[operator]
        stores[operator] = OperatorStores(max(known.partitions, len(ids)), known.names)
    directories = tuple(of_kind["sources"][0])
    return PlanFacts(
        watermarks=tuple(_watermark(*values) for values in of_kind.get("watermark", [])),
        next_watermark_ms=int(of_kind["next"][0][0]),
        another_batch=of_kind["another"][0][0] == "true",
        stores=stores,
        state_ids=state_ids,
        rows_read=_rows_read(directories, of_kind.get("rows", [])),
        log_directories=directories,
    )


def _watermark(far_ms: str, directories: str, delay_ms: str, column: str) -> WatermarkOperator:
    below = tuple(sorted(directories.split(","))) if directories else ()
    return WatermarkOperator(None if far_ms == "-" else int(far_ms), below, int(delay_ms), column)


def _rows_read(directories: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the rows of each stream: each branch that has it reads all of it, unless a filter is pushed into it."""
    found: dict[str, int] = {}
    for directory in dict.fromkeys(directories):
        leaves = [int(count) for name, count in rows if name == directory]
        of_branch = max(1, len(leaves) // directories.count(directory))  # One stream may be several scans.
        branches = [sum(leaves[at : at + of_branch]) for at in range(0, len(leaves), of_branch)]
        found[directory] = max(branches, default=0)
    return found
