"""A small deterministic stream of orders, the pipelines the tests run on it, and what their sinks hold."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable

from holdfast import sinks, sources
from holdfast.spark.pipeline import Pipeline

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


def windows(base: Path, **options: Any) -> Pipeline:
    """Windowed revenue and raw rows, into Delta, SQLite and Parquet."""
    pipeline, orders = _with_orders(base, options)
    revenue = pipeline.view(
        "revenue", "SELECT window(ts, '1 minute') w, customer, sum(amount) total FROM orders GROUP BY ALL"
    )
    pipeline.sink("lake", revenue, sinks.delta(str(base / "lake")))
    pipeline.sink("db", revenue, sinks.sqlite(str(base / "app.db"), table="revenue", epoch_column=True))
    pipeline.sink("raw", orders, sinks.files(str(base / "raw")))
    return pipeline


def fan_out(base: Path, **options: Any) -> Pipeline:
    """Three stateless views into three sinks."""
    pipeline, orders = _with_orders(base, options)
    even = pipeline.view("even", "SELECT id, amount FROM orders WHERE id % 2 = 0")
    odd = pipeline.view("odd", lambda orders: orders.filter("id % 2 = 1").select("id", "customer"))
    pipeline.sink("lake", even, sinks.delta(str(base / "lake")))
    pipeline.sink("db", odd, sinks.sqlite(str(base / "app.db"), table="revenue", epoch_column=True))
    pipeline.sink("raw", orders, sinks.files(str(base / "raw")))
    return pipeline


PIPELINES = {"windows": windows, "fan_out": fan_out}


def _with_orders(base: Path, options: dict[str, Any]) -> tuple[Pipeline, str]:
    options = {"store": base / "store", "work_dir": base / "work", **options}
    pipeline = Pipeline("orders", **options)
    spec = sources.files(str(base / "in"), schema=SCHEMA, max_files=1)
    return pipeline, pipeline.source("orders", spec, watermark=("ts", "1 minute"))


def contents(base: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what each sink shows, sorted, without the epoch columns that differ between runs."""
    return {"lake": _delta(base / "lake"), "db": _sqlite(base / "app.db"), "raw": _files(base / "raw")}


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
