"""The rows of one epoch: computed once, then cut into what each output gets."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

OUTPUT_COLUMN = "_holdfast_output"
SMALL_ROWS = 20_000


class ArrowRows:
    """Rows that are in this process."""

    small = True

    def __init__(self, table: pa.Table, frame: DataFrame) -> None:
        self._table = table
        self._frame = frame

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def arrow(self) -> Any:
        """Return the table."""
        return self._table

    def dataframe(self) -> Any:
        """Return the same rows as Spark has them cached."""
        return self._frame


class SparkRows:
    """Rows that stay with Spark."""

    small = False

    def __init__(self, frame: DataFrame, count: int) -> None:
        self._frame = frame
        self.count = count

    def arrow(self) -> Any:
        """Collect the rows."""
        return self._frame.toArrow()

    def dataframe(self) -> Any:
        """Return the cached rows."""
        return self._frame


class ComputedBatch:
    """A batch that was computed exactly once, whatever is done with it afterwards.

    A second evaluation would commit Spark's state twice, so the batch is cached and consumed whole by its first
    action. When the batches before were small, that first action also brings the rows here.
    """

    def __init__(self, frame: DataFrame, outputs: list[str], *, expect_small: bool) -> None:
        self._frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._outputs = outputs
        self._table: pa.Table | None = None
        if expect_small:
            self._table = self._frame.toArrow()
            self._counts = _count_arrow(self._table, outputs)
        else:
            self._frame.write.format("noop").mode("overwrite").save()
            self._counts = _count_cached(self._frame, outputs)
            if sum(self._counts.values()) <= SMALL_ROWS:
                self._table = self._frame.toArrow()

    @property
    def total(self) -> int:
        """How many rows all outputs have together."""
        return sum(self._counts.values())

    def rows(self, output: str) -> ArrowRows | SparkRows | None:
        """Return the rows of one output, None when it has none."""
        count = self._counts[output]
        if count == 0:
            return None
        frame = _split(self._frame, output, len(self._outputs))
        if self._table is None:
            return SparkRows(frame, count)
        return ArrowRows(_split_arrow(self._table, output, len(self._outputs)), frame)

    def release(self) -> None:
        """Let the cached rows go."""
        self._frame.unpersist()


def _count_arrow(table: pa.Table, outputs: list[str]) -> dict[str, int]:
    if len(outputs) == 1:
        return {outputs[0]: table.num_rows}
    found = {entry["values"]: entry["counts"] for entry in pc.value_counts(table[OUTPUT_COLUMN]).to_pylist()}
    return {output: found.get(output, 0) for output in outputs}


def _count_cached(frame: DataFrame, outputs: list[str]) -> dict[str, int]:
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
            columns.append(F.struct(*[F.col(f"`{column}`") for column in frame.columns]).alias(other))
        else:
            columns.append(F.lit(None).cast(frame.schema).alias(other))
    return views[name].select(*columns)
