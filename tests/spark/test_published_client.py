"""`holdfast serve` with a real pipeline on Spark: the published client works against it, unchanged."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from interfaces.started import Started

TOKEN = "a-token-of-these-tests"
PATIENCE = 300.0
SESSION = Path(__file__).parents[1] / "interfaces" / "published_client_session.py"
PIPELINE = """\
name: orders
store: ./store
spark: {{master: "local[1]"}}
checkpoint: {{state_partitions: 1}}
sync: {{bucket: "file://{folder}/bucket", push_interval: never}}
sources:
  orders: {{files: {{path: ./in, schema: "id long, amount double"}}}}
views:
  seen: SELECT id, amount FROM orders
sinks:
  db: {{takes: seen, sqlite: {{path: ./app.db, table: seen}}}}
"""


class Manager(Started):
    """`holdfast serve` as a process."""

    def __init__(self, *arguments: object) -> None:
        super().__init__("serve", *arguments, "--http", "127.0.0.1:0", "--json", HOLDFAST_HTTP_TOKEN=TOKEN)
        self.url: str = self.until_event("serving")["url"]
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def until_event(self, event: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.until(lambda line: json.loads(line)["event"] == event))
        return found

    def pipeline(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/v0/pipelines/orders?selector=status").json()
        return found

    def reaches(self, status: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while (found := self.pipeline())["deployment_status"] != status:
            assert time.monotonic() < deadline, found
            assert found["deployment_error"] is None, found
            time.sleep(0.2)

    def end(self) -> tuple[int, str]:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        return self.ended()


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "orders.yaml").write_text(PIPELINE.format(folder=tmp_path))
    return tmp_path / "orders.yaml"


@pytest.fixture
def manager(pipeline: Path) -> Iterator[Manager]:
    manager = Manager(pipeline, "--no-start")
    yield manager
    manager.kill()
    manager.client.close()


def put(folder: Path, name: str, *ids: int) -> None:
    """Move a file into place whole, as a source wants it."""
    hidden = folder / f".{name}"
    hidden.write_text("".join(json.dumps({"id": id, "amount": id / 2}) + "\n" for id in ids))
    hidden.rename(folder / "in" / name)


def rows(folder: Path) -> list[int]:
    with sqlite3.connect(folder / "app.db") as connection:
        return [id for (id,) in connection.execute("SELECT id FROM seen ORDER BY id")]


def shows(folder: Path, *ids: int) -> None:
    """Wait until the sink shows these rows, each once."""
    deadline = time.monotonic() + PATIENCE
    while (found := rows(folder)) != list(ids):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_the_published_client_does_all_its_checkpoint_work(
    pipeline: Path, manager: Manager, published_client: Path
) -> None:
    put(pipeline.parent, "1.json", 1, 2, 3)
    command = [str(published_client), str(SESSION), manager.url, TOKEN, "orders"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["pipelines"] == ["orders"]
    assert seen["checkpoints"] == {"numbers": [0, 1], "records": 3}
    assert seen["stats"] == {"state": "RUNNING", "records": 3, "activity": "idle"}
    assert seen["checkpoint while paused"] == 2
    assert seen["synced"] is True
    assert seen["listed when stopped"] >= 3
    assert seen["after a restart"] == 0
    assert "starting Spark" in seen["log"] or re.search(r"epoch|recovered|stopped", seen["log"])
    assert rows(pipeline.parent) == [1, 2, 3]
    assert manager.end() == (0, "")


@pytest.mark.long
def test_a_killed_pipeline_comes_back_by_itself_and_loses_nothing(pipeline: Path, manager: Manager) -> None:
    """Goal: SIGKILL of the process, with Spark below it, needs nobody; and the manager takes its pipelines along."""
    put(pipeline.parent, "1.json", 1, 2)
    manager.client.post("/v0/pipelines/orders/start").raise_for_status()
    pid = manager.until_event("started")["pid"]
    manager.reaches("Running")
    shows(pipeline.parent, 1, 2)
    manager.client.post("/v0/pipelines/orders/checkpoint").raise_for_status()
    os.kill(pid, signal.SIGKILL)
    assert manager.until_event("crashed")["reason"] == "the process was ended by signal 9 (SIGKILL)"
    put(pipeline.parent, "2.json", 3)
    second = manager.until_event("started")["pid"]
    manager.reaches("Running")
    shows(pipeline.parent, 1, 2, 3)
    assert manager.end() == (0, "")
    assert not Path(f"/proc/{second}").exists()
    log = (pipeline.parent / "store" / "serve" / "log").read_text()
    assert log.count("starting Spark") == 2
    assert log.rstrip().endswith("stopped after epoch 2"), log
