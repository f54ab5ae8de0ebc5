"""Staged rows of the PostgreSQL sink: a table of their own per attempt, with the target's types and rules.

    _holdfast_<sink>-<timeline>-<epoch>-<generation>-<attempt>

It is a logged table: an unlogged one is empty after a crash of the server. Its columns are `LIKE` the target's, so
that NOT NULL, CHECK, lengths, domains and enums refuse a row while it is copied; columns that only steer and the mark
of rows to delete stand behind them. A unique index over the key finds rows that share one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.extras import pa
from holdfast.connectors.keys import repeated_key
from holdfast.connectors.parquet_files import expect_rows
from holdfast.connectors.postgres.columns import decoded, spelled_out
from holdfast.connectors.postgres.errors import DUPLICATE_KEY, ServerError
from holdfast.connectors.postgres.session import Transaction
from holdfast.connectors.postgres.table import TableColumn, checks_of, columns_of, has_own_rules, wires_into
from holdfast.connectors.sql_ledger import Statements
from holdfast.connectors.sql_statements import Column, TargetTable, listed, quoted
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import EpochRef
from holdfast.errors import SinkError

PREFIX = "_holdfast_"
PARTS = "_holdfast_parts"
_DELETE = "_holdfast_delete"
_FIND = """
SELECT relname::text FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND relkind = 'r' AND relname LIKE $2"""


@dataclass(frozen=True)
class Changes:
    """How rows change the table, beyond adding and replacing."""

    order_by: str | None = None
    """Of rows with one key, the one with the highest value counts."""
    delete_when: str | None = None
    """SQL over the view's columns: a row for which it is true deletes the row with its key."""
    omit: tuple[Column, ...] = ()
    """Columns that only steer: staged, not written to the table."""


def staged_name(pipeline: str, sink: str, ref: EpochRef) -> StagedName:
    """Return the name of an attempt's rows. Names of tables are short: pipeline and sink are a digest of both."""
    return StagedName.of(hashlib.sha256(f"{pipeline}\n{sink}".encode()).hexdigest()[:8], ref)


