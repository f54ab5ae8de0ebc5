"""A query on a PostgreSQL database as a reference table, read through Arrow."""

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.connectors.extras import adbc_postgres, pa
from holdfast.connectors.postgres.address import Address
from holdfast.connectors.postgres.errors import ServerError
from holdfast.connectors.tables.query import QueryTable
from holdfast.connectors.tables.rows import write_rows
from holdfast.errors import SourceError, SourceUnavailable

_READ_ONLY = "25006"
"""The transaction may not write: here that is not a standby, it is our own wish."""


class PostgresTable(QueryTable):
    """The rows of one query."""

    connector = "postgres"

    def __init__(self, url: str, *, query: str, schema: str | None, statement_seconds: float) -> None:
        adbc_postgres.require()
        super().__init__(query, schema)
        self._address = Address(url, "the postgres table")
        self._limit_ms = max(1, round(statement_seconds * 1000))

    def _place(self) -> dict[str, object]:
        return {"server": self._address.server, "database": self._address.database}

    def _run(self, directory: str) -> None:
        with (
            self._answering(),
            contextlib.closing(adbc_postgres.connect(self._address.url)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(f"SET LOCAL statement_timeout = {self._limit_ms}")
            cursor.execute("SET LOCAL client_encoding = 'UTF8'")
            cursor.execute(self._query)
            rows = cursor.fetch_record_batch()
            write_rows(rows.schema, self._pieces(rows), directory)

    def _pieces(self, rows: Any) -> Iterator[Any]:
        """Yield what the server sends. What it says in the midst of it comes without a code."""
        try:
            yield from rows
        except (OSError, pa.ArrowException) as error:
            raise SourceUnavailable(f"PostgreSQL: {self._address.hide(str(error))}") from None

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except adbc_postgres.Error as error:
            said = ServerError(error)
            kind = SourceUnavailable if said.may_pass and said.state != _READ_ONLY else SourceError
            # Without the cause, from which nothing was hidden.
            raise kind(f"PostgreSQL: {self._address.hide(str(said))}") from None
