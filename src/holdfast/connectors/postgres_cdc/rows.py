"""From the messages of logical decoding to rows: one for each change of the table, some thousand in a batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.change_rows import row_schema
from holdfast.connectors.extras import np, pa
from holdfast.connectors.postgres_cdc.images import DELETE, INSERT, TRUNCATE, UPDATE, Column, RowMessages, not_sent
from holdfast.connectors.postgres_cdc.messages import Begin, Relation, parse
from holdfast.connectors.postgres_cdc.positions import sortable_lsn
from holdfast.connectors.postgres_cdc.table import Attribute, CdcTable, Types
from holdfast.connectors.postgres_cdc.values import column_of, holds
from holdfast.errors import SourceError

_MOST_ROWS = 5000
_MOST_BYTES = 8 << 20
_OPERATIONS = {INSERT: "insert", UPDATE: "update", DELETE: "delete", TRUNCATE: "truncate"}


@dataclass(frozen=True)
class Catalog:
    """What the server knows of a table beside its log."""

    types: Callable[[Set[tuple[int, int]]], Types]
    """The Arrow types for types and modifiers."""
    attributes: Callable[[], list[Attribute]]
    """The columns that the table has now, and those that were dropped."""

    def columns(self) -> set[str]:
        """Return the names of the columns that the table has now."""
        return {found.name for found in self.attributes() if found.name is not None and not found.is_computed}


@dataclass(frozen=True)
class _Layout:
    """Where the columns to read stand in the rows of one form of the table."""

    relation: Relation
    places: tuple[int | None, ...]


@dataclass
class _Transaction:
    """What rows of a transaction have in common, and how many of them are in this batch, from which number on."""

    position: str
    name: str
    committed_at: int
    first: int = 0
    rows: int = 0

    def rest(self) -> "_Transaction":
        """Return what the next batch has of it."""
        return _Transaction(self.position, self.name, self.committed_at, self.first + self.rows)


class ChangeRows:
    """Makes batches of rows out of messages that tell of one table only."""

    def __init__(self, table: CdcTable, columns: Any, catalog: Catalog, *, only_these: bool) -> None:
        """Read `columns` (a `pyarrow.Schema`); unless `only_these` are wanted, a column that is new is an error."""
        self._table, self._columns, self._catalog, self._only_these = table, columns, catalog, only_these
        self._schema = row_schema(columns)
        self._layout: _Layout | None = None
        self._transactions: list[_Transaction] = []
        self._messages: list[bytes] = []
        self._bytes = 0

    def batches(self, messages: Iterable[bytes]) -> Iterator[Any]:
        """Yield the rows as `pyarrow.RecordBatch`."""
        for data in messages:
            if data[0] in _OPERATIONS:
                self._messages.append(data)
                self._transactions[-1].rows += 1
                self._bytes += len(data)
                if len(self._messages) >= _MOST_ROWS or self._bytes >= _MOST_BYTES:
                    yield self._flushed()
                continue
            message = parse(data)
            if isinstance(message, Begin):
                position = sortable_lsn(message.commit_lsn)
                self._transactions.append(_Transaction(position, str(message.xid), message.committed_at))
            elif isinstance(message, Relation) and (self._layout is None or self._layout.relation != message):
                if self._messages:
                    yield self._flushed()
                self._layout = self._layout_of(message)
        if self._messages:
            yield self._flushed()

    def _flushed(self) -> Any:
        """Return the rows so far; what is to come of their last transaction is counted on."""
        assert self._layout is not None
        messages = RowMessages(self._messages, len(self._layout.relation.columns))
        transactions = [transaction for transaction in self._transactions if transaction.rows]
        self._transactions = [self._transactions[-1].rest()]
        self._messages, self._bytes = [], 0
        after = [None if place is None else messages.completed(place) for place in self._layout.places]
        before = [None if place is None else messages.before.columns[place] for place in self._layout.places]
        arrays = {
            **_in_common(transactions),
            "op": _operations(messages.kinds),
            "before": self._images(messages, before, messages.before.present),
            "after": self._images(messages, after, messages.after.present),
            "unchanged": self._unchanged(after, len(messages.kinds)),
        }
        columns = [arrays[field.name].cast(field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _images(self, messages: RowMessages, columns: Sequence[Column | None], present: Any) -> Any:
        arrays = [
            pa.nulls(len(present), field.type)
            if column is None
            else column_of(messages.texts(column), field.type, field.name)
            for field, column in zip(self._columns, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self._columns), mask=pa.array(~present))

    def _unchanged(self, columns: Sequence[Column | None], rows: int) -> Any:
        """Return, for each row, the names of the columns that are NULL in it only because they were not sent."""
        missing = np.zeros((rows, len(columns)), bool)
        for place, column in enumerate(columns):
            if column is not None:
                missing[:, place] = not_sent(column)
        row, place = np.nonzero(missing)
        ends = np.searchsorted(row, np.arange(rows + 1)).astype(np.int32)
        names = pa.array(self._columns.names, pa.string()).take(pa.array(place))
        return pa.ListArray.from_arrays(pa.array(ends), names)

    # The table's form

    def _layout_of(self, relation: Relation) -> _Layout:
        """Return where our columns stand in the table's rows; refuse rows that do not fit them."""
        places = {column.name: place for place, column in enumerate(relation.columns)}
        if not self._only_these:
            self._refuse_added([name for name in places if name not in self._columns.names])
        missing = [name for name in self._columns.names if name not in places]
        self._refuse_dropped(missing)
        self._refuse_renamed(missing, relation)
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

    def _refuse_renamed(self, missing: Sequence[str], relation: Relation) -> None:
        """Refuse rows that may have a column under an earlier name: it would be NULL in them.

        A column that was there already is before others of these rows, or there are more columns than places before
        its own. Where neither tells, one of its type that is gone may have been it.
        """
        if not missing:
            return
        attributes = self._catalog.attributes()
        places = {found.name: place for place, found in enumerate(attributes) if found.name is not None}
        last = max([len(relation.columns) - 1, *(places.get(column.name, 0) for column in relation.columns)])
        gone = {(column.type, column.modifier) for column in relation.columns if column.name not in places}
        for name in places.keys() & set(missing):
            column = attributes[places[name]]
            if places[name] <= last or (column.type, column.modifier) in gone:
                raise SourceError(
                    f"column '{name}' of table {self._table.sql} is not in rows that come next, and it may "
                    "have had another name then (ALTER TABLE ... RENAME COLUMN): its values would be lost. "
                    "Start over with --fresh"
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


def _in_common(transactions: Sequence[_Transaction]) -> dict[str, Any]:
    """Return what the rows of each transaction have in common, once for each of its rows, and their numbers."""
    rows = np.array([transaction.rows for transaction in transactions])
    of = np.repeat(np.arange(len(transactions)), rows)
    shift = np.array([transaction.first for transaction in transactions]) - (np.cumsum(rows) - rows)
    return {
        "position": pa.array([transaction.position for transaction in transactions]).take(pa.array(of)),
        "transaction": pa.array([transaction.name for transaction in transactions]).take(pa.array(of)),
        "committed_at": pa.array([transaction.committed_at for transaction in transactions]).take(pa.array(of)),
        "seq": pa.array(np.arange(len(of)) + shift[of]),
    }


def _operations(kinds: Any) -> Any:
    names = [_OPERATIONS.get(kind) for kind in range(256)]
    return pa.array(names, pa.string()).take(pa.array(kinds))
