"""Delta tables to read from, and a reader that is driven as Spark drives it, without Spark."""

import json
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast import sources
from holdfast.connectors.delta.reader import DeltaDataSource, DeltaStreamReader
from holdfast.connectors.delta.source import DeltaControl
from holdfast.core.sources import Offsets, SourceContext, SourceSpec
from holdfast.stores.materials import DirectoryMaterials

Row = dict[str, Any]


def numbered(*ids: int, **columns: Any) -> pa.Table:
    """Return rows with an id each, and the same value in every other column."""
    return pa.table({"id": pa.array(ids, pa.int64()), **{k: pa.array([v] * len(ids)) for k, v in columns.items()}})


@dataclass
class Table:
    """A Delta table on a disk."""

    path: Path
    options: dict[str, str] | None = None

    def append(self, rows: pa.Table, **arguments: Any) -> int:
        """Append rows as one version; return its number."""
        write_deltalake(self.uri, rows, mode="append", storage_options=self.options, **arguments)
        return self.version

    @property
    def uri(self) -> str:
        return str(self.path)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self.options)

    @property
    def version(self) -> int:
        return self.delta.version()

    def rows(self) -> list[Row]:
        """Return what `deltalake` reads of the newest version."""
        return ordered(self.delta.to_pyarrow_table().to_pylist())

    def entry(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020d}.json"

    def actions(self, version: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.entry(version).read_text().splitlines()]

    def commit(self, *actions: Mapping[str, Any], operation: str = "TEST") -> int:
        """Write a version by hand; return its number."""
        version = self.version + 1
        lines = [{"commitInfo": {"timestamp": 1_700_000_000_000 + version, "operation": operation}}, *actions]
        self.entry(version).write_text("\n".join(json.dumps(line) for line in lines))
        return version

    def clean_up(self, before: int) -> None:
        """Do what a log clean-up does: leave a log checkpoint, and entries from a version on."""
        self.delta.create_checkpoint()
        for version in range(before):
            self.entry(version).unlink(missing_ok=True)


@dataclass
class Reading:
    """A source of one table, driven as the engine and Spark drive it."""

    spec: SourceSpec
    directory: Path
    reader: DeltaStreamReader = field(init=False)

    def __post_init__(self) -> None:
        self.control.bind(SourceContext("source", "pipeline", DirectoryMaterials(str(self.directory))))

    @property
    def control(self) -> DeltaControl:
        assert isinstance(self.spec.control, DeltaControl)
        return self.spec.control

    def begin(self) -> dict[str, str]:
        """Decide where to begin, and start a reader there."""
        offsets = dict(self.control.begin())
        return self.start(offsets)

    def start(self, offsets: Offsets) -> dict[str, str]:
        """Start a reader as Spark does; return its initial offset."""
        options = {**self.spec.options, **self.control.start_options(offsets)}
        source = DeltaDataSource(options=options)
        schema = source.schema()
        self.reader = source.streamReader(schema=schema)
        return self.reader.initialOffset()

    def latest(self, start: dict[str, str], *, unlimited: bool = False) -> dict[str, str]:
        limit = ReadAllAvailable() if unlimited else self.reader.getDefaultReadLimit()
        return self.reader.latestOffset(start, limit)

    def batches(self, start: dict[str, str], end: dict[str, str]) -> Iterator[pa.RecordBatch]:
        """Read a range in other processes, so to speak: the reader and its partitions are pickled on the way."""
        source = DeltaDataSource(options=dict(self.spec.options))
        worker = pickle.loads(pickle.dumps(source.streamReader(schema=self.reader._schema)))
        for partition in self.reader.partitions(start, end):
            yield from worker.read(pickle.loads(pickle.dumps(partition)))

    def rows(self, start: dict[str, str], end: dict[str, str]) -> list[Row]:
        return ordered([row for batch in self.batches(start, end) for row in batch.to_pylist()])

    def epochs(self, start: dict[str, str]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
        """Yield ranges until there is nothing new."""
        while (end := self.latest(start)) != start:
            yield start, end
            start = end

    def everything(self, start: dict[str, str]) -> list[Row]:
        return ordered([row for start, end in self.epochs(start) for row in self.rows(start, end)])


def reading(table: Table, directory: Path, **settings: Any) -> Reading:
    """Return a reading of a table."""
    if table.options is not None:
        settings["storage_options"] = table.options
    return Reading(sources.delta(table.uri, **settings), directory)


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, default=str))


def position(version: int, **parts: int) -> dict[str, str]:
    return {"version": str(version), **{key: str(value) for key, value in parts.items()}}


def data_files(table: Table) -> list[str]:
    found = []
    for folder, _, names in os.walk(table.path):
        found += [
            os.path.join(folder, name) for name in names if name.endswith(".parquet") and "_delta_log" not in folder
        ]
    return sorted(found)
