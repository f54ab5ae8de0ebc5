"""The one streaming query that a pipeline becomes: a branch for each output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import PipelineDefinitionError
from holdfast.spark.definition import Definition
from holdfast.spark.failures import java_message, spark_message
from holdfast.spark.fan_out import FanOut, can_fan_out
from holdfast.spark.plan_digest import PlanDigest, PlanDigests
from holdfast.spark.plan_nodes import analyzed, stateful_nodes, streams
from holdfast.spark.rows import tagged_union
from holdfast.spark.session import active
from holdfast.spark.settings import limits
from holdfast.spark.views import evaluate_views, read_sources

_CHECKED = "spark.sql.streaming.unsupportedOperationCheck"


@dataclass(frozen=True)
class Branch:
    """What one output adds to the query."""

    output: str
    frame: DataFrame
    streams: tuple[tuple[str, str], ...]
    """For each stream it reads: the source, and which stream over that source."""
    stateful: tuple[str, ...]
    plan: PlanDigest

    @property
    def inputs(self) -> tuple[str, ...]:
        """The source of each stream it reads."""
        return tuple(source for source, _ in self.streams)


@dataclass(frozen=True)
class BuiltQuery:
    """The one streaming query of a pipeline."""

    frame: DataFrame
    branches: tuple[Branch, ...]
    """The outputs, in the order of Spark's operator ids and offset lines."""
    inputs: tuple[str, ...]
    """Which source each line of Spark's offset log belongs to."""
    streams: tuple[str, ...]
    """The same, where two streams over one source have two names."""
    fan_out: FanOut | None
    """Applies the branches to each batch, where the query is the bare source."""

    @property
    def schemas(self) -> dict[str, Any]:
        """Output -> its Spark schema."""
        return {branch.output: branch.frame.schema for branch in self.branches}

    @property
    def order(self) -> tuple[str, ...]:
        """The outputs."""
        return tuple(branch.output for branch in self.branches)

    @property
    def stateful(self) -> tuple[str, ...]:
        """The nodes with state."""
        return tuple(node for branch in self.branches for node in branch.stateful)


def build_query(
    definition: Definition,
    spark: SparkSession,
    start_options: Mapping[str, Mapping[str, str]] | None = None,
    order: Sequence[str] | None = None,
) -> BuiltQuery:
    """Turn the definition into one streaming DataFrame.

    `start_options` say where sources begin that never ran, `order` is that of the outputs: state belongs to places in
    it. Without, it is that of their names, so that the order in a file does not matter.
    """
    with active(spark):
        return _built(definition, spark, start_options or {}, order or sorted(definition.outputs))


def _built(
    definition: Definition, spark: SparkSession, starts: Mapping[str, Mapping[str, str]], order: Sequence[str]
) -> BuiltQuery:
    sources = read_sources(definition, spark, starts)
    frames = evaluate_views(definition, spark, sources)
    digests = PlanDigests(spark)
    branches = tuple(_branch(output, frames[output], definition, digests) for output in order)
    for branch in branches:
        _check_supported(branch.frame, definition.output_mode, f"'{branch.output}'")
    used = list(dict.fromkeys(source for branch in branches for source in branch.inputs))
    outputs = {branch.output: branch.frame for branch in branches}
    if len(outputs) > 1 and len(used) == 1 and used[0] in definition.sources:
        spec, source = definition.sources[used[0]].spec, sources[used[0]]
        if can_fan_out(spec, source, outputs.values()):
            return BuiltQuery(source, branches, tuple(used), tuple(used), FanOut(spark, source, outputs))
    frame = tagged_union(outputs)
    _check_supported(frame, definition.output_mode, f"pipeline '{definition.name}'")
    read = streams(frame, definition.sources)
    names = tuple(stream for _, stream in read)
    return BuiltQuery(frame, branches, tuple(source for source, _ in read), names, None)


def _branch(output: str, frame: DataFrame, definition: Definition, digests: PlanDigests) -> Branch:
    _check_columns(frame, output)
    read, stateful = streams(frame, definition.sources), stateful_nodes(frame)
    return Branch(output, frame, tuple(read), tuple(stateful), digests.of(frame))


def _check_columns(frame: DataFrame, output: str) -> None:
    """Refuse columns that neither Spark nor a sink could tell apart."""
    cases = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    seen: dict[str, str] = {}
    for column in frame.columns:
        name = column if cases else column.lower()
        if (other := seen.get(name)) is not None:
            spelled = "" if other == column else f" and '{column}', which are one name to Spark"
            raise PipelineDefinitionError(f"'{output}' has two columns named '{other}'{spelled}: rename one")
        seen[name] = column


def _check_supported(frame: DataFrame, output_mode: str, what: str) -> None:
    """Refuse what Spark refuses for a stream, before anything is changed anywhere.

    Each output is looked at by itself: what Spark would not run with one sink is not run with several.
    """
    session = frame.sparkSession
    if session.conf.get(_CHECKED, "true") != "true":
        return
    sql: Any = session._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    mode = getattr(sql.streaming.OutputMode, output_mode.capitalize())()
    checker = getattr(getattr(sql.catalyst.analysis, "UnsupportedOperationChecker$"), "MODULE$")
    try:
        checker.checkForStreaming(analyzed(frame), mode)
    except PySparkException as error:
        raise PipelineDefinitionError(f"{what}: {spark_message(error)}{limits(session)}") from error
    except Py4JJavaError as error:
        raise PipelineDefinitionError(f"{what}: {java_message(error)}{limits(session)}") from error
