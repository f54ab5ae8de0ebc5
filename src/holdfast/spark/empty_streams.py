"""A query as it is, over streams that have no rows and ask nobody.

Each stream of the analyzed plan gives way to one that says the same of its columns. For a batch without data Spark
puts an empty relation in the place of every stream anyway, so what it plans and runs is what it would run with the
real ones: only that no reader of theirs is made. Their lines of the offset log are compared as text, and never read.
"""

from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.janino import compiled_function
from holdfast.spark.session import frame_of

_WITHOUT_SOURCES = r"""
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LeafNode;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.SparkDataStream;
import org.apache.spark.sql.execution.streaming.runtime.StreamingExecutionRelation;
import scala.Function1;
import scala.Option;
import scala.runtime.AbstractPartialFunction;

final SparkSession owner = (SparkSession) session;
AbstractPartialFunction emptied = new AbstractPartialFunction() {
    public boolean isDefinedAt(Object node) {
        return node instanceof LeafNode && ((LogicalPlan) node).isStreaming();
    }
    public Object applyOrElse(Object node, Function1 otherwise) {
        if (!isDefinedAt(node)) return otherwise.apply(node);
        SparkDataStream nothing = new SparkDataStream() {
            public Offset initialOffset() { throw new UnsupportedOperationException("this stream is never read"); }
            public Offset deserializeOffset(String json) {
                throw new UnsupportedOperationException("this stream is never read");
            }
            public void commit(Offset end) {}
            public void stop() {}
        };
        return new StreamingExecutionRelation(nothing, ((LogicalPlan) node).output(), Option.empty(),
            StreamingExecutionRelation.$lessinit$greater$default$4(), owner);
    }
};
LogicalPlan result = (LogicalPlan) ((LogicalPlan) plan).transformDown(emptied);
result.setAnalyzed();  // It was, and is not gone over again: that could number its columns anew.
return result;
"""


def without_sources(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the same query over empty streams."""
    emptied = compiled_function(spark, _WITHOUT_SOURCES, "plan", "session")
    return frame_of(emptied.call(frame._jdf.queryExecution().analyzed(), spark._jsparkSession), spark)
