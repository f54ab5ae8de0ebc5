"""Large epochs: Spark's tasks copy their partitions into a staging table, all at once.

A task may run twice (a retry, or speculation beside a slow one) and must not double its rows. Each run is one
transaction that first marks its partition: of two runs the second waits for the first, then finds the mark and copies
nothing, or, if the first was rolled back, copies in its place. Errors come back as rows, so that the kind of an error
is known here and Spark does not repeat what cannot succeed.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.extras import pa, pyspark
from holdfast.connectors.postgres.address import Address
from holdfast.connectors.postgres.columns import Wire, encoded
from holdfast.connectors.postgres.errors import ServerError
from holdfast.connectors.postgres.session import Session, Transaction
from holdfast.connectors.postgres.staging import PARTS
from holdfast.connectors.sql_statements import quoted
from holdfast.errors import RetryableSinkError, SinkError

_FAILURE = "message string, may_pass boolean"


@dataclass(frozen=True)
class PartitionCopy:
    """What every task is given: where to copy, and how."""

    address: Address
    statement_seconds: float
    schema: str
    table: str
    rows: Any
    """The rows' `pyarrow.Schema`."""
    wires: Sequence[Wire]

    def task(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Copy the partition of the task that calls this; what goes wrong is its only row."""
        try:
            self.run(pyspark.TaskContext.get().partitionId(), batches)
        except SinkError as error:
            may_pass = isinstance(error, RetryableSinkError)
            yield pa.RecordBatch.from_pydict({"message": [str(error)], "may_pass": [may_pass]})

    def run(self, part: int, batches: Iterator[Any]) -> None:
        """Copy one partition, once."""
        first = next(batches, None)
        if first is None:
            return
        # A second run of the task waits for the first, however long that takes.
        session = Session(self.address, self.statement_seconds, lock_seconds=self.statement_seconds)
        with contextlib.closing(session), session.transaction() as connection:
            if connection.run(self._mark(), self.table, part):
                self._copy(connection, itertools.chain([first], batches))

    def _mark(self) -> str:
        table = f"{quoted(self.schema)}.{quoted(PARTS)}"
        return f"INSERT INTO {table} (staged, part) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING part"

    def _copy(self, connection: Transaction, batches: Iterator[Any]) -> None:
        """Copy a stream: a partition is never in memory as a whole."""
        refused: list[SinkError] = []

        def forms() -> Iterator[Any]:
            try:
                for batch in batches:
                    yield from encoded(pa.Table.from_batches([batch]), self.rows, self.wires).to_batches()
            except SinkError as error:
                refused.append(error)
                raise

        form = encoded(self.rows.empty_table(), self.rows, self.wires).schema
        try:
            connection.copy(self.schema, self.table, pa.RecordBatchReader.from_batches(form, forms()))
        except ServerError as error:
            # The driver only says that the stream broke off.
            raise (refused or [error])[0] from error


def copy_with_spark(dataframe: Any, copy: PartitionCopy) -> None:
    """Have Spark's tasks copy a cached DataFrame; raise what any of them met."""
    failures = dataframe.mapInArrow(copy.task, _FAILURE).collect()
    if failures:
        lasting = [failure for failure in failures if not failure.may_pass]
        raise (SinkError if lasting else RetryableSinkError)((lasting or failures)[0].message)
