"""A pipeline as its user wrote it, and the one streaming query it becomes."""

import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.core.contracts import Sink
from holdfast.core.sources import SourceSpec
from holdfast.core.tables import TableSpec
from holdfast.errors import PipelineDefinitionError
from holdfast.spark.failures import error_in
from holdfast.spark.rows import COLLECT_BYTES, OUTPUT_COLUMN, tagged_union
from holdfast.spark.session import active, brought_over

Query = str | Callable[..., DataFrame]
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_RUN_SPECIFIC = re.compile(
    r"#\d+L?|@[0-9a-f]+|\[id=[^\]]*\]|Source\[[^\]]*\]|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
_STATEFUL = re.compile(r"Aggregate|Distinct|Deduplicate|WithState|GlobalLimit|LocalLimit")


@dataclass(frozen=True)
class SourceDefinition:
    """A named source and its watermark: (column, delay)."""

    name: str
    spec: SourceSpec
    watermark: tuple[str, str] | None


@dataclass(frozen=True)
class ViewDefinition:
    """A named view: SQL, or a function whose parameters are names of sources and views."""

    name: str
    query: Query

    def text(self) -> str:
        """Return what the view is, as text that can be compared."""
        if isinstance(self.query, str):
            return " ".join(self.query.split())
        try:
            return inspect.getsource(self.query).strip()
        except (OSError, TypeError):
            code = getattr(self.query, "__code__", None)
            return f"function {self.query!r}" if code is None else f"function {code.co_code.hex()} {code.co_consts!r}"


@dataclass(frozen=True)
class TableDefinition:
    """A named reference table, and how often to look for a newer version: None is once in a run."""

    name: str
    spec: TableSpec
    refresh_seconds: float | None


@dataclass(frozen=True)
class SinkDefinition:
    """A named sink and the view or source it takes; with a `select`, what that makes of each epoch's rows."""

    name: str
    output: str
    sink: Sink
    select: str | None = None

    def identity(self) -> dict[str, Any]:
        """Return what is compared."""
        select = {} if self.select is None else {"select": " ".join(self.select.split())}
        return {**self.sink.identity(), "takes": self.output, **select}


@dataclass
class Definition:
    """Everything a user said, checked for names."""

    name: str
    output_mode: str = "append"
    state: str = "rocksdb"
    state_partitions: int = 2
    collect_bytes: int = COLLECT_BYTES
    sources: dict[str, SourceDefinition] = field(default_factory=dict)
    tables: dict[str, TableDefinition] = field(default_factory=dict)
    views: dict[str, ViewDefinition] = field(default_factory=dict)
    sinks: dict[str, SinkDefinition] = field(default_factory=dict)

    def add_source(self, name: str, spec: SourceSpec, watermark: tuple[str, str] | None) -> None:
        """Add a source."""
        self._check_name("source", name)
        self.sources[name] = SourceDefinition(name, spec, watermark)

    def add_table(self, name: str, spec: TableSpec, refresh_seconds: float | None) -> None:
        """Add a reference table, for selects of sinks."""
        self._check_name("table", name)
        self.tables[name] = TableDefinition(name, spec, refresh_seconds)

    def add_view(self, name: str, query: Query) -> None:
        """Add a view; what it uses must be there already."""
        self._check_name("view", name)
        self.views[name] = ViewDefinition(name, query)

    def add_sink(self, name: str, output: str, sink: Sink, select: str | None = None) -> None:
        """Add a sink for a view or source."""
        if name in self.sinks:
            raise PipelineDefinitionError(f"there are two sinks named '{name}'")
        _check_form("sink", name)
        if output not in self.sources and output not in self.views:
            known = ", ".join(sorted([*self.sources, *self.views])) or "none yet"
            raise PipelineDefinitionError(f"sink '{name}' takes '{output}', which is no view or source ({known})")
        self.sinks[name] = SinkDefinition(name, output, sink, select)

    @property
    def outputs(self) -> list[str]:
        """The views and sources that sinks take, each once, in the order of the sinks."""
        return list(dict.fromkeys(sink.output for sink in self.sinks.values()))

    def _check_name(self, kind: str, name: str) -> None:
        _check_form(kind, name)
        if name in self.sources or name in self.views or name in self.tables or name == OUTPUT_COLUMN:
            raise PipelineDefinitionError(f"the name '{name}' is taken: sources, views and tables share their names")


def _check_form(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise PipelineDefinitionError(
            f"'{name}' is no name for a {kind}: it starts with a letter and has letters, digits and _ only"
        )


@dataclass(frozen=True)
class BuiltQuery:
    """The one streaming query of a pipeline."""

    frame: DataFrame
    schemas: dict[str, Any]
    """Output -> its Spark schema."""
    inputs: tuple[str, ...]
    """Which source each line of Spark's offset log belongs to."""
    stateful: tuple[str, ...]
    fan_out: bool
    """Whether the query is the bare source, and views are applied to each batch."""
    plan_digest: str


def build_query(
    definition: Definition, spark: SparkSession, start_options: Mapping[str, Mapping[str, str]] | None = None
) -> BuiltQuery:
    """Turn the definition into one streaming DataFrame. `start_options` say where sources begin that never ran."""
    with active(spark):
        return _built(definition, spark, start_options or {})


def _built(definition: Definition, spark: SparkSession, starts: Mapping[str, Mapping[str, str]]) -> BuiltQuery:
    for name in definition.tables:
        spark.catalog.dropTempView(name)  # Whatever has that name in the session, a view does not mean it.
    sources = {name: _read(spark, source, starts.get(name, {})) for name, source in definition.sources.items()}
    frames = evaluate_views(definition, spark, sources)
    outputs = {name: frames[name] for name in definition.outputs}
    stateful = tuple(node for frame in outputs.values() for node in _stateful_nodes(frame))
    used = list(dict.fromkeys(name for frame in outputs.values() for name in _inputs(frame, definition)))
    fan_out = not stateful and len(outputs) > 1 and len(used) == 1
    frame = sources[used[0]] if fan_out else tagged_union(outputs)
    return BuiltQuery(
        frame=frame,
        schemas={name: output.schema for name, output in outputs.items()},
        inputs=tuple(used) if fan_out else tuple(_inputs(frame, definition)),
        stateful=stateful,
        fan_out=fan_out,
        plan_digest=_plan_digest(frame),
    )


def _read(spark: SparkSession, source: SourceDefinition, start_options: Mapping[str, str]) -> DataFrame:
    spec = source.spec
    if spec.data_source is not None:
        spark.dataSource.register(spec.data_source())
    reader = spark.readStream.format(spec.format).options(**{**spec.options, **start_options})
    if spec.schema is not None:
        reader = reader.schema(spec.schema)
    try:
        frame = reader.load()
        return frame.withWatermark(*source.watermark) if source.watermark else frame
    except PySparkException as error:
        ours = error_in(error)
        if ours is not None:
            raise ours from error
        raise PipelineDefinitionError(f"source '{source.name}': {_first_line(error)}{_hint(spec)}") from error


def _hint(spec: SourceSpec) -> str:
    if not spec.packages:
        return ""
    wanted = ",".join(spec.packages)
    return f". It needs {wanted}: leave the Spark session to Holdfast, or start it with spark.jars.packages={wanted}"


def evaluate_views(
    definition: Definition, spark: SparkSession, sources: Mapping[str, DataFrame]
) -> dict[str, DataFrame]:
    """Return every source and view as a DataFrame, over streams or over the rows of one batch."""
    frames: dict[str, DataFrame] = {}
    for name, frame in sources.items():
        frames[name] = frame.alias(name)
        frame.createOrReplaceTempView(name)
    for name, view in definition.views.items():
        try:
            frames[name] = _evaluate(view, spark, frames, definition.tables)
            frames[name].createOrReplaceTempView(name)
        except PipelineDefinitionError:
            raise
        except PySparkException as error:
            if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                _refuse_tables(name, [table for table in definition.tables if f"`{table}`" in _first_line(error)])
            raise PipelineDefinitionError(f"view '{name}': {_first_line(error)}") from error
        except Exception as error:  # Whatever the user's function raises, it is known by its view.
            raise PipelineDefinitionError(f"view '{name}': {type(error).__name__}: {error}") from error
    return frames


def _refuse_tables(view: str, tables: Collection[str]) -> None:
    for table in tables:
        raise PipelineDefinitionError(
            f"view '{view}' names the reference table '{table}': views are one streaming query, for which no version "
            "of a table could be pinned. Join it in the select of a sink"
        )


def _evaluate(
    view: ViewDefinition, spark: SparkSession, frames: Mapping[str, DataFrame], tables: Collection[str]
) -> DataFrame:
    if isinstance(view.query, str):
        return spark.sql(view.query)
    wanted = list(inspect.signature(view.query).parameters)
    _refuse_tables(view.name, [name for name in wanted if name in tables])
    unknown = [name for name in wanted if name not in frames]
    if unknown:
        raise PipelineDefinitionError(
            f"view '{view.name}': its function asks for {', '.join(unknown)}, which is no source or earlier view"
        )
    return brought_over(view.query(*[frames[name] for name in wanted]), spark)


def definition_identity(definition: Definition, built: BuiltQuery) -> dict[str, Any]:
    """Return the definition as comparable values, without credentials."""
    return {
        "sources": {
            name: {**source.spec.identity(), "watermark": list(source.watermark) if source.watermark else None}
            for name, source in definition.sources.items()
        },
        "views": {name: view.text() for name, view in definition.views.items()},
        "sinks": {name: sink.identity() for name, sink in definition.sinks.items()},
        "output_mode": definition.output_mode,
        "state_partitions": definition.state_partitions,
        "state": definition.state if built.stateful else None,
        "inputs": list(built.inputs),
        "stateful": list(built.stateful),
        "plan": built.plan_digest if built.stateful else None,
        "spark": pyspark.__version__,
        **_tables_identity(definition),
    }


def _tables_identity(definition: Definition) -> dict[str, Any]:
    """Return the tables, if there are any: a pipeline without is what it was before there could be some."""
    tables = definition.tables.values()
    found = {table.name: {"connector": table.spec.connector, **table.spec.identity()} for table in tables}
    return {"tables": found} if found else {}


def _nodes(plan: Any) -> list[Any]:
    """Return the nodes of a logical plan, parents first, left to right."""
    nodes, pending = [], [plan]
    while pending:
        node = pending.pop()
        nodes.append(node)
        children = node.children()
        pending.extend(children.apply(index) for index in range(int(str(children.size())) - 1, -1, -1))
    return nodes


def _stateful_nodes(frame: DataFrame) -> list[str]:
    found = []
    for node in _nodes(_analyzed(frame)):
        name = str(node.nodeName())
        streams = [child for child in _nodes_below(node) if bool(child.isStreaming())]
        if (_STATEFUL.search(name) and node.isStreaming()) or (name.startswith("Join") and len(streams) > 1):
            found.append(name)
    return found


def _nodes_below(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(int(str(children.size())))]


def _inputs(frame: DataFrame, definition: Definition) -> list[str]:
    """Return the source of each leaf of the plan, in the order of Spark's offset log."""
    found: list[str] = []

    def visit(node: Any, name: str | None) -> None:
        if str(node.nodeName()) == "SubqueryAlias" and str(node.alias()) in definition.sources:
            name = str(node.alias())
        children = _nodes_below(node)
        if not children and bool(node.isStreaming()):
            found.append(name or f"input{len(found)}")
        for child in children:
            visit(child, name)

    visit(_analyzed(frame), next(iter(definition.sources)) if len(definition.sources) == 1 else None)
    return found


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _plan_digest(frame: DataFrame) -> str:
    """Return a digest of the plan without what differs from run to run: expression ids, object hashes, paths."""
    text = str(_analyzed(frame).canonicalized().toString())
    text = _RUN_SPECIFIC.sub("", text)
    return hashlib.sha256(text.encode()).hexdigest()


def _first_line(error: PySparkException) -> str:
    return str(error).strip().split("\n", 1)[0]
