"""Goal: a standby is seen and activated over HTTP, and says why it could not take over."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.engine.requests import CheckpointRequests
from holdfast.engine.sync.standby import Standby
from holdfast.interfaces.http.addresses import listen
from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.local import LocalPipeline, OnePipeline
from interfaces.http_client import ANY_PORT, until
from sync.machines import Fleet, Machine, running

SHOP = "/v0/pipelines/shop"


class Standing:
    """A machine that stands by, and a client that talks to it."""

    def __init__(self, machine: Machine, client: httpx.Client, standby: Standby) -> None:
        self.machine, self.client, self.standby = machine, client, standby
        self.activated: list[bool] = []
        self._waiting = threading.Thread(target=lambda: self.activated.append(standby.wait()), daemon=True)
        self._waiting.start()

    def described(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(SHOP).json()
        return found


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture
def standing(fleet: Fleet) -> Iterator[Standing]:
    machine = fleet.machine(standby=True, pull_interval="50 milliseconds")
    standby = machine.standby()
    local = LocalPipeline("shop", CheckpointRequests(), lambda force: standby.stop())
    local.opened(machine.store())
    local.standing_by(standby)
    server = HttpServer(create_app(OnePipeline(local), Security()), listen(ANY_PORT))
    server.start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        stack.callback(standby.stop)
        client = stack.enter_context(httpx.Client(base_url=f"http://{server.address}", timeout=60))
        yield Standing(machine, client, standby)


def test_it_is_seen_as_a_standby_with_what_it_could_go_on_from(fleet: Fleet, standing: Standing) -> None:
    assert standing.described()["deployment_status"] == "Standby"
    first = fleet.machine(standby=True)
    with running(first) as process:
        process.next_epoch()
        first.push()
    until(lambda: standing.standby.status.epoch == 1)
    details = standing.described()["deployment_runtime_status_details"]
    assert details["epoch"] == 1
    assert "reason" not in details


def test_it_is_activated(fleet: Fleet, standing: Standing) -> None:
    first = fleet.machine(standby=True)
    with running(first) as process:
        process.next_epoch()
        first.push()
    answer = standing.client.post(f"{SHOP}/activate", params={"initial": "paused"})
    assert answer.status_code == 202, answer.text
    until(lambda: standing.activated == [True])
    assert standing.standby.paused
    again = standing.client.post(f"{SHOP}/activate")
    assert (again.status_code, again.json()["error_code"]) == (400, "InvalidTransition")


def test_what_keeps_it_from_taking_over_is_shown_and_it_stays_a_standby(standing: Standing) -> None:
    assert standing.client.post(f"{SHOP}/activate").status_code == 202
    until(lambda: standing.standby.status.error is not None)
    described = standing.described()
    assert described["deployment_status"] == "Standby"
    assert "nothing to go on from" in described["deployment_runtime_status_details"]["reason"]


def test_it_can_be_stopped(standing: Standing) -> None:
    assert standing.client.post(f"{SHOP}/stop").status_code == 202
    until(lambda: standing.activated == [False])
