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
_DISTORTED = {"money": "numeric", "oid": "bigint"}
"""The driver takes the bytes of these for whole numbers: 12.50 would be 1250, large ones would be negative."""
_BEGINNING_OF_DAYS, _DAY = -2_440_588, 86_400_000_000
"""Before the first day that the server has, in 4714 BC, the driver's sums that ran over come out."""


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
            _refuse_distorted(rows.schema)
            write_rows(rows.schema, self._pieces(rows), directory)

    def _pieces(self, rows: Any) -> Iterator[Any]:
        """Yield what the server sends. What it says in the midst of it comes without a code."""
        try:
            for batch in rows:
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    _refuse_out_of_range(name, column)
                yield batch
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


def _refuse_distorted(schema: Any) -> None:
    """Refuse columns whose values the driver does not give as they are."""
    for field in schema:
        type_ = (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode().removeprefix("_")
        if type_ in _DISTORTED:
            raise SourceError(f"column '{field.name}' is {type_}: cast it in the query, to {_DISTORTED[type_]}")
        if _is_raw(field.type):
            raise SourceError(f"column '{field.name}' is {field.type.type_name}: cast it in the query, to text")


def _is_raw(type_: Any) -> bool:
    """Whether the driver passes values on in the server's own binary form, which nobody could read."""
    # A function that returns nothing has a column all the same; there is nothing in it to read wrongly.
    is_opaque = isinstance(type_, pa.OpaqueType) and type_.type_name != "void"
    return is_opaque and not pa.types.is_string(type_.storage_type)


def _refuse_out_of_range(name: str, column: Any) -> None:
    """Refuse what only PostgreSQL has: infinity, for which the driver gives some early day, and 24:00."""
    is_ = pa.types
    if is_.is_list(column.type):
        _refuse_out_of_range(name, column.flatten())
        return
    if is_.is_timestamp(column.type):
        numbers, first, end = column.cast(pa.int64()), _BEGINNING_OF_DAYS * _DAY, None
    elif is_.is_date32(column.type):
        numbers, first, end = column.cast(pa.int32()), _BEGINNING_OF_DAYS, None
    elif is_.is_time64(column.type):
        numbers, first, end = column.cast(pa.int64()), 0, _DAY
    else:
        return
    range_ = pc.min_max(numbers).as_py()
    if range_["min"] is not None and (range_["min"] < first or (end is not None and range_["max"] >= end)):
        raise SourceError(
            f"column '{name}' has a value without a place in {column.type}, such as infinity or 24:00: say in the "
            f"query what it stands for, as in NULLIF({name}, 'infinity'), or cast it to text"
        )
