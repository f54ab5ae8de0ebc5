"""The SQL that SQLite and PostgreSQL understand alike, as text: nothing here talks to a database."""

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

    def insert(self, rows: str, number: int) -> str:
        """Return what adds `rows` (a table, or a query in parentheses); `number` is the epoch's visible number."""
        names = listed([column.name for column in self.columns])
        into, values = (
            (f"{names}, {quoted(EPOCH_COLUMN)}", f"{names}, {number}") if self.with_epoch else (names, names)
        )
        return f"INSERT INTO {self.sql} ({into}) SELECT {values} FROM {rows}"

    def on_conflict(self) -> str:
        """Return what makes an insert replace the row with the same key."""
        return f"ON CONFLICT ({listed(self.key)}) DO {self._update()}"

    def remove_after(self, number: int) -> str:
        """Return what removes rows with a higher epoch number."""
        return f"DELETE FROM {self.sql} WHERE {quoted(EPOCH_COLUMN)} > {number}"

    def highest_epoch(self) -> str:
        """Return a query for the highest epoch number in the table."""
        return f"SELECT coalesce(max({quoted(EPOCH_COLUMN)}), 0) FROM {self.sql}"

    def _update(self) -> str:
        names = [column.name for column in self.columns if column.name not in self.key]
        names += [EPOCH_COLUMN] if self.with_epoch else []
        if not names:
            return "NOTHING"
        return "UPDATE SET " + ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names)
