"""A small deterministic stream of orders, and what the sinks of a pipeline on it hold."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable

ROWS_PER_FILE = 60
SCHEMA = "id long, customer string, amount double, ts timestamp"


def write_orders(base: Path, first: int, last: int) -> None:
    """Add input files `first` .. `last - 1`; their times of change are in order, because Spark reads them so."""
    (base / "in").mkdir(parents=True, exist_ok=True)
    for number in range(first, last):
        rows = [_order(i) for i in range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)]
        path = base / "in" / f"{number:04d}.json"
        hidden = path.with_name("." + path.name)
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(path)


def _order(i: int) -> dict[str, Any]:
    minute, second = divmod(i * 4, 60)
    hour, minute = divmod(minute, 60)
    return {
        "id": i,
        "customer": f"c{i * 7 % 5}",
        "amount": i * 0.25,
        "ts": f"2024-01-01T{hour:02d}:{minute:02d}:{second:02d}Z",
    }


def contents(base: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each sink shows, sorted, without the epoch columns that differ between runs."""
    readers = {"lake": (_delta, "lake"), "db": (_sqlite, "app.db"), "raw": (_files, "raw")}
    return {sink: read(base / name) for sink, (read, name) in readers.items() if (base / name).exists()}


def _delta(path: Path) -> list[tuple[Any, ...]]:
    return _rows(DeltaTable(str(path)).to_pyarrow_table().to_pylist())


def _files(path: Path) -> list[tuple[Any, ...]]:
    folders = [folder for folder in path.iterdir() if folder.name.startswith("holdfast_epoch=")]
    rows = [row for folder in folders for row in ds.dataset(str(folder), format="parquet").to_table().to_pylist()]
    return _rows(rows)


def _sqlite(path: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as database:
        database.row_factory = sqlite3.Row
        return _rows([dict(row) for row in database.execute("SELECT * FROM revenue")])


def _rows(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    kept = [{key: value for key, value in row.items() if key != "_holdfast_epoch"} for row in rows]
    return sorted(tuple(str(value) for value in row.values()) for row in kept)
