"""From the bytes of rows events to values of the columns that are read, whatever form the table had then."""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from holdfast.connectors.extras import pa
from holdfast.connectors.mysql_cdc.address import TableName
from holdfast.connectors.mysql_cdc.charsets import Charsets
from holdfast.connectors.mysql_cdc.columns import column_names
from holdfast.connectors.mysql_cdc.events import RowsBody
from holdfast.connectors.mysql_cdc.session import Session
from holdfast.connectors.mysql_cdc.table_map import LoggedColumn, LoggedTable
from holdfast.connectors.mysql_cdc.transactions import Change
from holdfast.connectors.mysql_cdc.values import Decoder, Kind, TextDecoder, decoder
from holdfast.errors import SourceError

Image = list[Any] | None
"""A row in the order of the columns that are read; None where there is none."""
_LARGEST_BIT_BYTES = 8


class RowDecoder:
    """Reads rows of one table. What it needs to know of the server is asked when it is needed."""

    def __init__(self, session: Session, table: TableName, columns: Any, *, only_these: bool) -> None:
        """Read `columns` (a `pyarrow.Schema`); unless `only_these` are wanted, a column that is new is an error."""
        self._session, self._table, self._columns, self._only_these = session, table, columns, only_these
        self._charsets = Charsets(session)
        self._layouts: dict[LoggedTable, _Layout] = {}

    def images(self, change: Change) -> Iterator[tuple[Image, Image]]:
        """Yield each row before and after a change; a change without rows is one without images."""
        if change.table is None or change.rows is None:
            return iter([(None, None)])
        return self._rows(change.table, change.rows)

    def _rows(self, table: LoggedTable, body: RowsBody) -> Iterator[tuple[Image, Image]]:
        layout = self._layout(table)
        if any(int.from_bytes(present, "little") & layout.every != layout.every for present in body.present):
            raise SourceError(
                f"rows of {self._table} were logged in part: binlog_row_image must be FULL in every session"
            )
        try:
            yield from _pairs(body.operation, layout.images(body.data))
        except (ValueError, LookupError, struct.error) as error:
            raise SourceError(f"a row of {self._table} in the binary log cannot be read: {error}") from error

    def _layout(self, table: LoggedTable) -> "_Layout":
        if table not in self._layouts:
            self._check(table)
            names = [column.name for column in table.columns]
            read = [column for column in table.columns if column.name in self._columns.names]
            texts = self._charsets.decoders(column.collation for column in read)
            decoders = [self._decoder(column, texts.get(column.collation)) for column in table.columns]
            places = [names.index(name) if name in names else None for name in self._columns.names]
            self._layouts[table] = _Layout(decoders, places)
        return self._layouts[table]

    def _check(self, table: LoggedTable) -> None:
        """Refuse a form of the table that cannot be read as the columns; those it got later are NULL before."""
        if len(table.columns) != table.width:
            raise SourceError(
                f"rows of {self._table} were logged without their columns' names: binlog_row_metadata must be FULL, "
                "and was not; start over with --fresh"
            )
        logged, read = [column.name for column in table.columns], self._columns.names
        unknown = [] if self._only_these else [name for name in logged if name not in read]
        missing = [name for name in read if name not in logged]
        if not unknown and not missing:
            return
        now = column_names(self._session, self._table)
        if unknown and missing:
            old, new = (missing[0], unknown[0]) if unknown[0] in now else (unknown[0], missing[0])
            raise SourceError(
                f"table {self._table} had a column '{old}' and has '{new}' now: if it was renamed, its older values "
                "would be lost; start over with --fresh"
            )
        if added := [name for name in unknown if name in now]:
            raise SourceError(
                f"column '{added[0]}' was added to table {self._table}: start the pipeline again, and it is read "
                "from here on (NULL in the rows before); or name the columns to read with columns"
            )
        if dropped := [name for name in missing if name not in now]:
            raise SourceError(
                f"column '{dropped[0]}' was dropped from table {self._table}: start the pipeline again to go on "
                "without it"
            )

    def _decoder(self, column: LoggedColumn, text: TextDecoder | None) -> Decoder:
        if column.name not in self._columns.names:
            return decoder(column, None)[1]
        kind, read = decoder(column, text)
        wanted = self._columns.field(column.name).type
        if not _fits(kind, wanted):
            raise SourceError(
                f"column '{column.name}' of table {self._table} is {kind.value} in the log and read as {wanted}: if "
                "that was changed just now, start the pipeline again; if older values do not fit, start over with "
                "--fresh"
            )
        return _converted(read, kind, wanted)


def _pairs(operation: str, images: Iterator[list[Any]]) -> Iterator[tuple[Image, Image]]:
    match operation:
        case "insert":
            return ((None, image) for image in images)
        case "delete":
            return ((image, None) for image in images)
    return zip(images, images, strict=True)


def _fits(kind: Kind, type_: Any) -> bool:
    is_ = pa.types
    match kind:
        case Kind.INTEGER:
            return bool(is_.is_signed_integer(type_) or is_.is_decimal(type_))
        case Kind.DECIMAL:
            return bool(is_.is_decimal(type_) or is_.is_string(type_))
        case Kind.FLOAT:
            return bool(is_.is_floating(type_))
        case Kind.DOUBLE:
            return bool(is_.is_float64(type_))
        case Kind.TEXT | Kind.TIME:
            return bool(is_.is_string(type_))
        case Kind.BINARY:
            return bool(is_.is_binary(type_))
        case Kind.BIT:
            return bool(is_.is_int64(type_) or is_.is_binary(type_))
        case Kind.DATE:
            return bool(is_.is_date32(type_))
    with_zone = kind is Kind.TIMESTAMP
    return bool(is_.is_timestamp(type_) and (type_.tz is not None) == with_zone)


def _converted(read: Decoder, kind: Kind, type_: Any) -> Decoder:
    """Return the decoder for the two types whose values go where the natural ones do not."""
    convert: Callable[[Any], Any]
    if kind is Kind.DECIMAL and pa.types.is_string(type_):
        convert = "{:f}".format
    elif kind is Kind.BIT and pa.types.is_binary(type_):
        convert = lambda bits: bits.to_bytes(_LARGEST_BIT_BYTES, "big")  # noqa: E731
    else:
        return read

    def converted(data: bytes, at: int) -> tuple[Any, int]:
        value, end = read(data, at)
        return convert(value), end

    return converted


class _Layout:
    """How the rows of one form of a table are read."""

    def __init__(self, decoders: Sequence[Decoder], places: Sequence[int | None]) -> None:
        self._decoders, self._places = decoders, places
        self._as_they_stand = list(places) == list(range(len(decoders)))
        self._null_bytes = (len(decoders) + 7) // 8
        self.every = (1 << len(decoders)) - 1
        """A bit for each column."""

    def images(self, data: bytes) -> Iterator[list[Any]]:
        at, end = 0, len(data)
        while at < end:
            nulls = int.from_bytes(data[at : at + self._null_bytes], "little")
            at += self._null_bytes
            values: list[Any] = []
            for read in self._decoders:
                if nulls & 1:
                    values.append(None)
                else:
                    value, at = read(data, at)
                    values.append(value)
                nulls >>= 1
            yield values if self._as_they_stand else self._arranged(values)

    def _arranged(self, values: list[Any]) -> list[Any]:
        return [None if place is None else values[place] for place in self._places]
