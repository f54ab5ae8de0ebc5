"""Selects of sinks: what is made of the computed rows of an epoch, joined with the versions of tables it has."""

from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.core.sources import Lag
from holdfast.core.tables import TableForm
from holdfast.engine.tables import TableImage
from holdfast.errors import PipelineDefinitionError, PipelineError
from holdfast.spark.definition import Definition, SinkDefinition
from holdfast.spark.failures import java_message, spark_message
from holdfast.spark.forecast import SizeForecast
from holdfast.spark.rows import ArrowRows, ComputedBatch, SparkRows

EpochRows = ArrowRows | SparkRows


def read_table(session: SparkSession, name: str, image: TableImage) -> DataFrame:
    """Return a pinned version as a DataFrame."""
    form = image.form
    reader = session.read.format(form.format).options(**dict(form.options))
    try:
        if form.schema is not None and not _has_types(form):
            reader = reader.schema(form.schema)
        frame = reader.load(f"file://{image.folder}")
        return _cast(frame, form.schema) if form.schema is not None and _has_types(form) else frame
    except PySparkException as error:
        raise PipelineError(f"table '{name}': {spark_message(error)}") from error


def _has_types(form: TableForm) -> bool:
    return form.format == "parquet"


def _cast(frame: DataFrame, schema: str) -> DataFrame:
    columns: Any = StructType.fromDDL(schema)
    return frame.select(*[F.col(f"`{column.name}`").cast(column.dataType) for column in columns])


def selected_schemas(
    definition: Definition, schemas: Mapping[str, StructType], tables: Mapping[str, TableImage], spark: SparkSession
) -> dict[str, StructType]:
    """Return the columns that each sink with a select gets; refuse selects that cannot work.

    Looks in a session of its own, in which there are the tables, and the rows of an epoch instead of streams.
    """
    selecting = [sink for sink in definition.sinks.values() if sink.select is not None]
    if not selecting:
        return {}
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name in (*definition.sources, *definition.views):
        session.catalog.dropTempView(name)
    for name, image in tables.items():
        read_table(session, name, image).createOrReplaceTempView(name)
    found = {}
    for sink in selecting:
        found[sink.name] = _select(sink, session.createDataFrame([], schemas[sink.output]), tables).schema
        session.catalog.dropTempView(sink.output)
    return found


def _select(sink: SinkDefinition, rows: DataFrame, tables: Mapping[str, TableImage]) -> DataFrame:
    assert sink.select is not None
    rows.createOrReplaceTempView(sink.output)
    try:
        return rows.sparkSession.sql(sink.select)
    except PySparkException as error:
        known = f" and the tables {', '.join(sorted(tables))}" if tables else ""
        raise PipelineDefinitionError(
            f"select of sink '{sink.name}': {spark_message(error)} (it has the rows of '{sink.output}'{known})"
        ) from error


class Selects:
    """Applies selects to the computed rows of epochs."""

    def __init__(self, definition: Definition) -> None:
        self._sinks, self._collect_bytes = definition.sinks, definition.collect_bytes
        self.schemas: Mapping[str, StructType] = {}
        """The columns that each select must give."""
        self._shown: dict[str, tuple[str, DataFrame]] = {}
        self._forecasts: dict[str, SizeForecast] = {name: SizeForecast() for name in definition.sinks}
        self._computed: list[ComputedBatch] = []

    def forget(self) -> None:
        """Forget which tables are shown: each start of a query has a session of its own."""
        for _, frame in self._shown.values():
            frame.unpersist()
        self._shown = {}

    def apply(self, rows: Mapping[str, EpochRows], tables: Mapping[str, TableImage]) -> dict[str, EpochRows]:
        """Return what each sink gets. A select sees no epoch in which its view has no rows."""
        found = dict(rows)
        for name in self.schemas:
            selected = self._selected(self._sinks[name], found.pop(name), tables) if name in found else None
            if selected is not None:
                found[name] = selected
        return found

    def _selected(self, sink: SinkDefinition, rows: EpochRows, tables: Mapping[str, TableImage]) -> EpochRows | None:
        frame = rows.dataframe()
        self._show(tables, frame.sparkSession)
        selected = _select(sink, frame, tables)
        schema = self.schemas[sink.name]
        if _columns(selected.schema) != _columns(schema):
            raise PipelineError(
                f"select of sink '{sink.name}' gives {_columns(selected.schema)}, the sink was started with "
                f"{_columns(schema)}: a table has other columns now. Name the columns in the select, or start again"
            )
        forecast, reads = self._forecasts[sink.name], {sink.output: Lag(rows.count, "records")}
        try:
            # Computed once, like the rows it is made from: sinks that retry must find the same.
            computed = ComputedBatch(
                selected,
                {sink.name: schema},
                expected_bytes=forecast.expected_bytes(reads),
                collect_bytes=self._collect_bytes,
            )
        except PySparkException as error:
            raise PipelineError(f"select of sink '{sink.name}': {spark_message(error)}") from error
        except Py4JJavaError as error:  # Reading a file has errors that PySpark has no class for.
            raise PipelineError(f"select of sink '{sink.name}': {java_message(error)}") from error
        self._computed.append(computed)
        forecast.learn(reads, computed.bytes)
        return computed.rows(sink.name)

    def _show(self, tables: Mapping[str, TableImage], session: Any) -> None:
        """Make the pinned versions visible under the tables' names; they stay cached until another one comes."""
        for name, image in tables.items():
            folder, frame = self._shown.get(name, (None, None))
            if folder == image.folder:
                continue
            if frame is not None:
                frame.unpersist()
            frame = read_table(session, name, image).persist()
            frame.createOrReplaceTempView(name)
            self._shown[name] = (image.folder, frame)

    def release(self) -> None:
        """Let the rows of an epoch go."""
        for computed in self._computed:
            computed.release()
        self._computed = []


def _columns(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
