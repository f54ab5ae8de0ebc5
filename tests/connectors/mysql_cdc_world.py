"""A mysql_cdc source without Spark: its control and its reader, called in the order of the engine."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from connectors.mariadb_server import Server
from holdfast import sources
from holdfast.connectors.mysql_cdc.reader import MysqlCdcDataSource, MysqlCdcReader
from holdfast.core.sources import SourceContext, SourceControl
from holdfast.stores.materials import DirectoryMaterials

Offsets = Mapping[str, str]


class World:
    """A table of its own, and a pipeline that reads it."""

    def __init__(
        self, server: Server, directory: Path, definition: str | None, *, table: str | None = None, **settings: Any
    ) -> None:
        """Create a table, or take one that is there when there is no definition."""
        self.server, self.directory, self.settings = server, directory, settings
        self.url = server.url
        self.table = table or f"t{uuid4().hex[:12]}"
        if definition is not None:
            self.sql(f"CREATE TABLE {self.table} ({definition})")
        self.begun: Offsets = {}
        self.reader_of_this_life: MysqlCdcReader | None = None
        self.control: SourceControl | None = None
        self.life()

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements on one connection, with `{t}` for the table."""
        return self.server.run(*(statement.replace("{t}", self.table) for statement in statements))

    def close(self) -> None:
        if self.control is not None:
            self.control.close()
        if self.reader_of_this_life is not None:
            self.reader_of_this_life.stop()

    def beside(self) -> "World":
        """Return another pipeline for the same table."""
        return World(self.server, self.directory / uuid4().hex, None, table=self.table)

    # A life of the pipeline

    @property
    def materials(self) -> DirectoryMaterials:
        return DirectoryMaterials(str(self.directory / "materials"))

    def life(self, **settings: Any) -> None:
        """Start again: everything that was in memory is forgotten."""
        self.close()
        self.settings |= settings
        self.spec = sources.mysql_cdc(self.url, self.table, **self.settings)
        self.control = self.spec.control
        self.control.bind(SourceContext("orders", "shop", self.materials))
        self.reader_of_this_life = None

    def begin(self) -> Offsets:
        self.begun = dict(self.control.begin())
        return self.begun

    @property
    def reader(self) -> MysqlCdcReader:
        if self.reader_of_this_life is None:
            options = {**self.spec.options, **self.control.start_options(self.begun)}
            source = MysqlCdcDataSource(options)
            self.schema = source.schema()
            self.reader_of_this_life = source.streamReader(self.schema)
        return self.reader_of_this_life

    # Reading

    def next(self, start: Offsets, most_rows: int | None = None) -> Offsets:
        """Return where the next epoch ends, as Spark's offset log would have it."""
        self.reader._changes()._rest_until = 0.0
        limit = ReadAllAvailable() if most_rows is None else ReadMaxRows(most_rows)
        return self.spec.read_offsets(json.dumps(self.reader.latestOffset(dict(start), limit)))

    def table_of(self, start: Offsets, end: Offsets) -> pa.Table:
        """Read a range as Spark does; batches have exactly the types that Spark expects."""
        batches, reader = [], self.reader
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for part in reader.partitions(dict(start), dict(end)):
            for batch in reader.read(part):
                assert batch.schema.equals(schema)
                batch.validate(full=True)
                batches.append(batch)
        return pa.Table.from_batches(batches, schema)

    def read(self, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
        return self.table_of(start, end).to_pylist()

    def read_all(self, start: Offsets, most_rows: int | None = None) -> tuple[list[dict[str, Any]], Offsets]:
        """Read epoch after epoch until there is nothing more."""
        rows: list[dict[str, Any]] = []
        while (end := self.next(start, most_rows)) != start:
            rows += self.read(start, end)
            start = end
        return rows, start

    def changes(self, start: Offsets) -> list[dict[str, Any]]:
        return self.read_all(start)[0]


class Replica:
    """A table rebuilt from the rows of the source, by key."""

    def __init__(self, key: str = "id") -> None:
        self._key = key
        self.rows: dict[Any, dict[str, Any]] = {}

    def apply(self, changes: Iterable[dict[str, Any]]) -> None:
        for change in changes:
            before, after = change["before"], change["after"]
            if change["op"] == "truncate":
                self.rows.clear()
                continue
            if before is not None:
                assert self.rows.pop(before[self._key]) == before
            if after is not None:
                assert after[self._key] not in self.rows
                self.rows[after[self._key]] = after
