"""The pipelines the tests run on the stream of orders: each kind of operator, each with at least two sinks."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from holdfast import sinks, sources, tables
from holdfast.spark.pipeline import Pipeline
from spark.orders import SCHEMA

# Spark's Python workers cannot import this module: what they run is sent to them whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

REVENUE = "SELECT window(ts, '1 minute') w, customer, sum(amount) total FROM orders GROUP BY ALL"


def windows(base: Path, **options: Any) -> Pipeline:
    """Windowed revenue and raw rows, into Delta, SQLite and Parquet."""
    pipeline = _with_orders(base, options)
    revenue = pipeline.view("revenue", REVENUE)
    _append_everywhere(pipeline, base, revenue, revenue, "orders")
    return pipeline


def fan_out(base: Path, **options: Any) -> Pipeline:
    """Three stateless views into three sinks."""
    pipeline = _with_orders(base, options)
    even = pipeline.view("even", "SELECT id, amount FROM orders WHERE id % 2 = 0")
    odd = pipeline.view("odd", lambda orders: orders.filter("id % 2 = 1").select("id", "customer"))
    _append_everywhere(pipeline, base, even, odd, "orders")
    return pipeline


def running(base: Path, **options: Any) -> Pipeline:
    """Keep a total per customer that every epoch updates, by key."""
    pipeline = _with_orders(base, {"output_mode": "update", **options})
    totals = pipeline.view("totals", "SELECT customer, sum(amount) total, count(*) n FROM orders GROUP BY customer")
    _upsert_everywhere(pipeline, base, totals)
    return pipeline


def deduplicated(base: Path, **options: Any) -> Pipeline:
    """Each seven orders share a key; the first of them goes through. Keys cross the borders of files."""
    pipeline = _with_orders(base, options)

    def first_of_seven(orders: DataFrame) -> DataFrame:
        keyed = orders.selectExpr("id div 7 AS week", "ts")
        return keyed.dropDuplicatesWithinWatermark(["week"]).select("week")

    weeks = pipeline.view("weeks", first_of_seven)
    _append_everywhere(pipeline, base, weeks, weeks, weeks)
    return pipeline


def joined(base: Path, **options: Any) -> Pipeline:
    """Two streams, every order with the payment of two minutes before, or with none once it is too late for one."""
    pipeline = _with_orders(base, options)
    pipeline.source("payments", _orders_in(base), watermark=("ts", "1 minute"))
    matched = pipeline.view(
        "matched",
        """SELECT o.id, o.amount, p.amount AS paid FROM orders o LEFT JOIN payments p
           ON o.id = p.id + 30 AND p.id % 2 = 0 AND p.ts BETWEEN o.ts - INTERVAL 3 MINUTES AND o.ts""",
    )
    _append_everywhere(pipeline, base, matched, matched, matched)
    return pipeline


class RunningTotal(StatefulProcessor):
    """A count and a sum for each customer, in Python."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "n long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:
        n, total = self._totals.get() if self._totals.exists() else (0, 0.0)
        for frame in rows:
            n, total = n + len(frame), total + float(frame["amount"].sum())
        self._totals.update((n, total))
        yield pd.DataFrame({"customer": [key[0]], "total": [total], "n": [n]})

    def close(self) -> None:
        """Nothing to let go."""


def python_state(base: Path, **options: Any) -> Pipeline:
    """Keep the same totals by transformWithState in Python, which exists for RocksDB only."""
    pipeline = _with_orders(base, {"output_mode": "update", **options})
    schema = "customer string, total double, n long"

    def totals(orders: DataFrame) -> DataFrame:
        return orders.groupBy("customer").transformWithStateInPandas(RunningTotal(), schema, "Update", "None")

    _upsert_everywhere(pipeline, base, pipeline.view("totals", totals))
    return pipeline


def sessions(base: Path, **options: Any) -> Pipeline:
    """Revenue of each customer's visits: an order comes every twenty seconds, with a pause after thirty orders."""
    pipeline = _with_orders(base, options)
    visits = pipeline.view(
        "visits",
        """SELECT session_window.start AS begin, session_window.end AS finish, customer, sum(amount) AS total
           FROM orders WHERE id % 45 < 30 GROUP BY session_window(ts, '30 seconds'), customer""",
    )
    _append_everywhere(pipeline, base, visits, visits, visits)
    return pipeline


