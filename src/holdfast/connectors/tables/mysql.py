"""A query on a MySQL or MariaDB database as a reference table, read in pieces."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.connectors.extras import pa, pymysql, pymysql_cursors
from holdfast.connectors.mysql_cdc.address import Address
from holdfast.connectors.mysql_cdc.session import WHOLE_ANSWERS, hang_up
from holdfast.connectors.tables.query import QueryTable
from holdfast.connectors.tables.rows import write_rows
from holdfast.errors import SourceError, SourceUnavailable

_BATCH_ROWS = 50_000
_BINARY = 63
"""The character set of bytes that are no text."""
_UNSIGNED = 32
_PASSING = {1040, 1053, 1203, 1205, 1213, 2002, 2003, 2006, 2013}
"""Too many connections, shutting down, lock waits and deadlocks, no connection or a lost one."""
_WIDEST_DECIMAL = 38


class MysqlTable(QueryTable):
    """The rows of one query."""

    connector = "mysql"

    def __init__(self, url: str, *, query: str, schema: str | None, statement_seconds: float) -> None:
        pymysql.require()
        super().__init__(query, schema)
        self._address = Address(url, "the mysql table")
        self._seconds = statement_seconds

    def _place(self) -> dict[str, object]:
        return {"server": self._address.server, "database": self._address.database}

    def _run(self, directory: str) -> None:
        with self._answering(), contextlib.ExitStack() as stack:
            connection = self._connect()
            stack.callback(hang_up, connection)
            cursor = connection.cursor()
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute("START TRANSACTION READ ONLY")
            cursor.execute(self._query)
            columns = [_Column(field) for field in cursor._result.fields]
            schema = pa.schema([(column.name, column.type) for column in columns])
            write_rows(schema, _batches(cursor, columns, schema), directory)

    def _connect(self) -> Any:
        time = pymysql.constants.FIELD_TYPE.TIME  # Which Python has no type for: it may be negative, or of many days.
        return pymysql.connect(
            **{**self._address.connection_settings(), "read_timeout": self._seconds},
            database=self._address.database or None,
            init_command=WHOLE_ANSWERS,
            cursorclass=pymysql_cursors.SSCursor,
            conv={kind: read for kind, read in pymysql.converters.conversions.items() if kind != time},
        )

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except pymysql.MySQLError as error:
            code, text = (*error.args, "", "")[:2]
            kind = SourceUnavailable if code in _PASSING else SourceError
            raise kind(f"MySQL {self._address.server}: {self._address.hide(str(text))} ({code})") from None


class _Column:
    """A column of the result: its Arrow type, and how the driver's values become values of it."""

    def __init__(self, field: Any) -> None:
        self.name: str = field.name
        kind = pymysql.constants.FIELD_TYPE
        unsigned, binary = bool(field.flags & _UNSIGNED), field.charsetnr == _BINARY
        self.convert: Callable[[Any], Any] = lambda value: value
        whole = {
            kind.TINY: pa.int16() if unsigned else pa.int8(),
            kind.SHORT: pa.int32() if unsigned else pa.int16(),
            kind.YEAR: pa.int16(),
            kind.INT24: pa.int32(),
            kind.LONG: pa.int64() if unsigned else pa.int32(),
            kind.LONGLONG: pa.decimal128(20, 0) if unsigned else pa.int64(),
        }
        if field.type_code in whole:
            self.type = whole[field.type_code]
        elif field.type_code in (kind.DECIMAL, kind.NEWDECIMAL):
            self.type = _decimal(field, unsigned)
            if self.type == pa.string():
                self.convert = "{:f}".format
        elif field.type_code == kind.FLOAT:
            raise SourceError(
                f"column '{field.name}' is a FLOAT, of which servers tell no more than six digits: write "
                f"{field.name} + 0e0 in the query, which is the same as a DOUBLE"
            )
        elif field.type_code == kind.DOUBLE:
            self.type = pa.float64()
        elif field.type_code in (kind.DATE, kind.NEWDATE):
            self.type = pa.date32()
        elif field.type_code in (kind.TIMESTAMP, kind.DATETIME):
            self.type = pa.timestamp("us", "UTC" if field.type_code == kind.TIMESTAMP else None)
        elif field.type_code == kind.TIME:
            self.type = pa.string()
        elif field.type_code == kind.BIT or (binary and field.type_code != kind.JSON):
            self.type = pa.binary()
        else:
            self.type = pa.string()


def _decimal(field: Any, unsigned: bool) -> Any:
    """Return a decimal of the column's size; what is wider than Spark's is text. The length counts sign and point."""
    precision = field.length - (field.scale > 0) - (not unsigned)
    return pa.decimal128(precision, field.scale) if 0 < precision <= _WIDEST_DECIMAL else pa.string()


def _batches(cursor: Any, columns: list[_Column], schema: Any) -> Iterator[Any]:
    while block := cursor.fetchmany(_BATCH_ROWS):
        yield pa.record_batch(
            [_array(column, values) for column, values in zip(columns, zip(*block, strict=True), strict=True)],
            schema=schema,
        )


def _array(column: _Column, values: tuple[Any, ...]) -> Any:
    try:
        return pa.array([None if value is None else column.convert(value) for value in values], column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SourceError(f"column '{column.name}' has a value that is no {column.type}: {error}") from error
