"""The documented copy of a MySQL table in PostgreSQL: run over changes of all kinds and restarts on both sides."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from connectors import mariadb_server, postgres_server
from holdfast.errors import SourceHistoryLost

PAGE = (Path(__file__).parents[2] / "docs" / "connectors" / "mysql_cdc.md").read_text()


@pytest.fixture(scope="module")
def maria() -> Iterator[mariadb_server.Server]:
    with mariadb_server.running() as server:
        yield server


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server.running() as server:
        yield server.url


def documented(base: Path, spark: SparkSession, maria_url: str, postgres_url: str, max_rows: int) -> hf.Pipeline:
    """Return the pipeline of the documentation, with servers of ours and small epochs."""
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for shown, ours in (
        ('store="./checkpoints"', "store=store, spark=spark, retain=4"),
        ('"mysql://cdc:secret@db1/shop"', "maria_url"),
        ('"postgresql://shop@db2/shop"', "postgres_url"),
        ("max_rows=100_000", "max_rows=max_rows"),
        ("pipeline.run()\n", ""),
    ):
        assert shown in block
        block = block.replace(shown, ours)
    names: dict[str, Any] = {
        "store": str(base / "store"),
        "spark": spark,
        "maria_url": maria_url,
        "postgres_url": postgres_url,
        "max_rows": max_rows,
    }
    exec(block, names)
    found: hf.Pipeline = names["pipeline"]
    return found


def change(maria: mariadb_server.Server, rng: random.Random, transactions: int) -> None:
    for _ in range(transactions):
        first = rng.randrange(1, 300)
        key = rng.randrange(1000, 100_000_000)
        maria.run(
            "START TRANSACTION",
            f"INSERT IGNORE INTO customers VALUES ({first}, 'new', {rng.random()}), ({key}, 'grüße', NULL)",
            f"UPDATE customers SET name = '{rng.random()}' WHERE id BETWEEN {first} AND {first + 30}",
            f"UPDATE IGNORE customers SET id = {rng.randrange(1, 300)} WHERE id = {first}",
            f"DELETE FROM customers WHERE id = {rng.randrange(1, 300)}",
            "COMMIT",
        )


def test_the_documented_copy_follows_the_table(
    maria: mariadb_server.Server, postgres: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: the copy equals the table. Method: random changes, key changes among them, with everything restarted."""
    rng = random.Random(7)
    maria.run("CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(40), amount DECIMAL(12, 4))")
    change(maria, rng, 40)
    for life in range(3):
        documented(tmp_path, spark, maria.url, postgres, 300).run(once=True)
        assert copied(postgres) == sorted(maria.run("SELECT * FROM customers"))
        change(maria, rng, 20)
        if life == 1:
            maria.kill()
            maria.start()
    documented(tmp_path, spark, maria.url, postgres, 300).run(once=True)
    assert copied(postgres) == sorted(maria.run("SELECT * FROM customers"))

    newest = hf.open_store(tmp_path / "store").load_latest()
    assert newest is not None
    position = newest.source_offsets["changes"]
    assert set(position.offsets) == {"gtid_set", "binlog_file", "binlog_position", "server_id"}
    assert position.metadata["connector"] == "mysql_cdc"
    assert position.metadata["table"] == "shop.customers"
    written = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert mariadb_server.PASSWORD.encode() not in written
    assert not list((tmp_path / "store").rglob("*.parquet")), "the snapshot is gone once no checkpoint reads it"

    maria.run("FLUSH BINARY LOGS", "INSERT INTO customers VALUES (-1, 'missed', 0)", "FLUSH BINARY LOGS")
    newest_file = maria.run("SHOW BINARY LOGS")[-1][0]
    while maria.run(f"PURGE BINARY LOGS TO '{newest_file}'", "SHOW BINARY LOGS")[0][0] != newest_file:
        pass  # The server needs a file until all of its transactions are in the tables for good.
    with pytest.raises(SourceHistoryLost, match=position.offsets["binlog_file"]):
        documented(tmp_path, spark, maria.url, postgres, 300).run(once=True)


def copied(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return sorted(connection.execute("SELECT id, name, amount FROM customers").fetchall())
