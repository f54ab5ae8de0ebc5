"""Rows of changes as Arrow batches of a bounded size, given out only once their transaction is known to have ended.

What is larger than a batch while its transaction is still open waits in a file.
"""

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.connectors.change_rows import row_schema
from holdfast.connectors.extras import arrow_ipc, pa
from holdfast.connectors.mysql_cdc.rows import Image, RowDecoder
from holdfast.connectors.mysql_cdc.transactions import Change, Transaction
from holdfast.errors import SourceError

MOST_ROWS = 5000
MOST_BYTES = 8 << 20
_MICROSECONDS = 1_000_000

Row = tuple[str, str, int, str, int, Image, Image]
"""Operation, position, number in the transaction, transaction, commit time in microseconds, before, after."""


class ChangeBatches:
    """Collects the rows of one range."""

    def __init__(self, columns: Any) -> None:
        """Make rows with `columns` (a `pyarrow.Schema`), the table's."""
        self._columns, self._schema = columns, row_schema(columns)
        self._final: list[Row] = []
        self._open: list[Row] = []
        self._final_bytes = self._open_bytes = 0
        self._transaction: Transaction | None = None
        self._seq = 0
        self._waiting: _WaitingBatches | None = None

    def add(self, change: Change, decoder: RowDecoder) -> Iterator[Any]:
        """Take rows of a transaction that is still open; yield what is final and must make room."""
        transaction = change.transaction
        if transaction is not self._transaction:
            self._transaction, self._seq = transaction, 0
        at, name = transaction.begin.sortable, transaction.name
        committed = transaction.timestamp * _MICROSECONDS
        for before, after in decoder.images(change):
            self._open.append((change.operation, at, self._seq, name, committed, before, after))
            self._seq += 1
        self._open_bytes += 0 if change.rows is None else len(change.rows.data)
        if len(self._open) >= MOST_ROWS or self._open_bytes >= MOST_BYTES:
            yield from self._set_aside()

    def end_transaction(self) -> Iterator[Any]:
        """Make all rows final; yield those that fill a batch."""
        if self._waiting is not None:
            yield from self._waiting.taken()
            self._waiting = None
        if self._open:
            self._final += self._open
            self._final_bytes += self._open_bytes
            self._open, self._open_bytes = [], 0
        if len(self._final) >= MOST_ROWS or self._final_bytes >= MOST_BYTES:
            yield from self.rest()

    def abandon_transaction(self) -> None:
        """Let go of the rows of the open transaction: it did not end, or is read again."""
        if self._waiting is not None:
            self._waiting.close()
        self._open, self._open_bytes, self._waiting, self._transaction = [], 0, None, None

    def rest(self) -> Iterator[Any]:
        """Yield all final rows."""
        rows, self._final, self._final_bytes = self._final, [], 0
        yield from self._batches(rows)

    def _set_aside(self) -> Iterator[Any]:
        yield from self.rest()
        if self._waiting is None:
            self._waiting = _WaitingBatches(self._schema)
        for batch in self._batches(self._open):
            self._waiting.put(batch)
        self._open, self._open_bytes = [], 0

    def _batches(self, rows: list[Row]) -> Iterator[Any]:
        for first in range(0, len(rows), MOST_ROWS):
            yield self._batch(rows[first : first + MOST_ROWS])

    def _batch(self, rows: list[Row]) -> Any:
        *plain, befores, afters = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(plain, self._schema, strict=False)]
        unchanged = pa.repeat(pa.scalar([], self._schema.field("unchanged").type), len(rows))
        images = [images_of(self._columns, befores), images_of(self._columns, afters)]
        return pa.RecordBatch.from_arrays([*arrays, *images, unchanged], schema=self._schema)


def images_of(columns: Any, rows: Iterable[Image]) -> Any:
    """Return rows as an array of structs, NULL where there is no row."""
    rows = list(rows)
    absent = [None] * len(columns)
    by_column = zip(*(absent if row is None else row for row in rows), strict=True)
    arrays = [_array(field, values) for field, values in zip(columns, by_column, strict=True)]
    missing = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=list(columns), mask=missing)


def _array(field: Any, values: Any) -> Any:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise SourceError(
            f"column '{field.name}' has a value that does not fit {field.type}: {error}; if its type was changed, "
            "start over with --fresh"
        ) from error


class _WaitingBatches:
    """Batches in a temporary file."""

    def __init__(self, schema: Any) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._writer = arrow_ipc.new_stream(self._file, schema)

    def put(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def taken(self) -> Iterator[Any]:
        self._writer.close()
        self._file.seek(0)
        with self._file, arrow_ipc.open_stream(self._file) as batches:
            yield from batches

    def close(self) -> None:
        self._writer.close()
        self._file.close()
