"""The SQL that SQLite and PostgreSQL understand alike, as text: nothing here talks to a database.

Columns that are read have their table's name before them: SQLite takes a quoted name that is no column for a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

EPOCH_COLUMN = "_holdfast_epoch"


def quoted(name: str) -> str:
    """Return an identifier that SQL takes as it is."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    """Return identifiers with commas between them."""
    return ", ".join(map(quoted, names))


@dataclass(frozen=True)
class Column:
    """A column of the table."""

    name: str
    type: str
    source: str
    """The column of the rows that it comes from."""


@dataclass(frozen=True)
class TargetTable:
    """The table that rows go to."""

    name: str
    columns: Sequence[Column]
    key: Sequence[str]
    """Columns of the table, empty when rows are appended."""
    with_epoch: bool
    schema: str | None = None
    epoch_type: str = "INTEGER"

    @property
    def sql(self) -> str:
        """The table's name in a statement."""
        return quoted(self.name) if self.schema is None else f"{quoted(self.schema)}.{quoted(self.name)}"

    def declared(self) -> list[str]:
        """Return the columns as `CREATE TABLE` has them."""
        columns = [f"{quoted(column.name)} {column.type}" for column in self.columns]
        return [*columns, f"{quoted(EPOCH_COLUMN)} {self.epoch_type}"] if self.with_epoch else columns

    @property
    def keeps_apart(self) -> bool:
        """Whether rows that come this way can be told from all others later: numbered, and in nobody's place."""
        return self.with_epoch and not self.key

    def insert(self, rows: str, number: int, condition: str = "true") -> str:
        """Return what adds `rows` (a table, or a query in parentheses) for which a condition on `staged` holds.

        `number` is the epoch's visible number.
        """
        into = [column.name for column in self.columns]
        values = [f"staged.{quoted(name)}" for name in into]
        if self.with_epoch:
            into, values = [*into, EPOCH_COLUMN], [*values, str(number)]
        # The condition also tells ON CONFLICT from the ON of a join.
        select = f"SELECT {', '.join(values)} FROM {rows} AS staged WHERE {condition}"
        return f"INSERT INTO {self.sql} ({listed(into)}) {select}"

    def on_conflict(self) -> str:
        """Return what makes an insert replace the row with the same key."""
        return f"ON CONFLICT ({listed(self.key)}) DO {self._update()}"

    def remove_after(self, number: int) -> str:
        """Return what removes rows with a higher epoch number."""
        return f"DELETE FROM {self.sql} WHERE {self._epoch} > {number}"

    def highest_epoch(self) -> str:
        """Return a query for the highest epoch number in the table."""
        return f"SELECT coalesce(max({self._epoch}), 0) FROM {self.sql}"

    @property
    def _epoch(self) -> str:
        return f"{self.sql}.{quoted(EPOCH_COLUMN)}"

    def _update(self) -> str:
        names = [column.name for column in self.columns if column.name not in self.key]
        names += [EPOCH_COLUMN] if self.with_epoch else []
        if not names:
            return "NOTHING"
        return "UPDATE SET " + ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names)
