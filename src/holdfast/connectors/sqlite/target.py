"""What a user's SQLite table looks like, and whether rows fit it."""

import sqlite3
from typing import Any

from holdfast.connectors.sql_statements import EPOCH_COLUMN, TargetTable, listed, quoted
from holdfast.errors import SinkError


class SqliteConnection(sqlite3.Connection):
    """A connection whose statements may number their parameters $1, $2."""

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows, none when it has none."""
        return self.execute(statement, {str(number): value for number, value in enumerate(parameters, 1)}).fetchall()


class SqliteTable(TargetTable):
    """The table that rows go to."""

    def create(self) -> list[str]:
        """Return what creates the table."""
        statements = [f"CREATE TABLE {self.sql} ({', '.join(self.declared())})"]
        if self.key:
            index = quoted(f"{self.name}_holdfast_key")
            statements.append(f"CREATE UNIQUE INDEX {index} ON {self.sql} ({listed(self.key)})")
        return statements

    def show(self, rows: str, number: int) -> list[str]:
        """Return what moves staged rows into the table; `number` is the epoch's visible number."""
        insert = self.insert(rows, number)
        return [self._remove_null_keys(rows), f"{insert} {self.on_conflict()}"] if self.key else [insert]

    def repeated_keys(self, rows: str) -> str:
        """Return a query that finds staged rows with one key."""
        key = ", ".join(f"staged.{quoted(name)}" for name in self.key)
        return f"SELECT 1 FROM {rows} AS staged GROUP BY {key} HAVING count(*) > 1 LIMIT 1"

    def _remove_null_keys(self, rows: str) -> str:
        """Return what makes room for keys with a NULL in them: a unique index takes two NULLs for different."""
        same = " AND ".join(f"t.{quoted(name)} IS s.{quoted(name)}" for name in self.key)
        null = " OR ".join(f"s.{quoted(name)} IS NULL" for name in self.key)
        matching = f"SELECT t.rowid FROM {rows} s JOIN {self.sql} t ON {same} WHERE {null}"
        return f"DELETE FROM {self.sql} WHERE rowid IN ({matching})"


def ensure_table(connection: sqlite3.Connection, target: SqliteTable) -> None:
    """Create the table when it is missing; otherwise refuse one that these rows do not fit."""
    kind = connection.execute(
        "SELECT type FROM sqlite_schema WHERE lower(name) = lower(?)", (target.name,)
    ).fetchone()
    if kind is None:
        for statement in target.create():
            connection.execute(statement)
        return
    if kind[0] != "table":
        raise SinkError(f"'{target.name}' is a {kind[0]}, not a table")
    _ensure_columns(connection, target)
    if target.key and not _has_unique_key(connection, target):
        columns = ", ".join(map(quoted, target.key))
        raise SinkError(
            f"table '{target.name}' has no unique key over exactly {columns}, which an upsert needs; create it with "
            f"CREATE UNIQUE INDEX ... ON {quoted(target.name)} ({columns})"
        )


def is_plain(connection: sqlite3.Connection, target: SqliteTable) -> bool:
    """Whether the table is exactly as we would create it, so that no rule of its own can refuse a row."""
    found = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE lower(tbl_name) = lower(?) AND sql IS NOT NULL", (target.name,)
    )
    return {row[0] for row in found} == set(target.create())


def has_table(connection: SqliteConnection, name: str) -> bool:
    """Whether there is a table of that name."""
    return bool(connection.run("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = $1", name))


def _ensure_columns(connection: sqlite3.Connection, target: SqliteTable) -> None:
    found = {row["name"].lower(): row for row in _info(connection, target)}
    if target.with_epoch and EPOCH_COLUMN not in found:
        connection.execute(f"ALTER TABLE {quoted(target.name)} ADD COLUMN {quoted(EPOCH_COLUMN)} INTEGER")
    ours = {column.name.lower() for column in target.columns} | {EPOCH_COLUMN}
    missing = [column.name for column in target.columns if column.name.lower() not in found]
    if missing:
        raise SinkError(f"table '{target.name}' has no column {', '.join(missing)}; add it, or drop it in the view")
    for name, row in found.items():
        # A single INTEGER PRIMARY KEY is filled in by SQLite.
        if name not in ours and row["notnull"] and row["dflt_value"] is None and not row["pk"]:
            raise SinkError(
                f"column '{name}' of table '{target.name}' must not be NULL, and the view does not have it"
            )


def _has_unique_key(connection: sqlite3.Connection, target: SqliteTable) -> bool:
    wanted = {name.lower() for name in target.key}
    primary = {row["name"].lower() for row in _info(connection, target) if row["pk"]}
    if primary == wanted:
        return True
    indexes = connection.execute(
        'SELECT name FROM pragma_index_list(?) WHERE "unique" = 1 AND partial = 0', (target.name,)
    ).fetchall()
    return any(_indexed(connection, name) == wanted for (name,) in indexes)


def _indexed(connection: sqlite3.Connection, index: str) -> set[str]:
    names = connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
    return {(name or "").lower() for (name,) in names}


def _info(connection: sqlite3.Connection, target: SqliteTable) -> list[dict[str, Any]]:
    names = ("name", "notnull", "dflt_value", "pk")
    rows = connection.execute(f"SELECT {', '.join(map(quoted, names))} FROM pragma_table_info(?)", (target.name,))
    return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
