"""`holdfast run` as a process with a real Spark: the starter, take-over, signals, and an error in the user's code."""

import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interfaces.started import Started
from interfaces.test_cli_process import in_a_pipe, on_a_terminal

SCHEMA = "id long, amount double"
PIPELINE = f"""\
name: orders
store: ./store
spark: {{master: "local[1]"}}
checkpoint: {{state_partitions: 1}}
sources:
  orders: {{files: {{path: ./in, schema: "{SCHEMA}"}}}}
views:
  seen: SELECT id, amount FROM orders
sinks:
  db: {{takes: seen, sqlite: {{path: ./app.db, table: seen}}}}
  copy: {{takes: orders, files: {{path: ./copy, format: json}}}}
"""


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Return a function that starts a process, which does not outlive the test."""
    started: list[Started] = []

    def begin(*arguments: object) -> Started:
        started.append(Started(*arguments))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    return tmp_path / "orders.yaml"


def put(folder: Path, name: str, *ids: int) -> None:
    """Move a file into place whole, as a source wants it."""
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps({"id": id, "amount": id / 2}) + "\n" for id in ids))
    hidden.rename(folder / "in" / name)


def rows(folder: Path, query: str, database: str = "app.db") -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / database) as connection:
        return connection.execute(query).fetchall()


def test_the_starter_runs_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert in_a_pipe("init").returncode == 0
    code, seen = on_a_terminal("run", "pipeline.yaml", "--once", COLUMNS="100")
    assert code == 0, seen
    assert "fresh start, generation 1 of timeline" in seen
    assert "starting Spark" in seen
    assert "orders: 2 epochs in" in seen
    assert "5 rows in, out: db 3, lake 5; at epoch 2" in seen
    assert "WARN" not in seen
    found = rows(tmp_path, "SELECT customer, total FROM revenue ORDER BY w_start, customer", "orders.db")
    assert found == [("ada", 20.0), ("bob", 3.0), ("cyd", 20.0)]
    assert len(list((tmp_path / "lake" / "orders").glob("*.parquet"))) == 1


def test_a_second_process_takes_over_and_a_signal_lets_it_finish(
    pipeline: Path, start: Callable[..., Started]
) -> None:
    """Goal: the loser is told and leaves with its own code; the winner finishes its epoch. Nothing is doubled."""
    folder = pipeline.parent
    put(folder, "1.json", 1, 2)
    loser = start("run", pipeline)
    loser.until(lambda line: "epoch 1: checkpoint 2, 2 rows in, out: copy 2, db 2" in line)
    winner = start("run", pipeline, "--json")
    recovered = json.loads(winner.until(lambda line: '"Recovered"' in line))
    assert recovered["report"]["chosen_id"] == 2
    put(folder, "2.json", 3)
    code, errors = loser.ended()
    assert code == 5, (errors, loser.lines)
    assert "generation 2" in errors
    assert errors.count("\n") == 1
    winner.until(lambda line: '"StepStarted"' in line and '"epoch": 2' in line)
    winner.process.send_signal(signal.SIGTERM)
    assert winner.ended() == (0, "")
    events = [json.loads(line) for line in winner.lines]
    assert [event["epoch"] for event in events if event["event"] == "EpochCommitted"] == [2]
    assert events[-1] == {"event": "Stopped", "epoch": 2, "error": None, "kind": None}
    assert rows(folder, "SELECT id FROM seen ORDER BY id") == [(1,), (2,), (3,)]
    files = folder.glob("copy/holdfast_epoch=*/[!._]*.json")
    copied = [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]
    assert sorted(copied) == [1, 2, 3]


@pytest.mark.long
def test_an_error_in_the_users_code_is_one_line(pipeline: Path, start: Callable[..., Started]) -> None:
    folder = pipeline.parent
    put(folder, "1.json", 1, 2)
    (folder / "rules.py").write_text(
        "def check(id):\n    if id == 2:\n        raise ValueError('no twos')\n    return id\n"
    )
    (folder / "views.py").write_text(
        "import rules\nfrom pyspark.sql.functions import udf\n\n"
        "check = udf(lambda id: rules.check(id), 'long')\n\n\n"
        "def seen(orders):\n    return orders.select(check('id').alias('id'), 'amount')\n"
    )
    pipeline.write_text(PIPELINE.replace("SELECT id, amount FROM orders", "{python: 'views.py:seen'}"))
    ran = start("run", pipeline, "--once", "--quiet")
    assert ran.ended() == (8, "holdfast: pipeline 'orders' failed: epoch 1, compute: ValueError: no twos\n")
    assert ran.lines == []
