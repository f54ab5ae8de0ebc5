"""Goal: copies are made beside the epochs, on request and by themselves, and nobody is left without an answer."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Fenced, InvalidRequest, TransientStoreError
from holdfast.clock import SYSTEM_CLOCK
from holdfast.engine.events import EpochCommitted, SyncFailed, SyncPushed
from holdfast.engine.sync.schedule import PushSchedule
from holdfast.engine.sync.service import SyncService
from holdfast.testing import ManualClock
from sync.machines import Fleet, Machine, SyncedProcess, running

PATIENCE = 20.0


class Watcher:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    fleet = Fleet(tmp_path)
    fleet.world.clock = SYSTEM_CLOCK  # type: ignore[assignment]
    return fleet


class Service:
    """A service on a machine whose process has started."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.watcher = machine, Watcher()
        self.process = SyncedProcess(machine)
        self.process.sync = self.sync = SyncService(machine.link(self.watcher), self.watcher, SYSTEM_CLOCK)
        self.process.start()
        self.fenced: list[Fenced] = []
        self.sync.started(self.fenced.append)

    def epoch(self) -> None:
        """Run an epoch, of which the service hears."""
        self.process.next_epoch()
        event = next(event for event in reversed(self.process.life.events) if isinstance(event, EpochCommitted))
        self.sync.on_event(event)


@pytest.fixture
def serving(fleet: Fleet) -> Iterator[Callable[..., Service]]:
    services: list[Service] = []

    def serve(machine: Machine | None = None, **changes: Any) -> Service:
        services.append(Service(machine or fleet.machine(**{"push_interval": "never", **changes})))
        return services[-1]

    yield serve
    for service in services:
        service.machine.requests.heal()
        service.sync.close()
        service.process.delivery.close()


def waiting_for(gate: threading.Event) -> Callable[[str], None]:
    """Return what lets no request through before the gate opens."""

    def wait(label: str) -> None:
        gate.wait(PATIENCE)

    return wait


def eventually(condition: Callable[[], Any]) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + PATIENCE
    while not condition():
        assert SYSTEM_CLOCK.monotonic() < deadline, "it never happened"
        SYSTEM_CLOCK.sleep(0.01)


def test_a_request_is_running_and_then_a_success(serving: Callable[..., Service]) -> None:
    service = serving()
    service.epoch()
    gate = threading.Event()
    service.machine.requests.error = waiting_for(gate)
    uuid = service.sync.request()
    assert uuid == service.machine.newest().uuid
    assert service.sync.status().running == {uuid}
    assert service.sync.status().success is None
    gate.set()
    eventually(lambda: service.sync.status().success == uuid)
    assert service.sync.status().running == frozenset()
    assert [checkpoint.uuid for checkpoint in service.sync.remote()][-1] == uuid
    pushed = service.watcher.of(SyncPushed)
    assert [event.checkpoint for event in pushed] == [str(uuid)]
    assert pushed[0].bytes > 0


def test_a_process_that_dies_does_not_wait_for_a_push(serving: Callable[..., Service]) -> None:
    service = serving()
    service.epoch()
    daemons: dict[str, bool] = {}

    def look(label: str) -> None:
        daemons.update({thread.name: thread.daemon for thread in threading.enumerate()})

    service.machine.requests.error = look
    uuid = service.sync.request()
    eventually(lambda: service.sync.status().success == uuid)
    assert (daemons["holdfast-sync"], daemons["holdfast-sync-reader"]) == (True, True)


def test_requests_for_what_is_being_pushed_share_its_result(serving: Callable[..., Service]) -> None:
    service = serving()
    service.epoch()
    gate = threading.Event()
    service.machine.requests.error = waiting_for(gate)
    assert service.sync.request() == service.sync.request()
    gate.set()
    eventually(lambda: service.sync.status().success)
    assert len(service.watcher.of(SyncPushed)) == 1


def test_a_failure_is_answered_with_its_reason_and_cleared_by_a_later_success(
    serving: Callable[..., Service],
) -> None:
    service = serving()
    service.epoch()
    service.machine.requests.cut_off()
    uuid = service.sync.request()
    eventually(lambda: service.sync.status().failure)
    failure = service.sync.status().failure
    assert failure is not None
    assert failure.uuid == uuid
    assert "no route to host" in failure.error
    noted = service.sync._link.notes.read()["failure"]
    assert noted["action"] == "push"
    assert noted["at_ms"] > 0
    service.machine.requests.heal()
    assert service.sync.request() == uuid
    eventually(lambda: service.sync.status().success == uuid)
    assert service.sync.status().failure is None
    eventually(lambda: "failure" not in service.sync._link.notes.read())


def test_without_a_checkpoint_there_is_nothing_to_ask_for(serving: Callable[..., Service]) -> None:
    with pytest.raises(InvalidRequest, match="no checkpoint to copy yet"):
        serving().sync.request()


def test_copies_are_made_by_themselves_and_told_apart(serving: Callable[..., Service]) -> None:
    service = serving(push_interval="50 milliseconds")
    service.epoch()
    eventually(lambda: service.sync.status().periodic == service.machine.newest().uuid)
    service.epoch()
    eventually(lambda: service.sync.status().periodic == service.machine.newest().uuid)
    assert service.sync.status().success is None


