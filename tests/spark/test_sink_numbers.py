"""The number and the order of sinks decide nothing: neither which rows come, nor whether a pipeline goes on."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import sinks, sources
from holdfast.errors import PipelineDefinitionError, PipelineError
from holdfast.spark.building import BuiltQuery, build_query
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.session import own_session
from holdfast.testing import RecordedTarget, RecordingSink
from spark.orders import ROWS_PER_FILE, SCHEMA, write_orders

NUMBERED = "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY id) AS place FROM orders"
WITH_FILE = "SELECT id, input_file_name() AS file, current_timestamp() AS at FROM orders"


def pipeline(
    base: Path, spark: SparkSession, views: dict[str, Any], takes: Iterable[str], **options: Any
) -> Pipeline:
    """Return a pipeline with a SQLite sink for each output, named after it; twice the same name makes two of them."""
    made = Pipeline("shop", store=base / "store", work_dir=base / "work", spark=spark, **options)
    for name in ("orders", "payments"):
        made.source(name, sources.files(str(base / name / "in"), schema=SCHEMA, max_files=1))
    for name, query in views.items():
        made.view(name, query)
    for number, output in enumerate(takes):
        upsert = {"key": "id" if output == "orders" else "customer"} if "output_mode" in options else {}
        made.sink(f"{output}{number}", output, sinks.sqlite(str(base / "app.db"), table=output, **upsert))
    return made


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("orders", "payments"):
        write_orders(tmp_path / name, 0, 2)
    return tmp_path


def rows(base: Path, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(base / "app.db")) as database:
        return sorted(database.execute(f"SELECT {columns} FROM {table}").fetchall())


def built(made: Pipeline, spark: SparkSession) -> BuiltQuery:
    return build_query(made._definition, own_session(spark))


@pytest.mark.parametrize(
    "refused",
    [
        NUMBERED,
        "SELECT id FROM orders INTERSECT SELECT id FROM orders WHERE id > 3",
        "SELECT id FROM orders EXCEPT SELECT id FROM orders WHERE id > 3",
        "SELECT id FROM orders ORDER BY id",
    ],
)
def test_what_spark_refuses_for_one_sink_is_refused_for_several(
    base: Path, spark: SparkSession, refused: str
) -> None:
    views = {"odd": refused, "plain": "SELECT id FROM orders"}
    for takes in (["odd"], ["odd", "plain", "orders"]):
        made = pipeline(base, spark, views, takes)
        with pytest.raises(PipelineDefinitionError, match=r"'odd'.*not supported"):
            made.run(once=True)
        assert not (base / "app.db").exists()


CLOSED = "SELECT window(ts, '10 seconds').start AS w, count(*) AS n FROM orders GROUP BY window(ts, '10 seconds')"


@pytest.mark.parametrize("takes", [["again"], ["closed", "again"]])
def test_a_view_made_of_another_with_state_has_its_rows(
    takes: list[str], tmp_path: Path, spark: SparkSession
) -> None:
    """Goal: no window stays open for ever. Method: a second output whose plan begins as the first one's.

    Spark has them share a shuffle, and then tells the second one's state nothing of event time.
    """
    write_orders(tmp_path, 0, 3)
    made = Pipeline("shop", store=tmp_path / "store", work_dir=tmp_path / "work", spark=spark)
    made.source(
        "orders", sources.files(str(tmp_path / "in"), schema=SCHEMA, max_files=1), watermark=("ts", "1 second")
    )
    made.view("closed", CLOSED)
    made.view("again", "SELECT w, n * 2 AS twice FROM closed")
    targets = {name: RecordedTarget() for name in takes}
    for name, target in targets.items():
        made.sink(f"s_{name}", name, RecordingSink(target))
    made.run(once=True)
    counts = {len(target.rows) for target in targets.values()}
    assert len(counts) == 1
    assert counts != {0}


def test_a_view_gives_the_same_rows_beside_others(base: Path, spark: SparkSession) -> None:
    """Goal: names of files and the time of an epoch are the stream's. Method: one output, and three."""
    views = {"files": WITH_FILE, "plain": "SELECT id FROM orders"}
    found = []
    for name, takes in {"one": ["files"], "three": ["files", "plain", "orders"]}.items():
        (base / name).mkdir()
        for source in ("orders", "payments"):
            (base / name / source).symlink_to(base / source)
        made = pipeline(base / name, spark, views, takes)
        made.run(once=True)
        times = dict(rows(base / name, "files", "id, at"))
        found.append([(id, file.rsplit("/", 1)[1]) for id, file in rows(base / name, "files", "id, file")])
        for batch in (0, 1):
            log = next((base / name / "work").glob(f"**/offsets/{batch}")).read_text().split("\n")
            frozen = json.loads(log[1])["batchTimestampMs"]
            shown = times[batch * ROWS_PER_FILE]
            assert shown.startswith(_as_shown(frozen)), (shown, frozen)
    assert found[0] == found[1]
    assert len({file for _, file in found[0]}) == 2


