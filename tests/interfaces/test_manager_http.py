"""The manager over HTTP, with pipelines that are real processes with real stores, and no Spark."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.recovery import APPROVED
from holdfast.errors import InvalidRequest
from holdfast.interfaces.http.addresses import Address, listen
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.manager.fleet import build_fleet
from holdfast.interfaces.manager.restarting import RestartPolicy
from holdfast.interfaces.manager.serving import manager_app
from holdfast.interfaces.manager.settings import FleetSettings
from holdfast.stores.urls import open_store
from interfaces.chains import Chain
from interfaces.http_client import until
from interfaces.test_supervision import is_alive

CHILD = (sys.executable, str(Path(__file__).with_name("managed_child.py")))
PIPELINE = """\
name: orders
store: ./store
sources:
  orders: {files: {path: ./in, schema: "id long"}}
sinks:
  copy: {takes: orders, files: {path: ./copy, format: json}}
"""
OPERATOR, READER = "operator-token-0123456789", "reader-token-0123456789"


class Manager:
    """A manager in this process, and a client of it."""

    def __init__(self, *targets: object, start: bool = False, tokens: Tokens | None = None, **settings: Any) -> None:
        self.notices: list[tuple[str | None, str, dict[str, Any]]] = []
        restarts = RestartPolicy(limit=2, first_pause=0.05, longest_pause=0.1)
        fleet = FleetSettings(start=start, **{"command": CHILD, "restarts": restarts, **settings})
        self.fleet = build_fleet(map(str, targets), fleet, lambda *notice: self.notices.append(notice))
        security = Security(tokens or Tokens(), requests_per_second=10_000)
        self._server = HttpServer(manager_app(self.fleet, security), listen(Address("127.0.0.1", 0)))
        self._server.start()
        self.fleet.open()
        self.client = httpx.Client(base_url=self._server.url, timeout=30, trust_env=False)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.client.post(path, **options)

    def pipeline(self, **options: Any) -> dict[str, Any]:
        answer = self.get("/v0/pipelines/orders", params={"selector": "status"}, **options)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def reaches(self, status: str) -> dict[str, Any]:
        until(lambda: self.pipeline()["deployment_status"] == status)
        return self.pipeline()

    def process(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/api/v1/pipelines/orders/process").json()
        return found

    def close(self) -> list[str]:
        self.client.close()
        self._server.stop()
        return self.fleet.close(20.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    return tmp_path / "orders.yaml"


@pytest.fixture
def serve() -> Iterator[Callable[..., Manager]]:
    served: list[Manager] = []

    def begin(*targets: object, **options: Any) -> Manager:
        served.append(Manager(*targets, **options))
        return served[-1]

    yield begin
    for manager in served:
        if not manager.client.is_closed:
            manager.close()


def launches(file: Path) -> list[list[Any]]:
    """Return how processes were started: their numbers and options."""
    path = file.parent / "launches"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def error_of(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert set(body) == {"message", "error_code", "details"}
    return answer.status_code, body["error_code"]


def checkpoint(manager: Manager) -> dict[str, Any]:
    """Ask for a checkpoint and wait for it, as clients do."""
    asked = manager.post("/v0/pipelines/orders/checkpoint").json()

    def done() -> bool:
        query = {"incarnation_uuid": asked["incarnation_uuid"]}
        status = manager.get("/v0/pipelines/orders/checkpoint_status", params=query).json()
        assert status["failure"] is None
        return status["success"] is not None and status["success"] >= asked["checkpoint_sequence_number"]

    until(done)
    found: dict[str, Any] = asked
    return found


def test_a_pipeline_is_started_asked_paused_and_stopped(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file)
    before = manager.pipeline()
    assert (before["deployment_status"], before["deployment_desired_status"]) == ("Stopped", "Stopped")
    assert before["storage_status"] == "Cleared"
    assert manager.get("/v0/pipelines/orders/checkpoints").json() == []
    refused = manager.post("/v0/pipelines/orders/checkpoint")
    assert error_of(refused) == (503, "PipelineInteractionNotDeployed")
    assert refused.json()["details"] == {"pipeline_name": "orders", "status": "Stopped", "desired_status": "Stopped"}
    started = manager.post("/v0/pipelines/orders/start")
    assert (started.status_code, type(started.json())) == (202, str)
    running = manager.reaches("Running")
    assert running["deployment_desired_status"] == "Running"
    assert running["storage_status"] == "InUse"
    assert running["id"] == before["id"]
    assert checkpoint(manager)["checkpoint_sequence_number"] == 0
    assert checkpoint(manager)["checkpoint_sequence_number"] == 1
    assert manager.post("/v0/pipelines/orders/pause").status_code == 202
    assert manager.reaches("Paused")["deployment_desired_status"] == "Paused"
    assert checkpoint(manager)["checkpoint_sequence_number"] == 2
    assert manager.post("/v0/pipelines/orders/resume").status_code == 202
    manager.reaches("Running")
    assert manager.post("/v0/pipelines/orders/stop", params={"force": "false"}).status_code == 202
    stopped = manager.reaches("Stopped")
    assert stopped["deployment_error"] is None
    assert len(manager.get("/v0/pipelines/orders/checkpoints").json()) > 0
    assert len(manager.get("/v0/pipelines/orders").json()["storage_status_details"]["checkpoints"]) > 0


def test_answers_pass_through_as_they_are(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    query = {"incarnation_uuid": "01890a5d-ac96-774b-bcce-b302099a8057"}
    refused = manager.get("/v0/pipelines/orders/checkpoint_status", params=query)
    assert error_of(refused) == (400, "IncarnationUuidMismatch")
    assert refused.json()["details"]["requested"] == query["incarnation_uuid"]
    assert manager.get("/v0/pipelines/orders/metrics").headers["content-type"] == "text/plain"
    assert error_of(manager.get("/v0/pipelines/orders/nothing")) == (404, "NotFound")
    assert error_of(manager.post("/v0/pipelines/orders/stats")) == (405, "MethodNotAllowed")
    stats = manager.get("/v0/pipelines/orders/stats").json()
    assert stats["checkpoint_activity"]["status"] in ("idle", "in_progress")
    assert manager.get("/api/v1/pipelines/orders/health").status_code == 200
    assert "connection" not in manager.get("/v0/pipelines/orders/stats").headers


def test_paths_without_a_name_mean_the_only_pipeline(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    assert manager.post("/checkpoint").json()["checkpoint_sequence_number"] == 0
    assert manager.get("/stats").json()["global_metrics"]["state"] == "Running"


def test_a_page_of_the_manager_may_change_things_and_one_of_another_site_may_not(
    serve: Callable[..., Manager], file: Path
) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    call = "/v0/pipelines/orders/checkpoint"
    own = str(manager.client.base_url).rstrip("/")
    assert manager.post(call, headers={"origin": own, "referer": f"{own}/"}).status_code == 200
    assert error_of(manager.post(call, headers={"origin": "http://elsewhere.example"})) == (403, "OtherOrigin")


def test_events_are_streamed_as_they_come(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    with manager.client.stream("GET", "/api/v1/pipelines/orders/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        first = next(line for line in lines if line.startswith("data:"))
        assert json.loads(first.removeprefix("data:"))["event"] == "EpochCommitted"
    manager.post("/v0/pipelines/orders/stop")
    manager.reaches("Stopped")


def test_a_process_that_is_killed_comes_back_as_another_incarnation(
    serve: Callable[..., Manager], file: Path
) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    asked = checkpoint(manager)
    pid = manager.process()["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: manager.process()["pid"] not in (None, pid))
    manager.reaches("Running")
    query = {"incarnation_uuid": asked["incarnation_uuid"]}
    refused = manager.get("/v0/pipelines/orders/checkpoint_status", params=query)
    assert error_of(refused) == (400, "IncarnationUuidMismatch")
    assert checkpoint(manager)["checkpoint_sequence_number"] == 0
    assert ("orders", "crashed") in [notice[:2] for notice in manager.notices]


def test_a_deaf_process_is_ended_by_force_only(serve: Callable[..., Manager], file: Path) -> None:
    (file.parent / "deaf").touch()
    manager = serve(file, start=True)
    manager.reaches("Running")
    pid = manager.process()["pid"]
    manager.post("/v0/pipelines/orders/stop")
    assert manager.pipeline()["deployment_status"] == "Stopping"
    assert is_alive(pid)
    assert error_of(manager.post("/v0/pipelines/orders/start")) == (400, "IllegalPipelineAction")
    manager.post("/v0/pipelines/orders/stop", params={"force": "true"})
    assert manager.reaches("Stopped")["deployment_error"] is None
    assert not is_alive(pid)


def test_one_that_fails_again_and_again_keeps_its_error_until_it_is_dismissed(
    serve: Callable[..., Manager], file: Path
) -> None:
    (file.parent / "fail").write_text(json.dumps([8, "no luck today", None]))
    manager = serve(file)
    manager.post("/v0/pipelines/orders/start")
    until(lambda: manager.pipeline()["deployment_error"])
    failed = manager.pipeline()
    assert (failed["deployment_status"], failed["deployment_desired_status"]) == ("Stopped", "Stopped")
    assert failed["deployment_error"] == {"message": "no luck today", "error_code": "PipelineError", "details": None}
    assert len(launches(file)) == 3
    assert manager.process()["error"]["message"] == "no luck today"
    refused = manager.post("/v0/pipelines/orders/start", params={"dismiss_error": "false"})
    assert error_of(refused) == (400, "CannotStartWithUndismissedError")
    (file.parent / "fail").unlink()
    assert manager.post("/v0/pipelines/orders/dismiss_error").status_code == 200
    assert manager.pipeline()["deployment_error"] is None
    assert manager.post("/v0/pipelines/orders/start", params={"dismiss_error": "false"}).status_code == 202
    manager.reaches("Running")


def test_a_changed_pipeline_waits_for_its_approval(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    checkpoint(manager)
    assert error_of(manager.post("/v0/pipelines/orders/approve")) == (400, "IllegalPipelineAction")
    manager.post("/v0/pipelines/orders/stop")
    manager.reaches("Stopped")
    changed = {"fingerprint": "00000000000000ab", "changes": ["view 'x' changed"]}
    (file.parent / "fail").write_text(json.dumps([6, "changed", changed]))
    manager.post("/v0/pipelines/orders/start", params={"initial": "paused"})
    waiting = manager.reaches("AwaitingApproval")
    assert waiting["deployment_runtime_status_details"] == {"approval_diff": changed}
    assert waiting["deployment_error"] is None
    (file.parent / "fail").unlink()
    assert manager.post("/v0/pipelines/orders/approve").status_code == 200
    manager.reaches("Paused")
    manifests = [m for m in open_store(file.parent / "store", retain=None).manifests() if m.kind == "fence"]
    assert {APPROVED: ["00000000000000ab"]}.items() <= (manifests[-2].recovery or {}).items()


def test_storage_is_cleared_when_stopped_and_only_then(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    checkpoint(manager)
    assert error_of(manager.post("/v0/pipelines/orders/clear")) == (400, "IllegalPipelineAction")
    manager.post("/v0/pipelines/orders/stop")
    manager.reaches("Stopped")
    named = manager.post("/api/v1/pipelines/orders/savepoints", json={"name": "keep-me"})
    assert named.status_code == 201, named.text
    refused = manager.post("/v0/pipelines/orders/clear")
    assert error_of(refused) == (400, "InvalidRequest")
    assert "keep-me" in refused.json()["message"]
    assert manager.client.delete("/api/v1/pipelines/orders/savepoints/keep-me").status_code == 200
    newest = open_store(file.parent / "store", retain=None).newest_id()
    assert manager.post("/v0/pipelines/orders/clear").status_code == 202
    until(lambda: manager.pipeline()["storage_status"] == "Cleared")
    assert manager.get("/v0/pipelines/orders/checkpoints").json() == []
    started = manager.post("/api/v1/pipelines/orders/start", params={"sinks": "append", "initial": "paused"})
    assert started.status_code == 202, started.text
    assert manager.reaches("Paused")["storage_status"] == "InUse"
    assert launches(file)[-1][1:] == ["--http", "127.0.0.1:0", "--paused", "--sinks", "append"]
    assert open_store(file.parent / "store", retain=None).newest_id() > newest, "ids go on growing"


def test_what_is_wanted_survives_the_manager(serve: Callable[..., Manager], file: Path) -> None:
    first = serve(file, start=True)
    first.reaches("Running")
    first.post("/v0/pipelines/orders/pause")
    first.reaches("Paused")
    pid = first.process()["pid"]
    assert first.close() == []
    assert not is_alive(pid)
    second = serve(file)
    assert second.reaches("Paused")["id"] is not None
    assert launches(file)[-1][1:] == ["--http", "127.0.0.1:0", "--paused"]
    second.post("/v0/pipelines/orders/stop")
    second.reaches("Stopped")
    second.close()
    third = serve(file, start=True)
    assert third.pipeline()["deployment_desired_status"] == "Stopped"


def test_two_managers_do_not_run_one_pipeline(serve: Callable[..., Manager], file: Path) -> None:
    serve(file)
    with pytest.raises(InvalidRequest, match="in use by another manager"):
        serve(file)


def test_a_process_that_does_not_end_with_the_manager_is_killed(file: Path) -> None:
    (file.parent / "deaf").touch()
    manager = Manager(file, start=True)
    manager.reaches("Running")
    pid = manager.process()["pid"]
    manager.client.close()
    manager._server.stop()
    assert manager.fleet.close(0.3) == ["orders"]
    assert not is_alive(pid)


def test_a_restart_replaces_the_process(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file)
    assert error_of(manager.post("/v0/pipelines/orders/restart")) == (400, "IllegalPipelineAction")
    manager.post("/v0/pipelines/orders/start", params={"initial": "paused", "bootstrap_policy": "allow"})
    manager.reaches("Paused")
    pid = manager.process()["pid"]
    assert manager.post("/api/v1/pipelines/orders/restart").status_code == 202
    until(lambda: manager.process()["pid"] not in (None, pid))
    manager.reaches("Paused")
    options = ["--http", "127.0.0.1:0", "--paused", "--on-change", "allow"]
    assert [launch[1:] for launch in launches(file)] == [options, options]
    assert "crashed" not in [what for _, what, _ in manager.notices]


def test_a_start_of_what_runs_is_fine_and_one_as_something_else_is_not(
    serve: Callable[..., Manager], file: Path
) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    assert manager.post("/v0/pipelines/orders/start").status_code == 202
    refused = manager.post("/v0/pipelines/orders/start", params={"initial": "paused"})
    assert error_of(refused) == (400, "IllegalPipelineAction")
    assert len(launches(file)) == 1


def test_a_wrong_pipeline_file_is_told_when_it_is_started(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file)
    file.write_text(PIPELINE.replace("takes: orders", "takes: nothing"))
    refused = manager.post("/v0/pipelines/orders/start")
    assert refused.status_code == 400, refused.text
    assert "orders.yaml:6" in refused.json()["message"]
    file.write_text(PIPELINE.replace("./store", "./elsewhere"))
    assert "restart the manager" in manager.post("/v0/pipelines/orders/start").json()["message"]
    assert launches(file) == []


def test_logs_are_kept_and_followed_over_processes(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file, start=True)
    manager.reaches("Running")
    first = manager.process()["pid"]
    seen: list[str] = []

    def follow() -> None:
        with manager.client.stream("GET", "/api/v1/pipelines/orders/logs", params={"follow": True}) as stream:
            for line in stream.iter_lines():
                seen.append(line)
                if len(seen) == 3:
                    return

    until(lambda: manager.get("/api/v1/pipelines/orders/logs").text == f"running in process {first}\n")
    follower = threading.Thread(target=follow)
    follower.start()
    manager.post("/v0/pipelines/orders/restart")
    until(lambda: manager.process()["pid"] not in (None, first))
    follower.join(30)
    assert seen == [f"running in process {first}", "stopped", f"running in process {manager.process()['pid']}"]
    answer = manager.get("/api/v1/pipelines/orders/logs", params={"lines": 1})
    assert answer.text == f"{seen[-1]}\n"
    assert answer.headers["content-type"] == "text/plain"
    manager.post("/v0/pipelines/orders/stop")
    manager.reaches("Stopped")
    assert manager.get("/api/v1/pipelines/orders/logs").text.splitlines() == [*seen, "stopped"]


def test_stores_can_be_looked_at_and_not_run(serve: Callable[..., Manager], chain: Chain, path: Path) -> None:
    manager = serve(path, f"copy={path}")
    listed = manager.get("/api/v1/pipelines/store/checkpoints").json()
    assert [each["checkpoint_id"] for each in listed["checkpoints"]] == [1, 2, 3, 4, 5]
    assert manager.get("/api/v1/pipelines").json() == [
        {"name": "copy", "pipeline": False},
        {"name": "store", "pipeline": False},
    ]
    assert manager.get("/v0/pipelines").json() == []
    assert error_of(manager.post("/v0/pipelines/copy/start")) == (400, "NoPipeline")
    assert error_of(manager.get("/api/v1/pipelines/copy/logs")) == (400, "NoPipeline")
    assert error_of(manager.get("/v0/pipelines/other")) == (404, "UnknownPipelineName")


def test_two_of_one_name_are_refused(path: Path, chain: Chain) -> None:
    with pytest.raises(InvalidRequest, match="two targets are called 'store'"):
        build_fleet([str(path), str(path)], FleetSettings(), lambda *notice: None)


def test_tokens_open_the_manager_and_a_reader_changes_nothing(serve: Callable[..., Manager], file: Path) -> None:
    manager = serve(file, start=True, tokens=Tokens(OPERATOR, READER))
    reader, operator = ({"Authorization": f"Bearer {token}"} for token in (READER, OPERATOR))
    assert error_of(manager.get("/v0/pipelines/orders")) == (401, "InvalidApiKey")
    until(lambda: manager.pipeline(headers=reader)["deployment_status"] == "Running")
    assert manager.get("/v0/pipelines/orders/stats", headers=reader).status_code == 200
    for call in ("checkpoint", "stop", "restart", "clear"):
        assert error_of(manager.post(f"/v0/pipelines/orders/{call}", headers=reader)) == (403, "ReadOnlyToken")
    assert manager.post("/v0/pipelines/orders/checkpoint", headers=operator).status_code == 200
    process = manager.get("/api/v1/pipelines/orders/process", headers=reader).json()
    private = manager.fleet.pipelines["orders"].supervisor.standing
    assert private.token is not None
    direct = httpx.get(f"http://{private.address}/stats", headers=operator, trust_env=False)
    assert error_of(direct) == (401, "InvalidApiKey"), "the manager's token is not the process's"
    assert private.token not in json.dumps(process)


def test_a_pipeline_that_never_ran_has_checkpoints_once_it_has(serve: Callable[..., Manager], file: Path) -> None:
    """Goal: looking at a store that is not there makes none."""
    manager = serve(file, data=str(file.parent / "data"))
    assert manager.get("/v0/pipelines/orders").json()["storage_status_details"] == {"checkpoints": []}
    assert not (file.parent / "store").exists()
    manager.post("/v0/pipelines/orders/start")
    manager.reaches("Running")
    checkpoint(manager)
    assert isinstance(open_store(file.parent / "store").load_latest(), CheckpointManifest)
