"""What Spark does silently, each met by a rule of ours: without the rule, rows would be lost, doubled or wrong."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import open_store, sinks, sources
from holdfast.core.completeness import EXPECTED_PART, problems
from holdfast.engine.events import EpochCommitted, Event, StepFinished, StepStarted
from holdfast.errors import PipelineError
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.rows import COLLECT_BYTES
from holdfast.spark.source_log import COMPACT_INTERVAL
from marks import long
from spark.conftest import Crash, CrashAt, Lab, flip
from spark.orders import SCHEMA, write_orders

Undisturbed = Callable[[str, int], dict[str, Any]]
Labs = Callable[[str], Lab]


def damage_state(checkpoint: Path) -> None:
    flip(checkpoint / "state.bin", (checkpoint / "state.bin").stat().st_size - 3)


@pytest.mark.parametrize("state", ["rocksdb", *long("memory")])
def test_state_of_an_abandoned_future_is_never_loaded(state: str, lab: Labs, undisturbed: Undisturbed) -> None:
    """Rolled back in place, Spark would load the state files of the future it had and give wrong sums."""
    here = lab("windows")
    options = {"state": state}
    here.add(0, 4)
    assert here.run(options=options)
    early = next(m for m in open_store(here.base / "store", read_only=True).manifests() if m.epoch == 2)
    assert here.run(options=options, from_id=early.checkpoint_id)
    assert here.contents() == undisturbed("windows", 4)


def test_an_edited_working_directory_changes_nothing(lab: Labs, undisturbed: Undisturbed) -> None:
    """Spark would believe an edited offset and load a damaged state file; a start rebuilds both from the store."""
    here = lab("windows")
    here.add(0, 3)
    assert not here.run((3, EpochCommitted, "", None))
    work = here.newest_work
    offsets = work / "offsets" / "2"
    edited = offsets.read_text().replace('"logOffset":2', '"logOffset":1')
    assert edited != offsets.read_text()
    offsets.write_text(edited)
    for path in (work / "state").rglob("*.changelog"):
        flip(path, path.stat().st_size // 2)
    here.add(3, 5)
    assert here.run()
    assert here.contents() == undisturbed("windows", 5)


def test_a_range_that_was_edited_after_its_rows_were_shown_is_not_replayed(
    lab: Labs, undisturbed: Undisturbed
) -> None:
    """With manifest and progress record gone, the range comes from the working directory, which anyone may edit.

    The sinks know which range they show: it is none that is left, so they are rewound, and it is read anew.
    """
    here = lab("fan_out")
    here.add(0, 3)
    assert here.run()
    newest = here.checkpoints[-1]
    flip(newest / "manifest.json", 300)
    flip(newest / "state.bin", 100)
    entries = here.newest_work / "sources" / "0" / "2"
    entries.write_text(entries.read_text().replace("0002.json", "0001.json"))
    assert here.run()
    assert here.last_report["replays"] == []
    assert here.contents() == undisturbed("fan_out", 3)


def test_the_batch_that_closes_windows_comes_after_a_crash_too(lab: Labs, undisturbed: Undisturbed) -> None:
    """Spark forgets, at a restart, that one more batch without data is due."""
    here = lab("windows")
    here.add(0, 3)
    assert not here.run((3, EpochCommitted, "", None))
    assert here.run()
    assert here.contents() == undisturbed("windows", 3)


def test_the_batch_that_closes_windows_comes_after_a_replay_too(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 3)
    assert not here.run((3, EpochCommitted, "", None))
    damage_state(here.checkpoints[-1])
    assert here.run()
    assert [entry["epoch"] for entry in here.last_report["replays"]] == [3]
    assert here.contents() == undisturbed("windows", 3)


@pytest.fixture
def compact_every_second(spark: SparkSession) -> Iterator[None]:
    """Let Spark fold the file source's log into one file that repeats all entries before it, every second time."""
    setting, _ = COMPACT_INTERVAL
    spark.conf.set(setting, "2")
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("compact_every_second")
def test_a_replay_across_a_compacted_source_log_reads_the_same_files(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 5)
    assert here.run()
    for checkpoint in here.checkpoints[-3:]:
        flip(checkpoint / "manifest.json", 300)
    shutil.rmtree(here.base / "work")
    here.add(5, 8)
    assert here.run()
    assert len(here.last_report["replays"]) == 3
    assert here.contents() == undisturbed("windows", 8)


@pytest.mark.usefixtures("compact_every_second")
def test_a_restart_finds_the_source_log_that_spark_looks_for(lab: Labs, undisturbed: Undisturbed) -> None:
    """From one compact file Spark guesses how often it compacts, now and then wrongly, and misses a file."""
    here = lab("fan_out")
    for files in (5, 10, 12):
        here.add(0, files)
        assert here.run()
        shutil.rmtree(here.base / "work")
    assert here.contents() == undisturbed("fan_out", 12)


