"""The ledger as two tables of a SQL database: where every sink stands, and which epochs it took.

Statements number their parameters $1, $2: PostgreSQL's own form, which SQLite takes for names.
"""

from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from holdfast.connectors.ledger import LedgerRecord
from holdfast.core.contracts import Token

LEDGER = "_holdfast_ledger"
EPOCHS = "_holdfast_epochs"
_KEPT_EPOCHS = 1000
_COLUMNS = {
    "timeline": "TEXT NOT NULL",
    "generation": "BIGINT NOT NULL",
    "epoch": "BIGINT NOT NULL",
    "range_digest": "TEXT",
    "rewinds": "BIGINT NOT NULL",
    "base": "BIGINT NOT NULL",
}
"""What the ledger of every version has, beside whose entry it is."""
_ADDED = {"nonce": ("TEXT", "''"), "rewound_in": ("BIGINT", "0"), "rewound_to": ("BIGINT", "0")}
"""What later versions added: type, and what an entry without it says."""
_FIXED = "fixed_to"
"""The last epoch whose rows cannot be taken back, however the sink is defined by now: they replaced others, or have
no number. 0 when there is none, or when it was committed before this was noted."""


class Statements(Protocol):
    """A database inside a transaction."""

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; return its rows, none when it has none."""
        ...


@dataclass(frozen=True)
class LedgerPlace:
    """Where the tables are, and what the database wants to be asked differently."""

    prefix: str = ""
    """What stands before a table's name: a schema and a dot."""
    lock: str = ""
    """Added to a read that a write will follow, so that nobody else writes in between."""
    fold: str = ""
    """A function under which names of the same table are equal."""
    columns: str = ""
    """A query for the column names of a table ($1): a ledger that an earlier version made has fewer."""


