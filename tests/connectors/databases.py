"""A database that rows go to, SQLite or PostgreSQL, as its sink and as its user see it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors import postgres_target
from connectors.targets import BY_NAME, Target
from holdfast import sinks


@dataclass(frozen=True)
class Database:
    """A database, as its sink and as its user see it."""

    make: Callable[..., Any]
    directory: Path
    append: Target
    run: Callable[[str], list[tuple[Any, ...]]]

    def target(self, **options: Any) -> Target:
        make = lambda directory: self.make(**{"table": self.table, **options})  # noqa: E731
        return Target("table", make, self.append.read, output_mode="update" if "key" in options else "append")

    def made(self) -> "Database":
        """Make what only a user makes: the folder of the file, or the schema."""
        if self.append.name.startswith("sqlite"):
            (self.directory / "target").mkdir()
        else:
            self.run(f"CREATE SCHEMA {postgres_target.schema_of(self.directory)}")
        return self

    @property
    def table(self) -> str:
        in_schema = self.append.name.startswith("postgres")
        return f"{postgres_target.schema_of(self.directory)}.orders" if in_schema else "orders"

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL as the user; {s} stands before names of tables."""
        return self.run(statement.replace("{s}", self.table.removesuffix("orders")))

    def ids(self) -> list[int]:
        return [id for (id,) in self.query("SELECT id FROM {s}orders ORDER BY id")]

    def everything(self) -> Any:
        """Return all there is, for comparing: every byte of every file, or every row and type of every table."""
        if self.append.name.startswith("sqlite"):
            files = self.directory.rglob("*")
            return {path: path.read_bytes() if path.is_file() else None for path in files}
        schema = postgres_target.schema_of(self.directory)
        columns = (
            "SELECT c.relname::text, c.relkind::text, a.attname::text, a.atttypid::bigint FROM pg_class c "
            "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
            f"WHERE c.relnamespace = to_regnamespace('{schema}') ORDER BY 1, a.attnum"
        )
        rows = postgres_target.PostgresPlace().everything(self.directory)
        return self.run(columns), rows, self.run(f"SELECT 1 WHERE to_regnamespace('{schema}') IS NOT NULL")


def sqlite_database(directory: Path) -> Database:
    """Return a database in a file that is not there yet."""
    path = directory / "target" / "app.db"

    def run(statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    return Database(lambda **options: sinks.sqlite(str(path), **options), directory, BY_NAME["sqlite-append"], run)


def postgres_database(directory: Path, url: str) -> Database:
    """Return a schema of a database that is not there yet."""
    append = BY_NAME["postgres-append"]
    return Database(lambda **options: sinks.postgres(url, **options), directory, append, postgres_target.sql)