class Watermarks:
    """Collects what we sealed, by batch."""

    def __init__(self) -> None:
        self.sealed: dict[int, int | None] = {}

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochCommitted):
            self.sealed[event.epoch - 1] = event.watermark_ms


def two_inputs(base: Path, spark: SparkSession, policy: str = "min") -> Pipeline:
    """Two watermarked inputs, of which the second stops bringing rows."""
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", policy)
    pipeline = Pipeline("two", store=base / "store", work_dir=base / "work", spark=spark)
    for name in ("busy", "idle"):
        spec = sources.files(str(base / name / "in"), schema=SCHEMA, max_files=1)
        pipeline.source(name, spec, watermark=("ts", "1 minute"))
    both = pipeline.view(
        "both",
        "SELECT window(ts, '1 minute') w, count(*) n FROM (TABLE busy UNION ALL TABLE idle) GROUP BY ALL",
    )
    pipeline.sink("db", both, sinks.sqlite(str(base / "app.db"), table="counts"))
    return pipeline


@pytest.mark.parametrize("policy", ["min", "max"])
def test_with_two_watermarks_and_one_idle_input_we_seal_what_spark_goes_on_with(
    policy: str, tmp_path: Path, spark: SparkSession
) -> None:
    write_orders(tmp_path / "busy", 0, 5)
    write_orders(tmp_path / "idle", 0, 2)
    watch = Watermarks()
    try:
        two_inputs(tmp_path, spark, policy).run(once=True, observers=[watch])
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")
    commits = next((tmp_path / "work").glob("*/*/commits"))
    theirs = {
        int(path.name): json.loads(path.read_text().split("\n")[1])["nextBatchWatermarkMs"]
        for path in commits.iterdir()
        if path.name.isdigit()
    }
    assert {batch: watch.sealed[batch] for batch in theirs} == theirs
    assert len(set(theirs.values())) > 1


def test_with_two_watermarks_a_replay_seals_what_spark_goes_on_with(tmp_path: Path, spark: SparkSession) -> None:
    """Every query start makes Spark forget which input had come how far; it is told, or would seal another one."""
    write_orders(tmp_path / "busy", 0, 4)
    write_orders(tmp_path / "idle", 4, 6)  # Ahead of the other, until it brings nothing more.
    with pytest.raises(Crash):
        two_inputs(tmp_path, spark).run(once=True, observers=[CrashAt((2, EpochCommitted, "", None))])
    damage_state(sorted((tmp_path / "store" / "checkpoints").glob("checkpoint_*"))[-1])
    watch = Watermarks()
    two_inputs(tmp_path, spark).run(once=True, observers=[watch])
    commits = next((tmp_path / "work").glob("*/*/commits"))
    for batch, ours in watch.sealed.items():
        path = commits / str(batch)
        if path.exists():
            assert ours == json.loads(path.read_text().split("\n")[1])["nextBatchWatermarkMs"]


LARGE = 0
"""As `collect_bytes`, no epoch is small enough to be written from here."""


