"""The checkpoint API over real HTTP, on a pipeline without Spark: paths, status codes and bodies."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.core.status import CheckpointSyncStatus, PermanentSuspendError, RemoteCheckpoint
from holdfast.errors import TransientStoreError
from interfaces.engine_pipeline import Hold
from interfaces.http_client import Served, served, until

PREFIXED = "/v0/pipelines/shop"
WORKER_THREADS = 40
"""How many the server has for requests that may have to wait."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as shop:
        yield shop


@pytest.fixture(params=["", PREFIXED])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_checkpoint_is_asked_for_and_made_with_data_and_without(shop: Served, prefix: str) -> None:
    shop.pipeline.feed_and_wait(4)
    before = len(shop.get(f"{prefix}/checkpoints"))
    assert shop.checkpoint(prefix) == 0
    assert shop.checkpoint(prefix) == 1
    assert shop.get(f"{prefix}/checkpoint_status") == {"success": 1, "failure": None}
    assert len(shop.get(f"{prefix}/checkpoints")) == before + 2
    shop.pipeline.feed_and_wait(2)
    assert shop.checkpoint(prefix) == 2


def test_the_answer_to_a_request_has_the_number_and_the_incarnation(shop: Served, prefix: str) -> None:
    answer = shop.client.post(f"{prefix}/checkpoint")
    assert answer.status_code == 200
    body = answer.json()
    assert body.keys() == {"checkpoint_sequence_number", "incarnation_uuid"}
    assert UUID(body["incarnation_uuid"]).version == 7


