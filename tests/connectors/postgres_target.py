"""PostgreSQL as the contract suite sees it: a schema per directory, in the database of HOLDFAST_TEST_POSTGRES."""

import atexit
import functools
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc

from holdfast import sinks
from holdfast.core.contracts import Sink

URL = "HOLDFAST_TEST_POSTGRES"
_COPIED = ("orders", "_holdfast_ledger", "_holdfast_epochs")


def schema_of(directory: Path) -> str:
    return "t" + hashlib.sha256(str(directory).encode()).hexdigest()[:16]


@functools.cache
def connected(url: str) -> Any:
    """Return a stranger's connection, the same one every time: a new one takes long."""
    connection = adbc.connect(url, autocommit=True)
    atexit.register(connection.close)
    return connection


def run_alone(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on a connection of its own."""
    with adbc.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def sql(statement: str) -> list[tuple[Any, ...]]:
    """Run a statement as a stranger does."""
    with connected(os.environ[URL]).cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def wait_until(query: str) -> None:
    """Wait until a query has a row."""
    for _ in range(1000):
        if sql(query):
            return
        time.sleep(0.01)
    raise AssertionError(f"nothing came of: {query}")


def postgres(**options: Any) -> Callable[[Path], Sink]:
    return lambda directory: sinks.postgres(os.environ[URL], **{"table": f"{schema_of(directory)}.orders", **options})


def read_postgres(directory: Path) -> list[dict[str, Any]]:
    if not sql(f"SELECT 1 WHERE to_regclass('{schema_of(directory)}.orders') IS NOT NULL"):
        return []
    rows = sql(f"SELECT id, name, amount FROM {schema_of(directory)}.orders")
    return [dict(zip(("id", "name", "amount"), row, strict=True)) for row in rows]


class PostgresPlace:
    """What the suite does to a target's storage behind the sink's back, in tables."""

    damages = ("cut", "removed")

    def staged(self, directory: Path) -> list[str]:
        return [table for table in self._tables(directory) if "-" in table]

    def harm(self, directory: Path, damage: str) -> None:
        (table,) = self.staged(directory)
        name = f'{schema_of(directory)}."{table}"'
        sql(f"DROP TABLE {name}" if damage == "removed" else f"DELETE FROM {name} WHERE id = 2")

    def everything(self, directory: Path) -> Any:
        schema = schema_of(directory)
        return {table: sql(f'SELECT t::text FROM {schema}."{table}" t') for table in self._tables(directory)}

    def back_up(self, directory: Path) -> None:
        for table in _COPIED:
            sql(f"CREATE TABLE {schema_of(directory)}.copy_of{table} AS TABLE {schema_of(directory)}.{table}")

    def put_back(self, directory: Path) -> None:
        schema = schema_of(directory)
        for table in _COPIED:
            sql(f"TRUNCATE {schema}.{table}")
            sql(f"INSERT INTO {schema}.{table} TABLE {schema}.copy_of{table}")

    def settle(self) -> None:
        """Wait for the server to finish what a killed client had asked for."""
        busy = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'holdfast' AND state <> 'idle'"
        wait_until(f"SELECT 1 WHERE NOT EXISTS ({busy})")

    def _tables(self, directory: Path) -> list[str]:
        found = sql(f"SELECT tablename::text FROM pg_tables WHERE schemaname = '{schema_of(directory)}' ORDER BY 1")
        return [name for (name,) in found]