def test_what_an_earlier_run_did_not_copy_is_copied_without_waiting_for_data(
    fleet: Fleet, serving: Callable[..., Service]
) -> None:
    machine = fleet.machine(push_interval="50 milliseconds")
    with running(machine) as process:
        process.next_epoch()
    service = serving(machine)
    eventually(lambda: service.sync.status().periodic)
    assert max(manifest.epoch for manifest in fleet.bucket().store.manifests()) == 1


def test_failing_copies_are_tried_again_until_they_succeed(serving: Callable[..., Service]) -> None:
    service = serving(push_interval="50 milliseconds")
    service.machine.requests.cut_off()
    service.epoch()
    eventually(lambda: len(service.watcher.of(SyncFailed)) >= 2)
    failed = service.watcher.of(SyncFailed)
    assert failed[0].action == "push"
    assert failed[1].pause_seconds is not None
    service.machine.requests.heal()
    eventually(lambda: service.sync.status().periodic == service.machine.newest().uuid)


def test_what_is_wanted_and_what_was_copied_last_is_not_pruned_here(serving: Callable[..., Service]) -> None:
    service = serving()
    service.epoch()
    wanted = service.machine.newest().checkpoint_id
    service.sync.request()
    eventually(lambda: service.sync.status().success)
    service.epoch()
    service.epoch()
    store = service.process.store
    link = service.sync._link
    assert link.local.store.prune(1) >= 0
    assert wanted in store.list_ids(), "another machine would go on from it: what it needs upstream must stay"


def test_whoever_took_over_keeps_what_it_began_from_until_it_has_copied_a_newer_one(
    fleet: Fleet, serving: Callable[..., Service]
) -> None:
    first = serving()
    first.epoch()
    first.sync.request()
    eventually(lambda: first.sync.status().success)
    base = first.machine.newest().checkpoint_id
    second = serving()
    second.epoch()
    second.epoch()
    second.sync._link.local.store.prune(1)
    assert base in second.process.store.list_ids()
    second.sync.request()
    eventually(lambda: second.sync.status().success)
    second.sync._link.local.store.prune(1)
    assert base not in second.process.store.list_ids()


def test_what_is_sealed_while_a_copy_is_made_is_copied_next(fleet: Fleet, serving: Callable[..., Service]) -> None:
    """Nobody tells of it any more: it was heard of before it was known to be shown."""
    service = serving(push_interval="50 milliseconds")
    began, gate = threading.Event(), threading.Event()

    def hold(label: str) -> None:
        if threading.current_thread().name == "holdfast-sync":
            began.set()
            gate.wait(PATIENCE)

    service.machine.requests.error = hold
    service.epoch()
    assert began.wait(PATIENCE)
    service.process.next_epoch()
    gate.set()
    eventually(lambda: service.sync.status().periodic == service.machine.newest().uuid)


def test_a_checkpoint_that_somebody_else_pruned_gives_way_to_the_newest(serving: Callable[..., Service]) -> None:
    """A prune of another process cannot know that it is being copied."""
    service = serving(push_interval="50 milliseconds")
    began, gate = threading.Event(), threading.Event()

    def hold(label: str) -> None:
        if threading.current_thread().name == "holdfast-sync":
            began.set()
            gate.wait(PATIENCE)

    service.machine.requests.error = hold
    service.epoch()
    old = service.machine.newest()
    assert began.wait(PATIENCE)
    service.epoch()
    service.machine.objects.delete(f"world/checkpoints/{old.sidecar}")
    gate.set()
    eventually(lambda: service.sync.status().periodic == service.machine.newest().uuid)
    assert service.watcher.of(SyncFailed) == []


def test_a_push_that_finds_the_bucket_taken_over_ends_the_pipeline(
    fleet: Fleet, serving: Callable[..., Service]
) -> None:
    service = serving()
    service.epoch()
    service.sync.request()
    eventually(lambda: service.sync.status().success)
    fleet.machine().run()
    service.sync.request()
    eventually(lambda: service.fenced)
    assert "taken over" in str(service.fenced[0])
    with pytest.raises(Fenced, match="taken over"):
        service.sync.witness.record(service.machine.newest())


def test_the_pause_after_failures_grows_and_ends_with_a_success() -> None:
    clock = ManualClock()
    schedule = PushSchedule(60.0, clock)
    assert schedule.seconds_left() == 0.0
    schedule.succeeded()
    assert schedule.seconds_left() == 60.0
    pauses = [schedule.failed() or 0.0 for _ in range(12)]
    assert all(0.5 * 2**n <= pause <= 2**n for n, pause in enumerate(pauses[:8]))
    assert all(150.0 <= pause <= 300.0 for pause in pauses[9:])
    schedule.succeeded()
    assert schedule.seconds_left() == 60.0
    assert PushSchedule(None, clock).seconds_left() is None


def test_closing_lets_a_push_finish(serving: Callable[..., Service]) -> None:
    service = serving()
    service.epoch()
    uuid = service.sync.request()
    service.sync.close()
    assert service.sync.status().success == uuid or service.sync.status().running == {uuid}


def test_a_store_that_does_not_answer_is_a_failure_like_any_other(serving: Callable[..., Service]) -> None:
    service = serving()
    service.epoch()
    service.machine.requests.error = lambda label: TransientStoreError("503") if "latest" not in label else None
    service.sync.request()
    eventually(lambda: service.sync.status().failure)
