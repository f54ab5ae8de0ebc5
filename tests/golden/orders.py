"""A pipeline with Spark whose store the version before made; every version can run it.

Spark writes down which files it read by their absolute paths, so input, store and targets stay where they were: in
`PLACE`, which one process at a time has. The input is made again from its number, with the times of change it had.
"""

import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from golden.shop import Book
from holdfast import sinks, sources
from holdfast.spark.pipeline import Pipeline

PLACE = Path("/tmp/holdfast-golden")
ROWS_PER_FILE = 12
_SCHEMA = "id long, customer string, amount double, ts timestamp"
_REVENUE = "SELECT window(ts, '1 minute') w, customer, sum(amount) total FROM orders GROUP BY ALL"
_START = datetime(2026, 1, 1, tzinfo=UTC)
TAKE_BACK = ("db", "lake", "raw")
EVERY = (*TAKE_BACK, "kept", "asked")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Have the place, and no other process meanwhile; leave nothing there."""
    with open(f"{PLACE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            shutil.rmtree(PLACE, ignore_errors=True)


def emptied() -> Path:
    """Return the place with nothing in it; to be had `alone`."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    return PLACE


def add_input(place: Path, first: int, last: int) -> None:
    """Add input files `first` .. `last - 1`."""
    (place / "in").mkdir(exist_ok=True)
    for number in range(first, last):
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        hidden = place / "in" / f".{number:04d}.json"
        hidden.write_text("".join(json.dumps(_order(id)) + "\n" for id in ids))
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(place / "in" / f"{number:04d}.json")


def _order(id: int) -> dict[str, Any]:
    when = _START + timedelta(seconds=id * 10)
    return {"id": id, "customer": f"c{id * 7 % 5}", "amount": id * 0.25, "ts": when.isoformat()}


def pipeline(place: Path, spark: Any, names: tuple[str, ...] = EVERY, **selects: str) -> Pipeline:
    """Return windowed revenue and raw orders into several sinks; `selects` change what a sink gets."""
    made = Pipeline("orders", store=place / "store", work_dir=place / "work", spark=spark)
    source = sources.files(str(place / "in"), schema=_SCHEMA, max_files=1)
    made.source("orders", source, watermark=("ts", "30 seconds"))
    made.view("revenue", _REVENUE)
    made.view("weeks", "SELECT id, id % 12 AS place, customer, amount, ts FROM orders")
    book = Book(place / "asked.db", ("id", "place", "customer", "amount", "ts"))
    targets: dict[str, tuple[str, Any]] = {
        "db": ("revenue", sinks.sqlite(str(place / "app.db"), table="revenue", epoch_column=True)),
        "lake": ("revenue", sinks.delta(str(place / "lake"))),
        "raw": ("weeks", sinks.files(str(place / "raw"))),
        "kept": ("weeks", sinks.sqlite(str(place / "app.db"), table="kept", key="place")),
        "asked": ("weeks", sinks.foreach_batch(book.write, last_committed=book.epoch)),
    }
    for name in names:
        made.sink(name, *targets[name], select=selects.get(name))
    return made


def shown(place: Path, names: tuple[str, ...] = EVERY) -> dict[str, list[tuple[str, ...]]]:
    """Return what strangers read in the targets, as text, without the numbers of epochs."""
    return {name: sorted(_as_text(row) for row in _READ[name](place)) for name in names}


def _as_text(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in sorted(row.items()) if "holdfast" not in name)


def _sqlite(file: str, table: str) -> Callable[[Path], list[dict[str, Any]]]:
    def read(place: Path) -> list[dict[str, Any]]:
        with contextlib.closing(sqlite3.connect(place / file)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(f"SELECT * FROM {table}")]

    return read


def _raw(place: Path) -> list[dict[str, Any]]:
    parts = sorted((place / "raw").glob("holdfast_epoch=*/*.parquet"))
    return [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]


_READ: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "db": _sqlite("app.db", "revenue"),
    "lake": lambda place: DeltaTable(str(place / "lake")).to_pyarrow_table().to_pylist(),
    "raw": _raw,
    "kept": _sqlite("app.db", "kept"),
    "asked": _sqlite("asked.db", "rows"),
}
