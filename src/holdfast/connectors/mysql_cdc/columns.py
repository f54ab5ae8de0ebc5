"""A table's columns as Arrow types.

tinyint, smallint, int, bigint      byte, short, int, long; unsigned the next wider one, for bigint decimal(20, 0)
mediumint, year                     int
decimal(p, s)                       decimal(p, s) up to 38 digits, else its text
float, double                       float, double
char, varchar, text, enum, set      string
json, time                          string, as the server prints them
binary, varbinary, blob, geometry   binary
date, datetime, timestamp           date, timestamp_ntz, timestamp
bit(n)                              long up to 63 bits, bit(64) is binary
uuid, inet4, inet6, vector          binary, their bytes
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.extras import pa
from holdfast.connectors.mysql_cdc.address import TableName, quoted
from holdfast.connectors.mysql_cdc.session import Session
from holdfast.connectors.mysql_cdc.settings import CdcSettings
from holdfast.errors import SourceError

_COLUMNS = """
SELECT column_name, data_type, column_type, numeric_precision, numeric_scale FROM information_schema.columns
WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position"""
_TABLE = """
SELECT table_schema, table_name, table_type, engine FROM information_schema.tables
WHERE table_schema = %s AND table_name = %s"""
_MOST_DIGITS = 38
_MOST_BITS = 63
_INTEGERS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "tinyint": (lambda: pa.int8(), lambda: pa.int16()),
    "smallint": (lambda: pa.int16(), lambda: pa.int32()),
    "mediumint": (lambda: pa.int32(), lambda: pa.int32()),
    "int": (lambda: pa.int32(), lambda: pa.int64()),
    "bigint": (lambda: pa.int64(), lambda: pa.decimal128(20, 0)),
    "year": (lambda: pa.int32(), lambda: pa.int32()),
}
"""Data type -> its Arrow type, and the one when it is unsigned."""
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "time")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "uuid", "inet4", "inet6", "vector")
_SHAPES = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon")
_COLLECTIONS = ("geometrycollection", "geomcollection")
_PLAIN: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(_TEXTS, lambda: pa.string()),
    **dict.fromkeys((*_BYTES, *_SHAPES, *_COLLECTIONS), lambda: pa.binary()),
    "float": lambda: pa.float32(),
    "double": lambda: pa.float64(),
    "date": lambda: pa.date32(),
    "datetime": lambda: pa.timestamp("us"),
    "timestamp": lambda: pa.timestamp("us", "UTC"),
}
_AS_BYTES = {"uuid": 16, "inet6": 16, "inet4": 4}
_COMPRESSED = "COMPRESSED"
_VERSIONED = "SYSTEM VERSIONED"
_CASCADE = re.compile(r"^ *CONSTRAINT (.+?) FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL)", re.MULTILINE)


@dataclass(frozen=True)
class CdcTable:
    """A table that can be read, as the server spells it."""

    name: TableName
    transactional: bool
    """Whether a consistent snapshot of it can be read while others write."""


@dataclass(frozen=True)
class CdcColumn:
    """A column of the table as it is now."""

    name: str
    type: Any
    """The Arrow type of its values."""
    selected: str
    """What a query reads it with."""


def find_table(session: Session, settings: CdcSettings) -> CdcTable:
    """Return the table; refuse what is none, or what the server does not log."""
    wanted = settings.name
    found = session.rows(_TABLE, wanted.database, wanted.table)
    if not found:
        raise SourceError(f"there is no table {wanted} on {session.address.server} that this user may read")
    database, table, kind, engine = found[0]
    if "VIEW" in str(kind).upper():
        raise SourceError(f"{wanted} is a view, not a table: its changes are not in the server's log")
    if str(kind).upper() == _VERSIONED:
        raise SourceError(
            f"table {wanted} is system-versioned: its log has rows of the past among the others, and no deletes; "
            "mysql_cdc cannot read that"
        )
    name = TableName(str(database), str(table))
    session.check_logged(name)
    if settings.on_cascade == "stop":
        _refuse_cascades(session, name)
    return CdcTable(name, str(engine).lower() == "innodb")


def _refuse_cascades(session: Session, table: TableName) -> None:
    """Refuse keys by which rows of another table change ours: the engine does that, and nothing of it is logged."""
    # To those who may only read a table, information_schema does not show its keys.
    ((_, definition),) = session.rows(f"SHOW CREATE TABLE {table.sql}")
    if found := _CASCADE.search(str(definition)):
        raise SourceError(
            f"the foreign key {found[1]} of table {table} changes its rows with those of another table (CASCADE or "
            "SET NULL), and servers do not log such changes. Drop the key, or miss them: on_cascade='ignore'"
        )


def columns_of(session: Session, table: TableName, wanted: Sequence[str] = ()) -> list[CdcColumn]:
    """Return the columns that are read: all of the table's, or those that are wanted."""
    there = {str(row[0]): row for row in session.rows(_COLUMNS, table.database, table.table)}
    missing = [name for name in wanted if name not in there]
    if missing:
        raise SourceError(f"table {table} has no column '{missing[0]}'; it has {', '.join(there)}")
    return [_column(table, *there[name]) for name in wanted or there]


def column_names(session: Session, table: TableName) -> set[str]:
    """Return the names of the columns that the table has now."""
    return {str(row[0]) for row in session.rows(_COLUMNS, table.database, table.table)}


def _column(table: TableName, name: str, data_type: str, column_type: str, precision: Any, scale: Any) -> CdcColumn:
    if _COMPRESSED in column_type:
        raise SourceError(_unreadable(table, name, "compressed column"))
    selected = quoted(name)
    if data_type == "float":
        # The server prints a float with six digits, and a double with all it has.
        selected = f"{selected} + 0e0"
    elif data_type in _AS_BYTES:
        selected = f"CAST({selected} AS BINARY({_AS_BYTES[data_type]}))"
    type_ = _arrow_type(data_type.lower(), column_type, precision, scale)
    if type_ is None:
        raise SourceError(_unreadable(table, name, data_type))
    return CdcColumn(name, type_, selected)


def _arrow_type(data_type: str, column_type: str, precision: Any, scale: Any) -> Any:
    if data_type in _INTEGERS:
        return _INTEGERS[data_type]["unsigned" in column_type]()
    if data_type == "decimal":
        return pa.decimal128(int(precision), int(scale)) if int(precision) <= _MOST_DIGITS else pa.string()
    if data_type == "bit":
        return pa.int64() if int(precision) <= _MOST_BITS else pa.binary()
    return _PLAIN[data_type]() if data_type in _PLAIN else None


def _unreadable(table: TableName, name: str, what: str) -> str:
    return (
        f"column '{name}' of table {table} is a {what}, which cannot be read: name the columns to read with columns"
    )


def fields_of(columns: Sequence[CdcColumn]) -> Any:
    """Return the columns as a `pyarrow.Schema`."""
    return pa.schema([pa.field(column.name, column.type) for column in columns])
