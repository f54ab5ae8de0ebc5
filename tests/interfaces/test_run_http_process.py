"""`holdfast run` serves its API: a process with a real Spark, driven over HTTP from its start to its end."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from interfaces.http_client import until
from interfaces.started import Started
from interfaces.test_run_process import pipeline, put, rows, start

__all__ = ["pipeline", "start"]


def address_of(process: Started) -> str:
    return str(json.loads(process.until(lambda line: '"HttpListening"' in line))["url"])


def test_a_run_is_driven_over_http_and_stopped_like_by_a_signal(
    pipeline: Path, start: Callable[..., Started]
) -> None:
    put(pipeline.parent, "1.json", 1, 2)
    process = start("run", pipeline, "--http", "127.0.0.1:0", "--json")
    with httpx.Client(base_url=address_of(process), trust_env=False, timeout=60) as client:
        status: dict[str, Any] = client.get("/v0/pipelines/orders").json()
        assert status["deployment_status"] in ("Initializing", "Running")
        asked = client.post("/checkpoint").json()
        process.until(lambda line: '"EpochCommitted"' in line)
        until(lambda: client.get("/checkpoint_status").json() != {"success": None, "failure": None})
        assert asked["checkpoint_sequence_number"] == 0
        number = client.post("/checkpoint").json()["checkpoint_sequence_number"]
        until(lambda: client.get("/checkpoint_status").json()["success"] == number)
        assert "holdfast_" in client.get("/metrics").text
        assert client.post("/stop").status_code == 202
    assert process.ended() == (0, "")
    assert rows(pipeline.parent, "SELECT id FROM seen ORDER BY id") == [(1,), (2,)]


@pytest.mark.long
def test_a_forced_stop_ends_the_process_at_once_and_recovery_makes_up_for_it(
    pipeline: Path, start: Callable[..., Started]
) -> None:
    put(pipeline.parent, "1.json", 1, 2)
    process = start("run", pipeline, "--http", "127.0.0.1:0", "--json")
    url = address_of(process)
    assert httpx.post(f"{url}/stop?force=true", trust_env=False).status_code == 202
    assert process.ended()[0] == 143
    assert start("run", pipeline, "--once", "--no-http").ended()[0] == 0
    assert rows(pipeline.parent, "SELECT id FROM seen ORDER BY id") == [(1,), (2,)]


def test_an_address_that_cannot_be_had_is_told_before_spark_starts(
    pipeline: Path, start: Callable[..., Started]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        process = start("run", pipeline, "--http", taken)
        assert process.ended() == (2, f"holdfast: cannot listen on {taken}: address already in use\n")
        assert process.lines == []


@pytest.mark.parametrize("arguments", [["--http", "0.0.0.0:0"], ["--http", ":1", "--no-http"], ["--http", "a:b:c"]])
def test_what_is_not_safe_or_makes_no_sense_is_refused(
    pipeline: Path, start: Callable[..., Started], arguments: list[str]
) -> None:
    code, error = start("run", pipeline, *arguments).ended()
    assert code == 2
    assert error.count("\n") == 1
