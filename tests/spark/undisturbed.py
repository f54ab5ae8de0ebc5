"""Pipelines over small files of events, run with crashes, and the same queries run by plain Spark without any."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast import open_store, sources
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.events import EpochCommitted, Event
from holdfast.engine.startup import StartOptions
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.rows import OUTPUT_COLUMN
from holdfast.testing import RecordedTarget, RecordingSink
from spark.conftest import Crash, CrashAt, Moment

SCHEMA = "k string, v long, ts timestamp"
Rows = dict[str, list[tuple[Any, ...]]]
"""Output -> its rows, in order."""
Define = Callable[[Pipeline], dict[str, str]]
"""Adds the views of a pipeline and returns which sink takes what."""


def event(k: str, at: str, v: int = 1) -> dict[str, Any]:
    """Return an event of a fixed day at `HH:MM:SS`."""
    return {"k": k, "v": v, "ts": f"2024-01-01T{at}Z"}


class Stage:
    """A directory with one folder of files for each source, a store, and sinks that live as long as the test."""

    def __init__(self, base: Path, spark: SparkSession, define: Define, **options: Any) -> None:
        self.base, self.spark, self.define, self.options = base, spark, define, options
        self.targets: dict[str, RecordedTarget] = {}
        self.sealed: dict[int, EpochCommitted] = {}
        self._files = 0

    def write(self, source: str, *rows: dict[str, Any]) -> None:
        """Add a file; Spark reads them in the order in which they are written."""
        folder = self.base / source
        folder.mkdir(parents=True, exist_ok=True)
        hidden = folder / f".{self._files:03d}"
        hidden.write_text("\n".join(json.dumps(row) for row in rows))
        os.utime(hidden, (1_700_000_000 + self._files,) * 2)
        hidden.rename(folder / f"{self._files:03d}.json")
        self._files += 1

    def write_all(self, source: str, files: Iterable[Iterable[dict[str, Any]]]) -> None:
        for rows in files:
            self.write(source, *rows)

    def pipeline(self, **changed: Any) -> Pipeline:
        """Return the pipeline, as a process would make it at its start."""
        options = {"store": self.base / "store", "work_dir": self.base / "work", "verify_interval": None}
        pipeline = Pipeline("events", spark=self.spark, **{**options, **self.options, **changed})
        for sink, takes in self.define(pipeline).items():
            pipeline.sink(sink, takes, RecordingSink(self.targets.setdefault(sink, RecordedTarget())))
        return pipeline

    def source(self, name: str) -> Any:
        """Return a source that reads one file an epoch."""
        (self.base / name).mkdir(parents=True, exist_ok=True)
        return sources.files(str(self.base / name), schema=SCHEMA, max_files=1)

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochCommitted):
            self.sealed[event.epoch] = event

    def run(self, crash: Moment | None = None, **run: Any) -> None:
        """Run all there is, up to a crash if one is asked for."""
        try:
            self.pipeline().run(once=True, observers=[self, CrashAt(crash)], **run)
        except Crash:
            assert crash is not None

    @property
    def newest(self) -> CheckpointManifest:
        found = open_store(self.base / "store", read_only=True).load_latest()
        assert found is not None
        return found

    @property
    def rows(self) -> Rows:
        """What the sinks show."""
        return {sink: sorted(tuple(row.values()) for row in target.rows) for sink, target in self.targets.items()}

    def plain(self) -> Rows:
        """Return what plain Spark makes of the same query and files in one run that nothing disturbs."""
        pipeline = self.pipeline()
        runner = pipeline.runner(StartOptions())
        takes = {sink.name: sink.output for sink in runner.definition.sinks.values()}
        collected: list[dict[str, Any]] = []

        def collect(batch: DataFrame, _: int) -> None:
            collected.extend(row.asDict(recursive=True) for row in batch.collect())

        writer = runner.built.frame.writeStream.foreachBatch(collect).outputMode(runner.definition.output_mode)
        place = str(self.base / "plain")
        writer.option("checkpointLocation", place).trigger(availableNow=True).start().awaitTermination()
        runner.close()
        return {sink: sorted(_rows_of(collected, output)) for sink, output in takes.items()}


def _rows_of(collected: list[dict[str, Any]], output: str) -> list[tuple[Any, ...]]:
    if collected and OUTPUT_COLUMN not in collected[0]:
        return [tuple(row.values()) for row in collected]
    return [tuple(row[output].values()) for row in collected if row[OUTPUT_COLUMN] == output]
