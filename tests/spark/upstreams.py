"""Systems to read numbers from, all handled alike. A new source is one line in `UPSTREAMS`."""

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from connectors import mariadb_server, postgres_server
from connectors.kafka_server import Broker
from holdfast import sources
from holdfast.core.sources import SourceSpec


class Upstream(ABC):
    """Numbers that arrive one by one: each is a record, a transaction, a version or a file of its own."""

    name: ClassVar[str]
    query: ClassVar[str]
    """What gives the numbers, as `n`."""
    offsets: ClassVar[Mapping[str, str]]
    """What stands in a manifest: names, and what their values look like."""

    @abstractmethod
    def spec(self, most: int, **settings: Any) -> SourceSpec:
        """Return the source, with epochs of at most so many numbers."""

    @abstractmethod
    def add(self, *numbers: int) -> None:
        """Let numbers arrive."""


class Log(Upstream):
    """An upstream that has a history: there is a now in it, and what is old may be gone from it."""

    from_now_on: ClassVar[Mapping[str, Any]] = {"snapshot": False}
    """Settings for whoever does not want what is there already."""

    @abstractmethod
    def forget(self) -> None:
        """Lose everything that arrived so far, as a system does that was told to keep less."""

    @abstractmethod
    def state(self) -> object:
        """Return all that a reader could change there: what is kept for it, what it noted."""

    @abstractmethod
    def nowhere(self) -> SourceSpec:
        """Return a source of the same system that cannot begin."""


class Topic(Log):
    name = "kafka"
    query = "SELECT CAST(CAST(value AS STRING) AS INT) AS n FROM input"
    offsets: ClassVar = {"partition-0": r"\d+"}
    from_now_on: ClassVar = {"starting": "latest"}

    def __init__(self, broker: Broker) -> None:
        self._broker, self._topic = broker, f"numbers-{uuid.uuid4().hex[:8]}"
        broker.create_topic(self._topic)

    def spec(self, most: int, **settings: Any) -> SourceSpec:
        return sources.kafka(
            self._broker.bootstrap, topics=self._topic, group_id=self._topic, max_records=most, **settings
        )

    def add(self, *numbers: int) -> None:
        self._broker.produce(self._topic, [str(number) for number in numbers])

    def forget(self) -> None:
        self._broker.delete_records(self._topic, {0: -1})

    def state(self) -> object:
        listed = self._broker.admin.list_topics(timeout=30).topics
        topics = {name: len(topic.partitions) for name, topic in listed.items() if not name.startswith("__")}
        return topics, self._broker.group_offsets(self._topic, self._topic, 1)

    def nowhere(self) -> SourceSpec:
        return sources.kafka(self._broker.bootstrap, topics="nowhere", group_id=self._topic)


class PostgresTable(Log):
    name = "postgres_cdc"
    query = "SELECT after.n FROM input"
    offsets: ClassVar = {"lsn": r"[0-9A-F]+/[0-9A-F]+"}

    def __init__(self, server: postgres_server.Server) -> None:
        self._url, self._table = server.url, f"numbers_{uuid.uuid4().hex[:8]}"
        self._run(f"CREATE TABLE {self._table} (n INT PRIMARY KEY)")

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def spec(self, most: int, **settings: Any) -> SourceSpec:
        return sources.postgres_cdc(self._url, self._table, slot=self._table, max_rows=most, **settings)

    def add(self, *numbers: int) -> None:
        self._run(*(f"INSERT INTO {self._table} VALUES ({number})" for number in numbers))

    def forget(self) -> None:
        self._run(f"SELECT pg_replication_slot_advance('{self._table}', pg_current_wal_flush_lsn())")

    def state(self) -> object:
        slots = "SELECT slot_name, confirmed_flush_lsn, wal_status FROM pg_replication_slots ORDER BY 1"
        publications = "SELECT p.*, t.* FROM pg_publication p NATURAL LEFT JOIN pg_publication_tables t ORDER BY 1"
        with psycopg.connect(self._url, autocommit=True) as connection:
            return [connection.execute(query).fetchall() for query in (slots, publications)]

    def nowhere(self) -> SourceSpec:
        return sources.postgres_cdc(self._url, "nowhere")


class MariaTable(Log):
    name = "mysql_cdc"
    query = "SELECT after.n FROM input"
    offsets: ClassVar = {
        "gtid_set": r"0-1-\d+",
        "binlog_file": r"\w+-bin\.\d{6}",
        "binlog_position": r"\d+",
        "server_id": "1",
    }

    def __init__(self, server: mariadb_server.Server) -> None:
        self._server, self._table = server, f"numbers_{uuid.uuid4().hex[:8]}"
        server.run(f"CREATE TABLE {self._table} (n INT PRIMARY KEY)")

    def spec(self, most: int, **settings: Any) -> SourceSpec:
        return sources.mysql_cdc(self._server.url, self._table, max_rows=most, **settings)

    def add(self, *numbers: int) -> None:
        self._server.run(*(f"INSERT INTO {self._table} VALUES ({number})" for number in numbers))

    def forget(self) -> None:
        newest = self._server.run("FLUSH BINARY LOGS", "SHOW BINARY LOGS")[-1][0]
        while self._server.run(f"PURGE BINARY LOGS TO '{newest}'", "SHOW BINARY LOGS")[0][0] != newest:
            time.sleep(0.05)  # The server needs a file until all of its transactions are in the tables for good.

    def state(self) -> object:
        return self._server.run("SHOW BINARY LOGS")

    def nowhere(self) -> SourceSpec:
        return sources.mysql_cdc(self._server.url, "nowhere")


class Versions(Log):
    name = "delta"
    query = "SELECT n FROM input"
    offsets: ClassVar = {"version": r"\d+"}
    from_now_on: ClassVar = {"starting": "latest"}

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "numbers")
        self._write()

    def _write(self, *numbers: int) -> None:
        write_deltalake(self._path, pa.table({"n": pa.array(numbers, pa.int32())}), mode="append")

    def spec(self, most: int, **settings: Any) -> SourceSpec:
        return sources.delta(self._path, max_versions=most, max_files=most, **settings)

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self._write(number)

    def forget(self) -> None:
        DeltaTable(self._path).optimize.compact()
        DeltaTable(self._path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def state(self) -> object:
        return {path: path.read_bytes() for path in Path(self._path).rglob("*") if path.is_file()}

    def nowhere(self) -> SourceSpec:
        return sources.delta(f"{self._path}-nowhere")


class Files(Upstream):
    name = "files"
    query = "SELECT n FROM input"
    offsets: ClassVar = {"log_offset": r"\d+"}

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "numbers"
        self._folder.mkdir()

    def spec(self, most: int, **settings: Any) -> SourceSpec:
        return sources.files(str(self._folder), schema="n int", max_files=most, **settings)

    def add(self, *numbers: int) -> None:
        for number in numbers:
            hidden = self._folder / f".{number}"
            hidden.write_text(json.dumps({"n": number}))
            hidden.rename(self._folder / f"{number}.json")


UPSTREAMS: list[tuple[type[Upstream], str]] = [
    (Topic, "kafka_in_spark"),
    (PostgresTable, "postgres"),
    (MariaTable, "maria"),
    (Versions, "tmp_path"),
    (Files, "tmp_path"),
]
"""Each with the fixture that says where it is."""
