"""A postgres_cdc source without Spark: its control and its reader, called as the engine and Spark call them."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows

from holdfast import sources
from holdfast.connectors.postgres_cdc.reader import PostgresCdcDataSource, PostgresCdcReader
from holdfast.core.sources import SourceContext, SourceControl
from holdfast.stores.materials import DirectoryMaterials

Offsets = Mapping[str, str]
ROWS = "id int PRIMARY KEY, name text, amount numeric(12,2), note text"


class World:
    """A table of its own, and a pipeline that reads it."""

    def __init__(self, url: str, directory: Path, shape: str, **settings: Any) -> None:
        self.url, self.directory, self.settings = url, directory, settings
        self.connect()
        self.schema = f"t{uuid4().hex[:12]}"
        self.table = f"{self.schema}.rows"
        self.slot = f"holdfast_{self.schema}_rows"
        self.sql(f"CREATE SCHEMA {self.schema}")
        self.sql(f"CREATE TABLE {self.table} ({shape})")
        self.begun: Offsets = {}
        self.life()

    def connect(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
        self.database = psycopg.connect(self.url, autocommit=True)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.database.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def slot_stands_at(self) -> str:
        query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
        ((lsn,),) = self.sql(query, self.slot)
        return str(lsn)

    def close(self) -> None:
        self.control.close()
        if self.reader_of_this_life is not None:
            self.reader_of_this_life.stop()
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        self.sql(drop, self.slot)
        self.database.close()

    # A life of the pipeline

    def life(self, **settings: Any) -> None:
        """Start again: everything that was in memory is forgotten."""
        self.settings |= settings
        self.spec = sources.postgres_cdc(self.url, self.table, **self.settings)
        assert self.spec.control is not None
        self.control: SourceControl = self.spec.control
        self.control.bind(SourceContext("orders", "shop", DirectoryMaterials(str(self.directory / "materials"))))
        self.reader_of_this_life: PostgresCdcReader | None = None
        self.schema_of_this_life: pa.Schema | None = None

    def begin(self) -> Offsets:
        self.begun = dict(self.control.begin())
        return self.begun

    @property
    def reader(self) -> PostgresCdcReader:
        if self.reader_of_this_life is None:
            self.reader_of_this_life = self.new_reader()
        return self.reader_of_this_life

    def new_reader(self) -> PostgresCdcReader:
        source = PostgresCdcDataSource({**self.spec.options, **self.control.start_options(self.begun)})
        schema = source.schema()
        self.schema_of_this_life = to_arrow_schema(schema, timezone="UTC")
        return source.streamReader(schema)

    # Reading

    def next(self, start: Offsets, most_rows: int = 1_000_000) -> Offsets:
        """Return where the next epoch ends, as Spark's offset log would have it."""
        self.reader.prepareForTriggerAvailableNow()
        line = json.dumps(self.reader.latestOffset(dict(start), ReadMaxRows(most_rows)))
        return self.spec.read_offsets(line)

    def read(self, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
        return self.table_of(start, end).to_pylist()

    def table_of(self, start: Offsets, end: Offsets) -> pa.Table:
        """Read a range as Spark does; batches have exactly the types that Spark expects."""
        reader, batches = self.reader, []
        for part in reader.partitions(dict(start), dict(end)):
            for batch in reader.read(part):
                assert batch.schema.equals(self.schema_of_this_life)
                batches.append(batch)
        return pa.Table.from_batches(batches, self.schema_of_this_life)

    def read_all(self, start: Offsets, most_rows: int = 1_000_000) -> tuple[list[dict[str, Any]], Offsets]:
        """Read epoch after epoch until there is nothing more."""
        rows: list[dict[str, Any]] = []
        while (end := self.next(start, most_rows)) != start:
            rows += self.read(start, end)
            start = end
        return rows, start

    def changes(self, start: Offsets) -> list[dict[str, Any]]:
        return self.read_all(start)[0]


@contextlib.contextmanager
def worlds(url: str, directory: Path) -> Iterator[Callable[..., World]]:
    """Return what makes worlds, and tidy up after them."""
    made: list[World] = []

    def new(shape: str = ROWS, **settings: Any) -> World:
        made.append(World(url, directory / str(len(made)), shape, **settings))
        return made[-1]

    yield new
    for world in made:
        world.close()


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
            old = None if before is None else before[self._key]
            known = self.rows.pop(old if old is not None else after[self._key], {})
            if after is not None:
                kept = {name: known[name] for name in change["unchanged"]}
                self.rows[after[self._key]] = {**after, **kept}
