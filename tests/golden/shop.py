"""A pipeline without Spark on a directory store, with sinks whose targets are real; every version can run it.

What is here is part of the golden copies: it says which rows they hold, and which come next. It runs with the version
that made them and with the present one, so it uses nothing but what both have.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from engine.worlds import SETTINGS, InTurn, Process, World, records
from holdfast import sinks
from holdfast.core.contracts import LedgerState, Sink, SinkContext
from holdfast.engine.delivery import Delivery
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("seen", pa.int64()),
    ]
)
TAKE_BACK = ("appended", "lake", "merged", "raw", "lines")
"""Sinks that can be rewound."""
EVERY = (*TAKE_BACK, "kept", "asked", "told")
KEYED = ("merged", "kept")
"""Sinks in which a row replaces the one that has its key."""
_START = datetime(2026, 1, 1, tzinfo=UTC)


def order(record: Row, seen: int) -> Row:
    """Return the row of a record; `seen` is the state and shows whether the right one was restored."""
    number = record["id"]
    return {
        "id": number,
        "place": number % 3,
        "name": f"order {number}" if number % 4 else None,
        "amount": number * 0.25,
        "paid": number % 2 == 0,
        "at": _START + timedelta(minutes=number),
        "seen": seen,
    }


class Shop(World):
    """Store and targets in a directory, which may be moved."""

    def __init__(self, place: Path, count: int, names: Iterable[str] = EVERY, *, take: int = 3) -> None:
        super().__init__(count, dict.fromkeys(names, order), take=take)
        self.place = place

    def medium(self) -> Any:
        medium = DirectoryMedium(str(self.place / "store"), LocalDisk())
        medium.prepare()
        return medium

    def process(self, **options: Any) -> "Clerk":
        return Clerk(self, **options)

    def grow(self, count: int) -> None:
        """Let there be that many records."""
        self.source.records = records(count)

    def ledgers(self) -> dict[str, LedgerState]:
        """Return what every target says, asked by a process that claims nothing."""
        found = {name: bound(name, self.place).ledger() for name in self.targets}
        return {name: ledger for name, ledger in found.items() if ledger is not None}

    def shown(self) -> dict[str, list[Row]]:
        """Return what strangers read in the targets."""
        return {name: sorted(READ[name](self.place), key=_by_id) for name in self.targets}

    def expected(self) -> dict[str, list[Row]]:
        """Return what the targets show when every record was read and nothing went wrong."""
        return {name: sorted(self._expected(name), key=_by_id) for name in self.targets}

    def _expected(self, name: str) -> list[Row]:
        rows = self.source.expected(name)
        return list({row["place"]: row for row in rows}.values()) if name in KEYED else rows


class Clerk(Process):
    """One life of the shop's process."""

    def __init__(self, world: Shop, **options: Any) -> None:
        super().__init__(world, **options)
        self.sinks = {name: bound(name, world.place) for name in self.sinks}
        self.delivery = Delivery(self.sinks, SETTINGS, self.observer, world.clock, wrap=InTurn())


def bound(name: str, place: Path) -> Any:
    """Return a sink that has its context."""
    sink = MAKE[name](place)
    sink.bind(SinkContext(name, "shop", SCHEMA, "append", str(place / "store" / "spool" / name)))
    return sink


class Book:
    """What a careful user hands to foreach_batch: rows and key in one transaction, and a way to ask."""

    def __init__(self, path: Path, columns: Sequence[str] = SCHEMA.names) -> None:
        self._path, self._columns = path, columns

    def write(self, table: Any, key: Any) -> None:
        """Keep rows, once for each key; a second call with a key must have the same rows."""
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS calls (timeline, epoch, PRIMARY KEY (timeline, epoch))")
            database.execute(f"CREATE TABLE IF NOT EXISTS rows ({', '.join(self._columns)})")
            if self._epoch(database, key.timeline) == key.epoch:
                return
            database.execute("INSERT INTO calls VALUES (?, ?)", (str(key.timeline), key.epoch))
            marks = ", ".join("?" for _ in self._columns)
            rows = [tuple(_text(row[name]) for name in self._columns) for row in table.to_pylist()]
            database.executemany(f"INSERT INTO rows VALUES ({marks})", rows)

    def epoch(self, timeline: UUID) -> int | None:
        """Return the last epoch that was written."""
        with self._open() as database:
            known = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'calls'").fetchone()
            return self._epoch(database, timeline) if known else None

    @staticmethod
    def _epoch(database: sqlite3.Connection, timeline: UUID) -> int | None:
        query = "SELECT max(epoch) FROM calls WHERE timeline = ?"
        found: int | None = database.execute(query, (str(timeline),)).fetchone()[0]
        return found

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self._path)) as database, database:
            yield database


def _asked(place: Path) -> Sink:
    book = Book(place / "asked.db")
    return sinks.foreach_batch(book.write, last_committed=book.epoch)


MAKE: dict[str, Callable[[Path], Sink]] = {
    "appended": lambda place: sinks.sqlite(str(place / "app.db"), table="appended", epoch_column=True),
    "kept": lambda place: sinks.sqlite(str(place / "app.db"), table="kept", key="place"),
    "lake": lambda place: sinks.delta(str(place / "lake")),
    "merged": lambda place: sinks.delta(str(place / "merged"), mode="merge", key="place"),
    "raw": lambda place: sinks.files(str(place / "raw")),
    "lines": lambda place: sinks.files(str(place / "lines"), format="json"),
    "asked": _asked,
    "told": lambda place: sinks.foreach_batch(Book(place / "told.db").write),
}


def _sqlite(file: str, table: str) -> Callable[[Path], list[Row]]:
    def read(place: Path) -> list[Row]:
        if not (place / file).exists():
            return []
        with contextlib.closing(sqlite3.connect(place / file)) as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                return []
            rows = database.execute(f"SELECT {', '.join(SCHEMA.names)} FROM {table}").fetchall()
        return [_typed(dict(zip(SCHEMA.names, row, strict=True))) for row in rows]

    return read


def _delta(folder: str) -> Callable[[Path], list[Row]]:
    def read(place: Path) -> list[Row]:
        path = str(place / folder)
        return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []

    return read


def _files(folder: str, format: str) -> Callable[[Path], list[Row]]:
    def read(place: Path) -> list[Row]:
        parts = [str(path) for path in sorted((place / folder).glob("holdfast_epoch=*/part-*"))]
        return (
            ds.dataset(parts, format=format).to_table(columns=SCHEMA.names).cast(SCHEMA).to_pylist() if parts else []
        )

    return read


READ: dict[str, Callable[[Path], list[Row]]] = {
    "appended": _sqlite("app.db", "appended"),
    "kept": _sqlite("app.db", "kept"),
    "lake": _delta("lake"),
    "merged": _delta("merged"),
    "raw": _files("raw", "parquet"),
    "lines": _files("lines", "json"),
    "asked": _sqlite("asked.db", "rows"),
    "told": _sqlite("told.db", "rows"),
}


def _text(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _typed(row: Row) -> Row:
    """Give a row of SQLite, which knows neither truth nor time, the types it came with."""
    return {**row, "paid": bool(row["paid"]), "at": datetime.fromisoformat(row["at"]).astimezone(UTC)}


def _by_id(row: Row) -> int:
    number: int = row["id"]
    return number
