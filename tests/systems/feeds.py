"""Systems to read from, that change at random: each knows what a pipeline must have seen of it in the end."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from deltalake import write_deltalake

from connectors import mariadb_server, postgres_server
from connectors.kafka_server import Broker

Row = dict[str, Any]
_COLUMNS = "id BIGINT PRIMARY KEY, name VARCHAR(40), amount DECIMAL(12, 2), note VARCHAR(200)"


class Feed(Protocol):
    """A system with something to read, that gets more."""

    name: str

    def settings(self, reader: str) -> dict[str, Any]:
        """Return what the victim makes a source of, for one of several readers that know nothing of each other."""
        ...

    def change(self, generator: random.Random, steps: int) -> None:
        """Let so many things happen."""
        ...

    def check(self, rows: Iterable[Row]) -> None:
        """Compare what was delivered of this feed with what is really there."""
        ...


class Topic:
    """A topic with two partitions; records carry a number without gaps."""

    name = "kafka"

    def __init__(self, broker: Broker) -> None:
        self._broker, self._topic, self._next = broker, "events", 0
        broker.create_topic(self._topic, 2)

    def settings(self, reader: str) -> dict[str, Any]:
        return {"bootstrap_servers": self._broker.bootstrap, "topics": self._topic, "max_records": 200}

    def change(self, generator: random.Random, steps: int) -> None:
        numbers = range(self._next, self._next + steps)
        self._broker.produce(self._topic, [(str(n % 7).encode(), json.dumps({"n": n}).encode()) for n in numbers])
        self._next = numbers.stop

    def check(self, rows: Iterable[Row]) -> None:
        assert sorted(json.loads(row["row"])["n"] for row in rows) == list(range(self._next))


class Versions:
    """A Delta table that is appended to; rows carry a number without gaps."""

    name = "delta"

    def __init__(self, path: Path) -> None:
        self._path, self._next = str(path), 0
        self.change(random.Random(0), 5)

    def settings(self, reader: str) -> dict[str, Any]:
        return {"path": self._path, "max_versions": 1}

    def change(self, generator: random.Random, steps: int) -> None:
        while steps > 0:
            count = min(steps, generator.randint(1, 120))
            table = pa.table({"n": pa.array(range(self._next, self._next + count), pa.int64())})
            write_deltalake(self._path, table, mode="append")
            self._next, steps = self._next + count, steps - count

    def check(self, rows: Iterable[Row]) -> None:
        assert sorted(json.loads(row["row"])["n"] for row in rows) == list(range(self._next))


class ChangingTable:
    """A table with random inserts, updates, changes of keys and deletes, in transactions of a few statements."""

    name: str

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._next = 0
        self.execute([f"CREATE TABLE accounts ({_COLUMNS})"])
        self.change(random.Random(0), 30)

    def execute(self, statements: list[str]) -> None:
        raise NotImplementedError

    def table(self) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def change(self, generator: random.Random, steps: int) -> None:
        while steps > 0:
            size = min(steps, generator.randint(1, 5))
            self.execute([self._statement(generator) for _ in range(size)])
            steps -= size

    def _statement(self, generator: random.Random) -> str:
        kind = generator.choices(["insert", "update", "rekey", "delete"], [5, 4, 1, 2])[0]
        amount, name = generator.randint(-(10**6), 10**6) / 100, f"Ü-{generator.randint(0, 999)}"
        if kind == "insert" or len(self._keys) < 5:
            self._keys.append(self._next)
            self._next += 1
            return f"INSERT INTO accounts VALUES ({self._keys[-1]}, '{name}', {amount}, NULL)"
        index = generator.randrange(len(self._keys))
        key = self._keys[index]
        if kind == "update":
            return f"UPDATE accounts SET amount = {amount}, note = '{name}' WHERE id = {key}"
        if kind == "rekey":
            self._keys[index] = self._next
            self._next += 1
            return f"UPDATE accounts SET id = {self._keys[index]} WHERE id = {key}"
        del self._keys[index]
        return f"DELETE FROM accounts WHERE id = {key}"

    def check(self, rows: Iterable[Row]) -> None:
        """Rebuild the table from its changes, in the order they say they have."""
        replica: dict[int, Row] = {}
        for row in sorted(rows, key=lambda row: (row["place"].startswith("snapshot") is False, row["place"])):
            change = json.loads(row["row"])
            before, after = change.get("before"), change.get("after")
            if change["op"] in ("update", "delete"):
                key = (before or after)["id"]
                assert key in replica, f"{change['op']} of {key}, which is not there"
                del replica[key]
            if after is not None:
                assert after["id"] not in replica, f"{after['id']} is there twice"
                replica[after["id"]] = after
        found = sorted((r["id"], r.get("name"), f"{float(r['amount']):.2f}", r.get("note")) for r in replica.values())
        assert found == sorted((id, name, f"{float(amount):.2f}", note) for id, name, amount, note in self.table())


class PostgresTable(ChangingTable):
    """A table of PostgreSQL."""

    name = "postgres"

    def __init__(self, server: postgres_server.Server) -> None:
        self._url = server.url
        super().__init__()

    def settings(self, reader: str) -> dict[str, Any]:
        return {"url": self._url, "table": "accounts", "slot": f"slot_{reader}", "max_rows": 200}

    def execute(self, statements: list[str]) -> None:
        with psycopg.connect(self._url) as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def table(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._url) as connection:
            return connection.execute("SELECT * FROM accounts").fetchall()


class MariaTable(ChangingTable):
    """A table of MariaDB."""

    name = "mysql"

    def __init__(self, server: mariadb_server.Server) -> None:
        self._server = server
        super().__init__()

    def settings(self, reader: str) -> dict[str, Any]:
        return {"url": self._server.url, "table": "accounts", "max_rows": 200}

    def execute(self, statements: list[str]) -> None:
        self._server.run("START TRANSACTION", *statements, "COMMIT")

    def table(self) -> list[tuple[Any, ...]]:
        return self._server.run("SELECT * FROM accounts")
