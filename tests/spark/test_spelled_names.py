"""Names of sources and views are Spark's: two spellings are one name, in a definition and from start to start."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast import open_store, sinks, sources, tables
from holdfast.errors import PipelineDefinitionError
from holdfast.spark.definition import Definition
from holdfast.spark.pipeline import Pipeline
from holdfast.testing import RecordedTarget, RecordingSink
from spark.orders import ROWS_PER_FILE, SCHEMA, write_orders


def definition() -> Definition:
    made = Definition("shop")
    made.add_source("Orders", sources.files("/in", schema=SCHEMA), None)
    made.add_view("Cheap", "SELECT id FROM orders")
    made.add_table("Labels", tables.files("/labels.csv", format="csv"), None)
    return made


@pytest.mark.parametrize("name", ["orders", "cheap", "LABELS"])
@pytest.mark.parametrize("kind", ["source", "view", "table"])
def test_two_spellings_of_a_name_are_refused_with_both(kind: str, name: str) -> None:
    made = definition()
    add: dict[str, Any] = {
        "source": lambda: made.add_source(name, sources.files("/in", schema=SCHEMA), None),
        "view": lambda: made.add_view(name, "SELECT 1"),
        "table": lambda: made.add_table(name, tables.files("/labels.csv", format="csv"), None),
    }
    with pytest.raises(PipelineDefinitionError, match=f"(?i)the {kind} '{name}' and '{name}' have one name"):
        add[kind]()


def test_a_sink_takes_what_it_names_in_any_spelling() -> None:
    made = definition()
    made.add_sink("db", "CHEAP", sinks.memory())
    assert made.outputs == ["Cheap"]


def made(base: Path, spark: SparkSession, orders: str, payments: str, views: tuple[str, ...]) -> Pipeline:
    """Return a pipeline of two sources, the first of which is read twice."""
    pipeline = Pipeline("shop", store=base / "store", work_dir=base / "work", spark=spark)
    for name, folder in {orders: "orders", payments: "payments"}.items():
        pipeline.source(name, sources.files(str(base / folder / "in"), schema=SCHEMA, max_files=1))
    both, paid = views
    pipeline.view(both, "SELECT id FROM orders UNION ALL SELECT -id FROM ORDERS UNION ALL SELECT id FROM payments")
    pipeline.view(paid, f"SELECT id FROM {payments} WHERE id < 70")
    pipeline.sink("both", both.upper(), sinks.sqlite(str(base / "app.db"), table="both_of_them"))
    pipeline.sink("paid", paid.upper(), sinks.sqlite(str(base / "app.db"), table="paid"))
    return pipeline


ODD = "SELECT id AS `a``b`, id AS `a.b`, id AS `select`, id AS `ключ` FROM orders"


@pytest.mark.parametrize("others", [False, True])
def test_columns_have_any_names(others: bool, tmp_path: Path, spark: SparkSession) -> None:
    """Goal: backticks and dots are part of a name. Method: an output alone, and beside another one."""
    write_orders(tmp_path / "orders", 0, 1)
    made = Pipeline("shop", store=tmp_path / "store", work_dir=tmp_path / "work", spark=spark)
    made.source("orders", sources.files(str(tmp_path / "orders" / "in"), schema=SCHEMA))
    made.view("odd", lambda orders: orders.sparkSession.sql(ODD).distinct())
    target = RecordedTarget()
    made.sink("odd", "odd", RecordingSink(target))
    if others:
        made.sink("other", "orders", sinks.files(str(tmp_path / "other")))
    made.run(once=True)
    assert len(target.rows) == ROWS_PER_FILE
    assert {tuple(row) for row in target.rows} == {("a`b", "a.b", "select", "ключ")}


@pytest.mark.parametrize("columns", ["id, id", "id, amount AS ID"])
@pytest.mark.parametrize("others", [False, True])
def test_two_columns_of_one_name_are_refused(columns: str, others: bool, tmp_path: Path, spark: SparkSession) -> None:
    """Goal: one sentence, whatever the number of sinks. Method: an output alone, and beside another one."""
    write_orders(tmp_path / "orders", 0, 1)
    made = Pipeline("shop", store=tmp_path / "store", work_dir=tmp_path / "work", spark=spark)
    made.source("orders", sources.files(str(tmp_path / "orders" / "in"), schema=SCHEMA))
    made.view("twice", f"SELECT {columns} FROM orders")
    made.sink("twice", "twice", sinks.files(str(tmp_path / "twice")))
    if others:
        made.sink("other", "orders", sinks.files(str(tmp_path / "other")))
    with pytest.raises(PipelineDefinitionError, match="'twice' has two columns named 'id'"):
        made.run(once=True)
    assert not list(tmp_path.rglob("*.parquet"))


def test_capitals_lose_no_offsets_and_another_spelling_goes_on(tmp_path: Path, spark: SparkSession) -> None:
    """Goal: every source's position is known and found again. Method: other spellings in each run, no question."""
    spellings = [("Orders", "PAYMENTS", ("Both", "Paid")), ("orders", "payments", ("both", "paid"))]
    spellings += [("ORDERS", "Payments", ("BOTH", "pAID"))]
    for number, (orders, payments, views) in enumerate(spellings):
        write_orders(tmp_path / "orders", number, number + 1)
        write_orders(tmp_path / "payments", number, number + 1)
        made(tmp_path, spark, orders, payments, views).run(once=True)
        newest = open_store(tmp_path / "store", read_only=True).load_latest()
        assert newest is not None
        assert sorted(newest.source_offsets) == sorted([orders, payments])
        assert {position.offsets["log_offset"] for position in newest.source_offsets.values()} == {str(number)}
    with closing(sqlite3.connect(tmp_path / "app.db")) as database:
        found = sorted(id for (id,) in database.execute("SELECT id FROM both_of_them"))
        ids = range(3 * ROWS_PER_FILE)
        assert found == sorted([*ids, *ids, *(-id for id in ids)])
        assert sorted(database.execute("SELECT id FROM paid")) == [(id,) for id in range(70)]


def test_a_function_may_spell_names_as_it_likes(tmp_path: Path, spark: SparkSession) -> None:
    write_orders(tmp_path, 0, 1)
    pipeline = Pipeline("shop", store=tmp_path / "store", work_dir=tmp_path / "work", spark=spark)
    pipeline.source("Orders", sources.files(str(tmp_path / "in"), schema=SCHEMA))
    pipeline.view("cheap", lambda orders: orders.select("id"))
    target = sinks.sqlite(str(tmp_path / "app.db"), table="cheap")
    pipeline.sink("db", "cheap", target)
    pipeline.run(once=True)
    with closing(sqlite3.connect(tmp_path / "app.db")) as database:
        assert database.execute("SELECT count(*) FROM cheap").fetchone() == (ROWS_PER_FILE,)