@pytest.mark.parametrize("collect_bytes", [LARGE, COLLECT_BYTES])
def test_a_batch_is_computed_once_for_all_its_sinks(collect_bytes: int, tmp_path: Path, spark: SparkSession) -> None:
    """Small or large: a second evaluation would give each sink other random values, and commit state twice."""
    spark.range(900).repartitionByRange(3, "id").write.parquet(str(tmp_path / "in"))
    pipeline = Pipeline(
        "once", store=tmp_path / "store", spark=spark, output_mode="update", collect_bytes=collect_bytes
    )
    spec = sources.files(str(tmp_path / "in"), format="parquet", schema="id long", max_files=1)
    pipeline.source("numbers", spec)

    @F.udf("string")
    def draw() -> str:
        return os.urandom(8).hex()  # Spark's own uuid() has a seed, and gives the same again.

    def drawn_once(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy("id").agg(F.count("*").alias("n")).withColumn("drawn", draw())

    drawn = pipeline.view("drawn", drawn_once)
    pipeline.sink("lake", drawn, sinks.delta(str(tmp_path / "lake"), mode="merge", key="id"))
    pipeline.sink("db", drawn, sinks.sqlite(str(tmp_path / "app.db"), table="t", key="id"))
    pipeline.run(once=True)
    with sqlite3.connect(tmp_path / "app.db") as database:
        in_database = dict(database.execute("SELECT id, drawn FROM t").fetchall())
        assert database.execute("SELECT max(n) FROM t").fetchone() == (1,)
    lake = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().to_pylist()
    assert len(in_database) == 900
    assert in_database == {row["id"]: row["drawn"] for row in lake}


@pytest.mark.parametrize("collect_bytes", [LARGE, *long(COLLECT_BYTES)])
def test_a_batch_that_claims_a_stale_order_is_computed(
    collect_bytes: int, tmp_path: Path, spark: SparkSession
) -> None:
    """After a sort aggregate Spark cannot cache the batch it hands us."""
    spark.range(1000).selectExpr("id div 2 AS pair", "hex(id) AS name").write.parquet(str(tmp_path / "in"))
    pipeline = Pipeline(
        "names", store=tmp_path / "store", spark=spark, output_mode="update", collect_bytes=collect_bytes
    )
    pipeline.source("names", sources.files(str(tmp_path / "in"), format="parquet", schema="pair long, name string"))
    newest = pipeline.view("newest", "SELECT pair, max(name) AS name FROM names GROUP BY pair")
    pipeline.sink("db", newest, sinks.sqlite(str(tmp_path / "app.db"), table="t", key="pair"))
    pipeline.run(once=True)
    with sqlite3.connect(tmp_path / "app.db") as database:
        assert database.execute("SELECT count(*), max(length(name)) FROM t").fetchone() == (500, 3)


def test_large_epochs_survive_a_crash_between_seal_and_commit(tmp_path: Path, spark: SparkSession) -> None:
    """Large epochs are written by Spark's own writers; what they staged is committed by the next process."""
    frame = spark.range(9_000).withColumn("amount", F.col("id") * 0.5)
    frame.repartitionByRange(3, "id").write.parquet(str(tmp_path / "in"))

    def pipeline() -> Pipeline:
        made = Pipeline(
            "large", store=tmp_path / "store", work_dir=tmp_path / "work", spark=spark, collect_bytes=LARGE
        )
        spec = sources.files(str(tmp_path / "in"), format="parquet", schema="id long, amount double", max_files=1)
        made.source("numbers", spec)
        made.sink("lake", "numbers", sinks.delta(str(tmp_path / "lake")))
        made.sink("db", "numbers", sinks.sqlite(str(tmp_path / "app.db"), table="t"))
        made.sink("raw", "numbers", sinks.files(str(tmp_path / "raw")))
        return made

    for moment in ((1, StepFinished, "seal", None), (2, StepFinished, "prepare", None)):
        with pytest.raises(Crash):
            pipeline().run(once=True, observers=[CrashAt(moment)])
    pipeline().run(once=True)
    assert _ids(spark.read.parquet(str(tmp_path / "raw"))) == (9_000, 9_000, 8_999)
    with sqlite3.connect(tmp_path / "app.db") as database:
        found = database.execute("SELECT count(*), count(DISTINCT id), max(id) FROM t").fetchone()
    assert found == (9_000, 9_000, 8_999)


def _ids(frame: Any) -> tuple[int, int, int]:
    row = frame.agg(F.count("*"), F.countDistinct("id"), F.max("id")).first()
    return row[0], row[1], row[2]


@pytest.mark.parametrize("lost", ["state/0/1", "sources/0/0", *long("state", "metadata", "state/0/_metadata")])
@pytest.mark.parametrize("state", ["rocksdb", *long("memory")])
def test_an_epoch_whose_state_is_not_all_here_is_not_sealed(
    lost: str, state: str, lab: Labs, undisturbed: Undisturbed
) -> None:
    """Spark says nothing of files that went away. Sealed without them, no start works."""

    class Lose:
        def on_event(self, event: Event) -> None:
            if isinstance(event, StepStarted) and event.step == "capture" and event.epoch == 2:
                path = here.newest_work / lost
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    here = lab("windows")
    here.add(0, 3)
    with pytest.raises(PipelineError, match="epoch 2 is not sealed"):
        here.pipeline(state=state).run(once=True, observers=[Lose()])
    sealed = [m for m in open_store(here.base / "store", read_only=True).manifests() if m.kind == "checkpoint"]
    assert [manifest.epoch for manifest in sealed] == [1]
    assert here.run(options={"state": state})
    assert here.contents() == undisturbed("windows", 3)


@pytest.mark.parametrize("kind", ["joined", "python_state", "several", "deduplicated", *long("windows", "sessions")])
def test_names_alone_tell_that_a_checkpoint_is_whole(kind: str, lab: Labs) -> None:
    """Goal: what is recorded of an epoch fits every operator. Method: leave out each file of its state in turn."""
    here = lab(kind)
    here.add(0, 3)
    assert here.run()
    store = open_store(here.base / "store", read_only=True)
    newest = store.load_latest()
    assert newest is not None
    assert newest.sidecar is not None
    parts = store.state_reader.progress(newest.sidecar).parts
    paths = [file.path for file in store.state_reader.catalog(newest).files]
    assert problems(newest.epoch, parts, paths) == []
    forgotten = {name: data for name, data in parts.items() if name != EXPECTED_PART}
    assert problems(newest.epoch, forgotten, paths) == []
    for lost in paths:
        others = [path for path in paths if path != lost]
        repeated = lost.endswith(".changelog") and lost.replace(".changelog", ".zip") in paths
        older = "_metadata/v2/" in lost or "_stateSchema" in lost
        assert problems(newest.epoch, parts, others) or repeated or older, lost
