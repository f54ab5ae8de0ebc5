"""The documented copy of a PostgreSQL table: run over changes of all kinds, crashes, a fall-back and restarts."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from connectors.postgres_server import Server, running
from holdfast.engine.events import StepFinished, StepStarted
from holdfast.errors import SourceError, SourceHistoryLost
from spark.conftest import Crash, CrashAt, flip

PAGE = (Path(__file__).parents[2] / "docs" / "connectors" / "postgres_cdc.md").read_text()
SLOT = "holdfast_public_customers"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE copy")
            connection.execute("ALTER ROLE postgres PASSWORD 'hunter2222'")
        yield server


def documented(base: Path, spark: SparkSession, server: Server, max_rows: int = 150) -> hf.Pipeline:
    """Return the pipeline of the documentation, with a server of ours and small epochs."""
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for shown, ours in (
        ('store="./checkpoints"', "store=store, spark=spark, retain=4"),
        ('"postgresql://cdc:secret@db1/shop"', "source_url"),
        ('"postgresql://shop@db2/shop"', "copy_url"),
        ("max_rows=100_000", "max_rows=max_rows"),
        ("pipeline.run()\n", ""),
    ):
        assert shown in block
        block = block.replace(shown, ours)
    names: dict[str, Any] = {
        "store": str(base / "store"),
        "spark": spark,
        "source_url": server.url.replace("postgres@", "postgres:hunter2222@"),
        "copy_url": copy_of(server),
        "max_rows": max_rows,
    }
    exec(block, names)
    found: hf.Pipeline = names["pipeline"]
    return found


def copy_of(server: Server) -> str:
    return urlsplit(server.url)._replace(path="/copy").geturl()


def rows(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return sorted(connection.execute("SELECT id, name, amount FROM customers").fetchall())


def change(server: Server, rng: random.Random, transactions: int) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for _ in range(transactions):
            first, other = rng.randrange(1, 300), rng.randrange(1, 300)
            with connection.transaction():
                for id, name in ((first, "new"), (rng.randrange(1000, 100_000_000), "grüße")):
                    insert = "INSERT INTO customers VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
                    connection.execute(insert, (id, name, rng.randrange(1000)))
                renamed = "UPDATE customers SET name = %s WHERE id BETWEEN %s AND %s"
                connection.execute(renamed, (str(rng.random()), first, first + 30))
                free = "NOT EXISTS (SELECT 1 FROM customers WHERE id = %s)"
                connection.execute(f"UPDATE customers SET id = %s WHERE id = %s AND {free}", (other, first, other))
                connection.execute("DELETE FROM customers WHERE id = %s", (rng.randrange(1, 300),))


def slot_position(server: Server) -> str:
    with psycopg.connect(server.url) as connection:
        query = "SELECT slot_name, confirmed_flush_lsn::text FROM pg_replication_slots"
        [(name, lsn)] = connection.execute(query).fetchall()
        assert name == SLOT, "copies go with their connections"
        return str(lsn)


def test_the_documented_copy_follows_the_table(server: Server, spark: SparkSession, tmp_path: Path) -> None:
    """Goal: the copy equals the table, exactly once. Method: random changes, key changes among them, and accidents.

    The pipeline crashes, falls back to an older checkpoint, and the server crashes.
    """
    rng = random.Random(7)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text, amount numeric(12, 4))")
    change(server, rng, 60)
    crashes = [
        (1, StepStarted, "seal", None),
        (2, StepFinished, "seal", None),
        (3, StepFinished, "commit", "copy"),
        None,
        "damage",
        "server",
        None,
    ]
    for crash in crashes:
        moment = crash if isinstance(crash, tuple) else None
        if crash == "damage":
            newest = sorted((tmp_path / "store" / "checkpoints").glob("checkpoint_*"))[-1]
            flip(newest / "state.bin", 100)
        elif crash == "server":
            server.stop("immediate")
            server.start()
        try:
            documented(tmp_path, spark, server).run(once=True, observers=[CrashAt(moment)])
        except Crash:
            assert moment is not None
        else:
            assert rows(copy_of(server)) == rows(server.url)
        change(server, rng, 15)
    documented(tmp_path, spark, server).run(once=True)
    assert rows(copy_of(server)) == rows(server.url)
    check_what_is_written_down(server, tmp_path)

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    with pytest.raises(SourceHistoryLost, match=f"slot '{SLOT}' is gone"):
        documented(tmp_path, spark, server).run(once=True)


def check_what_is_written_down(server: Server, base: Path) -> None:
    store = hf.open_store(base / "store")
    newest, kept = store.load_latest(), store.list_ids()
    assert newest is not None
    position = newest.source_offsets["changes"]
    assert set(position.offsets) == {"lsn"}
    assert position.metadata["connector"] == "postgres_cdc"
    assert position.metadata["slot"] == SLOT
    assert position.metadata["lag_unit"] == "bytes"
    oldest = store.load_by_id(kept[0])
    assert oldest is not None
    assert slot_position(server) <= oldest.source_offsets["changes"].offsets["lsn"]
    written = b"".join(path.read_bytes() for path in (base / "store").rglob("*") if path.is_file())
    assert b"hunter2222" not in written
    assert not list((base / "store").rglob("*.parquet")), "the snapshot is gone once no checkpoint reads it"


def test_errors_of_the_reader_are_our_own(server: Server, spark: SparkSession, tmp_path: Path) -> None:
    """Goal: what Spark's processes find wrong is said in one line. Method: a column that appears while it runs."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE notes (id int PRIMARY KEY)")
        pipeline = hf.Pipeline("notes", store=str(tmp_path / "store"), spark=spark, guarantee="at-least-once")
        pipeline.source("notes", hf.sources.postgres_cdc(server.url, "notes"))
        pipeline.sink("there", "notes", hf.sinks.memory())
        handle = pipeline.start()
        connection.execute("INSERT INTO notes VALUES (1)")
        connection.execute("ALTER TABLE notes ADD COLUMN extra text")
        connection.execute("INSERT INTO notes VALUES (2, 'x')")
        with pytest.raises(SourceError, match=r"^column 'extra' was added to table"):
            handle.wait()
        connection.execute("SELECT pg_drop_replication_slot('holdfast_notes')")
