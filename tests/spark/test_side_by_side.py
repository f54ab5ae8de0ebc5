"""Pipelines beside one another, on one machine and in one process: nothing of one is the other's."""

import json
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from holdfast import open_store, sinks, sources
from holdfast.errors import PipelineError
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.session import local_session
from holdfast.spark.settings import STATE_STORES
from spark.orders import ROWS_PER_FILE, SCHEMA, contents, write_orders
from spark.pipelines import windows
from spark.test_running import Labs, Undisturbed, wait_for_epochs


def test_staging_beside_prod_leaves_the_directory_of_prod_alone(
    lab: Labs, undisturbed: Undisturbed, tmp_path: Path, spark: SparkSession
) -> None:
    """Goal: a pipeline of the same name with the same work_dir, on another store, disturbs nobody."""
    prod, staging = lab("windows"), tmp_path / "staging"
    prod.add(0, 2)
    write_orders(staging, 0, 3)
    handle = prod.pipeline().start()
    wait_for_epochs(handle, 2)
    windows(staging, spark=spark, work_dir=prod.base / "work").run(once=True)
    prod.add(2, 4)
    wait_for_epochs(handle, 4)
    handle.stop()
    assert prod.run()
    assert prod.contents() == undisturbed("windows", 4)
    assert contents(staging) == undisturbed("windows", 3)


def test_a_place_that_cannot_be_written_is_refused_before_anybody_is_fenced_off(lab: Labs, tmp_path: Path) -> None:
    here = lab("fan_out")
    here.add(0, 1)
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="cannot be written"):
        here.run(options={"work_dir": tmp_path / "file" / "work"})
    assert open_store(here.base / "store", read_only=True).list_ids() == []


def test_a_range_of_before_is_found_where_all_pipelines_were(lab: Labs, undisturbed: Undisturbed) -> None:
    """Older versions put generations into `work_dir` itself, whosever they were: ours is known by its query id."""
    here = lab("fan_out")
    here.add(0, 3)
    assert here.run()
    newest = here.checkpoints[-1]
    for name, position in (("manifest.json", 300), ("state.bin", 100)):
        data = bytearray((newest / name).read_bytes())
        data[position] ^= 1
        (newest / name).write_bytes(data)
    here.newest_work.rename(here.base / "work" / "1")
    foreign = here.base / "work" / "7"
    (foreign / "offsets").mkdir(parents=True)
    (foreign / "metadata").write_text('{"id":"another"}')
    for batch in range(3):
        (foreign / "offsets" / str(batch)).write_text("v1\n{}\n{}")
    assert here.run()
    assert here.last_report["replays"] == [{"epoch": 3, "found_in": "the old working directory"}]
    assert here.contents() == undisturbed("fan_out", 3)
    assert sorted(name for name in os.listdir(here.base / "work") if name.isdigit()) == ["1", "7"]


def totals(base: Path, name: str, spark: SparkSession, state: str, partitions: int) -> Pipeline:
    """Return a pipeline whose views have the names that everybody's have, a long way from source to sink."""
    pipeline = Pipeline(
        name, store=base / name / "store", work_dir=base / name / "work", spark=spark,
        state=state, state_partitions=partitions, output_mode="update",
    )  # fmt: skip
    pipeline.source("orders", sources.files(str(base / name / "in"), schema=SCHEMA, max_files=1))
    for number in range(12):
        pipeline.view(f"step{number}", f"SELECT * FROM {f'step{number - 1}' if number else 'orders'}")
    pipeline.view("totals", "SELECT customer, count(*) n, min(id) lo, max(id) hi FROM step11 GROUP BY customer")
    pipeline.sink("db", "totals", sinks.sqlite(str(base / name / "app.db"), table="revenue", key="customer"))
    return pipeline


