"""Several outputs made of one read of their source.

Spark reads a source once for each branch of a query. Where all branches only choose and compute columns, row by row,
the query can be the bare source, and the plans of the branches are applied to its rows, batch by batch. What depends
on more than one row, on where rows come from or on when they are read would give other rows so, and stays with the
stream: the number of sinks decides how often a source is read, and never what comes out.
"""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.core.sources import SourceSpec
from holdfast.spark.janino import compiled
from holdfast.spark.plan_nodes import analyzed

_CAN_BE_APPLIED = r"""
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;

static boolean isOfOneRow(Expression expression) {
    String name = expression.getClass().getSimpleName();
    boolean timed = name.contains("Current") || name.equals("Now") || name.equals("LocalTimestamp");
    boolean can = expression.deterministic() && !timed && !(expression instanceof PlanExpression);
    scala.collection.Iterator children = expression.children().iterator();
    while (can && children.hasNext()) can = isOfOneRow((Expression) children.next());
    return can;
}

static boolean canBeApplied(LogicalPlan plan, LogicalPlan source) {
    if (plan.equals(source)) return true;
    String name = plan.nodeName();
    boolean can = name.equals("Project") || name.equals("Filter") || name.equals("Generate")
        || name.equals("SubqueryAlias") || name.equals("View");
    scala.collection.Iterator expressions = plan.expressions().iterator();
    while (can && expressions.hasNext()) can = isOfOneRow((Expression) expressions.next());
    return can && canBeApplied((LogicalPlan) plan.children().head(), source);
}
return Boolean.valueOf(canBeApplied((LogicalPlan) plan, (LogicalPlan) source));
"""

_APPLIED = r"""
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.View;

static scala.collection.immutable.Seq seq(List items) {
    return scala.jdk.javaapi.CollectionConverters.asScala(items).toList();
}

static LogicalPlan applied(LogicalPlan plan, LogicalPlan source, LogicalPlan batch) {
    if (plan.equals(source)) {
        List columns = new ArrayList();
        for (int i = 0; i < source.output().size(); i++) {
            Attribute wanted = (Attribute) source.output().apply(i);
            Attribute found = (Attribute) batch.output().apply(i);
            columns.add(new Alias(found, wanted.name(), wanted.exprId(), wanted.qualifier(),
                scala.Option.empty(), seq(Collections.EMPTY_LIST)));
        }
        return new Project(seq(columns), batch);
    }
    LogicalPlan child = applied((LogicalPlan) plan.children().head(), source, batch);
    return plan instanceof View ? child
        : (LogicalPlan) plan.withNewChildren(seq(Collections.singletonList(child)));
}
return applied((LogicalPlan) plan, (LogicalPlan) source, (LogicalPlan) batch);
"""


def can_fan_out(spec: SourceSpec, source: DataFrame, outputs: Iterable[DataFrame]) -> bool:
    """Whether outputs give the same rows when they are applied to batches of their source."""
    # Which lines count as malformed depends on which columns are read.
    if spec.options.get("mode", "PERMISSIVE").upper() != "PERMISSIVE":
        return False
    judge = compiled(source.sparkSession, _CAN_BE_APPLIED, "plan", "source")
    return all(bool(judge(analyzed(output), analyzed(source))) for output in outputs)


class FanOut:
    """Applies the plans of outputs to batches of their source."""

    def __init__(self, spark: SparkSession, source: DataFrame, outputs: dict[str, DataFrame]) -> None:
        self._source, self._outputs = analyzed(source), {name: analyzed(frame) for name, frame in outputs.items()}
        self._apply = compiled(spark, _APPLIED, "plan", "source", "batch")

    def of(self, batch: DataFrame) -> dict[str, DataFrame]:
        """Return every output, made of the rows of a batch."""
        session = batch.sparkSession
        datasets: Any = getattr(getattr(session._jvm, "org.apache.spark.sql.classic.Dataset$"), "MODULE$")
        plans = {name: self._applied(plan, batch) for name, plan in self._outputs.items()}
        return {name: DataFrame(datasets.ofRows(session._jsparkSession, p), session) for name, p in plans.items()}

    def _applied(self, plan: Any, batch: DataFrame) -> Any:
        return self._apply(plan, self._source, analyzed(batch))
