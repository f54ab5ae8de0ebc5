"""GET /metrics: one pipeline, one store, or everything a directory knows in one text."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import SinkCommitStatus
from holdfast.errors import TransientStoreError
from holdfast.interfaces.control import ControlError, DirectoryEntry
from holdfast.interfaces.http.addresses import Address, listen
from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.metrics import Metrics
from holdfast.interfaces.service import CheckpointService
from holdfast.stores.store import DurableCheckpointStore
from interfaces.chains import Chain
from interfaces.conftest import writable

DONE = {"lake": SinkCommitStatus.COMMITTED, "pg": SinkCommitStatus.COMMITTED}


class Pipeline:
    """As much of a pipeline as metrics ask for."""

    def __init__(self, name: str, store: DurableCheckpointStore, *, runs: bool) -> None:
        self.service = CheckpointService(store)
        self._name, self._runs, self._metrics = name, runs, Metrics(name)

    def metrics(self) -> bytes:
        if not self._runs:
            raise ControlError.not_deployed(self._name, "Stopped", "Stopped")
        return self._metrics.render()


class Directory:
    def __init__(self, *entries: Any) -> None:
        self._entries = {entry.name: entry for entry in entries}

    def names(self) -> Sequence[str]:
        return sorted(self._entries)

    def find(self, name: str) -> DirectoryEntry:
        if name not in self._entries:
            raise ControlError.unknown_pipeline(name)
        found: DirectoryEntry = self._entries[name]
        return found

    def only(self) -> DirectoryEntry:
        raise ControlError(404, "UnknownPipelineName", "there are several")


class Silent(DurableCheckpointStore):
    def list_ids(self) -> list[int]:
        raise TransientStoreError("no answer")


@pytest.fixture
def client(path: Path) -> Iterator[httpx.Client]:
    chain = Chain(writable(path))
    chain.seal(1, sink_commit_statuses=DONE)
    store = chain.store
    entries = [
        DirectoryEntry("running", control=Pipeline("running", store, runs=True)),  # type: ignore[arg-type]
        DirectoryEntry("stopped", control=Pipeline("stopped", store, runs=False)),  # type: ignore[arg-type]
        DirectoryEntry("looked-at", store=CheckpointService(store)),
        DirectoryEntry("silent", store=CheckpointService(Silent(store._medium))),
    ]
    with (
        HttpServer(create_app(Directory(*entries)), listen(Address.parse("127.0.0.1:0"))) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=30) as client,
    ):
        yield client


def lines(client: httpx.Client, path: str) -> list[str]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain"
    return answer.text.splitlines()


def test_a_pipeline_that_runs_tells_what_it_counts(client: httpx.Client) -> None:
    assert 'holdfast_epochs_completed_total{pipeline="running"} 0.0' in lines(client, "/v0/pipelines/running/metrics")


@pytest.mark.parametrize("name", ["stopped", "looked-at"])
def test_a_pipeline_that_does_not_run_and_a_store_alone_tell_what_the_store_knows(
    client: httpx.Client, name: str
) -> None:
    found = lines(client, f"/v0/pipelines/{name}/metrics")
    assert f'holdfast_pipeline_up{{pipeline="{name}"}} 0.0' in found
    assert f'holdfast_epoch{{pipeline="{name}"}} 1.0' in found


def test_everything_is_one_text_and_a_silent_store_does_not_take_the_others_away(client: httpx.Client) -> None:
    found = lines(client, "/metrics")
    assert 'holdfast_epochs_completed_total{pipeline="running"} 0.0' in found
    assert 'holdfast_store_reachable{pipeline="silent"} 0.0' in found
    assert 'holdfast_store_reachable{pipeline="stopped"} 1.0' in found
    assert len([line for line in found if line.startswith("# TYPE holdfast_pipeline_up ")]) == 1


def test_a_name_that_is_not_known_is_refused(client: httpx.Client) -> None:
    assert client.get("/v0/pipelines/other/metrics").status_code == 404
    assert client.get("/metrics", params={"format": "xml"}).status_code == 400
