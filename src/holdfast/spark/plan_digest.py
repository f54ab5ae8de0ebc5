"""What the analysed plan of a query is, as text that is the same in every process.

Every field of every node counts: Spark's own text of a plan leaves out what is long, and its numbers, seeds and
addresses differ from run to run. Here an expression is known by where it first stands, and a seed does not count.
What a stream or a table reads does not either: sources are compared as they were defined, and tables are data.

A few lines of Java do the walking (see docs/decisions/0013). Tied to Spark 4.3, and digests are compared only between
processes with the same Spark.
"""

import base64
import hashlib
from dataclasses import dataclass

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark.code_digest import code_digest
from holdfast.spark.janino import compiled
from holdfast.spark.plan_nodes import analyzed

_TEXT_OF_A_PLAN = r"""
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.ExpressionWithRandomSeed;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.ScalaUDF;
import org.apache.spark.sql.catalyst.plans.logical.LeafNode;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.MetadataBuilder;
import scala.Product;

static String numbered(Map numbers, Object id) {
    if (!numbers.containsKey(id)) numbers.put(id, Integer.valueOf(numbers.size()));
    return "#" + numbers.get(id);
}

static String quoted(Object text) {
    String plain = String.valueOf(text);
    return plain.length() + ":" + plain;
}

static String each(scala.collection.Iterator items, Map numbers, List functions) {
    StringBuilder text = new StringBuilder("[");
    while (items.hasNext()) text.append(written(items.next(), numbers, functions)).append(",");
    return text.append("]").toString();
}

static String inNoOrder(scala.collection.Iterator items, Map numbers, List functions) {
    List texts = new ArrayList();
    while (items.hasNext()) texts.add(written(items.next(), numbers, functions));
    Collections.sort(texts);
    return "{" + texts + "}";
}

static String function(PythonFunction function, Map numbers, List functions) {
    scala.collection.Iterator bytes = function.command().iterator();
    java.io.ByteArrayOutputStream command = new java.io.ByteArrayOutputStream();
    while (bytes.hasNext()) command.write(((Byte) bytes.next()).byteValue());
    functions.add(Base64.getEncoder().encodeToString(command.toByteArray()));
    return "function";
}

static String product(Product value, Map numbers, List functions) {
    StringBuilder text = new StringBuilder(value.getClass().getName()).append("(");
    for (int i = 0; i < value.productArity(); i++) {
        String name = value.productElementName(i);
        Object element = value.productElement(i);
        if (value instanceof TreeNode && (name.equals("seed") || name.equals("randomSeed"))) continue;
        boolean counted = name.equals("id") || name.equals("cteId") || name.equals("loopId");
        if (value instanceof LogicalPlan && counted && element instanceof Long) {
            text.append(numbered(numbers, "plan " + element)).append(",");
        } else if (!name.equals("statsOpt")) {
            text.append(written(element, numbers, functions)).append(",");
        }
    }
    return text.append(")").toString();
}

static String node(TreeNode node, Map numbers, List functions) {
    String name = node.getClass().getName();
    if (node instanceof ExpressionWithRandomSeed) {
        return product((Product) ((ExpressionWithRandomSeed) node).withNewSeed(0L), numbers, functions);
    }
    if (node instanceof Literal) {
        return "literal(" + quoted(((Literal) node).sql()) + ((Literal) node).dataType().json() + ")";
    }
    if (node instanceof AttributeReference) {
        AttributeReference column = (AttributeReference) node;
        return "column" + numbered(numbers, column.exprId()) + column.dataType().json() + column.nullable()
            + written(column.metadata(), numbers, functions);
    }
    if (node instanceof Alias) {
        Alias alias = (Alias) node;  // A name that nobody gave may have a seed in it.
        String given = alias.metadata().contains("__autoGeneratedAlias") ? "" : quoted(alias.name());
        return "alias(" + written(alias.child(), numbers, functions) + given
            + numbered(numbers, alias.exprId()) + written(alias.explicitMetadata(), numbers, functions) + ")";
    }
    if (node instanceof NamedLambdaVariable) {  // Its name has a number that counts on through a run.
        NamedLambdaVariable variable = (NamedLambdaVariable) node;
        return "variable" + numbered(numbers, variable.exprId()) + variable.dataType().json();
    }
    if (node instanceof PythonUDF) {
        PythonUDF udf = (PythonUDF) node;
        functions.add(udf.name().replaceAll("\\s+", " "));
        return "python(" + function(udf.func(), numbers, functions) + udf.dataType().json() + udf.evalType()
            + udf.udfDeterministic() + each(udf.children().iterator(), numbers, functions) + ")";
    }
    if (node instanceof ScalaUDF) {
        ScalaUDF udf = (ScalaUDF) node;
        return "scala(" + written(udf.udfName(), numbers, functions) + udf.dataType().json()
            + each(udf.children().iterator(), numbers, functions) + ")";
    }
    if (node instanceof SubqueryAlias) {
        return "named(" + quoted(((SubqueryAlias) node).alias().toLowerCase())
            + written(((SubqueryAlias) node).child(), numbers, functions) + ")";
    }
    if (node instanceof View) return written(((View) node).child(), numbers, functions);
    boolean reads = node instanceof LeafNode && !name.contains(".plans.logical.");
    if (reads || node instanceof org.apache.spark.sql.catalyst.plans.logical.LocalRelation) {
        scala.collection.Iterator columns = ((LogicalPlan) node).output().iterator();
        StringBuilder text = new StringBuilder("read(").append(node.nodeName());
        while (columns.hasNext()) {
            AttributeReference column = (AttributeReference) columns.next();
            text.append(quoted(column.name())).append(written(column, numbers, functions));
        }
        return text.append(")").toString();
    }
    if (node instanceof Product) return product((Product) node, numbers, functions);
    return name + each(node.children().iterator(), numbers, functions);
}

static String written(Object value, Map numbers, List functions) {
    if (value == null) return "null";
    if (value instanceof ExprId) return numbered(numbers, value);
    if (value instanceof TreeNode) return node((TreeNode) value, numbers, functions);
    if (value instanceof DataType) return ((DataType) value).json();
    if (value instanceof Metadata) {  // Which frame a column was taken from is a number that counts on through a run.
        MetadataBuilder metadata = new MetadataBuilder().withMetadata((Metadata) value);
        return metadata.remove("__dataset_id").remove("__col_position").build().json();
    }
    if (value instanceof PythonFunction) {
        functions.add("");
        return function((PythonFunction) value, numbers, functions);
    }
    if (value instanceof scala.collection.Map) {
        return inNoOrder(((scala.collection.Map) value).iterator(), numbers, functions);
    }
    if (value instanceof scala.collection.Set) {
        return inNoOrder(((scala.collection.Set) value).iterator(), numbers, functions);
    }
    if (value instanceof scala.collection.Iterable) {
        return each(((scala.collection.Iterable) value).iterator(), numbers, functions);
    }
    boolean plain = value instanceof Number || value instanceof Boolean || value instanceof CharSequence
        || value instanceof Enum || value instanceof scala.Enumeration.Value
        || value instanceof org.apache.spark.unsafe.types.UTF8String
        || value instanceof org.apache.spark.unsafe.types.CalendarInterval
        || value instanceof org.apache.spark.sql.types.Decimal;
    if (plain) return quoted(value);
    if (value instanceof Class) return ((Class) value).getName();
    if (value.getClass().getName().endsWith(".CommonExpressionId")) {  // What BETWEEN names; counts on through a run.
        return "common" + numbered(numbers, "common " + ((Product) value).productElement(0));
    }
    if (value instanceof Product) return product((Product) value, numbers, functions);
    String name = value.getClass().getName();
    return name.contains("$Lambda") ? "lambda" : name;
}

List functions = new ArrayList();
StringBuilder found = new StringBuilder();
String text = written(plan, new HashMap(), functions);
for (int i = 0; i < functions.size(); i++) found.append(functions.get(i)).append("\n");
return functions.size() + "\n" + found.append(text);
"""


@dataclass(frozen=True)
class PlanDigest:
    """One output's plan, and the Python functions that stand in it."""

    plan: str
    functions: dict[str, str]
    """Name -> what it does. Those that work on whole groups of rows have no name of their own."""


class PlanDigests:
    """Digests of the plans of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._text_of = compiled(spark, _TEXT_OF_A_PLAN, "plan")

    def of(self, frame: DataFrame) -> PlanDigest:
        """Return the digest of a frame's plan."""
        count, rest = str(self._text_of(analyzed(frame))).split("\n", 1)
        *lines, text = rest.split("\n", int(count))
        functions: dict[str, list[str]] = {}
        for name, command in zip(lines[::2], lines[1::2], strict=True):
            functions.setdefault(name, []).append(_digest_of_command(base64.b64decode(command)))
        return PlanDigest(_sha256(text), {name: _sha256(*digests) for name, digests in sorted(functions.items())})


def _digest_of_command(command: bytes) -> str:
    """Return what a function does that was packed for Spark's workers, with the type it returns."""
    try:
        packed = cloudpickle.loads(command)
    except Exception:  # What is too large for a plan can be unpacked by workers only.
        return ""
    return code_digest(packed)


def _sha256(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode(errors="surrogatepass")).hexdigest()