def pandas_state(base: Path, **options: Any) -> Pipeline:
    """Keep the same totals by applyInPandasWithState, the older way to have state in Python."""
    pipeline = _with_orders(base, {"output_mode": "update", **options})

    def updated(key: Any, rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        n, total = state.get if state.exists else (0, 0.0)
        for frame in rows:
            n, total = n + len(frame), total + float(frame["amount"].sum())
        state.update((n, total))
        yield pd.DataFrame({"customer": [key[0]], "total": [total], "n": [n]})

    def totals(orders: DataFrame) -> DataFrame:
        schema = "customer string, total double, n long"
        return orders.groupBy("customer").applyInPandasWithState(
            updated, schema, "n long, total double", "update", GroupStateTimeout.NoTimeout
        )

    _upsert_everywhere(pipeline, base, pipeline.view("totals", totals))
    return pipeline


def several(base: Path, **options: Any) -> Pipeline:
    """Three stateful views in one query: two windows of different width, and a deduplication."""
    pipeline = _with_orders(base, options)
    revenue = pipeline.view("revenue", REVENUE)
    counts = pipeline.view(
        "counts", "SELECT window(ts, '2 minutes') w, count(*) n, max(id) newest FROM orders GROUP BY ALL"
    )

    def first_of_seven(orders: DataFrame) -> DataFrame:
        keyed = orders.selectExpr("id div 7 AS week", "ts")
        return keyed.dropDuplicatesWithinWatermark(["week"]).select("week")

    _append_everywhere(pipeline, base, counts, revenue, pipeline.view("weeks", first_of_seven))
    return pipeline


LABELLED = """SELECT w, revenue.customer, total, label
FROM revenue LEFT JOIN labels ON labels.customer = revenue.customer"""
PRICED = "SELECT id, label FROM orders JOIN labels ON labels.customer = orders.customer"


def referenced(
    base: Path, *, table: Any = None, refresh: str | None = None, select: str = PRICED, **options: Any
) -> Pipeline:
    """Join a reference table of labels to windowed revenue and to raw rows; a third sink has none of it."""
    pipeline = _with_orders(base, options)
    if table is None:
        table = tables.files(str(base / "labels.csv"), format="csv", header=True)
    pipeline.table("labels", table, refresh=refresh)
    revenue = pipeline.view("revenue", REVENUE)
    pipeline.sink("lake", revenue, sinks.delta(str(base / "lake")), select=LABELLED)
    db = sinks.sqlite(str(base / "app.db"), table="revenue", epoch_column=True)
    pipeline.sink("db", "orders", db, select=select)
    pipeline.sink("raw", "orders", sinks.files(str(base / "raw")))
    return pipeline


PIPELINES = {
    "windows": windows,
    "fan_out": fan_out,
    "running": running,
    "deduplicated": deduplicated,
    "joined": joined,
    "python_state": python_state,
    "sessions": sessions,
    "pandas_state": pandas_state,
    "several": several,
    "referenced": referenced,
}


def _with_orders(base: Path, options: dict[str, Any]) -> Pipeline:
    options = {"store": base / "store", "work_dir": base / "work", **options}
    pipeline = Pipeline("orders", **options)
    pipeline.source("orders", _orders_in(base), watermark=("ts", "1 minute"))
    return pipeline


def _orders_in(base: Path) -> Any:
    return sources.files(str(base / "in"), schema=SCHEMA, max_files=1)


def _append_everywhere(pipeline: Pipeline, base: Path, lake: str, db: str, raw: str) -> None:
    pipeline.sink("lake", lake, sinks.delta(str(base / "lake")))
    pipeline.sink("db", db, sinks.sqlite(str(base / "app.db"), table="revenue", epoch_column=True))
    pipeline.sink("raw", raw, sinks.files(str(base / "raw")))


def _upsert_everywhere(pipeline: Pipeline, base: Path, view: str) -> None:
    pipeline.sink("lake", view, sinks.delta(str(base / "lake"), mode="merge", key="customer"))
    pipeline.sink("db", view, sinks.sqlite(str(base / "app.db"), table="revenue", key="customer"))
