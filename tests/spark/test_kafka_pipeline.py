"""A pipeline that reads Kafka is killed and goes on, and every record arrives once."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from connectors.kafka_login import PASSWORD, USERNAME
from connectors.kafka_server import Broker
from holdfast import open_store

Rows = list[tuple[int, int, str]]


def test_every_record_arrives_once_over_a_kill_and_a_new_partition(
    kafka: Broker, kafka_connector: str, tmp_path: Path
) -> None:
    """Goal: exactly once from a real broker, with a login, and with offsets that anybody can read.

    Method: kill a run of several epochs between seal and commit, add a partition, go on, compare with the topic.
    """
    kafka.create_topic("shop-orders", partitions=2)
    kafka.produce("shop-orders", ["before"], partition=0)
    for partition in (0, 1):
        kafka.produce("shop-orders", [f"{partition}:{n}" for n in range(30)], partition=partition)
    source = {
        "bootstrap_servers": kafka.secure_bootstrap,
        "topics": "shop-orders",
        "starting": {"partition-0": 1},
        "max_records": 20,
        "group_id": "shop",
        "username": USERNAME,
        "password": PASSWORD,
        "ca_file": kafka.ca_file,
    }
    run_until("2:after:seal", tmp_path, kafka_connector, source)
    kafka.add_partitions("shop-orders", 3)
    kafka.produce("shop-orders", [f"2:{n}" for n in range(10)], partition=2)
    run_until("never", tmp_path, kafka_connector, source)

    expected = [(r.partition, r.offset, str(r.value, "utf-8")) for r in kafka.consume("shop-orders")][1:]
    assert in_files(tmp_path) == expected
    assert in_database(tmp_path) == expected
    newest = open_store(tmp_path / "store").load_latest()
    assert newest is not None
    assert newest.source_offsets["orders"].offsets == {"partition-0": "31", "partition-1": "30", "partition-2": "10"}
    assert newest.source_offsets["orders"].metadata["topic"] == "shop-orders"
    assert kafka.group_offsets("shop", "shop-orders", 3) == {0: 31, 1: 30, 2: 10}
    written = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
    assert json.dumps(PASSWORD).encode() not in written
    assert PASSWORD.encode() not in written


def run_until(moment: str, base: Path, jars: str, source: dict[str, Any]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-m", "spark.kafka_pipeline", str(base), jars, json.dumps(source), moment]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    expected = 0 if moment == "never" else -9
    assert done.returncode == expected, f"{moment}: exit {done.returncode}\n{done.stdout}\n{done.stderr[-5000:]}"


def in_files(base: Path) -> Rows:
    lines = [line for path in (base / "files").rglob("part-*.json") for line in path.read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


def in_database(base: Path) -> Rows:
    with sqlite3.connect(base / "app.db") as database:
        return sorted(database.execute("SELECT partition, offset, value FROM read").fetchall())
