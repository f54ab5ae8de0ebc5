"""A query on a SQLite database as a reference table.

SQLite gives types to values, not to columns. A column here is what all its values are: whole numbers, numbers, bytes,
or else text; one in which every value is NULL is text.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

from holdfast.connectors.extras import pa
from holdfast.connectors.sql_statements import quoted
from holdfast.connectors.tables.query import QueryTable
from holdfast.connectors.tables.rows import write_rows
from holdfast.errors import SourceError, SourceUnavailable

_BATCH_ROWS = 50_000
_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_PROTOCOL")
_SQL_TYPES = {"int64": "INTEGER", "double": "REAL", "binary": "BLOB", "string": "TEXT"}


class SqliteTable(QueryTable):
    """The rows of one query."""

    connector = "sqlite"

    def __init__(self, path: str, *, query: str, schema: str | None) -> None:
        super().__init__(query, schema)
        self._path = os.path.abspath(os.path.expanduser(path))

    def _place(self) -> dict[str, object]:
        return {"path": self._path}

    def _run(self, directory: str) -> None:
        try:
            with closing(self._connect()) as database:
                database.execute("BEGIN")  # So that the types, which are asked for first, fit the rows.
                schema = self._schema(database)
                write_rows(schema, self._batches(database, schema), directory)
        except sqlite3.Error as error:
            passing = (getattr(error, "sqlite_errorname", None) or "").startswith(_PASSING)
            raise (SourceUnavailable if passing else SourceError)(f"SQLite {self._path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{quote(self._path)}?mode=ro", uri=True, isolation_level=None)

    def _schema(self, database: sqlite3.Connection) -> Any:
        names = [column[0] for column in database.execute(f"SELECT * FROM ({self._query}) LIMIT 0").description]
        kinds = ", ".join(
            f"max(typeof({quoted(name)}) = '{kind}')"
            for name in names
            for kind in ("text", "blob", "real", "integer")
        )
        [found] = database.execute(f"SELECT {kinds} FROM ({self._query})").fetchall()
        return pa.schema([(name, _type(*found[4 * i : 4 * i + 4])) for i, name in enumerate(names)])

    def _batches(self, database: sqlite3.Connection, schema: Any) -> Iterator[Any]:
        columns = ", ".join(f"CAST({quoted(field.name)} AS {_SQL_TYPES[str(field.type)]})" for field in schema)
        rows = database.execute(f"SELECT {columns} FROM ({self._query})")
        while block := rows.fetchmany(_BATCH_ROWS):
            values = [
                pa.array(column, field.type) for column, field in zip(zip(*block, strict=True), schema, strict=True)
            ]
            yield pa.record_batch(values, schema=schema)


def _type(text: int | None, blob: int | None, real: int | None, integer: int | None) -> Any:
    if text or not (blob or real or integer) or (blob and (real or integer)):
        return pa.string()
    if blob:
        return pa.binary()
    return pa.float64() if real else pa.int64()
