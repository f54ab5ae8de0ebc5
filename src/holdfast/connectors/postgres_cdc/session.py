"""A connection of the postgres_cdc source: opened when needed, opened again after it was lost, with settings of ours.

Errors come as `SourceError`, and as `SourceUnavailable` where the same call may succeed later.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.connectors.extras import psycopg, psycopg_pq
from holdfast.connectors.postgres.address import Address
from holdfast.connectors.postgres.errors import may_pass
from holdfast.errors import SourceError, SourceUnavailable

_Result = TypeVar("_Result")

_SETTINGS = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "row_security": "off",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "wal_sender_timeout": "5min",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
APPLY_SETTINGS = f"""
SELECT set_config(name, value, false)
FROM jsonb_each_text('{json.dumps(_SETTINGS)}') AS wanted (name, value) JOIN pg_settings USING (name)"""
"""How values are printed, whatever the role's own settings are; rows that a policy would hide are an error. A stream
that nobody reads is cut after a while, because a server that shuts down waits for its readers; a machine that is gone
is noticed earlier."""
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)


class Session:
    """One connection, for one thread at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement, in a transaction of its own unless one is open; return its rows, none when it has none."""
        with self._translated():
            cursor = self._connected().execute(statement, parameters or None)
            return list(cursor.fetchall()) if cursor.description else []

    @contextlib.contextmanager
    def transaction(self, *preparations: str) -> Iterator[None]:
        """Run what is run within as one transaction, which begins as told."""
        with self._translated():
            connection = self._connected()
            with connection.transaction():
                for statement in preparations:
                    connection.execute(statement)
                yield

    @contextlib.contextmanager
    def copying(self, query: str) -> Iterator[Iterator[bytes]]:
        """Read the rows of a query in COPY's text form."""
        with (
            self._translated(),
            self._connected().cursor() as cursor,
            cursor.copy(f"COPY ({query}) TO STDOUT") as copy,
        ):
            yield (bytes(line) for line in copy)

    def close(self) -> None:
        """Let the connection go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def __del__(self) -> None:
        self.close()

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._connect()
        return self._connection

    def _connect(self) -> Any:
        connection = connect(self._address)
        connection.cursor_factory = psycopg.RawCursor
        connection.prepare_threshold = None
        try:
            connection.execute(APPLY_SETTINGS)
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            if self._connection is not None and self._connection.broken:
                self.close()
            raise translated(error, self._address) from error


def connect(address: Address, **settings: str) -> Any:
    """Return a new connection in autocommit mode."""
    try:
        return psycopg.connect(address.url, autocommit=True, **settings)
    except psycopg.Error as error:
        # Without the cause, from which nothing was hidden.
        raise _error("", [str(error)], True, address) from None


def translated(error: Any, address: Address) -> SourceError:
    """Return the error that the engine understands; its cause has to be `error`."""
    said = error.diag
    parts = [said.message_primary, said.message_detail, said.message_hint] if said.message_primary else [str(error)]
    unanswered = not error.sqlstate and isinstance(error, psycopg.OperationalError)
    return _error(error.sqlstate or "", parts, unanswered, address)


def failure(result: Any, address: Address) -> SourceError:
    """Return the error that a result of libpq stands for."""
    fields = psycopg_pq.DiagnosticField
    said = {name: (result.error_field(name) or b"").decode(errors="replace") for name in fields}
    parts = [said[name] for name in (fields.MESSAGE_PRIMARY, fields.MESSAGE_DETAIL, fields.MESSAGE_HINT)]
    return _error(said[fields.SQLSTATE], parts, not said[fields.SQLSTATE], address)


def _error(state: str, parts: Sequence[str | None], unanswered: bool, address: Address) -> SourceError:
    text = address.hide(" ".join(" ".join(part for part in parts if part).split()))
    kind = SourceUnavailable if unanswered or may_pass(state) else SourceError
    return kind(f"PostgreSQL at {address.server}: {text}")


def state_of(error: SourceError) -> str:
    """Return the SQLSTATE behind an error, empty when the server did not give one."""
    return getattr(error.__cause__, "sqlstate", None) or ""


def patiently(work: Callable[[], _Result], seconds: float, clock: Clock = SYSTEM_CLOCK) -> _Result:
    """Do something until it succeeds or is refused for good; raise what still stands in the way after `seconds`."""
    until = None
    for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
        try:
            return work()
        except SourceUnavailable:
            until = clock.monotonic() + seconds if until is None else until
            if clock.monotonic() + pause > until:
                raise
            clock.sleep(pause)
    raise AssertionError("pauses never end")