def test_two_pipelines_of_one_process_deliver_their_own_rows(tmp_path: Path, spark: SparkSession) -> None:
    """Goal: neither takes the other's view or setting. Method: all names the same, two threads that begin at once."""
    asked = {"first": (0, "memory", 1), "second": (5, "rocksdb", 3)}
    before = settings_of(spark), spark.catalog.listTables()
    together = threading.Barrier(2)

    def run(name: str, file: int, state: str, partitions: int) -> None:
        write_orders(tmp_path / name, file, file + 1)
        pipeline = totals(tmp_path, name, spark, state, partitions)
        together.wait(60)
        pipeline.run(once=True)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run, name, *how) for name, how in asked.items()]:
            done.result()
    for name, (file, state, partitions) in asked.items():
        with closing(sqlite3.connect(tmp_path / name / "app.db")) as database:
            found = database.execute("SELECT min(lo), max(hi), sum(n) FROM revenue").fetchone()
        first = file * ROWS_PER_FILE
        assert found == (first, first + ROWS_PER_FILE - 1, ROWS_PER_FILE)
        offsets = next((tmp_path / name / "work").glob("*/*/offsets/0"))
        conf = json.loads(offsets.read_text().split("\n")[1])["conf"]
        assert conf["spark.sql.shuffle.partitions"] == str(partitions)
        assert STATE_STORES[state].items() & conf.items()
    assert (settings_of(spark), spark.catalog.listTables()) == before


def settings_of(spark: SparkSession) -> dict[str, str]:
    return dict(spark.conf.getAll)


class Heard(StreamingQueryListener):
    """Notes which queries ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.set()


def test_what_a_user_has_in_his_session_works_in_views_and_stays_as_it_was(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Goal: temporary views, functions, settings, frames and listeners of the user's session are used and kept."""
    mine = spark.newSession()
    lookup = mine.createDataFrame([(f"c{i}", f"label {i}") for i in range(5)], "customer string, label string")
    lookup.createOrReplaceTempView("lookup")
    mine.createDataFrame([(1,)], "mine int").createOrReplaceTempView("orders")
    mine.udf.register("shout", lambda text: text.upper(), "string")
    mine.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    heard = Heard()
    mine.streams.addListener(heard)
    before = settings_of(mine), mine.catalog.listTables()
    write_orders(tmp_path, 0, 1)
    pipeline = Pipeline("mine", store=tmp_path / "store", spark=mine, output_mode="update")
    pipeline.source("orders", sources.files(str(tmp_path / "in"), schema=SCHEMA))
    pipeline.view("counted", lambda orders: lookup.join(orders, "customer").groupBy("label").count())
    told = "SELECT id, shout(label) label, date_format(ts, 'HH') hour FROM orders JOIN lookup USING (customer)"
    pipeline.view("told", told)
    pipeline.sink("counted", "counted", sinks.sqlite(str(tmp_path / "app.db"), table="revenue", key="label"))
    pipeline.sink("told", "told", sinks.sqlite(str(tmp_path / "told.db"), table="told", key="id"))
    pipeline.run(once=True)
    found = contents(tmp_path)
    with closing(sqlite3.connect(tmp_path / "told.db")) as database:
        rows = database.execute("SELECT id, label, hour FROM told ORDER BY id").fetchall()
    assert heard.ended.wait(60)
    mine.streams.removeListener(heard)
    assert found["db"] == sorted((f"label {i}", "12") for i in range(5))
    assert rows[0] == (0, "LABEL 0", "09")
    assert len(rows) == ROWS_PER_FILE
    conf = json.loads((tmp_path / "store/work/1/offsets/0").read_text().split("\n")[1])["conf"]
    assert STATE_STORES["rocksdb"].items() & conf.items()
    assert (settings_of(mine), mine.catalog.listTables()) == before
    assert mine.table("orders").columns == ["mine"]


def test_without_a_session_one_beside_the_user_s_is_used(tmp_path: Path, spark: SparkSession) -> None:
    before = settings_of(spark)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        own = local_session("another", conf={"spark.sql.ansi.enabled": "false", "spark.app.name": "another"})
        assert own.conf.get("spark.sql.session.timeZone") == "UTC"
        assert own.conf.get("spark.sql.ansi.enabled") == "false"
        assert settings_of(spark) == {**before, "spark.sql.session.timeZone": "Asia/Tokyo"}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before["spark.sql.session.timeZone"])
