"""Goal: a push moves what is missing and nothing else, and whatever cuts it off, no half copy looks whole."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.worlds import Process, flipped
from holdfast import CorruptCheckpoint, Fenced, InvalidRequest, SinkCommitStatus, TransientStoreError
from holdfast.clock import new_uuid
from holdfast.core.names import manifest_name
from holdfast.engine.sync.copying import Vanished
from holdfast.engine.sync.push import newest_settled
from sync.machines import PREFIX, Fleet, Machine


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture
def machine(fleet: Fleet) -> Machine:
    """Return a machine that ran four epochs and never pushed; only its start is in the bucket."""
    machine = fleet.machine()
    machine.run()
    return machine


def whole(fleet: Fleet) -> list[int]:
    """Return the checkpoints in the bucket whose every byte is as it was sealed."""
    store = fleet.bucket().store
    return [id for id in store.list_ids() if store.validate_checkpoint(id).valid]


def test_a_pushed_checkpoint_is_whole_and_recovery_could_run_on_the_bucket(fleet: Fleet, machine: Machine) -> None:
    pushed = machine.push()
    newest = machine.newest()
    assert pushed.checkpoint_id == newest.checkpoint_id
    assert pushed.epoch == 4
    bucket = fleet.bucket().store
    assert bucket.recover_latest_validated().chosen_id == newest.checkpoint_id
    copied = bucket.load_by_id(newest.checkpoint_id)
    assert copied is not None
    assert copied.to_json() == newest.to_json()


def test_who_pushes_owns_the_bucket_although_it_was_started_without_it(fleet: Fleet, machine: Machine) -> None:
    machine.push()
    before = machine.link().lock.read().generation
    fleet.world.source.records += [{"id": 9}, {"id": 10}]
    process = Process(machine)
    process.start()
    process.next_epoch()
    process.delivery.close()
    machine.push()
    assert machine.link().lock.read().generation == before + 1


def test_a_second_push_moves_only_what_is_new(fleet: Fleet, machine: Machine) -> None:
    machine.push()
    before = set(fleet.bucket().store.sidecars())
    fleet.world.source.records += [{"id": 9}, {"id": 10}]
    machine.run()
    pushed = machine.push()
    sidecars = fleet.bucket().store.sidecars()
    new = {name: size for name, size in sidecars.items() if name not in before}
    assert pushed.bytes == sum(new.values())
    assert pushed.objects == len(new) + 1
    assert len(new) == 1


def test_a_push_of_what_is_there_moves_nothing(machine: Machine) -> None:
    machine.push()
    machine.requests.labels.clear()
    pushed = machine.push()
    assert (pushed.objects, pushed.bytes) == (0, 0)
    assert machine.requests.writes == []


def test_what_was_recorded_of_the_sinks_reaches_the_copy(fleet: Fleet) -> None:
    """A checkpoint that was recorded in the bucket when it was sealed says Pending there, until it is pushed."""
    machine = fleet.machine(standby=True)
    machine.run()
    newest = machine.newest()
    recorded = fleet.bucket().store.load_by_id(newest.checkpoint_id)
    assert recorded is not None
    assert SinkCommitStatus.PENDING in recorded.sink_commit_statuses.values()
    machine.push()
    pushed = fleet.bucket().store.load_by_id(newest.checkpoint_id)
    assert pushed is not None
    assert set(pushed.sink_commit_statuses.values()) == {SinkCommitStatus.COMMITTED}


def test_whatever_request_fails_no_half_copy_looks_whole_and_the_next_push_goes_on(tmp_path: Path) -> None:
    number, again = 0, True
    while again:
        fleet = Fleet(tmp_path / str(number))
        machine = fleet.machine()
        machine.run()
        starts = fleet.bucket().store.list_ids()
        count = iter(range(10_000))
        machine.requests.labels.clear()
        machine.requests.error = lambda label, count=count, n=number: (  # type: ignore[misc]
            TransientStoreError("503") if next(count) == n else None
        )
        try:
            machine.push()
            again = len(machine.requests.labels) > number
        except TransientStoreError:
            listed = fleet.bucket().store.list_ids()
            assert set(listed) - set(starts) <= set(whole(fleet)), machine.requests.labels[-1]
            there = set(fleet.bucket().store.sidecars())
            machine.requests.heal()
            machine.requests.labels.clear()
            machine.push()
            sent = {label.rpartition("/")[2] for label in machine.requests.writes if "checkpoints/" in label}
            assert not sent & there, "what was copied before is not copied again"
        assert machine.newest().checkpoint_id in whole(fleet)
        number += 1
    assert number > 10


def test_a_checkpoint_that_is_damaged_here_is_not_copied(fleet: Fleet, machine: Machine) -> None:
    already = whole(fleet)
    machine.damage_sidecar(machine.newest().sidecar)
    with pytest.raises(CorruptCheckpoint, match=r"was not copied: it is damaged in memory://world: .*mismatch"):
        machine.push()
    assert whole(fleet) == already
    assert machine.newest().checkpoint_id not in fleet.bucket().store.list_ids()


def test_a_copy_that_fails_leaves_what_was_recorded_at_the_seal(fleet: Fleet, machine: Machine) -> None:
    """A standby would repeat the epoch by its progress, which stands there under the name of the whole."""
    newest = machine.newest()
    assert newest.sidecar is not None
    recorded = machine.store().state_reader.progress_bytes(newest.sidecar)
    medium = fleet.bucket().store.medium
    medium.put_sidecar(newest.sidecar, [recorded], len(recorded))
    machine.damage_sidecar(newest.sidecar)
    with pytest.raises(CorruptCheckpoint, match="was not copied"):
        machine.push()
    assert medium.read_sidecar(newest.sidecar, 0, medium.sidecars()[newest.sidecar]) == recorded


def test_what_arrives_damaged_is_copied_again(fleet: Fleet, machine: Machine) -> None:
    """The bytes of one sidecar change on their way, once."""
    key = f"{PREFIX}/checkpoints/{machine.newest().sidecar}"

    def damaged_on_the_way(label: str) -> None:
        stored = fleet.objects.read(key)
        if stored is not None and label == f"read_range {key}":
            fleet.objects.upload(key, [flipped(stored.data, len(stored.data) - 1)])
            machine.requests.heal()

    machine.requests.error = damaged_on_the_way
    with pytest.raises(CorruptCheckpoint, match="it is damaged in s3://copies/shop"):
        machine.push()
    machine.push()
    assert machine.newest().checkpoint_id in whole(fleet)


def test_a_bucket_of_another_pipeline_is_refused_before_anything_is_written(fleet: Fleet, machine: Machine) -> None:
    machine.push()
    elsewhere = Fleet(fleet.base / "other")
    stranger = elsewhere.machine()
    stranger.run()
    elsewhere.objects = fleet.objects
    before = fleet.written()
    with pytest.raises(InvalidRequest, match=r"belongs to pipeline 'shop' .*use another bucket or prefix"):
        stranger.push()
    with pytest.raises(InvalidRequest, match="use another bucket or prefix"):
        stranger.run()
    assert fleet.written() == before


def test_without_an_owner_the_checkpoints_say_whose_a_bucket_is(fleet: Fleet, machine: Machine) -> None:
    """The document was taken away because it made no sense; another life of the pipeline must not move in."""
    machine.push()
    fleet.objects.delete(f"{PREFIX}/owner.json")
    before = fleet.written()
    elsewhere = Fleet(fleet.base / "other")
    stranger = elsewhere.machine()
    stranger.run()
    elsewhere.objects = fleet.objects
    with pytest.raises(InvalidRequest, match=r"has no owner.json, but holds checkpoints of timeline .*use another"):
        stranger.push()
    assert fleet.written() == before
    machine.push()
    assert machine.link().lock.read().owner is not None


def test_a_bucket_that_another_machine_took_over_is_refused_before_anything_is_written(
    fleet: Fleet, machine: Machine
) -> None:
    machine.push()
    other = fleet.machine()
    other.run()
    before = fleet.written()
    with pytest.raises(Fenced, match="this pipeline was taken over"):
        machine.push()
    assert fleet.written() == before


def test_a_checkpoint_that_is_pruned_meanwhile_is_reported_as_gone(machine: Machine) -> None:
    link = machine.link()
    newest = newest_settled(link.local.store)
    assert newest is not None
    assert newest.sidecar is not None
    machine.objects.delete(f"world/checkpoints/{newest.sidecar}")
    with pytest.raises(Vanished, match="was pruned before it was copied"):
        link.pusher.push(newest)


def test_only_a_checkpoint_that_all_sinks_show_is_pushed(machine: Machine) -> None:
    """What is staged on this machine would not be there on another."""
    newest, store = machine.newest(), machine.store()
    later = {"checkpoint_id": newest.checkpoint_id + 1, "uuid": new_uuid(), "manifest_checksum": None}
    pending = dict.fromkeys(newest.sink_commit_statuses, SinkCommitStatus.PENDING)
    store.save(newest.model_copy(update={**later, "sink_commit_statuses": pending}))
    found = newest_settled(store)
    assert found is not None
    assert found.checkpoint_id == newest.checkpoint_id


def test_a_late_manifest_of_a_writer_that_was_replaced_gives_way(fleet: Fleet, machine: Machine) -> None:
    machine.push()
    other = fleet.machine()
    other.run()
    newest = other.newest()
    zombie = newest.model_copy(update={"generation": 1, "uuid": machine.newest().uuid}).stamped()
    key = f"{PREFIX}/manifests/{manifest_name(newest.checkpoint_id)}"
    fleet.objects.delete(key)
    fleet.objects.create(key, zombie.to_json().encode())
    other.push()
    stored = fleet.objects.read(key)
    assert stored is not None
    assert json.loads(stored.data)["generation"] == newest.generation


def taken_over_at(fleet: Fleet, machine: Machine, moment: str) -> None:
    """Let another machine take the bucket over when this one makes a request for its newest sidecar."""
    key = f"{PREFIX}/checkpoints/{machine.newest().sidecar}"

    def take_over(label: str) -> None:
        if label == f"{moment} {key}":
            machine.requests.heal()
            lock = fleet.machine().link().lock
            timeline = machine.newest().timeline
            assert timeline is not None
            lock.take(lock.read(), timeline, 2)

    machine.requests.error = take_over


def test_a_push_whose_bucket_is_taken_over_meanwhile_creates_no_manifest(fleet: Fleet, machine: Machine) -> None:
    taken_over_at(fleet, machine, "read_range")
    with pytest.raises(Fenced, match=r"generation 2 .*taken over"):
        machine.push()
    assert machine.newest().checkpoint_id not in fleet.bucket().store.list_ids()


def test_a_sidecar_whose_bucket_is_taken_over_meanwhile_does_not_appear(fleet: Fleet, machine: Machine) -> None:
    """Its name may be that of a sidecar of the machine that took over."""
    machine.requests.error = lambda label: None
    reads: list[str] = []

    class Slow:
        def __init__(self, medium: Any) -> None:
            self._medium = medium

        def __getattr__(self, name: str) -> Any:
            return getattr(self._medium, name)

        def read_sidecar(self, *rest: Any) -> bytes | None:
            if not reads:
                lock, timeline = fleet.machine().link().lock, machine.newest().timeline
                assert timeline is not None
                lock.take(lock.read(), timeline, 2)
            reads.append(rest[0])
            data: bytes | None = self._medium.read_sidecar(*rest)
            return data

    link = machine.link()
    newest = newest_settled(link.local.store)
    assert newest is not None
    link.local.store._medium = Slow(link.local.store.medium)
    with pytest.raises(Fenced, match=r"generation 2 .*taken over"):
        link.pusher.push(newest)
    assert fleet.bucket().store.sidecars() == {}
