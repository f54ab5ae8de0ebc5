"""The same query, source and sinks in four ways: plain Spark as it comes, tuned, by a careful user, and Holdfast."""

import json
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from adbc_driver_sqlite import dbapi
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction
from pipeline_workloads import SCHEMA, WATERMARK, Input, Workload
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from holdfast import sinks, sources
from holdfast.engine.events import EpochCommitted, Event
from holdfast.engine.startup import StartOptions
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.settings import STATE_STORES, apply_settings
from holdfast.stores.store import DurableCheckpointStore

STATE_PARTITIONS = 2
_TUNED = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.stateStore.maintenanceInterval",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot",
    *STATE_STORES["rocksdb"],
)


class Mode(ABC):
    """One way to run a workload. `run` takes more input files through it and returns how long each epoch took."""

    name: str

    def __init__(self, workload: Workload, spark: SparkSession, directory: Path) -> None:
        self.workload, self.spark, self.directory = workload, spark, directory
        self._files = 0
        self.steps: list[Mapping[str, float]] = []
        (directory / "in").mkdir(parents=True)

    def run(self, source: Input, files: int) -> list[float]:
        """Run `files` epochs; returns Spark's own time of each trigger, in seconds."""
        for index in range(self._files, self._files + files):
            target = self.directory / "in" / f"{index:06d}.parquet"
            os.link(source.file(index), target)
            os.utime(target, (1_700_000_000 + index, 1_700_000_000 + index))
        self._files += files
        query = self._run_to_end()
        return [
            progress["durationMs"]["triggerExecution"] / 1000
            for progress in (json.loads(p.json) for p in query.recentProgress)
            if progress["numInputRows"] > 0
        ]

    @abstractmethod
    def _run_to_end(self) -> StreamingQuery: ...


class Holdfast(Mode):
    """Our own engine."""

    name = "holdfast"
    open_store: Callable[[Path], str | DurableCheckpointStore] = staticmethod(lambda path: str(path))

    def _run_to_end(self) -> StreamingQuery:
        runner = self._pipeline().runner(StartOptions(), [self])
        try:
            runner.prepare()
            query = runner.start_query(once=True, interval=None)
            query.awaitTermination()
        finally:
            runner.close()
        return query

    def on_event(self, event: Event) -> None:
        """Keep the steps of each epoch."""
        if isinstance(event, EpochCommitted) and event.rows_in:
            self.steps.append({**event.steps, "total": event.seconds, "new_bytes": event.new_bytes})

    def _pipeline(self) -> Pipeline:
        workload = self.workload
        pipeline = Pipeline(
            "bench",
            store=type(self).open_store(self.directory / "store"),
            spark=self.spark,
            output_mode=workload.output_mode,
            state_partitions=STATE_PARTITIONS,
            work_dir=self.directory / "work",
        )
        spec = sources.files(str(self.directory / "in"), format="parquet", schema=SCHEMA, max_files=1)
        pipeline.source("orders", spec, watermark=WATERMARK)
        view = pipeline.view("result", lambda orders: workload.frame(orders))
        for sink in workload.sinks:
            pipeline.sink(sink, view, self._sink(sink))
        return pipeline

    def _sink(self, name: str) -> Any:
        path = str(self.directory / name)
        key = "key" if self.workload.query == "keyed" else None
        if name == "lake":
            return sinks.delta(path)
        return sinks.files(path) if name == "files" else sinks.sqlite(path, table="result", key=key)


