"""A connection to a PostgreSQL server: opened when needed, opened again after it was lost, never waiting for ever."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from holdfast.connectors.extras import adbc_postgres
from holdfast.connectors.postgres.address import Address
from holdfast.connectors.postgres.errors import ServerError, for_engine
from holdfast.errors import RetryableSinkError, UnknownOutcome

_LOCK_SECONDS = 10.0
_IDLE_SECONDS = 60.0
_SETTINGS = """
SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
  set_config('idle_in_transaction_session_timeout', $3, true), set_config('client_encoding', 'UTF8', true),
  set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
    ELSE current_setting('synchronous_commit') END, true)"""
"""For one transaction, so that a pooled connection is left as it was. What is committed must be flushed, and Arrow's
text is UTF-8, whatever the database's own encoding is."""
_KEEPALIVE = """
SELECT set_config('tcp_keepalives_idle', '30', false), set_config('tcp_keepalives_interval', '10', false),
  set_config('tcp_keepalives_count', '3', false)"""
"""So that the server notices a client that vanished, and lets go of its locks."""


class Transaction:
    """A transaction that is open. Errors of the server come as `ServerError`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows, none when it has none."""
        with self._cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall()) if cursor.description else []

    def copy(self, schema: str, table: str, rows: Any) -> None:
        """Copy Arrow data into columns of the same names, whose types have the same binary form."""
        with self._cursor() as cursor:
            cursor.adbc_ingest(table, rows, mode="append", db_schema_name=schema)

    def arrow(self, query: str) -> Any:
        """Return the rows of a query as a `pyarrow.Table`."""
        with self._cursor() as cursor:
            cursor.execute(query)
            return cursor.fetch_arrow_table()

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[Any]:
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except adbc_postgres.Error as error:
            raise ServerError(error) from error


class Session:
    """One connection, used for one transaction at a time."""

    def __init__(self, address: Address, statement_seconds: float, lock_seconds: float | None = None) -> None:
        self._address = address
        self._limits = [
            _milliseconds(seconds) for seconds in (lock_seconds or _LOCK_SECONDS, statement_seconds, _IDLE_SECONDS)
        ]
        self._connection: Any = None
        self._in_use = threading.Lock()

    @contextlib.contextmanager
    def transaction(self, *, decides: bool = False, keep: bool = True) -> Iterator[Transaction]:
        """Open a transaction, committed at the end of the block (unless not to `keep`), rolled back by any error.

        Errors are those of the sink contract. A COMMIT without an answer is an `UnknownOutcome` for a transaction
        that `decides` something; any other may simply be repeated.
        """
        with self._in_use:
            transaction = self._begin()
            try:
                yield transaction
            except BaseException as error:
                self._roll_back(transaction)
                if isinstance(error, ServerError):
                    raise for_engine(self._address.hide(str(error)), error) from error
                raise
            if keep:
                self._commit(transaction, decides)
            else:
                self._roll_back(transaction)

    def close(self) -> None:
        """Let go of the connection, unless a call still hangs in it: then it goes with that call."""
        if self._in_use.acquire(blocking=False):
            try:
                self._discard()
            finally:
                self._in_use.release()

    def __del__(self) -> None:
        self.close()

    def _begin(self) -> Transaction:
        """Begin on the connection at hand; on a new one when the server does not know it any more."""
        if self._connection is not None:
            try:
                return self._begun(self._connection)
            except ServerError:
                self._discard()
        self._connection = self._connect()
        try:
            return self._begun(self._connection)
        except ServerError as error:
            self._discard()
            raise RetryableSinkError(f"PostgreSQL: {self._address.hide(str(error))}") from error

    def _connect(self) -> Any:
        try:
            connection = adbc_postgres.connect(self._address.url, autocommit=True)
        except adbc_postgres.Error as error:
            # Without the cause, from which nothing was hidden.
            raise RetryableSinkError(f"PostgreSQL: {self._address.hide(str(ServerError(error)))}") from None
        with contextlib.suppress(ServerError):
            Transaction(connection).run(_KEEPALIVE)
        return connection

    def _begun(self, connection: Any) -> Transaction:
        transaction = Transaction(connection)
        transaction.run("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        transaction.run(_SETTINGS, *self._limits)
        return transaction

    def _commit(self, transaction: Transaction, decides: bool) -> None:
        try:
            transaction.run("COMMIT")
        except ServerError as error:
            self._discard()
            text = self._address.hide(str(error))
            if error.rolled_back:
                raise for_engine(text, error) from error
            kind = UnknownOutcome if decides else RetryableSinkError
            raise kind(f"PostgreSQL, committing: {text}") from error

    def _roll_back(self, transaction: Transaction) -> None:
        try:
            transaction.run("ROLLBACK")
        except ServerError:
            self._discard()

    def _discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(adbc_postgres.Error):
                connection.close()


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
