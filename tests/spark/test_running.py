"""Starting, watching, pausing and ending a pipeline; and what a person sees when something in it fails."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast import open_store, sinks, sources
from holdfast.core.contracts import EpochRef, Prepared, Rows, Token
from holdfast.engine.delivery import DeliverySettings
from holdfast.engine.events import EpochCommitted, Event, SinkRetry
from holdfast.engine.resolution import approve, discard_epoch
from holdfast.errors import ApprovalNeeded, PipelineDefinitionError, RetryableSinkError, SinkError
from holdfast.interfaces.deciding import to_file
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import read_pipeline_file
from holdfast.spark.export import export_spark
from holdfast.spark.pipeline import Pipeline
from spark.conftest import Lab
from spark.orders import SCHEMA

Undisturbed = Callable[[str, int], dict[str, Any]]
Labs = Callable[[str], Lab]
QUICK = DeliverySettings(attempts=3, first_pause_seconds=0.01, longest_pause_seconds=0.02)


class Watch:
    """Remembers events and sets a condition when an epoch is done."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def wait_for_epochs(handle: Any, wanted: int) -> None:
    while handle.status()["epoch"] < wanted:
        handle._runner._query.streaming.processAllAvailable()


def test_a_started_pipeline_can_be_watched_paused_checkpointed_and_stopped(
    lab: Labs, undisturbed: Undisturbed
) -> None:
    here = lab("windows")
    here.add(0, 2)
    handle = here.pipeline().start()
    wait_for_epochs(handle, 2)
    before = handle.status()
    assert before["state"] == "running"
    taken = handle.checkpoint()
    assert taken.checkpoint_id == before["checkpoint_id"] + 1
    assert taken.epoch == before["epoch"]
    handle.pause()
    assert handle.status()["state"] == "paused"
    here.add(2, 4)
    handle.resume()
    wait_for_epochs(handle, 4)
    handle.stop()
    assert handle.status()["state"] == "stopped"
    assert here.run()
    assert here.contents() == undisturbed("windows", 4)


