"""The HTTP API of a real pipeline on Spark: checkpoints with and without data, pausing, events, stuck clients."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from holdfast.errors import Fenced
from holdfast.interfaces.http.serving import serve
from interfaces.http_client import until
from spark.conftest import Lab
from spark.test_running import wait_for_epochs

Labs = Callable[[str], Lab]
API = "/api/v1/pipelines/orders"


class Run:
    """A pipeline on Spark and a client of its API."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.handle = lab.pipeline().start()
        self.server = serve(self.handle, "127.0.0.1:0")
        self.client = httpx.Client(base_url=self.server.url, trust_env=False, timeout=60)

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.is_success, answer.text
        return answer.json()

    def checkpoint(self) -> dict[str, Any]:
        """Ask for a checkpoint, wait for it, and return how it ended."""
        number = self.client.post("/checkpoint").json()["checkpoint_sequence_number"]
        until(lambda: any(each["last"] >= number for each in self.get(f"{API}/checkpoint_requests")))
        found: dict[str, Any] = self.get(f"{API}/checkpoint_requests")[-1]
        return found

    def close(self) -> None:
        self.handle.stop()
        self.client.close()
        self.server.stop()


@pytest.fixture
def run(lab: Labs) -> Iterator[Run]:
    here = lab("windows")
    here.add(0, 2)
    run = Run(here)
    yield run
    run.close()


def test_a_pipeline_is_checkpointed_paused_and_stopped_over_http(
    run: Run, undisturbed: Callable[[str, int], dict[str, Any]]
) -> None:
    wait_for_epochs(run.handle, 2)
    idle = run.checkpoint()
    assert idle["error"] is None
    listed = run.get("/checkpoints")
    assert listed[-1]["uuid"] == str(run.handle.newest.uuid)
    assert run.client.post("/pause").status_code == 202
    run.lab.add(2, 4)
    while_paused = run.checkpoint()
    assert while_paused["checkpoint_id"] == idle["checkpoint_id"] + 1
    assert run.get("/v0/pipelines/orders")["deployment_status"] == "Paused"
    assert run.client.post("/resume").status_code == 202
    assert run.checkpoint()["error"] is None
    wait_for_epochs(run.handle, 4)
    assert run.client.post("/stop").status_code == 202
    until(lambda: run.get("/v0/pipelines/orders")["deployment_status"] == "Stopped")
    assert run.lab.run()
    assert run.lab.contents() == undisturbed("windows", 4)


def test_events_come_and_a_client_that_does_not_read_holds_up_no_epoch(run: Run) -> None:
    wait_for_epochs(run.handle, 2)
    stuck = socket.create_connection((run.server.address.host, run.server.address.port))
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.sendall(f"GET {API}/events?steps=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    seen: list[dict[str, Any]] = []
    listening, ended = threading.Event(), threading.Event()

    def listen() -> None:
        with run.client.stream("GET", f"{API}/events") as answer:
            for line in answer.iter_lines():
                listening.set()
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    assert listening.wait(120)
    run.lab.add(2, 3)
    wait_for_epochs(run.handle, 4)
    until(lambda: [each["event"] for each in seen].count("EpochCommitted") >= 1)
    run.checkpoint()
    until(lambda: seen[-1]["event"] == "CheckpointTaken")
    run.handle.stop()
    assert ended.wait(120)
    stuck.close()


def test_a_writer_that_was_replaced_finds_out_when_it_is_asked_for_a_checkpoint(run: Run) -> None:
    """Goal: with no data flowing no epoch meets the fence; the request does, and the zombie ends."""
    wait_for_epochs(run.handle, 2)
    waiting: list[BaseException] = []

    def wait() -> None:
        try:
            run.handle.wait()
        except BaseException as error:
            waiting.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    newest = run.handle.newest
    assert newest.generation is not None
    taken = newest.model_copy(
        update={
            "checkpoint_id": newest.checkpoint_id + 1,
            "generation": newest.generation + 1,
            "manifest_checksum": None,
        }
    )
    run.handle.store.save(taken)
    outcome = run.checkpoint()
    assert "was sealed by another writer" in outcome["error"]
    waiter.join(60)
    assert [type(error) for error in waiting] == [Fenced]
    status = run.get("/v0/pipelines/orders?selector=status")
    assert status["deployment_status"] == "Stopped"
    assert status["deployment_error"]["error_code"] == "Fenced"
