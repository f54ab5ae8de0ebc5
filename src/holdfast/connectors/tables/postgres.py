"""A query on a PostgreSQL database as a reference table, read through Arrow."""

import contextlib
from collections.abc import Iterator
from typing import Any

from holdfast.connectors.extras import adbc_postgres, pa, pc
from holdfast.connectors.postgres.address import Address
from holdfast.connectors.postgres.errors import ServerError
from holdfast.connectors.tables.query import QueryTable
from holdfast.connectors.tables.rows import write_rows
from holdfast.errors import SourceError, SourceUnavailable

_READ_ONLY = "25006"
"""The transaction may not write: here that is not a standby, it is our own wish."""
_FIRST_DAY = -2_440_588
"""24 November 4714 BC, the first day that PostgreSQL knows, counted from 1970."""
_FIRST_MICROSECOND = _FIRST_DAY * 86_400_000_000


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
            _refuse_raw_bytes(rows.schema)
            write_rows(rows.schema, map(_with_times_that_exist, self._pieces(rows)), directory)

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


def _refuse_raw_bytes(schema: Any) -> None:
    """Refuse types that the driver passes on in the server's own binary form, which nobody could read."""
    for field in schema:
        # A function that returns nothing has a column all the same; there is nothing in it to read wrongly.
        is_opaque = isinstance(field.type, pa.OpaqueType) and field.type.type_name != "void"
        if is_opaque and not pa.types.is_string(field.type.storage_type):
            raise SourceError(f"column '{field.name}' has type {field.type.type_name}; cast it to text in the query")


def _with_times_that_exist(batch: Any) -> Any:
    """Return a batch; refuse infinite dates and times, which the driver turns into ones that PostgreSQL never had."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if _is_before_all_time(column):
            raise SourceError(
                f"column '{name}' has an infinite or too distant time: say in the query what it stands for, "
                f"as in NULLIF({name}, 'infinity')"
            )
    return batch


def _is_before_all_time(column: Any) -> bool:
    """Whether dates or times, also those in lists, are from before the first one that PostgreSQL knows."""
    is_ = pa.types
    if is_.is_list(column.type):
        return _is_before_all_time(column.flatten())
    if not (is_.is_date32(column.type) or is_.is_timestamp(column.type)):
        return False
    number, first = (pa.int32(), _FIRST_DAY) if is_.is_date32(column.type) else (pa.int64(), _FIRST_MICROSECOND)
    earliest = pc.min(column.cast(number)).as_py()
    return earliest is not None and earliest < first