def test_a_clean_stop_leaves_nothing_for_recovery_to_do(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    handle = here.pipeline().start()
    wait_for_epochs(handle, 2)
    handle.stop()
    assert here.run()
    assert set(here.last_report["sinks"].values()) == {"has everything"}
    assert here.last_report["replays"] == []


def test_a_checkpoint_of_an_idle_pipeline_can_be_restored(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 2)
    handle = here.pipeline().start()
    wait_for_epochs(handle, 3)
    taken = handle.checkpoint()
    handle.stop()
    here.add(2, 3)
    assert here.run()
    assert here.last_report["chosen_id"] == taken.checkpoint_id
    assert here.contents() == undisturbed("windows", 3)


class Flaky:
    """Stands before a sink and fails a number of commits."""

    def __init__(self, sink: Any, failures: int, error: Exception) -> None:
        self._sink, self._failures, self._error = sink, failures, error
        self.guarantee = sink.guarantee

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def commit(self, token: Token) -> Any:
        if self._failures > 0:
            self._failures -= 1
            raise self._error
        return self._sink.commit(token)


def _with_flaky_db(here: Lab, failures: int, error: Exception) -> Pipeline:
    pipeline: Pipeline = here.pipeline(delivery=QUICK)
    entry = pipeline._definition.sinks.pop("db")
    pipeline.sink("db", entry.output, Flaky(entry.sink, failures, error))
    return pipeline


def test_a_sink_that_fails_for_a_while_is_asked_again(lab: Labs, undisturbed: Undisturbed) -> None:
    here, watch = lab("windows"), Watch()
    here.add(0, 3)
    _with_flaky_db(here, 2, RetryableSinkError("busy")).run(once=True, observers=[watch])
    assert len(watch.of(SinkRetry)) == 2
    assert here.contents() == undisturbed("windows", 3)


def test_a_sink_that_fails_for_good_stops_the_pipeline_and_nothing_is_lost(
    lab: Labs, undisturbed: Undisturbed
) -> None:
    here = lab("windows")
    here.add(0, 3)
    with pytest.raises(SinkError, match=r"sink 'db', epoch 2, commit: disk is full.*holdfast resolve"):
        _with_flaky_db(here, 99, SinkError("disk is full")).run(once=True)
    newest = open_store(here.base / "store", read_only=True).load_latest()
    assert newest is not None
    assert str(newest.sink_commit_statuses["db"]).startswith("Failed")
    assert str(newest.sink_commit_statuses["lake"]) == "Committed"
    assert here.run()
    assert here.contents() == undisturbed("windows", 3)


def test_what_a_sink_will_never_take_can_be_given_up(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    with pytest.raises(SinkError):
        _with_flaky_db(here, 99, SinkError("no such column")).run(once=True)
    discard_epoch(open_store(here.base / "store", retain=None), "db", 2, reason="the table is gone")
    assert here.run()
    expected = undisturbed("windows", 3)
    assert here.contents()["lake"] == expected["lake"]
    assert set(here.contents()["db"]) < set(expected["db"])


AS_A_FILE = """\
name: orders
store: ./store
sources: {orders: {files: {path: ./in, schema: "id long"}}}
sinks: {db: {takes: orders, sqlite: {path: ./app.db, table: revenue, epoch_column: true}}}
"""


def test_what_a_sink_will_never_take_can_be_kept_in_a_file(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    with pytest.raises(SinkError):
        _with_flaky_db(here, 99, SinkError("no such column")).run(once=True)
    (here.base / "orders.yaml").write_text(AS_A_FILE)
    path = str(here.base / "rows.parquet")
    receipt = to_file(read_pipeline_file(str(here.base / "orders.yaml")), "db", 2, path, None)
    assert here.run()
    expected = undisturbed("windows", 3)
    assert here.contents()["lake"] == expected["lake"]
    kept = pq.read_table(path)
    assert (receipt.file and receipt.file.rows, receipt.note) == (kept.num_rows, None)
    assert str(kept.schema.field("w").type.field("start").type) == "timestamp[us, tz=UTC]"
    missing = set(expected["db"]) - set(here.contents()["db"])
    assert {_as_in_sqlite(row) for row in kept.to_pylist()} == missing
    assert missing


def _as_in_sqlite(row: dict[str, Any]) -> tuple[str, ...]:
    start, end = (f"{row['w'][key]:%Y-%m-%dT%H:%M:%S.%f}Z" for key in ("start", "end"))
    return start, end, row["customer"], str(row["total"])


def test_an_approved_change_goes_on(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 1)
    assert here.run()

    def changed() -> Pipeline:
        pipeline: Pipeline = here.pipeline()
        pipeline._definition.views.clear()
        text = "SELECT window(ts, '1 minute') w, customer, sum(amount * 1) total FROM orders GROUP BY ALL"
        pipeline._definition.add_view("revenue", text)
        return pipeline

    with pytest.raises(ApprovalNeeded) as refused:
        changed().run(once=True)
    fingerprint = int(str(refused.value).rsplit(" ", 1)[1], 16)
    approve(open_store(here.base / "store", retain=None), fingerprint)
    changed().run(once=True)
    # No epoch was sealed, so the word must still be there.
    changed().run(once=True)


def test_columns_that_are_never_null_stand_beside_rows_and_structs_that_are(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Goal: what Spark proves of a column stops no rows on their way. Method: several views, a NULL struct."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id":1}\n{"id":2}\n')
    pipeline = Pipeline("shop", store=tmp_path / "store", spark=spark)
    pipeline.source("orders", sources.files(str(tmp_path / "in"), format="json", schema="id long"))
    pipeline.view("kinds", "SELECT id, 1 AS kind FROM orders")
    pipeline.view("hollow", "SELECT id, IF(id = 1, NULL, named_struct('a', coalesce(id, 0))) AS s FROM orders")
    for name in ("kinds", "hollow"):
        pipeline.sink(name, name, sinks.files(str(tmp_path / name), format="json"))
    pipeline.run(once=True)

    def rows(name: str) -> list[Any]:
        lines = [line for file in (tmp_path / name).rglob("part-*") for line in file.read_text().splitlines()]
        return sorted((json.loads(line) for line in lines), key=lambda row: row["id"])

    assert rows("kinds") == [{"id": 1, "kind": 1}, {"id": 2, "kind": 1}]
    assert rows("hollow") == [{"id": 1, "s": None}, {"id": 2, "s": {"a": 2}}]


def test_an_error_in_user_code_names_itself_and_leaves_a_store_that_recovers(
    tmp_path: Path, spark: SparkSession, lab: Labs, undisturbed: Undisturbed
) -> None:
    here = lab("fan_out")
    here.add(0, 2)
    broken = here.pipeline()
    raw = broken._definition.sinks.pop("raw")

    class Refuses(Flaky):
        def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
            raise ValueError("column 'amount' is negative")

    broken.sink("raw", raw.output, Refuses(raw.sink, 0, ValueError()))
    with pytest.raises(SinkError, match="sink 'raw', epoch 1, prepare: ValueError: column 'amount' is negative"):
        broken.run(once=True)
    assert here.run()
    assert here.contents() == undisturbed("fan_out", 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda p: p.view("v", "SELECT nothing FROM orders"), "view 'v'"),
        (lambda p: p.view("v", "SELEC"), "view 'v'"),
        (lambda p: p.view("v", lambda clicks: clicks), "clicks, which is no source or earlier view"),
        (lambda p: p.view("v", lambda orders: orders["id"] / {}["id"]), "view 'v': KeyError: 'id'"),
    ],
)
def test_a_wrong_view_is_named(build: Any, message: str, tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "in").mkdir()
    pipeline = Pipeline("p", store=tmp_path / "store", spark=spark)
    pipeline.source("orders", sources.files(str(tmp_path / "in"), schema=SCHEMA))
    pipeline.sink("s", build(pipeline), sinks.files(str(tmp_path / "out")))
    with pytest.raises(PipelineDefinitionError, match=message):
        pipeline.run(once=True)


def test_what_cannot_keep_exactly_once_is_refused_unless_said_otherwise(tmp_path: Path) -> None:
    strict = Pipeline("p", store=tmp_path)
    with pytest.raises(PipelineDefinitionError, match="a socket cannot be read twice"):
        strict.source("s", sources.spark("socket", host="127.0.0.1", port=1))
    strict.source("orders", sources.rate())
    with pytest.raises(PipelineDefinitionError, match="sink 'c' cannot keep exactly-once"):
        strict.sink("c", "orders", sinks.console())
    loose = Pipeline("p", store=tmp_path, guarantee="at-least-once")
    loose.source("s", sources.spark("socket", host="127.0.0.1", port=1))
    loose.sink("c", "s", sinks.console())


@pytest.mark.parametrize("option", ["cleanSource", "ignoreMissingFiles", "ignoreCorruptFiles"])
def test_file_options_that_would_lose_rows_in_a_replay_are_refused(option: str) -> None:
    value = "delete" if option == "cleanSource" else "true"
    with pytest.raises(PipelineDefinitionError, match=option):
        sources.files("in", schema="id long", **{option: value})


def test_the_watermark_we_seal_is_the_one_spark_writes(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 4)
    ours: dict[int, int] = {}

    class Collect:
        def on_event(self, event: Event) -> None:
            if isinstance(event, EpochCommitted) and event.watermark_ms is not None:
                ours[event.epoch - 1] = event.watermark_ms

    here.pipeline().run(once=True, observers=[Collect()])
    commits = here.newest_work / "commits"
    theirs = {
        int(path.name): json.loads(path.read_text().split("\n")[1])["nextBatchWatermarkMs"]
        for path in commits.iterdir()
        if path.name.isdigit()
    }
    assert theirs
    assert {batch: ours[batch] for batch in theirs} == theirs


def test_any_checkpoint_goes_on_as_a_plain_spark_query(
    lab: Labs, spark: SparkSession, undisturbed: Undisturbed
) -> None:
    here = lab("windows")
    here.add(0, 3)
    pipeline = here.pipeline()
    for name in ("lake", "raw"):
        del pipeline._definition.sinks[name]
    pipeline.run(once=True)
    store = open_store(here.base / "store", read_only=True)
    early = next(manifest for manifest in store.manifests() if manifest.epoch == 2)
    export_spark(store, early, str(here.base / "plain"))
    assert not {path.name for path in (here.base / "plain").iterdir()} - {
        "metadata",
        "offsets",
        "commits",
        "sources",
        "state",
    }
    frame = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(str(here.base / "in"))
        .withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "1 minute").alias("w"), "customer")
        .agg(F.sum("amount").alias("total"))
    )
    found: list[tuple[str, str, float]] = []

    def collect(batch: Any, number: int) -> None:
        found.extend((str(row.w.start), row.customer, row.total) for row in batch.collect())

    query = (
        frame.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(here.base / "plain"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    shown = contents_of_db_up_to(here.base, early.epoch)
    everything = undisturbed("windows", 3)["db"]
    assert len(found) + shown == len(everything)


def contents_of_db_up_to(base: Path, epoch: int) -> int:
    with sqlite3.connect(base / "app.db") as database:
        row = database.execute("SELECT count(*) FROM revenue WHERE _holdfast_epoch <= ?", (epoch,)).fetchone()
    return int(row[0])


def test_history_tells_of_every_epoch_and_start_after_the_checkpoints_are_gone(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    here.add(2, 4)
    assert not here.run((4, EpochCommitted, "", None))
    assert here.run()
    service = open_service(str(here.base / "store"), write=True)
    service.prune(1)
    history, starts = service.history(), service.recoveries().recoveries
    last = service.store.load_latest()
    assert last is not None
    assert [epoch.epoch for epoch in history.epochs] == list(range(1, last.epoch + 1))
    assert history.epochs[0].checkpoint_id not in service.store.list_ids()
    assert sum(epoch.rows_in for epoch in history.epochs) == last.processed_records
    assert all("seal" in epoch.steps and epoch.seconds > 0 for epoch in history.epochs)
    assert [start.outcome for start in starts] == ["fresh", "restore", "restore"]
    assert [start.generation for start in starts] == [1, 2, 3]
    assert [start.error is None for start in starts] == [True, False, True]
    assert all(start.ended_at and start.seconds and start.sinks for start in starts)
    assert service.recovery("latest").chosen_id == here.last_report["chosen_id"]