class StagingTable:
    """The staged rows of one attempt."""

    def __init__(self, schema: str, name: StagedName, target: TargetTable, changes: Changes) -> None:
        self.schema, self.name = schema, f"{PREFIX}{name}"
        self.sql = f"{quoted(schema)}.{quoted(self.name)}"
        self._target, self._changes = target, changes

    def create(self, connection: Statements) -> tuple[TableColumn, ...]:
        """Create it anew and return its columns. From here to the transaction's end the target keeps its shape."""
        self.drop(connection)
        deletes = self._changes.delete_when
        like = "DEFAULTS IDENTITY GENERATED" if deletes else "DEFAULTS IDENTITY GENERATED CONSTRAINTS"
        parts = [" INCLUDING ".join([f"LIKE {self._target.sql}", *like.split()])]
        parts += [f"{quoted(column.name)} {column.type}" for column in self._changes.omit]
        if deletes:
            parts.append(f"{quoted(_DELETE)} boolean GENERATED ALWAYS AS (coalesce(({deletes}), false)) STORED")
        connection.run(f"CREATE TABLE {self.sql} ({', '.join(parts)})")
        clauses = [f"ALTER COLUMN {quoted(name)} SET NOT NULL" for name in self._never_null()]
        clauses += self._rules_for_rows_that_stay(connection) if deletes else []
        if clauses:
            connection.run(f"ALTER TABLE {self.sql} {', '.join(clauses)}")
        return columns_of(connection, self.sql)

    def _never_null(self) -> list[str]:
        order_by = self._changes.order_by
        return [*self._target.key, *([order_by] if order_by else [])]

    def _rules_for_rows_that_stay(self, connection: Statements) -> list[str]:
        """Return the target's rules for rows that are not deletes: those have a key, and perhaps nothing else."""
        clauses = []
        for column in columns_of(connection, self._target.sql):
            if column.not_null and not column.is_identity and column.name not in self._never_null():
                name = quoted(column.name)
                clauses += [
                    f"ALTER COLUMN {name} DROP NOT NULL",
                    self._rule(f"{column.name} NOT NULL", f"{name} IS NOT NULL"),
                ]
        return clauses + [
            self._rule(name, expression) for name, expression in checks_of(connection, self._target.sql)
        ]

    @staticmethod
    def _rule(name: str, expression: str) -> str:
        return f"ADD CONSTRAINT {quoted(name)} CHECK ({quoted(_DELETE)} OR ({expression}))"

    def check(self, connection: Statements, expected: int) -> None:
        """Find now what the target would refuse, so that a sealed epoch can be committed."""
        self.expect(connection, expected)
        if self._target.key:
            self._refuse_ambiguous(connection)
        if has_own_rules(connection, self._target):
            connection.run("SAVEPOINT rehearsal")
            connection.run("SET CONSTRAINTS ALL IMMEDIATE")
            self.show(connection, 0)
            connection.run("ROLLBACK TO SAVEPOINT rehearsal")

    def expect(self, connection: Statements, rows: int) -> None:
        """Refuse any other number of rows."""
        expect_rows(int(connection.run(f"SELECT count(*) FROM {self.sql}")[0][0]), rows)

    def _refuse_ambiguous(self, connection: Statements) -> None:
        """Refuse rows with one key and no order between them. The index also serves `show`."""
        order_by = self._changes.order_by
        columns = listed(self._target.key) + (f", {quoted(order_by)} DESC" if order_by else "")
        try:
            connection.run(f"CREATE UNIQUE INDEX ON {self.sql} ({columns})")
        except ServerError as error:
            if error.state != DUPLICATE_KEY:
                raise
            raise SinkError(
                repeated_key(tuple(self._target.key))
                + (f", or give them an order: some also have the same '{order_by}'" if order_by else "")
            ) from error

    def show(self, connection: Statements, number: int) -> None:
        """Bring the rows into the target; `number` is the epoch's visible number."""
        target, changes = self._target, self._changes
        if not target.key:
            connection.run(target.insert(self.sql, number))
            return
        rows, condition = self.sql, "true"
        if changes.order_by:
            key = listed(target.key)
            order = f"{key}, {quoted(changes.order_by)} DESC"
            rows = f"(SELECT DISTINCT ON ({key}) * FROM {self.sql} ORDER BY {order})"
        if changes.delete_when:
            same = " AND ".join(f"target.{quoted(name)} = staged.{quoted(name)}" for name in target.key)
            deletes = f"staged.{quoted(_DELETE)}"
            connection.run(f"DELETE FROM {target.sql} AS target USING {rows} AS staged WHERE {deletes} AND {same}")
            condition = f"NOT {deletes}"
        connection.run(f"{target.insert(rows, number, condition)} {target.on_conflict()}")

    def drop(self, connection: Statements) -> None:
        """Remove the table, and the marks of the tasks that filled it."""
        connection.run(f"DROP TABLE IF EXISTS {self.sql}")
        connection.run(f"DELETE FROM {quoted(self.schema)}.{quoted(PARTS)} WHERE staged = $1", self.name)


def read_staged(connection: Transaction, table: str, schema: Any) -> Any:
    """Return staged rows as a `pyarrow.Table` with the view's columns and types."""
    columns = list(zip(schema, wires_into(columns_of(connection, table), schema), strict=True))
    spelled = (f"{quoted(f.name)}::{spelled_out(f.type, wire)} AS {quoted(f.name)}" for f, wire in columns)
    found = connection.arrow(f"SELECT {', '.join(spelled)} FROM {table}")
    return pa.table([decoded(found[f.name], f.type, wire) for f, wire in columns], schema=schema)


def create_parts(connection: Statements, schema: str) -> None:
    """Create the table in which Spark's tasks mark what they copied."""
    connection.run(
        f"CREATE TABLE IF NOT EXISTS {quoted(schema)}.{quoted(PARTS)} "
        "(staged TEXT NOT NULL, part BIGINT NOT NULL, PRIMARY KEY (staged, part))"
    )


def find_staged(connection: Statements, schema: str) -> list[StagedName]:
    """Return whatever is staged in a schema."""
    names: Iterable[Sequence[str]] = connection.run(_FIND, schema, PREFIX.replace("_", r"\_") + "%-%-%-%-%")
    parsed = (StagedName.parse(name.removeprefix(PREFIX)) for (name,) in names)
    return [staged for staged in parsed if staged is not None]