def _as_shown(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}"


def test_outputs_that_share_a_read_give_what_each_gives_alone(base: Path, spark: SparkSession) -> None:
    def rated(cheap: DataFrame) -> DataFrame:
        double = F.udf(lambda x: x * 2, "double")
        return cheap.withColumn("rate", double("twice") + F.col("id")).filter("rate > 3")

    views = {
        "cheap": "SELECT id, amount * 2 AS twice FROM orders WHERE amount < 25",
        "rated": rated,
        "parts": "SELECT id, explode(array(id, -id)) AS part FROM Orders o WHERE o.id % 3 = 0",
        "shown": "SELECT *, CASE WHEN id > 50 THEN NULL ELSE upper(customer) END AS shown FROM orders",
    }
    together = pipeline(base, spark, views, [*views, "orders"])
    assert built(together, spark).fan_out is not None
    together.run(once=True)
    for name in (*views, "orders"):
        place = base / f"alone-{name}"
        place.mkdir()
        for source in ("orders", "payments"):
            (place / source).symlink_to(base / source)
        pipeline(place, spark, views, [name]).run(once=True)
        assert rows(base, name) == rows(place, name) != []


def test_outputs_that_take_row_by_row_share_one_read(base: Path, spark: SparkSession) -> None:
    views = {"cheap": "SELECT id, amount * 2 AS twice FROM orders WHERE amount < 5", "files": WITH_FILE}
    assert built(pipeline(base, spark, views, ["cheap", "orders"]), spark).inputs == ("orders",)
    assert built(pipeline(base, spark, views, ["cheap", "files"]), spark).inputs == ("orders", "orders")


@pytest.mark.parametrize(
    "view",
    [
        "SELECT id, rand() AS r FROM orders",
        "SELECT id, uuid() AS u FROM orders",
        "SELECT id, spark_partition_id() AS p FROM orders",
        "SELECT id, current_date() AS d FROM orders",
        lambda orders: orders.select("id", "_metadata.file_name"),
        "SELECT id FROM orders WHERE id IN (SELECT 1)",
        "SELECT id FROM orders UNION ALL SELECT id FROM orders",
        lambda orders: orders.mapInPandas(lambda frames: frames, orders.schema),
    ],
)
def test_what_is_more_than_a_row_stays_with_the_stream(base: Path, spark: SparkSession, view: Any) -> None:
    made = pipeline(base, spark, {"view": view}, ["view", "orders"])
    assert built(made, spark).fan_out is None


def test_lines_that_may_be_malformed_are_read_by_every_output_itself(base: Path, spark: SparkSession) -> None:
    made = Pipeline("shop", store=base / "store", spark=spark)
    options = {"mode": "DROPMALFORMED"}
    made.source("orders", sources.files(str(base / "orders" / "in"), schema=SCHEMA, **options))
    made.view("few", "SELECT id FROM orders")
    for name in ("few", "orders"):
        made.sink(name, name, sinks.sqlite(str(base / "app.db"), table=name))
    assert built(made, spark).fan_out is None