class SqlLedger:
    """One sink's entry in the ledger beside its table."""

    def __init__(self, place: LedgerPlace, pipeline: str, sink: str, target: str) -> None:
        self._place, self._pipeline, self._sink, self._target = place, pipeline, sink, target
        self._ledger, self._epochs = f'{place.prefix}"{LEDGER}"', f'{place.prefix}"{EPOCHS}"'
        same_table = f"{place.fold}(target) = {place.fold}($1)"
        self._others = f"SELECT timeline FROM {self._ledger} WHERE {same_table} AND NOT (pipeline = $2 AND sink = $3)"
        self._end_others = f"DELETE FROM {self._ledger} WHERE {same_table} AND timeline <> $2"

    def create(self, connection: Statements) -> None:
        """Create both tables unless they are there; give a ledger of an earlier version what it lacks."""
        added = {name: f"{type_} NOT NULL DEFAULT {said}" for name, (type_, said) in _ADDED.items()}
        columns = ", ".join(f"{name} {declared}" for name, declared in {**_COLUMNS, **added}.items())
        connection.run(
            f"CREATE TABLE IF NOT EXISTS {self._ledger} (pipeline TEXT NOT NULL, sink TEXT NOT NULL, "
            f"target TEXT NOT NULL, {columns}, PRIMARY KEY (pipeline, sink))"
        )
        added[_FIXED] = "BIGINT NOT NULL DEFAULT 0"
        there = self._columns(connection)
        for name in (name for name in added if name not in there):
            connection.run(f"ALTER TABLE {self._ledger} ADD COLUMN {name} {added[name]}")
        connection.run(
            f"CREATE TABLE IF NOT EXISTS {self._epochs} (timeline TEXT NOT NULL, sink TEXT NOT NULL, "
            "epoch BIGINT NOT NULL, rows BIGINT NOT NULL, range_digest TEXT NOT NULL, "
            "PRIMARY KEY (timeline, sink, epoch))"
        )

    def read(self, connection: Statements, *, to_write: bool = True) -> LedgerRecord | None:
        """Return the entry; with `to_write` it stays as it is until the transaction ends."""
        there = self._columns(connection)
        columns = [*_COLUMNS, *(name if name in there else said for name, (_, said) in _ADDED.items())]
        found = connection.run(
            f"SELECT {', '.join(columns)} FROM {self._ledger} "
            f"WHERE pipeline = $1 AND sink = $2{self._place.lock if to_write else ''}",
            self._pipeline,
            self._sink,
        )
        if not found:
            return None
        return LedgerRecord.from_json_value(dict(zip([*_COLUMNS, *_ADDED], found[0], strict=True)))

    def _columns(self, connection: Statements) -> set[str]:
        """Return the ledger's columns; asked each time, because a backup may have been put back."""
        return {name for (name,) in connection.run(self._place.columns, self._ledger)}

    def fixed_to(self, connection: Statements) -> int:
        """Return below which epoch no rewind can go."""
        if _FIXED not in self._columns(connection):
            return 0
        entry = f"SELECT {_FIXED} FROM {self._ledger} WHERE pipeline = $1 AND sink = $2"
        found = connection.run(entry, self._pipeline, self._sink)
        return int(found[0][0]) if found else 0

    def write(self, connection: Statements, record: LedgerRecord, fixed_to: int | None = None) -> None:
        """Replace the entry; what is said of the epochs that no rewind goes below stays unless it is given."""
        values = {**record.to_json_value(), "pipeline": self._pipeline, "sink": self._sink, "target": self._target}
        values |= {} if fixed_to is None else {_FIXED: fixed_to}
        marks = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        updates = ", ".join(f"{name} = excluded.{name}" for name in values)
        connection.run(
            f"INSERT INTO {self._ledger} ({', '.join(values)}) VALUES ({marks}) "
            f"ON CONFLICT (pipeline, sink) DO UPDATE SET {updates}",
            *values.values(),
        )

    def move(self, connection: Statements, record: LedgerRecord, token: Token, fixed: bool) -> None:
        """Write the entry behind a committed token, and remember the token's range for a rewind to it.

        `fixed`: whether no rewind can take the token's rows back.
        """
        self.write(connection, record.after(token), token.epoch if fixed else None)
        timeline = str(record.timeline)
        connection.run(
            f"INSERT INTO {self._epochs} (timeline, sink, epoch, rows, range_digest) VALUES ($1, $2, $3, $4, $5) "
            "ON CONFLICT (timeline, sink, epoch) DO UPDATE SET rows = excluded.rows, "
            "range_digest = excluded.range_digest",
            timeline,
            self._sink,
            token.epoch,
            token.rows,
            token.range_digest,
        )
        oldest = token.epoch - _KEPT_EPOCHS
        connection.run(self._delete_epochs("<="), timeline, self._sink, oldest)

    def go_back(self, connection: Statements, record: LedgerRecord, to_epoch: int) -> LedgerRecord:
        """Forget later epochs and return the record as it stood after `to_epoch`; the caller writes it."""
        timeline = str(record.timeline)
        found = connection.run(
            f"SELECT range_digest FROM {self._epochs} WHERE timeline = $1 AND sink = $2 AND epoch = $3",
            timeline,
            self._sink,
            to_epoch,
        )
        connection.run(self._delete_epochs(">"), timeline, self._sink, to_epoch)
        return record.rewound(to_epoch, found[0][0] if found else None)

    def other_timelines(self, connection: Statements, *, to_write: bool = True) -> set[UUID]:
        """Return who else has an entry for this sink's table; with `to_write` those stay as they are."""
        lock = self._place.lock if to_write else ""
        found = connection.run(self._others + lock, self._target, self._pipeline, self._sink)
        return {UUID(row[0]) for row in found}

    def end_others(self, connection: Statements, timeline: UUID) -> None:
        """Remove entries of other timelines for this sink's table: their commits find themselves fenced."""
        connection.run(self._end_others, self._target, str(timeline))

    def _delete_epochs(self, comparison: str) -> str:
        return f"DELETE FROM {self._epochs} WHERE timeline = $1 AND sink = $2 AND epoch {comparison} $3"
