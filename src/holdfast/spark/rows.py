"""The rows of one epoch: computed once, then cut into what each output gets."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

OUTPUT_COLUMN = "_holdfast_output"
COLLECT_BYTES = 256 * 1024 * 1024
"""What is brought into this process unless told otherwise: up to here, its writers are quicker than Spark's."""
_HEADROOM = 4
"""How much larger than expected a batch may be, without surprise."""
_SAMPLE_ROWS = 1000
_NULLABLE = ("nullable", "containsNull", "valueContainsNull")
"""What Spark's types say of NULL."""


class ArrowRows:
    """Rows that are in this process."""

    small = True

    def __init__(self, table: pa.Table, schema: StructType, session: SparkSession) -> None:
        self._table, self._schema, self._session = table, schema, session

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def arrow(self) -> Any:
        """Return the table."""
        return self._table

    def dataframe(self) -> Any:
        """Give the rows back to Spark."""
        return self._session.createDataFrame(self._table, self._schema)


class SparkRows:
    """Rows that stay with Spark."""

    small = False

    def __init__(self, frame: DataFrame, count: int) -> None:
        self._frame = frame
        self.count = count

    def arrow(self) -> Any:
        """Collect the rows."""
        return _collected(self._frame)

    def dataframe(self) -> Any:
        """Return the cached rows."""
        return self._frame


class ComputedBatch:
    """A batch that was computed exactly once, whatever is done with it afterwards.

    A second evaluation would commit Spark's state twice. So the batch is either brought here by its only action,
    when it is expected to be small, or cached and consumed whole by its first action.
    """

    def __init__(
        self,
        frame: DataFrame,
        outputs: dict[str, StructType],
        *,
        expected_bytes: float | None,
        collect_bytes: int,
    ) -> None:
        self._frame = frame
        self._outputs = outputs
        self._table: pa.Table | None = None
        self._cached = expected_bytes is None or expected_bytes * _HEADROOM > collect_bytes
        self.bytes: int
        """How large it is, or about how large if it was too much to bring here."""
        if self._cached:
            frame.persist(StorageLevel.MEMORY_AND_DISK)
            self._counts = _count_cached(frame, list(outputs))
            self.bytes = _estimated_bytes(frame, sum(self._counts.values()))
            if self.bytes <= collect_bytes:
                self._table = _collected(frame)
        else:
            self._table = _collected(frame)
            self._counts = _count_arrow(self._table, list(outputs))
            self.bytes = int(self._table.nbytes)

    def rows(self, output: str) -> ArrowRows | SparkRows | None:
        """Return the rows of one output, None when it has none."""
        count = self._counts[output]
        if count == 0:
            return None
        if self._table is None:
            return SparkRows(_split(self._frame, output, len(self._outputs)), count)
        mine = _split_arrow(self._table, output, len(self._outputs))
        return ArrowRows(mine, self._outputs[output], self._frame.sparkSession)

    def release(self) -> None:
        """Let cached rows go."""
        if self._cached:
            self._frame.unpersist()


def _collected(frame: DataFrame) -> pa.Table:
    """Bring rows here, as `toArrow` does, which fails on what Spark says is never NULL.

    Where a struct is NULL its fields are too. To have Spark itself say so costs a projection in every epoch.
    """
    collect: Any = frame._collect_as_arrow
    nullable = StructType.fromJson(json.loads(frame.schema.json(), object_hook=_nullable))
    types = to_arrow_schema(nullable, timezone="UTC", error_on_duplicated_field_names_in_struct=True)
    return pa.Table.from_batches(collect(empty_list_if_zero_records=False)).cast(types)


def _nullable(type_: dict[str, Any]) -> dict[str, Any]:
    return {key: True if key in _NULLABLE else value for key, value in type_.items()}


def without_stale_order(frame: DataFrame) -> DataFrame:
    """Return the batch without the order Spark says it has.

    After a sort aggregate (the maximum of a text) Spark 4.3 hands us a batch that claims to be ordered by a column
    of the plan it came from, and caching such a batch fails.
    """
    plan = frame._jdf.queryExecution().analyzed()
    if plan.outputOrdering().isEmpty():
        return frame
    session = frame.sparkSession
    rows = session._jsparkSession.internalCreateDataFrame(plan.rdd(), frame._jdf.schema(), False)
    return DataFrame(rows, session)


def _count_arrow(table: pa.Table, outputs: list[str]) -> dict[str, int]:
    if len(outputs) == 1:
        return {outputs[0]: table.num_rows}
    found = {entry["values"]: entry["counts"] for entry in pc.value_counts(table[OUTPUT_COLUMN]).to_pylist()}
    return {output: found.get(output, 0) for output in outputs}


def _estimated_bytes(frame: DataFrame, rows: int) -> int:
    """Return about how large cached rows would be here, judged by the first of them."""
    if rows == 0:
        return 0
    sample = _collected(frame.limit(_SAMPLE_ROWS))
    return int(sample.nbytes * rows / max(sample.num_rows, 1))


def _count_cached(frame: DataFrame, outputs: list[str]) -> dict[str, int]:
    """Count the rows of each output. Every partition is computed and cached whole before its rows are counted."""
    if len(outputs) == 1:
        return {outputs[0]: frame.count()}
    found = {row[0]: row[1] for row in frame.groupBy(OUTPUT_COLUMN).count().collect()}
    return {output: found.get(output, 0) for output in outputs}


def _split(frame: DataFrame, output: str, outputs: int) -> DataFrame:
    if outputs == 1:
        return frame
    return frame.filter(F.col(OUTPUT_COLUMN) == output).select(f"`{output}`.*")


def _split_arrow(table: pa.Table, output: str, outputs: int) -> pa.Table:
    if outputs == 1:
        return table
    mine = table.filter(pc.equal(table[OUTPUT_COLUMN], output))
    column = mine[output].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return pa.Table.from_arrays(column.flatten(), schema=pa.schema(list(column.type)))


def tagged_union(views: dict[str, DataFrame]) -> DataFrame:
    """Unite several outputs into one streaming DataFrame: the output's name, and a struct column for each output."""
    if len(views) == 1:
        return next(iter(views.values()))
    branches = [_branch(name, views) for name in views]
    united = branches[0]
    for branch in branches[1:]:
        united = united.unionByName(branch)
    return united


def _branch(name: str, views: dict[str, DataFrame]) -> DataFrame:
    columns = [F.lit(name).alias(OUTPUT_COLUMN)]
    for other, frame in views.items():
        if other == name:
            columns.append(F.struct(*[F.col(_quoted(column)) for column in frame.columns]).alias(other))
        else:
            columns.append(F.lit(None).cast(frame.schema).alias(other))
    return views[name].select(*columns)


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"