def test_a_python_view_of_a_source_that_no_sink_takes_does_no_harm(base: Path, spark: SparkSession) -> None:
    def paid(payments: DataFrame) -> DataFrame:
        return payments.select("id")

    made = pipeline(base, spark, {"paid": paid, "cheap": "SELECT id FROM orders"}, ["cheap", "orders"])
    made.run(once=True)
    assert len(rows(base, "orders")) == len(rows(base, "cheap")) == 2 * ROWS_PER_FILE


def test_sinks_come_and_go_without_a_question_and_every_row_comes_once(base: Path, spark: SparkSession) -> None:
    """Goal: what was read is known whatever reads it. Method: other outputs in each run, from one to five reads."""
    views = {
        "twice": "SELECT id FROM orders UNION ALL SELECT -id FROM orders",
        "cheap": "SELECT id FROM orders WHERE amount < 5",
        "both": "SELECT id FROM orders UNION ALL SELECT id + 1000000 AS id FROM payments",
    }
    runs = [["cheap"], ["cheap", "orders"], ["twice", "cheap", "orders"], ["twice"], ["both", "twice"], ["both"]]
    runs += [["cheap", "both"], ["payments", "both"], ["payments"]]
    for number, takes in enumerate(runs[:4]):
        write_orders(base / "orders", number + 2, number + 3)
        pipeline(base, spark, views, takes).run(once=True)
    ids = [id for (id,) in rows(base, "twice")]
    assert sorted(ids) == sorted([*range(4 * 60, 360), *(-id for id in range(4 * 60, 360))])
    assert len(rows(base, "orders")) == 2 * ROWS_PER_FILE
    # A source that was not read so far is read from its beginning: that is asked first.
    pipeline(base, spark, views, runs[4], on_change="allow").run(once=True)
    assert rows(base, "both") == [(id + 1000000,) for id in range(120)]
    for number, takes in enumerate(runs[5:]):
        write_orders(base / "orders", number + 6, number + 7)
        write_orders(base / "payments", number + 2, number + 3)
        pipeline(base, spark, views, takes).run(once=True)
    both = [id for (id,) in rows(base, "both")]
    assert both == [*range(360, 540), *range(1000000, 1000000 + 300)]
    assert len(rows(base, "payments", "id")) == 2 * ROWS_PER_FILE


def test_the_order_of_sinks_does_not_move_state(base: Path, spark: SparkSession) -> None:
    views = {
        "sums": "SELECT customer, sum(amount) AS value FROM orders GROUP BY customer",
        "peaks": "SELECT customer, max(amount) AS value FROM orders GROUP BY customer",
    }
    for number, takes in enumerate((["sums", "peaks"], ["peaks", "orders", "sums"], ["sums", "peaks"])):
        write_orders(base / "orders", number + 2, number + 3)
        pipeline(base, spark, views, takes, output_mode="update").run(once=True)
    amounts: dict[str, list[float]] = {}
    for id in range(5 * ROWS_PER_FILE):
        amounts.setdefault(f"c{id * 7 % 5}", []).append(id * 0.25)
    assert rows(base, "sums") == sorted((customer, sum(values)) for customer, values in amounts.items())
    assert rows(base, "peaks") == sorted((customer, max(values)) for customer, values in amounts.items())


def test_an_epoch_that_is_to_be_replayed_is_not_replayed_for_other_outputs(base: Path, spark: SparkSession) -> None:
    views = {"cheap": "SELECT id FROM orders", "files": WITH_FILE}
    pipeline(base, spark, views, ["cheap"]).run(once=True)
    newest = sorted((base / "store" / "checkpoints").glob("checkpoint_*"))[-1]
    data = bytearray((newest / "state.bin").read_bytes())
    data[-3] ^= 1
    (newest / "state.bin").write_bytes(data)
    with pytest.raises(PipelineError, match="start it as it was"):
        pipeline(base, spark, views, ["cheap", "files"]).run(once=True)
    pipeline(base, spark, views, ["cheap"]).run(once=True)
    pipeline(base, spark, views, ["cheap", "files"]).run(once=True)
    assert len(rows(base, "cheap")) == 2 * ROWS_PER_FILE
