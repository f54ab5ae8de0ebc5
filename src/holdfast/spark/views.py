"""Sources and views of a pipeline as streaming DataFrames."""

import inspect
from collections.abc import Collection, Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.core.sources import SourceSpec
from holdfast.core.spelling import Names
from holdfast.errors import PipelineDefinitionError
from holdfast.spark.definition import Definition, SourceDefinition, ViewDefinition
from holdfast.spark.failures import error_in
from holdfast.spark.session import brought_over


def read_sources(
    definition: Definition, spark: SparkSession, starts: Mapping[str, Mapping[str, str]]
) -> dict[str, DataFrame]:
    """Return every source as a stream. `starts` say where sources begin that never ran."""
    return {name: _read(spark, source, starts.get(name, {})) for name, source in definition.sources.items()}


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


def evaluate_views(definition: Definition, spark: SparkSession, sources: Mapping[str, DataFrame]) -> Names[DataFrame]:
    """Return every source and view as a DataFrame."""
    for name in definition.tables:
        spark.catalog.dropTempView(name)  # Whatever has that name in the session, a view does not mean it.
    frames: Names[DataFrame] = Names()
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
                said = _first_line(error).lower()
                _refuse_tables(name, [table for table in definition.tables if f"`{table.lower()}`" in said])
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


def _first_line(error: PySparkException) -> str:
    return str(error).strip().split("\n", 1)[0]
