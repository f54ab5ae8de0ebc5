"""From the messages of logical decoding to rows: one for each change of the table, some thousand in a batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.change_rows import row_schema
from holdfast.connectors.extras import pa
from holdfast.connectors.postgres_cdc.messages import (
    UNCHANGED,
    Begin,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
    Value,
    parse,
)
from holdfast.connectors.postgres_cdc.positions import sortable_lsn
from holdfast.connectors.postgres_cdc.table import CdcTable, Types
from holdfast.connectors.postgres_cdc.values import column_of, holds
from holdfast.errors import SourceError

_MOST_ROWS = 5000
_MOST_BYTES = 8 << 20

Image = list[Value] | None
"""A row in the order of its relation; None where there is none."""


@dataclass(frozen=True)
class Catalog:
    """What the server knows of a table beside its log."""

    types: Callable[[Set[tuple[int, int]]], Types]
    """The Arrow types for types and modifiers."""
    columns: Callable[[], set[str]]
    """The columns that the table has now."""


@dataclass(frozen=True)
class _Layout:
    """Where the columns to read stand in the rows of one form of the table."""

    relation: Relation
    places: tuple[int | None, ...]


@dataclass(frozen=True)
class _Transaction:
    """What all rows of a transaction have in common."""

    position: str
    name: str
    committed_at: int


class ChangeRows:
    """Makes batches of rows out of messages that tell of one table only."""

    def __init__(self, table: CdcTable, columns: Any, catalog: Catalog, *, only_these: bool) -> None:
        """Read `columns` (a `pyarrow.Schema`); unless `only_these` are wanted, a column that is new is an error."""
        self._table, self._columns, self._catalog, self._only_these = table, columns, catalog, only_these
        self._schema = row_schema(columns)
        self._layout: _Layout | None = None
        self._transaction: _Transaction
        self._next = 0
        self._rows: list[tuple[str, _Transaction, int, Image, Image, tuple[str, ...]]] = []
        self._bytes = 0

    def batches(self, messages: Iterable[bytes]) -> Iterator[Any]:
        """Yield the rows as `pyarrow.RecordBatch`."""
        for data in messages:
            message = parse(data)
            if isinstance(message, Begin):
                position = sortable_lsn(message.commit_lsn)
                self._transaction = _Transaction(position, str(message.xid), message.committed_at)
                self._next = 0
            elif isinstance(message, Relation):
                if self._layout is None or self._layout.relation != message:
                    yield from self._flushed()
                    self._layout = self._layout_of(message)
            else:
                self._change(message)
                self._bytes += len(data)
                if len(self._rows) >= _MOST_ROWS or self._bytes >= _MOST_BYTES:
                    yield from self._flushed()
        yield from self._flushed()

    # Changes

    def _change(self, message: Message) -> None:
        if isinstance(message, Insert):
            self._add("insert", None, message.new)
        elif isinstance(message, Update):
            new, old, old_is_key = message.new, message.old, message.old_is_key
            unchanged = self._left_out(new, old, old_is_key) if UNCHANGED in new else ()
            self._add("update", old, self._completed(new, old, old_is_key), unchanged)
        elif isinstance(message, Delete):
            self._add("delete", message.old, None)
        elif isinstance(message, Truncate):
            self._add("truncate", None, None)

    def _left_out(self, new: list[Value], old: Image, old_is_key: bool) -> tuple[str, ...]:
        """Return the columns to read whose value was not sent and cannot be taken from the old row."""
        assert self._layout is not None
        names = zip(self._columns.names, self._layout.places, strict=True)
        return tuple(n for n, i in names if i is not None and self._value(new, i, old, old_is_key) is UNCHANGED)

    def _completed(self, new: list[Value], old: Image, old_is_key: bool) -> list[Value]:
        """Return a row in which what was not sent is taken from the old row, or NULL."""
        if UNCHANGED not in new:
            return new
        values = (self._value(new, i, old, old_is_key) for i in range(len(new)))
        return [None if value is UNCHANGED else value for value in values]

    def _value(self, new: list[Value], place: int, old: Image, old_is_key: bool) -> Value:
        value = new[place]
        assert self._layout is not None
        if value is UNCHANGED and old is not None:
            known = not old_is_key or self._layout.relation.columns[place].in_key
            return old[place] if known else UNCHANGED
        return value

    # Rows

    def _add(self, op: str, before: Image, after: Image, unchanged: tuple[str, ...] = ()) -> None:
        self._rows.append((op, self._transaction, self._next, before, after, unchanged))
        self._next += 1

    def _flushed(self) -> Iterator[Any]:
        if not self._rows:
            return
        ops, transactions, numbers, befores, afters, unchanged = zip(*self._rows, strict=True)
        values = {
            "op": ops,
            "position": [transaction.position for transaction in transactions],
            "seq": numbers,
            "transaction": [transaction.name for transaction in transactions],
            "committed_at": [transaction.committed_at for transaction in transactions],
            "before": self._images(befores),
            "after": self._images(afters),
            "unchanged": unchanged,
        }
        arrays = [
            values[field.name] if field.name in ("before", "after") else pa.array(values[field.name], field.type)
            for field in self._schema
        ]
        self._rows, self._bytes = [], 0
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _images(self, rows: Sequence[Image]) -> Any:
        assert self._layout is not None
        absent: list[Value] = [None] * len(self._layout.relation.columns)
        by_column = list(zip(*(absent if row is None else row for row in rows), strict=True))
        arrays = [
            pa.nulls(len(rows), field.type) if place is None else column_of(by_column[place], field.type, field.name)
            for field, place in zip(self._columns, self._layout.places, strict=True)
        ]
        missing = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self._columns), mask=missing)

    # The table's form

    def _layout_of(self, relation: Relation) -> _Layout:
        """Return where our columns stand in the table's rows; refuse rows that do not fit them."""
        places = {column.name: place for place, column in enumerate(relation.columns)}
        if not self._only_these:
            self._refuse_added([name for name in places if name not in self._columns.names])
        self._refuse_dropped([name for name in self._columns.names if name not in places])
        self._refuse_retyped(relation)
        return _Layout(relation, tuple(places.get(name) for name in self._columns.names))

    def _refuse_added(self, unknown: Sequence[str]) -> None:
        """Tell columns that are new from those that the table had once: a pipeline that knows neither goes on."""
        added = sorted(set(unknown) & self._catalog.columns()) if unknown else []
        if added:
            raise SourceError(
                f"column '{added[0]}' was added to table {self._table.sql}: start the pipeline again, and it is read "
                "from here on (NULL in the rows before); or name the columns to read with columns"
            )

    def _refuse_retyped(self, relation: Relation) -> None:
        types = self._catalog.types({(column.type, column.modifier) for column in relation.columns})
        for column in relation.columns:
            was = types[column.type, column.modifier]
            wanted = self._columns.field(column.name).type if column.name in self._columns.names else was
            if not holds(wanted, was):
                raise SourceError(
                    f"column '{column.name}' of table {self._table.sql} is {was} in the log and read as {wanted}: "
                    "if it was changed just now, start the pipeline again; if its older values do not fit any more, "
                    "read it as text (as_text), or start over with --fresh"
                )

    def _refuse_dropped(self, missing: Sequence[str]) -> None:
        """Tell columns that the table does not have any more from those that it got later than this."""
        gone = sorted(set(missing) - self._catalog.columns()) if missing else []
        if gone:
            raise SourceError(
                f"column '{gone[0]}' was dropped from table {self._table.sql}: start the pipeline again to go on "
                "without it"
            )
