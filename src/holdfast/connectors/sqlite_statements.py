"""The SQL of a table sink with staged rows, as text: nothing here talks to a database."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.connectors.sqlite_columns import Column

LEDGER = "_holdfast_ledger"
EPOCHS = "_holdfast_epochs"
EPOCH_COLUMN = "_holdfast_epoch"
STAGED = 'holdfast_staged."rows"'
KEPT_EPOCHS = 1000

CREATE_LEDGER = f"""
CREATE TABLE IF NOT EXISTS "{LEDGER}" (
  pipeline TEXT NOT NULL, sink TEXT NOT NULL, target TEXT NOT NULL, timeline TEXT NOT NULL,
  generation INTEGER NOT NULL, epoch INTEGER NOT NULL, range_digest TEXT, rewinds INTEGER NOT NULL,
  base INTEGER NOT NULL, PRIMARY KEY (pipeline, sink))"""

CREATE_EPOCHS = f"""
CREATE TABLE IF NOT EXISTS "{EPOCHS}" (
  timeline TEXT NOT NULL, sink TEXT NOT NULL, epoch INTEGER NOT NULL, rows INTEGER NOT NULL,
  range_digest TEXT NOT NULL, PRIMARY KEY (timeline, sink, epoch)) WITHOUT ROWID"""

READ_LEDGER = f"""
SELECT timeline, generation, epoch, range_digest, rewinds, base FROM "{LEDGER}" WHERE pipeline = ? AND sink = ?"""

WRITE_LEDGER = f"""
INSERT OR REPLACE INTO "{LEDGER}" (pipeline, sink, target, timeline, generation, epoch, range_digest, rewinds, base)
VALUES (:pipeline, :sink, :target, :timeline, :generation, :epoch, :range_digest, :rewinds, :base)"""

MOVE_LEDGER = f"""
UPDATE "{LEDGER}" SET epoch = :epoch, range_digest = :range_digest
WHERE pipeline = :pipeline AND sink = :sink AND timeline = :timeline AND generation = :generation
  AND epoch = :previous AND rewinds = :rewinds"""

LOG_EPOCH = f"""
INSERT OR REPLACE INTO "{EPOCHS}" (timeline, sink, epoch, rows, range_digest) VALUES (?, ?, ?, ?, ?)"""
TRIM_EPOCHS = f'DELETE FROM "{EPOCHS}" WHERE timeline = ? AND sink = ? AND epoch <= ?'
FORGET_EPOCHS = f'DELETE FROM "{EPOCHS}" WHERE timeline = ? AND sink = ? AND epoch > ?'
RANGE_OF_EPOCH = f'SELECT range_digest FROM "{EPOCHS}" WHERE timeline = ? AND sink = ? AND epoch = ?'
OTHER_OWNERS = f"""
SELECT timeline FROM "{LEDGER}" WHERE lower(target) = lower(?) AND NOT (pipeline = ? AND sink = ?)"""
REMOVE_FOREIGN = f'DELETE FROM "{LEDGER}" WHERE lower(target) = lower(?) AND timeline <> ?'


def quoted(name: str) -> str:
    """Return an identifier that SQL takes as it is."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class TargetTable:
    """The table that rows go to."""

    name: str
    columns: Sequence[Column]
    key: Sequence[str]
    """Columns of the table, empty when rows are appended."""
    with_epoch: bool

    def create(self) -> list[str]:
        """Return what creates the table."""
        parts = [f"{quoted(column.name)} {column.type}" for column in self.columns]
        parts += [f"{quoted(EPOCH_COLUMN)} INTEGER"] if self.with_epoch else []
        statements = [f"CREATE TABLE {quoted(self.name)} ({', '.join(parts)})"]
        if self.key:
            index = quoted(f"{self.name}_holdfast_key")
            statements.append(f"CREATE UNIQUE INDEX {index} ON {quoted(self.name)} ({self._list(self.key)})")
        return statements

    def show(self) -> list[str]:
        """Return what moves staged rows into the table; `:number` is the epoch's visible number."""
        names = self._list([column.name for column in self.columns])
        into, values = (
            (f"{names}, {quoted(EPOCH_COLUMN)}", f"{names}, :number") if self.with_epoch else (names, names)
        )
        insert = f"INSERT INTO {quoted(self.name)} ({into}) SELECT {values} FROM {STAGED} WHERE true"
        if not self.key:
            return [insert]
        return [self._remove_null_keys(), f"{insert} ON CONFLICT ({self._list(self.key)}) DO {self._update()}"]

    def repeated_keys(self) -> str:
        """Return a query that finds staged rows with one key."""
        return f"SELECT 1 FROM {STAGED} GROUP BY {self._list(self.key)} HAVING count(*) > 1 LIMIT 1"

    def remove_after(self) -> str:
        """Return what removes rows with a higher epoch number than `:number`."""
        return f"DELETE FROM {quoted(self.name)} WHERE {quoted(EPOCH_COLUMN)} > :number"

    def highest_epoch(self) -> str:
        """Return a query for the highest epoch number in the table."""
        return f"SELECT coalesce(max({quoted(EPOCH_COLUMN)}), 0) FROM {quoted(self.name)}"

    def _update(self) -> str:
        names = [column.name for column in self.columns if column.name not in self.key]
        names += [EPOCH_COLUMN] if self.with_epoch else []
        if not names:
            return "NOTHING"
        return "UPDATE SET " + ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names)

    def _remove_null_keys(self) -> str:
        """Return what makes room for keys with a NULL in them: a unique index takes two NULLs for different."""
        same = " AND ".join(f"t.{quoted(name)} IS s.{quoted(name)}" for name in self.key)
        null = " OR ".join(f"s.{quoted(name)} IS NULL" for name in self.key)
        matching = f"SELECT t.rowid FROM {STAGED} s JOIN {quoted(self.name)} t ON {same} WHERE {null}"
        return f"DELETE FROM {quoted(self.name)} WHERE rowid IN ({matching})"

    @staticmethod
    def _list(names: Sequence[str]) -> str:
        return ", ".join(map(quoted, names))
