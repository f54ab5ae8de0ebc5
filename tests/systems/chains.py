"""A pipeline over real systems, run by one process after the other, and what its three sinks hold."""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable

from connectors import kafka_server, mariadb_server, postgres_server
from systems.feeds import Feed, MariaTable, PostgresTable, Row, Topic, Versions

SINKS = ("lake", "db", "topic")
_COLUMNS = ("origin", "place", "row")
_PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class Servers:
    """Everything that a pipeline may talk to."""

    postgres: postgres_server.Server
    mariadb: mariadb_server.Server
    kafka: kafka_server.Broker

    def feeds(self, base: Path) -> dict[str, Feed]:
        """Return a new feed of each kind."""
        found: list[Feed] = [
            Topic(self.kafka),
            PostgresTable(self.postgres),
            MariaTable(self.mariadb),
            Versions(base / "versions"),
        ]
        return {feed.name: feed for feed in found}


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """Start all of them."""
    with postgres_server.running() as postgres, mariadb_server.running() as mariadb, kafka_server.running() as kafka:
        yield Servers(postgres, mariadb, kafka)


class Chain:
    """One pipeline from some feeds into Delta, PostgreSQL and Kafka, in processes that follow each other."""

    def __init__(self, name: str, base: Path, feeds: Sequence[Feed], servers: Servers) -> None:
        self.name, self.base = name, base / name
        self.base.mkdir(parents=True)
        self._servers, self._table, self._topic = servers, f"rows_{name}", f"rows-{name}"
        self.settings = {
            "sources": {feed.name: feed.settings(name) for feed in feeds},
            "database": servers.postgres.url,
            "table": self._table,
            "brokers": servers.kafka.bootstrap,
            "topic": self._topic,
        }

    def run(self, moment: str = "never") -> str:
        """Run a process until it kills itself at the moment, or to the end."""
        with self.started(moment) as process:
            said, wrong = process.communicate(timeout=_PATIENCE_SECONDS)
        expected = 0 if moment == "never" else -9
        assert process.returncode == expected, f"{moment}: exit {process.returncode}\n{said}\n{wrong[-4000:]}"
        return said

    def started(self, moment: str = "never") -> subprocess.Popen[str]:
        """Start a process."""
        command = [sys.executable, "-m", "systems.victim", str(self.base), json.dumps(self.settings), moment]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def newest_checkpoint(self) -> Path:
        """Return the directory of the newest checkpoint."""
        return max((self.base / "store" / "checkpoints").glob("checkpoint_*"))

    def rows(self) -> dict[str, Counter[tuple[str, ...]]]:
        """Return what each sink shows, with how often it shows it."""
        lake = DeltaTable(str(self.base / "lake")).to_pyarrow_table(columns=list(_COLUMNS)).to_pylist()
        with psycopg.connect(self._servers.postgres.url) as connection:
            found = connection.execute(f'SELECT origin, place, "row" FROM {self._table}').fetchall()  # type: ignore[call-overload]
        records = [json.loads(record.value or b"") for record in self._servers.kafka.consume(self._topic)]
        return {
            "lake": Counter(_values(row) for row in lake),
            "db": Counter(found),
            "topic": Counter(_values(record) for record in records),
        }


def _values(row: Row) -> tuple[str, ...]:
    return tuple(row[column] for column in _COLUMNS)


def compare(chain: Chain, undisturbed: Chain, feeds: Sequence[Feed]) -> None:
    """Compare every sink with the undisturbed run, with each other and with what is in the feeds, row by row."""
    expected, found = undisturbed.rows(), chain.rows()
    for sink in SINKS:
        lost, more = expected["lake"] - found[sink], found[sink] - expected["lake"]
        assert not lost, f"{sink} lacks {len(lost)} rows: {sorted(lost)[:5]}"
        assert not more, f"{sink} has {len(more)} rows too many: {sorted(more)[:5]}"
        assert found[sink] == expected[sink]
    for feed in feeds:
        feed.check(dict(zip(_COLUMNS, row, strict=True)) for row in found["lake"] if row[0] == feed.name)


def flip_a_byte(path: Path, generator: random.Random) -> None:
    """Damage a file."""
    data: Any = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1
    path.write_bytes(data)
