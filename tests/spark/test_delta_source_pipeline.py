"""A pipeline that reads a Delta table: every row once in every sink, whatever happens in between."""

import contextlib
import itertools
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from holdfast import open_store, sinks, sources
from holdfast.engine.events import StepFinished, StepStarted
from holdfast.errors import SourceError, SourceHistoryLost
from holdfast.spark.pipeline import Pipeline
from spark.conftest import Crash, CrashAt


class Lake:
    """A partitioned table that grows, a pipeline from it into two sinks, and what the sinks hold."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark = base, spark
        self._ids = itertools.count()
        self.written: list[int] = []

    @property
    def table(self) -> str:
        return str(self.base / "table")

    def append(self, versions: int, rows: int = 6, **columns: Any) -> None:
        for _ in range(versions):
            ids = [next(self._ids) for _ in range(rows)]
            table = pa.table({"id": ids, "part": [f"p {id % 3}" for id in ids], **columns})
            write_deltalake(self.table, table, mode="append", partition_by=["part"], schema_mode="merge")
            self.written += ids

    def run(self, crash: Any = None) -> bool:
        """Read all there is; False when the run crashed where it was told to."""
        pipeline = Pipeline("lake", store=self.base / "store", work_dir=self.base / "work", spark=self.spark)
        pipeline.source("rows", sources.delta(self.table, max_files=4))
        totals = pipeline.view("totals", "SELECT part, id, id * 2 AS double FROM rows")
        copied = pipeline.view("copied", "SELECT id, part FROM rows")
        pipeline.sink("copy", copied, sinks.delta(str(self.base / "copy")))
        pipeline.sink("db", totals, sinks.sqlite(str(self.base / "app.db"), table="totals"))
        try:
            pipeline.run(once=True, observers=[CrashAt(crash)])
        except Crash:
            return False
        return True

    def read(self) -> list[int]:
        """Return the ids that both sinks have."""
        copied = sorted(DeltaTable(str(self.base / "copy")).to_pyarrow_table()["id"].to_pylist())
        assert sorted(id for (id,) in query(self.base / "app.db", "SELECT id FROM totals")) == copied
        return copied


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Lake:
    return Lake(tmp_path, spark)


STEPS = [
    (1, StepStarted, "prepare", "copy"),
    (2, StepFinished, "seal", None),
    (2, StepStarted, "commit", "db"),
    (3, StepFinished, "commit", "copy"),
]


@pytest.mark.long
def test_every_row_arrives_once_whenever_the_pipeline_crashes(lake: Lake) -> None:
    """Crash at one step after the other, while the table grows and is compacted."""
    lake.append(3)
    for step in STEPS:
        lake.run(step)
        lake.append(2)
        DeltaTable(lake.table).optimize.compact()
    assert lake.run()
    assert lake.read() == lake.written


def test_a_manifest_says_which_version_comes_next_and_how_far_that_is(lake: Lake) -> None:
    lake.append(3)
    lake.run()
    newest = open_store(str(lake.base / "store")).load_latest()
    assert newest is not None
    position = newest.source_offsets["rows"]
    assert position.offsets == {"version": "3"}
    assert position.metadata["connector"] == "delta"
    assert position.metadata["table"] == lake.table


@pytest.mark.long
def test_a_version_without_rows_does_no_harm(lake: Lake) -> None:
    lake.append(1)
    lake.run()
    DeltaTable(lake.table).alter.set_table_properties({"delta.checkpointInterval": "5"})
    assert lake.run()
    lake.append(1)
    assert lake.run()
    assert lake.read() == lake.written


def test_what_workers_and_planner_find_is_told_as_it_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: errors from Spark's other processes keep their kind. Method: the check at the start is left out."""
    lake.append(1)
    lake.run()
    lake.append(1)
    monkeypatch.setattr("holdfast.connectors.delta.source.DeltaControl.check", lambda self, offsets: None)
    for file in lake.base.glob("table/part=*/*.parquet"):
        file.unlink()
    with pytest.raises(SourceHistoryLost, match=r"version 1 of the Delta table at .* needs .*, which was vacuumed"):
        lake.run()
    DeltaTable(lake.table).delete()
    with pytest.raises(SourceError, match=r"version 2 \(DELETE\) removes or rewrites rows"):
        lake.run()


def test_a_new_column_is_there_after_a_restart(lake: Lake) -> None:
    lake.append(1)
    lake.run()
    lake.append(1, note=["x"] * 6)
    assert lake.run()
    assert lake.read() == lake.written


def test_changes_are_read_through_spark(tmp_path: Path, spark: SparkSession) -> None:
    lake = Lake(tmp_path, spark)
    lake.append(2)
    DeltaTable(lake.table).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    DeltaTable(lake.table).update({"id": "id + 100"}, predicate="id = 3")
    DeltaTable(lake.table).delete("id = 4")
    pipeline = Pipeline("changes", store=tmp_path / "store", work_dir=tmp_path / "work", spark=spark)
    rows = pipeline.source("rows", sources.delta(lake.table, starting=0, change_feed=True, max_versions=1))
    pipeline.sink("db", rows, sinks.sqlite(str(tmp_path / "app.db"), table="changes"))
    pipeline.run(once=True)
    counted = query(
        tmp_path / "app.db", "SELECT _commit_version, _change_type, count(*) FROM changes GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert counted == [
        (0, "insert", 6),
        (1, "insert", 6),
        (3, "update_postimage", 1),
        (3, "update_preimage", 1),
        (4, "delete", 1),
    ]