class Plain(Mode):
    """Structured Streaming with foreachBatch. Every write is idempotent, so that a repeated batch does no harm."""

    tuned = True

    def _run_to_end(self) -> StreamingQuery:
        self._configure()
        orders = (
            self.spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.directory / "in"))
            .withWatermark(*WATERMARK)
        )
        query = (
            self.workload.frame(orders)
            .writeStream.foreachBatch(self._batch)
            .outputMode(self.workload.output_mode)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def _configure(self) -> None:
        apply_settings(self.spark, state="rocksdb", state_partitions=STATE_PARTITIONS)
        if not self.tuned:
            for key in _TUNED:
                self.spark.conf.unset(key)

    def _batch(self, frame: DataFrame, batch: int) -> None:
        """Each sink on its own from the cached batch, as examples show it."""
        if len(self.workload.sinks) > 1:
            frame.persist()
        try:
            for sink in self.workload.sinks:
                {"lake": self._lake, "db": self._database, "files": self._folder}[sink](frame, batch)
        finally:
            frame.unpersist()

    def _lake(self, frame: DataFrame, batch: int) -> None:
        path = str(self.directory / "lake")
        part = f"batch-{batch}"
        frame.write.mode("overwrite").parquet(f"{path}/{part}")
        files = [file for file in os.scandir(f"{path}/{part}") if file.name.endswith(".parquet")]
        if not DeltaTable.is_deltatable(path):
            DeltaTable.create(path, pq.read_schema(files[0].path))
        table = DeltaTable(path)
        if (table.transaction_version("bench") or -1) >= batch:
            return
        now = int(time.time() * 1000)
        table.create_write_transaction(
            [AddAction(f"{part}/{file.name}", file.stat().st_size, {}, now, True, "{}") for file in files],
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction("bench", batch)]),
        )

    def _database(self, frame: DataFrame, batch: int) -> None:
        write_sqlite(self.directory / "db", frame.toArrow(), batch, upsert=self.workload.query == "keyed")

    def _folder(self, frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(str(self.directory / "files" / f"batch={batch}"))


class PlainDefaults(Plain):
    """(a) As Spark comes."""

    name = "plain, defaults"
    tuned = False


class PlainTuned(Plain):
    """(b) With the settings we use."""

    name = "plain, our settings"


class Careful(Plain):
    """(b2) With our settings, one collect per batch and writers in the driver."""

    name = "plain, careful"

    def _batch(self, frame: DataFrame, batch: int) -> None:
        table = frame.toArrow()
        for sink in self.workload.sinks:
            if sink == "db":
                write_sqlite(self.directory / "db", table, batch, upsert=self.workload.query == "keyed")
            elif sink == "files":
                folder = self.directory / "files" / f"batch={batch}"
                folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(table, folder / "rows.parquet")
            elif table.num_rows:
                self._append(table, batch)

    def _append(self, table: pa.Table, batch: int) -> None:
        path = str(self.directory / "lake")
        known = DeltaTable(path).transaction_version("bench") if DeltaTable.is_deltatable(path) else None
        if known is None or known < batch:
            mark = CommitProperties(app_transactions=[Transaction("bench", batch)])
            write_deltalake(path, table, mode="append", commit_properties=mark)


def write_sqlite(path: Path, table: pa.Table, batch: int, *, upsert: bool) -> None:
    """Insert or replace rows, once per batch, in one transaction."""
    columns = {f.name: table[f.name] for f in table.schema if not pa.types.is_struct(f.type)}
    for entry in (f for f in table.schema if pa.types.is_struct(f.type)):
        for index, child in enumerate(entry.type):
            columns[f"{entry.name}_{child.name}"] = pc.struct_field(table[entry.name], index)
    plain = pa.table({name: _text_times(column) for name, column in columns.items()})
    if not path.exists():
        _create(path, plain.schema, upsert=upsert)
    with dbapi.connect(str(path)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM batches WHERE id = ?", (batch,))
        if cursor.fetchone():
            return
        cursor.adbc_ingest("staged", plain, mode="replace", temporary=True)
        names = ", ".join(plain.schema.names)
        cursor.execute(f"INSERT OR REPLACE INTO result ({names}) SELECT {names} FROM temp.staged")
        cursor.execute("INSERT INTO batches VALUES (?)", (batch,))
        connection.commit()


def _create(path: Path, schema: pa.Schema, *, upsert: bool) -> None:
    kinds = {f.name: "REAL" if pa.types.is_floating(f.type) else "" for f in schema}
    keyed = {name: f"{kind} PRIMARY KEY" if upsert and name == "key" else kind for name, kind in kinds.items()}
    columns = ", ".join(f"{name} {kind}" for name, kind in keyed.items())
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE result ({columns})")
        database.execute("CREATE TABLE batches (id INTEGER PRIMARY KEY)")


def _text_times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()) if pa.types.is_timestamp(column.type) else column