def test_a_checkpoint_before_the_first_epoch_fails_and_says_why(shop: Served) -> None:
    shop.checkpoint()
    status = shop.get("/checkpoint_status")
    assert status["success"] is None
    assert status["failure"].keys() == {"sequence_number", "error", "failed_at"}
    assert "no epoch was completed" in status["failure"]["error"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", status["failure"]["failed_at"])


def test_another_incarnation_is_refused_with_both(shop: Served, prefix: str) -> None:
    other = str(uuid4())
    for path in ("checkpoint_status", "checkpoint/sync_status"):
        answer = shop.client.get(f"{prefix}/{path}", params={"incarnation_uuid": other})
        assert answer.status_code == 400
        body = answer.json()
        assert body["error_code"] == "IncarnationUuidMismatch"
        assert body["details"] == {"requested": other, "expected": str(shop.local.incarnation_uuid)}


def test_checkpoints_are_listed_with_every_key_and_exact_hashes(shop: Served, prefix: str) -> None:
    shop.pipeline.feed_and_wait(4)
    listed = shop.get(f"{prefix}/checkpoints")
    assert [each["steps"] for each in listed] == [1, 2]
    assert [each["processed_records"] for each in listed] == [2, 4]
    newest = shop.pipeline.newest
    assert listed[-1].keys() == {"uuid", "identifier", "fingerprint", "size", "steps", "processed_records"}
    assert listed[-1]["uuid"] == str(newest.uuid)
    assert listed[-1]["fingerprint"] == newest.fingerprint
    assert UUID(listed[0]["uuid"]) < UUID(listed[1]["uuid"])


def test_while_a_request_waits_for_an_epoch_stats_say_why_and_since_when(tmp_path: Path) -> None:
    hold = Hold()
    with served(tmp_path / "store", hold) as shop:
        shop.pipeline.feed(2)
        assert hold.reached.wait(120)
        shop.post("/checkpoint")
        stats = shop.get("/stats")
        assert stats["checkpoint_activity"]["status"] == "delayed"
        assert stats["checkpoint_activity"]["reasons"] == ["TransactionInProgress"]
        assert stats["checkpoint_activity"]["delayed_since"].endswith("Z")
        assert stats["suspend_error"] == {"Temporary": ["TransactionInProgress"]}
        hold.released.set()
        until(lambda: shop.get("/checkpoint_status")["success"] == 0)
        until(lambda: shop.get("/stats")["checkpoint_activity"] == {"status": "idle"})


def test_storage_that_hangs_keeps_nobody_from_asking_how_it_stands(
    shop: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many requests wait for the storage as there are threads for them, and more."""
    waiting, released = threading.Semaphore(0), threading.Event()

    def list_ids() -> list[int]:
        waiting.release()
        released.wait()
        return []

    monkeypatch.setattr(shop.pipeline.store, "list_ids", list_ids)
    with ThreadPoolExecutor(WORKER_THREADS + 5) as clients:
        asked = [clients.submit(shop.client.get, "/checkpoints") for _ in range(WORKER_THREADS + 5)]
        try:
            for _ in range(WORKER_THREADS):
                assert waiting.acquire(timeout=120)
            for polled in ("/checkpoint_status", "/stats"):
                assert shop.client.get(polled, timeout=30).status_code == 200
        finally:
            released.set()
        assert {answer.result().status_code for answer in asked} == {200}


def test_before_the_pipeline_runs_requests_wait_and_the_store_is_not_there_yet(tmp_path: Path) -> None:
    with served(tmp_path / "store", start=False) as shop:
        shop.post("/checkpoint")
        assert shop.get("/stats")["checkpoint_activity"]["reasons"] == ["Coordination"]
        assert shop.get(PREFIXED, params={"selector": "status"})["deployment_status"] == "Initializing"
        answer = shop.client.get("/checkpoints")
        assert (answer.status_code, answer.json()["error_code"]) == (503, "Initializing")
        assert answer.headers["retry-after"]
        assert shop.client.post("/pause").status_code == 503
        shop.local.opened(shop.pipeline.store)
        shop.pipeline.start()
        shop.local.started(shop.pipeline)
        until(lambda: shop.get("/checkpoint_status")["failure"] is not None)
        shop.pipeline.stop()


def test_what_can_never_be_checkpointed_shows_in_stats(tmp_path: Path) -> None:
    with served(tmp_path / "store", start=False) as shop:
        shop.pipeline.requests.serve(
            lambda: shop.pipeline.newest,
            shop.pipeline.turn,
            [PermanentSuspendError("UnsupportedInputEndpoint", "clicks")],
        )
        stats = shop.get("/stats")
        assert stats["permanent_checkpoint_errors"] == [{"UnsupportedInputEndpoint": "clicks"}]
        assert stats["suspend_error"] == {"Permanent": [{"UnsupportedInputEndpoint": "clicks"}]}
        asked = shop.client.post("/checkpoint")
        assert asked.status_code == 200, "the refusal is the outcome of the request, not of the call"
        assert "clicks" in shop.get("/checkpoint_status")["failure"]["error"]
        shop.pipeline.requests.close()


def test_stats_have_what_the_client_reads(shop: Served, prefix: str) -> None:
    shop.pipeline.feed_and_wait(4)
    stats = shop.get(f"{prefix}/stats")
    whole = stats["global_metrics"]
    assert whole["state"] == "Running"
    assert whole["incarnation_uuid"] == str(shop.local.incarnation_uuid)
    assert whole["transaction_status"] == "NoTransaction"
    assert isinstance(whole["start_time"], int)
    assert whole["total_processed_records"] == 4
    assert whole["total_completed_steps"] == 2
    assert stats["permanent_checkpoint_errors"] is None
    for endpoint in (*stats["inputs"], *stats["outputs"]):
        assert isinstance(endpoint["endpoint_name"], str)
        assert isinstance(endpoint["config"], dict)
        assert isinstance(endpoint["metrics"], dict)
    assert [each["endpoint_name"] for each in stats["inputs"]] == ["script"]
    assert all(isinstance(each["paused"], bool) and isinstance(each["barrier"], bool) for each in stats["inputs"])
    rows = {each["endpoint_name"]: each["metrics"]["transmitted_records"] for each in stats["outputs"]}
    assert rows == {"a": 4, "b": 2, "c": 4}


def test_the_pipeline_object_has_what_the_client_reads(shop: Served) -> None:
    shop.pipeline.feed_and_wait(2)
    whole = shop.get(PREFIXED)
    for key in (
        "id", "name", "deployment_status", "deployment_desired_status", "deployment_error", "storage_status",
        "storage_status_details", "program_status", "program_version", "runtime_config", "deployment_runtime_status",
        "deployment_runtime_status_details",
    ):  # fmt: skip
        assert key in whole
    assert whole["deployment_status"] == whole["deployment_desired_status"] == "Running"
    assert len(whole["storage_status_details"]["checkpoints"]) == 1
    status = shop.get(PREFIXED, params={"selector": "status"})
    assert status["storage_status_details"] == whole["storage_status_details"]
    assert [each["name"] for each in shop.get("/v0/pipelines")] == ["shop"]


def test_pausing_holds_epochs_and_checkpoints_are_still_made(shop: Served, prefix: str) -> None:
    shop.pipeline.feed_and_wait(2)
    answer = shop.client.post(f"{prefix}/pause")
    assert answer.status_code == 202
    assert isinstance(answer.json(), str)
    assert shop.get(PREFIXED)["deployment_status"] == "Paused"
    shop.pipeline.feed(2)
    shop.checkpoint(prefix)
    assert shop.get(f"{prefix}/stats")["global_metrics"]["total_processed_records"] == 2
    assert shop.client.post(f"{prefix}/resume").status_code == 202
    until(lambda: shop.get(f"{prefix}/stats")["global_metrics"]["total_processed_records"] == 4)
    assert shop.get(PREFIXED)["deployment_status"] == "Running"


def test_starting_what_runs_is_fine_and_says_how_it_is_to_run(shop: Served) -> None:
    parameters = {"initial": "paused", "dismiss_error": "false", "bootstrap_policy": "allow"}
    assert shop.client.post(f"{PREFIXED}/start", params=parameters).status_code == 202
    assert shop.get(PREFIXED)["deployment_status"] == "Paused"
    assert shop.client.post(f"{PREFIXED}/start").status_code == 202
    assert shop.get(PREFIXED)["deployment_status"] == "Running"
    refused = shop.client.post(f"{PREFIXED}/start", params={"initial": "standby"})
    assert (refused.status_code, refused.json()["error_code"]) == (400, "InvalidTransition")


def test_stopping_ends_the_pipeline_and_nothing_brings_it_back(shop: Served) -> None:
    shop.pipeline.feed_and_wait(2)
    answer = shop.client.post(f"{PREFIXED}/stop", params={"force": "false"})
    assert answer.status_code == 202
    until(lambda: shop.get(PREFIXED)["deployment_status"] == "Stopped")
    assert shop.get(PREFIXED)["deployment_desired_status"] == "Stopped"
    for action in ("pause", "resume", "start"):
        refused = shop.client.post(f"{PREFIXED}/{action}")
        assert (refused.status_code, refused.json()["error_code"]) == (400, "InvalidTransition")
        assert refused.json()["details"][1] == "Stopped"
    number = shop.checkpoint()
    assert shop.get("/checkpoint_status")["failure"]["sequence_number"] == number


def test_what_a_running_pipeline_cannot_do_is_refused_without_effect(shop: Served) -> None:
    codes = {
        "activate": "InvalidTransition",
        "approve": "InvalidTransition",
        "clear": "InvalidStorageStatusTransition",
    }
    for action, code in codes.items():
        answer = shop.client.post(f"{PREFIXED}/{action}")
        assert (answer.status_code, answer.json()["error_code"]) == (400, code)
    assert shop.client.post(f"{PREFIXED}/dismiss_error").status_code == 200
    assert shop.get(PREFIXED)["deployment_status"] == "Running"


def test_without_a_bucket_sync_says_so(shop: Served, prefix: str) -> None:
    pushed = shop.client.post(f"{prefix}/checkpoint/sync")
    assert (pushed.status_code, pushed.json()["error_code"]) == (400, "CheckpointPushError")
    remote = shop.client.get(f"{prefix}/checkpoints/remote")
    assert (remote.status_code, remote.json()["error_code"]) == (400, "CheckpointFetchError")
    nothing = {"success": None, "failure": None, "periodic": None, "running": []}
    assert shop.get(f"{prefix}/checkpoint/sync_status") == nothing


class Bucket:
    """Copies that are asked for, and how they end."""

    def __init__(self, shop: Served) -> None:
        self._shop, self.running = shop, set[UUID]()

    def request(self) -> UUID:
        newest = self._shop.pipeline.newest.uuid
        assert newest is not None
        self.running.add(newest)
        return newest

    def status(self) -> CheckpointSyncStatus:
        return CheckpointSyncStatus(running=frozenset(self.running))

    def remote(self) -> list[RemoteCheckpoint]:
        return [RemoteCheckpoint(uuid=each) for each in sorted(self.running)]


def test_a_copy_is_asked_for_at_once_and_its_state_is_shown(shop: Served, prefix: str) -> None:
    shop.local.sync = Bucket(shop)
    nothing_yet = shop.client.post(f"{prefix}/checkpoint/sync")
    assert (nothing_yet.status_code, nothing_yet.json()["error_code"]) == (400, "400")
    shop.pipeline.feed_and_wait(2)
    answer = shop.client.post(f"{prefix}/checkpoint/sync")
    assert answer.status_code == 202
    uuid = answer.json()["checkpoint_uuid"]
    assert uuid == str(shop.pipeline.newest.uuid)
    assert answer.json()["incarnation_uuid"] == str(shop.local.incarnation_uuid)
    assert shop.get(f"{prefix}/checkpoint/sync_status")["running"] == [uuid]
    assert shop.get(f"{prefix}/checkpoints/remote") == [{"uuid": uuid}]


def test_metrics_are_plain_text_exactly_as_the_client_wants_it(shop: Served, prefix: str) -> None:
    shop.pipeline.feed_and_wait(2)
    answer = shop.client.get(f"{prefix}/metrics", params={"format": "prometheus"})
    assert answer.headers["content-type"] == "text/plain"
    assert "# TYPE holdfast_" in answer.text


def test_the_client_is_told_that_everything_is_there(shop: Served) -> None:
    config = shop.get("/v0/config")
    assert config["edition"] == "Enterprise"
    assert config["version"] == "0.369.0"
    assert shop.get("/v0/cluster_healthz") == {"all_healthy": True}
    assert shop.get("/healthz") == {"status": "healthy"}


def test_posts_of_the_client_have_no_body_but_say_json(shop: Served) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": "0", "User-Agent": "feldera-python-sdk/v1"}
    assert shop.client.post(f"{PREFIXED}/checkpoint", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v0/pipelines/other/checkpoint_status", 404, "UnknownPipelineName"),
        ("/v0/pipelines/..%2Fshop/checkpoint_status", 404, "NotFound"),
        ("/v0/pipelines/-odd/checkpoint_status", 404, "UnknownPipelineName"),
        ("/nowhere", 404, "NotFound"),
        ("/checkpoint", 405, "MethodNotAllowed"),
        ("/checkpoint_status?incarnation_uuid=nonsense", 400, "InvalidRequest"),
        ("/metrics?format=xml", 400, "InvalidRequest"),
    ],
)
def test_every_error_has_the_one_body(shop: Served, path: str, status: int, code: str) -> None:
    answer = shop.client.get(path)
    assert answer.status_code == status
    body = answer.json()
    assert body.keys() == {"message", "error_code", "details"}
    assert body["error_code"] == code
    assert isinstance(body["message"], str)


def test_storage_that_does_not_answer_is_503_and_a_fault_of_ours_tells_nothing(
    shop: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: Exception) -> Any:
        def list_ids() -> list[int]:
            raise error

        return list_ids

    monkeypatch.setattr(shop.pipeline.store, "list_ids", fails(TransientStoreError("s3 token=hunter2 timed out")))
    answer = shop.client.get("/checkpoints")
    assert (answer.status_code, answer.json()["error_code"]) == (503, "TransientStoreError")
    assert "hunter2" not in answer.text
    monkeypatch.setattr(shop.pipeline.store, "list_ids", fails(RuntimeError("password=hunter2 in ours.py")))
    answer = shop.client.get("/checkpoints")
    assert answer.status_code == 500
    assert answer.json() == {
        "message": "a fault in holdfast; its log says more",
        "error_code": "InternalError",
        "details": None,
    }
