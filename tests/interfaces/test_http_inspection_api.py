"""`/api/v1`: everything a store tells, over real HTTP: manifests, verification, history, savepoints, events."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.engine.events import Event, SinkRetry
from holdfast.engine.fencing import take_over
from holdfast.interfaces.http import addresses
from holdfast.interfaces.http.security import Security
from interfaces.http_client import Served, served, until

API = "/api/v1/pipelines/shop"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as shop:
        shop.pipeline.feed_and_wait(6)
        yield shop


def test_every_checkpoint_is_listed_and_the_newest_can_be_asked_for(shop: Served) -> None:
    listed = shop.get(f"{API}/checkpoints")
    assert [each["epoch"] for each in listed["checkpoints"]] == [0, 1, 2, 3]
    assert [each["condition"] for each in listed["checkpoints"]] == ["start", "valid", "valid", "valid"]
    newest = shop.get(f"{API}/checkpoints", params={"last": 1})
    assert [each["epoch"] for each in newest["checkpoints"]] == [3]
    assert shop.get("/api/v1/pipelines") == [{"name": "shop", "pipeline": True}]


def test_a_long_list_is_read_in_parts_and_knows_what_was_given_up_later(shop: Served, tmp_path: Path) -> None:
    newest = shop.pipeline.newest.checkpoint_id
    damaged = tmp_path / "store" / "checkpoints" / f"checkpoint_{newest:06d}" / "manifest.json"
    damaged.chmod(0o644)
    damaged.write_text("{}")
    assert take_over(shop.pipeline.store).fence.checkpoint_id == newest + 1
    found: list[dict[str, Any]] = []
    while not found or found[0]["checkpoint_id"] > 1:
        before = {"before": found[0]["checkpoint_id"]} if found else {}
        listed = shop.get(f"{API}/checkpoints", params={"last": 2, **before})
        assert listed["total"] == newest + 1
        found = [*listed["checkpoints"], *found]
    assert [each["checkpoint_id"] for each in found] == list(range(1, newest + 2))
    assert found[newest - 1]["abandoned_by"] == newest + 1
    assert found[-1]["generation"] > found[0]["generation"]
    assert found[-1]["uuid"] is not None


def test_what_a_verification_found_is_remembered_and_changes_the_verdict(shop: Served, tmp_path: Path) -> None:
    newest = shop.pipeline.newest.checkpoint_id
    state = tmp_path / "store" / "checkpoints" / f"checkpoint_{newest:06d}" / "state.bin"
    state.chmod(0o644)
    state.write_bytes(state.read_bytes()[:-1] + b"x")
    assert shop.get(f"{API}/health")["recoverable"] == "yes"
    job = shop.post(f"{API}/verifications", json={"checkpoints": [str(newest), str(newest - 1), "1"]})
    until(lambda: shop.get(f"{API}/verifications/{job['id']}")["status"] == "done")
    records = shop.get(f"{API}/verification_history")["verifications"]
    assert [(each["checkpoint_id"], bool(each["problems"])) for each in records] == [
        (newest, True),
        (newest - 1, False),
    ]
    assert shop.get(f"{API}/verification_history", params={"last": 1})["verifications"] == records[-1:]
    health = shop.get(f"{API}/health")
    assert health["recoverable"] == "degraded"
    assert health["checkpoint"]["checkpoint_id"] == health["verified"]["checkpoint_id"] == newest - 1


def test_a_report_and_a_manifest_have_their_hashes_as_text(shop: Served) -> None:
    expected = str(shop.pipeline.newest.fingerprint)
    report = shop.get(f"{API}/checkpoints/latest")
    assert report["fingerprint"] == report["pipeline_hash"] == expected
    manifest = shop.get(f"{API}/checkpoints/{report['checkpoint_id']}/manifest")
    assert manifest["fingerprint"] == expected
    assert manifest["epoch"] == 3
    files = shop.get(f"{API}/checkpoints/latest/state_files")["files"]
    assert {"operator", "path", "size", "sha256", "sidecar"} <= files[0].keys()


def test_differences_between_two_checkpoints(shop: Served) -> None:
    difference = shop.get(f"{API}/differences", params={"before": "2", "after": "latest"})
    assert difference["epochs"] == 2
    assert difference["sources"][0]["name"] == "script"


def test_differences_show_hashes_as_text(tmp_path: Path) -> None:
    with served(tmp_path / "store") as shop:
        shop.pipeline.feed_and_wait(2)
        newest = shop.pipeline.newest
        shop.pipeline.store.save(
            newest.model_copy(
                update={
                    "checkpoint_id": newest.checkpoint_id + 1,
                    "fingerprint": 2**64 - 1,
                    "manifest_checksum": None,
                }
            )
        )
        changes = {
            each["name"]: each
            for each in shop.get(f"{API}/differences", params={"before": str(newest.checkpoint_id)})["identity"]
        }
        assert changes["fingerprint"]["before"] == str(newest.fingerprint)
        assert changes["fingerprint"]["after"] == str(2**64 - 1)


def test_history_recoveries_and_sinks(shop: Served) -> None:
    shop.pipeline.stop()  # What happened is written down beside the work: now all of it is.
    assert [each["epoch"] for each in shop.get(f"{API}/history")["epochs"]] == [1, 2, 3]
    assert [each["epoch"] for each in shop.get(f"{API}/history", params={"last": 1})["epochs"]] == [3]
    starts = shop.get(f"{API}/recoveries")["recoveries"]
    assert [each["outcome"] for each in starts] == ["fresh"]
    assert shop.get(f"{API}/recoveries/{starts[0]['fence_id']}") == shop.get(f"{API}/recoveries/latest") == starts[0]
    sinks = shop.get(f"{API}/sinks")
    assert sinks["epoch"] == 3
    assert {each["name"]: each["epoch"] for each in sinks["sinks"]} == {"a": 3, "b": 3, "c": 3}


def test_what_a_pipeline_file_hides_is_hidden_everywhere(tmp_path: Path) -> None:
    """A value from the environment may turn up in any error text, and history keeps those."""
    with served(tmp_path / "store", redact=lambda text: text.replace("hunter2", "${PASSWORD}")) as shop:
        shop.pipeline.happened(SinkRetry("a", 1, "commit", 1, "no connection as app hunter2", 0.1))
        shop.pipeline.feed_and_wait(2)
        pages = [shop.client.get(path).text for path in ("/stats", "/v0/pipelines/shop")]
        shop.pipeline.stop()
        pages += [shop.client.get(f"{API}/{page}").text for page in ("history", "recoveries", "sinks", "health")]
        assert "${PASSWORD}" in pages[2]
        assert "hunter2" not in "".join(pages)


def test_the_verdict_says_to_which_epoch_we_could_recover(shop: Served) -> None:
    verdict = shop.get(f"{API}/health")
    assert verdict["recoverable"] in ("yes", "degraded")
    assert verdict["checkpoint"]["epoch"] == 3


def test_a_verification_comes_back_at_once_and_tells_its_verdicts_later(shop: Served) -> None:
    answer = shop.client.post(f"{API}/verifications", json={"checkpoints": ["latest", "2"]})
    assert answer.status_code == 202
    job = answer.json()
    assert job["checkpoint_ids"] == [4, 2]
    assert job["bytes_total"] > 0
    until(lambda: shop.get(f"{API}/verifications/{job['id']}")["status"] == "done")
    done = shop.get(f"{API}/verifications/{job['id']}")
    assert done["result"]["sound"] is True
    assert done["bytes_read"] == done["result"]["bytes_read"] >= done["bytes_total"] > 0
    assert shop.get(f"{API}/verifications") == [done]


def test_a_verification_of_everything_needs_no_body_and_finds_damage(shop: Served, tmp_path: Path) -> None:
    damaged = tmp_path / "store" / "checkpoints" / "checkpoint_000003"
    sidecar = next(path for path in damaged.iterdir() if path.suffix == ".bin")
    data = bytearray(sidecar.read_bytes())
    data[-1] ^= 1
    sidecar.write_bytes(data)
    job = shop.post(f"{API}/verifications")
    until(lambda: shop.get(f"{API}/verifications/{job['id']}")["status"] == "done")
    verdicts = shop.get(f"{API}/verifications/{job['id']}")["result"]
    assert verdicts["sound"] is False
    assert 3 in verdicts["damaged"]


def test_a_verification_can_be_broken_off_and_unknown_ones_are_404(shop: Served) -> None:
    job = shop.post(f"{API}/verifications")
    assert shop.client.delete(f"{API}/verifications/{job['id']}").status_code == 202
    until(lambda: shop.get(f"{API}/verifications/{job['id']}")["status"] in ("cancelled", "done"))
    unknown = shop.client.get(f"{API}/verifications/01890a5d-ac96-774b-bcce-b302099a8057")
    assert (unknown.status_code, unknown.json()["error_code"]) == (404, "UnknownVerification")


def test_savepoints_are_made_listed_and_released(shop: Served) -> None:
    made = shop.client.post(f"{API}/savepoints", json={"name": "before-upgrade"})
    assert made.status_code == 201
    assert made.json()["checkpoint_id"] == 4
    assert [each["name"] for each in shop.get(f"{API}/savepoints")["checkpoints"]] == ["before-upgrade"]
    assert shop.get(f"{API}/checkpoints/before-upgrade")["checkpoint_id"] == 4
    taken = shop.client.post(f"{API}/savepoints", json={"name": "before-upgrade", "checkpoint": "2"})
    assert (taken.status_code, taken.json()["error_code"]) == (400, "InvalidRequest")
    assert shop.client.delete(f"{API}/savepoints/before-upgrade").json()["action"] == "released"
    gone = shop.client.delete(f"{API}/savepoints/before-upgrade")
    assert (gone.status_code, gone.json()["error_code"]) == (404, "CheckpointNotFound")


def test_a_savepoint_survives_the_epochs_that_follow(shop: Served) -> None:
    shop.post(f"{API}/savepoints", json={"name": "kept"})
    shop.pipeline.feed_and_wait(2)
    shop.checkpoint()
    assert shop.get(f"{API}/checkpoints/kept")["checkpoint_id"] == 4
    assert shop.get(f"{API}/checkpoints/latest")["name"] is None


def test_requests_are_listed_one_by_one(shop: Served) -> None:
    shop.checkpoint()
    shop.checkpoint()
    listed = shop.get(f"{API}/checkpoint_requests")
    assert [(each["first"], each["last"], each["error"]) for each in listed] == [(0, 0, None), (1, 1, None)]
    assert all(each["checkpoint_id"] for each in listed)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/checkpoints/99", 404),
        ("/checkpoints/nobody", 404),
        ("/checkpoints/..%2f..%2fetc", 404),
        ("/checkpoints/a%00b", 400),
        ("/checkpoints/latest/manifest?x=1", 200),
        ("/checkpoints?last=0", 400),
        ("/checkpoints?last=x", 400),
        ("/differences", 400),
        ("/differences?before=2&after=../..", 400),
        ("/recoveries/99", 400),
        ("/verifications/nonsense", 400),
    ],
)
def test_ids_and_names_are_checked(shop: Served, path: str, status: int) -> None:
    assert shop.client.get(f"{API}{path}").status_code == status


class Listener:
    """Reads an event stream on a thread, as a browser would."""

    def __init__(self, shop: Served, **parameters: Any) -> None:
        self.lines: list[str] = []
        self.ready, self.ended = threading.Event(), threading.Event()
        self._shop, self._parameters = shop, parameters
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.ready.wait(120)

    def _read(self) -> None:
        with (
            contextlib.suppress(httpx.HTTPError),  # The client was closed under our hands: the test is over.
            self._shop.client.stream("GET", f"{API}/events", params=self._parameters) as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                self.lines.append(line)
                self.ready.set()
        self.ended.set()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line.removeprefix("data: ")) for line in self.lines if line.startswith("data: ")]


def test_events_arrive_as_they_happen_and_the_stream_ends_with_the_pipeline(shop: Served) -> None:
    listener = Listener(shop)
    shop.pipeline.feed_and_wait(2)
    until(lambda: [each["event"] for each in listener.events()] == ["EpochCommitted"])
    assert listener.events()[0]["epoch"] == 4
    assert "event: EpochCommitted" in listener.lines
    shop.pipeline.stop()
    assert listener.ended.wait(120)
    assert listener.events()[-1]["event"] == "Stopped"


def test_steps_of_epochs_come_only_when_asked_for(shop: Served) -> None:
    listener = Listener(shop, steps="true")
    shop.pipeline.feed_and_wait(2)
    until(lambda: any(each["event"] == "EpochCommitted" for each in listener.events()))
    assert {"StepStarted", "StepFinished"} <= {each["event"] for each in listener.events()}


def test_a_listener_that_goes_away_is_forgotten(shop: Served) -> None:
    with shop.client.stream("GET", f"{API}/events") as answer:
        lines = answer.iter_lines()  # Kept: it closes the connection when it goes.
        next(lines)
        assert shop.local.events.listeners == 1
    until(lambda: shop.local.events.listeners == 0)


def test_secrets_do_not_reach_listeners(shop: Served) -> None:
    listener = Listener(shop)
    shop.local.on_event(SinkRetry("a", 4, "commit", 1, "mysql://app:hunter2@db did not answer", 0.1))
    until(lambda: listener.events())
    assert "hunter2" not in "".join(listener.lines)


def test_a_client_that_stops_reading_holds_up_nothing_and_is_let_go(shop: Served) -> None:
    """Its connection stays open and its buffers are full: events are dropped for it, never kept waiting."""
    stuck = socket.create_connection((shop.server.address.host, shop.server.address.port))
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.sendall(f"GET {API}/events?steps=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    until(lambda: shop.local.events.listeners == 1)
    large: Event = SinkRetry("a", 4, "commit", 1, "x" * 20_000, 0.1)
    for _ in range(2000):
        shop.local.on_event(large)
    assert shop.local.events.listeners == 0
    shop.pipeline.feed_and_wait(2)
    assert shop.get("/checkpoint_status") == {"success": None, "failure": None}
    stuck.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel drops stuck clients on Linux only")
def test_the_connection_of_a_client_that_stops_reading_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "_STUCK_CLIENT_MS", 500)
    with served(tmp_path / "store") as shop:
        stuck = socket.create_connection((shop.server.address.host, shop.server.address.port))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(f"GET {API}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: shop.local.events.listeners == 1)
        for _ in range(500):
            shop.local.on_event(SinkRetry("a", 4, "commit", 1, "x" * 20_000, 0.1))
        until(lambda: shop.local.events.listeners == 0)
        assert not shop.server._server.server_state.connections
        stuck.close()


def test_only_so_many_may_listen_at_once(tmp_path: Path) -> None:
    with served(tmp_path / "store", security=Security(event_streams=1)) as shop:
        listener = Listener(shop)
        refused = shop.client.get(f"{API}/events")
        assert (refused.status_code, refused.json()["error_code"]) == (429, "TooManyStreams")
        shop.pipeline.stop()
        assert listener.ended.wait(120)
