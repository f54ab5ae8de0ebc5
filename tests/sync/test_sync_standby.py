"""Goal: a standby follows, says what it could go on from, and takes over when it is told to, or stays what it is."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Fenced, NoValidCheckpoint, PipelineError, TransientStoreError
from holdfast.engine.events import SyncFailed
from holdfast.engine.sync.standby import Standby
from sync.machines import Fleet, Machine, Silent, running


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def eventually(condition: Callable[[], object]) -> None:
    ended = threading.Event()
    for _ in range(2000):
        if condition():
            return
        ended.wait(0.01)
    raise AssertionError("it never happened")


def primary(fleet: Fleet, epochs: int = 2) -> Machine:
    machine = fleet.machine(standby=True)
    with running(machine) as process:
        process.next_epoch()
        machine.push()
        for _ in range(epochs - 1):
            process.next_epoch()
    return machine


def test_an_activated_standby_goes_on_and_every_row_is_there_once(fleet: Fleet) -> None:
    primary(fleet)
    machine = fleet.machine(standby=True)
    standby = machine.standby()
    standby.activate()
    assert standby.wait()
    assert (standby.status.state, standby.status.epoch) == ("activated", 1)
    machine.run()
    assert fleet.right()


def test_a_request_to_activate_is_carried_out_by_whoever_waits(fleet: Fleet) -> None:
    primary(fleet)
    standby = fleet.machine(standby=True, pull_interval="1 hour").standby()
    activated: list[bool] = []
    waiting = threading.Thread(target=lambda: activated.append(standby.wait()))
    waiting.start()
    assert standby.waiting
    standby.request_activation(paused=True)
    waiting.join(20)
    assert activated == [True]
    assert standby.paused


def test_an_activation_that_fails_leaves_a_standby(fleet: Fleet) -> None:
    primary(fleet)
    machine = fleet.machine(standby=True)
    standby = machine.standby()
    machine.requests.cut_off()
    with pytest.raises(TransientStoreError):
        standby.activate()
    assert standby.waiting
    machine.requests.heal()
    standby.activate()
    assert not standby.waiting


def test_with_nothing_to_go_on_from_it_stays_a_standby(fleet: Fleet) -> None:
    standby = fleet.machine(standby=True).standby()
    with pytest.raises(NoValidCheckpoint, match="nothing to go on from in s3://copies/shop yet"):
        standby.activate()
    assert standby.waiting


def test_it_follows_by_itself_and_keeps_only_what_it_needs(fleet: Fleet) -> None:
    first = fleet.machine(standby=True)
    second = fleet.machine(standby=True)
    standby = second.standby()
    with running(first) as process:
        while process.next_epoch():
            first.push()
            standby._step()
    assert standby.status.epoch == 4
    assert standby.status.pulled_at_ms is not None
    assert len(second.store().list_ids()) <= 4


def test_whoever_waits_follows_again_and_again(fleet: Fleet) -> None:
    first = fleet.machine(standby=True)
    standby = fleet.machine(standby=True, pull_interval="10 milliseconds").standby()
    ended: list[bool] = []
    waiting = threading.Thread(target=lambda: ended.append(standby.wait()))
    waiting.start()
    with running(first) as process:
        for epoch in (1, 2, 3):
            process.next_epoch()
            first.push()
            eventually(lambda epoch=epoch: standby.status.epoch == epoch)  # type: ignore[misc]
    standby.stop()
    waiting.join(20)
    assert ended == [False]


def test_a_stop_ends_it_without_taking_over(fleet: Fleet) -> None:
    primary(fleet)
    standby = fleet.machine(standby=True).standby()
    waiting = threading.Thread(target=standby.wait)
    waiting.start()
    before = fleet.written()
    standby.stop()
    waiting.join(20)
    assert not waiting.is_alive()
    assert fleet.written() == before
    with pytest.raises(PipelineError, match="was stopped"):
        standby.activate()


def test_storage_that_does_not_answer_is_reported_and_asked_again(fleet: Fleet) -> None:
    primary(fleet)
    machine = fleet.machine(standby=True)
    standby = machine.standby()
    machine.requests.cut_off()
    standby._step()
    assert "no route to host" in str(standby.status.error)
    machine.requests.heal()
    standby._step()
    assert standby.status.error is None
    assert standby.status.checkpoint_id is not None


def test_a_failure_that_passed_is_forgotten_and_nothing_else_that_the_store_notes(fleet: Fleet) -> None:
    """Goal: the mark that tells this store from all others outlives an outage. Method: the notes before and after."""
    primary(fleet)
    machine = fleet.machine(standby=True)
    standby = machine.standby()
    notes = machine.link().notes
    before = notes.read()
    assert notes.replica is not None
    machine.requests.cut_off()
    standby._step()
    assert notes.read().keys() - before.keys() == {"failure"}
    machine.requests.heal()
    standby._step()
    assert notes.read() == before


def test_a_standby_that_is_to_keep_everything_follows_too(fleet: Fleet) -> None:
    first, second = fleet.machine(standby=True), fleet.machine(standby=True)
    link = second.link()
    standby = Standby(link.local.store, link, Silent(), second.clock, retain=None)
    with running(first) as process:
        while process.next_epoch():
            first.push()
            standby._step()
            assert standby.status.error is None
    assert standby.status.epoch == 4
    assert {manifest.epoch for manifest in second.store().manifests()} >= {1, 2, 3, 4}


def test_only_what_is_tried_again_by_itself_has_a_time_for_it(fleet: Fleet) -> None:
    """An activation that failed is tried again when somebody asks for it."""
    told: list[SyncFailed] = []

    class Watching(Silent):
        def on_event(self, event: object) -> None:
            told.extend([event] if isinstance(event, SyncFailed) else [])

    machine = fleet.machine(standby=True, pull_interval="7 seconds")
    link = machine.link()
    standby = Standby(link.local.store, link, Watching(), machine.clock, retain=3)
    machine.requests.cut_off()
    standby._step()
    standby.request_activation()
    standby._step()
    assert [(event.action, event.pause_seconds) for event in told] == [("pull", 7.0), ("activate", None)]


def test_a_machine_that_was_replaced_cannot_follow_with_what_it_has(fleet: Fleet) -> None:
    """It sealed what the bucket does not know, so what follows there does not follow from here."""
    first = fleet.machine()
    with running(first) as process:
        process.next_epoch()
        first.push()
        process.next_epoch()
    fleet.machine().run()
    standby = first.standby()
    with pytest.raises(Fenced, match="start it with --standby and an empty store"):
        standby.wait()


def test_on_a_shared_store_there_is_nothing_to_follow_and_the_fence_decides(fleet: Fleet) -> None:
    world = fleet.world
    first = world.process()
    first.start()
    first.next_epoch()
    standby = Standby(world.store(), None, Silent(), world.clock)
    standby.activate()
    assert standby.wait()
    world.run()
    assert fleet.right()
    with pytest.raises(Fenced):
        first.next_epoch()
    assert fleet.right()
