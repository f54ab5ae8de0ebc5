"""The example pipelines of docs/connectors/ work as they stand there, with servers and tables of ours.

Those of postgres_cdc, mysql_cdc and the reference tables have tests of their own.
"""

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from connectors import postgres_server
from connectors.kafka_server import Broker

PAGES = Path(__file__).parents[2] / "docs" / "connectors"
RUN_ONCE = ("pipeline.run()", "pipeline.run(once=True)")


def example(page: str, number: int, *changes: tuple[str, str]) -> str:
    """Return a Python example of a page, with other addresses."""
    code = re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)[number]
    for shown, ours in changes:
        assert shown in code
        code = code.replace(shown, ours)
    return str(code)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    """Go where relative paths are ours; the session that exists is the one a pipeline takes."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def customers(*rows: tuple[int, str]) -> pa.Table:
    ids, names = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array(names)})


def test_delta_as_a_source(base: Path) -> None:
    lake = str(base / "lake")
    code = example("delta.md", 0, ("s3://lake/orders", lake), RUN_ONCE)
    for amounts in ([500.0, 1500.0], [2500.0]):
        write_deltalake(lake, pa.table({"amount": amounts}), mode="append")
        exec(code, {})
    with sqlite3.connect(base / "app.db") as database:
        assert sorted(database.execute("SELECT amount FROM large")) == [(1500.0,), (2500.0,)]


def test_changes_of_a_delta_table_into_postgres(base: Path) -> None:
    lake = str(base / "customers")
    write_deltalake(
        lake, customers((1, "a"), (2, "b"), (3, "c")), configuration={"delta.enableChangeDataFeed": "true"}
    )
    begin = f"import holdfast as hf\npipeline = hf.Pipeline('copy', store={str(base / 'store')!r})\n"
    with postgres_server.running() as server:
        code = begin + example(
            "delta.md", 1, ("s3://lake/customers", lake), ("postgresql://shop@db/shop", server.url)
        )
        names: dict[str, Any] = {}
        exec(code, names)
        names["pipeline"].run(once=True)
        table = DeltaTable(lake)
        table.delete("id = 1")
        table.update(updates={"name": "'changed'"}, predicate="id = 2")
        exec(code, names)
        names["pipeline"].run(once=True)
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT id, name FROM customers ORDER BY id").fetchall() == [
                (2, "changed"),
                (3, "c"),
            ]


def test_kafka_as_a_sink(base: Path, kafka: Broker) -> None:
    kafka.create_topic("large_orders", partitions=4)
    (base / "in").mkdir()
    rows = [{"id": n, "customer": f"c{n}", "amount": 500.0 * n} for n in range(1, 7)]
    (base / "in" / "one.json").write_text("\n".join(map(json.dumps, rows)))
    # The session of these tests was started elsewhere, and looks for relative paths there.
    moved = ("./in", str(base / "in"))
    exec(example("kafka.md", 1, ("localhost:9092", kafka.bootstrap), moved, RUN_ONCE), {})
    found = [(r.partition, json.loads(r.value)["id"]) for r in kafka.consume("large_orders")]
    assert sorted(found, key=lambda record: record[1]) == [(3, 3), (0, 4), (1, 5), (2, 6)]


def test_kafka_as_a_source(base: Path, kafka: Broker, kafka_connector: str) -> None:
    kafka.create_topic("orders")
    kafka.produce("orders", [json.dumps({"id": n, "amount": n / 2}) for n in range(5)])
    code = example("kafka.md", 0, ("localhost:9092", kafka.bootstrap), RUN_ONCE)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    command = [sys.executable, "-m", "spark.documented_pipeline", kafka_connector, str(base), code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    rows = DeltaTable(base / "lake" / "orders").to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["amount"]) for row in rows) == [(n, n / 2) for n in range(5)]
