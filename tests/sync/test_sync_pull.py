"""Goal: a pull brings the newest whole checkpoint and what followed it, verified, and never half of one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from engine.worlds import flipped
from holdfast import (
    CheckpointManifest,
    CheckpointNotFound,
    CorruptCheckpoint,
    InvalidRequest,
    TransientStoreError,
)
from holdfast.clock import new_uuid
from holdfast.core.manifest import REPLAY
from holdfast.core.names import manifest_name
from holdfast.engine.sync.copying import OtherCheckpoint
from holdfast.testing import InterceptedObjects, SimulatedCrash
from stores.builders import manifest
from sync.machines import PREFIX, Fleet, Machine


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


@pytest.fixture
def first(fleet: Fleet) -> Machine:
    """Return a machine that pushed after four epochs."""
    machine = fleet.machine()
    machine.run()
    machine.push()
    return machine


def go_on(fleet: Fleet, machine: Machine) -> None:
    """Run two more epochs."""
    last = len(fleet.world.source.records)
    fleet.world.source.records += [{"id": last + number} for number in range(1, 5)]
    machine.run()


class DiesAtWrite:
    """An interceptor that ends the process at a write, counted from 0."""

    def __init__(self, number: int) -> None:
        self._left = number

    def call(self, label: str, mutates: bool, run: Callable[[], Any], half: object = None) -> Any:
        self._left -= mutates
        if mutates and self._left < 0:
            raise SimulatedCrash(label)
        return run()


def test_an_empty_store_gets_the_newest_checkpoint_whole(fleet: Fleet, first: Machine) -> None:
    second = fleet.machine()
    pulled = second.link().follow()
    assert pulled is not None
    assert pulled.checkpoint_id == first.newest().checkpoint_id
    assert second.newest().to_json() == first.newest().to_json()
    assert second.store().validate_checkpoint(pulled.checkpoint_id).valid
    assert pulled.bytes == sum(second.store().sidecars().values())


def test_a_second_pull_moves_only_what_is_new(fleet: Fleet, first: Machine) -> None:
    second = fleet.machine()
    link = second.link()
    link.follow()
    before = second.store().sidecars()
    assert link.follow() is not None
    unchanged = link.follow()
    assert unchanged is not None
    assert (unchanged.objects, unchanged.bytes) == (0, 0)
    go_on(fleet, first)
    first.push()
    pulled = link.follow()
    assert pulled is not None
    new = {name: size for name, size in second.store().sidecars().items() if name not in before}
    assert pulled.bytes == sum(new.values())


def test_what_was_decided_after_the_newest_whole_one_comes_as_far_as_it_is_there(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    first = fleet.machine(standby=True)
    first.run()
    first.push()
    go_on(fleet, first)
    second = fleet.machine(standby=True)
    pulled = second.link().follow()
    assert pulled is not None
    assert (pulled.epoch, pulled.followed_by) == (4, 2)
    assert second.store().list_ids()[-3:] == first.store().list_ids()[-3:]
    report = second.store().recover_latest_validated()
    assert report.chosen_id == pulled.checkpoint_id, "a decision without its state is no checkpoint"
    assert [id for id, _ in report.skipped] == first.store().list_ids()[-2:][::-1]


def test_whatever_the_machine_dies_at_no_half_checkpoint_looks_whole(fleet: Fleet, first: Machine) -> None:
    number = 0
    while True:
        second = fleet.machine()
        plain = second.objects
        second.objects = InterceptedObjects(plain, DiesAtWrite(number))  # type: ignore[assignment]
        try:
            second.link().follow()
            break
        except SimulatedCrash:
            pass
        second.objects = plain
        store = second.store()
        for id in store.list_ids():
            manifest = store.load_by_id(id)
            assert manifest is not None
            assert store.validate_checkpoint(id).valid or not store.glance_at(manifest).valid
        second.link().follow()
        assert second.store().recover_latest_validated().chosen_id == first.newest().checkpoint_id
        number += 1
    assert number == 4, "the mark of the store, one sidecar, the manifest, the pointer"


def test_a_checkpoint_that_is_damaged_in_the_bucket_is_passed_over_with_its_reason(
    fleet: Fleet, first: Machine
) -> None:
    older = first.newest().checkpoint_id
    go_on(fleet, first)
    first.push()
    key = f"{PREFIX}/checkpoints/{first.newest().sidecar}"
    stored = fleet.objects.read(key)
    assert stored is not None
    fleet.objects.upload(key, [flipped(stored.data, len(stored.data) - 1)])
    pulled = fleet.machine().link().follow()
    assert pulled is not None
    assert pulled.checkpoint_id in (older, older + 1)
    assert pulled.skipped[0][0] == first.newest().checkpoint_id
    assert "mismatch" in pulled.skipped[0][1]


def test_a_damaged_copy_leaves_what_was_known_of_the_epoch(fleet: Fleet, first: Machine) -> None:
    """What this store has of it is all that the epoch can be repeated by, whatever arrives over it."""
    go_on(fleet, first)
    first.push()
    newest = first.newest()
    assert newest.sidecar is not None
    key = f"{PREFIX}/checkpoints/{newest.sidecar}"
    stored = fleet.objects.read(key)
    assert stored is not None
    known = first.store().state_reader.progress_bytes(newest.sidecar)
    second = fleet.machine()
    medium = second.store().medium
    medium.put_sidecar(newest.sidecar, [known], len(known))
    fleet.objects.upload(key, [flipped(stored.data, 40)])  # Within the progress.
    second.link().follow()
    assert medium.read_sidecar(newest.sidecar, 0, medium.sidecars()[newest.sidecar]) == known


CHOICES = {
    "the newest": ([(1, 1, []), (2, 2, [])], (), 2),
    "not the start of a timeline": ([(1, 1, []), (2, 0, [])], (), 1),
    "not what was given up": ([(1, 1, []), (2, 2, []), (3, 1, [2])], (3,), 1),
    "not what gave itself up": ([(1, 1, []), (2, 2, [2])], (), 1),
    "what only one gave up that was given up": ([(1, 1, []), (2, 2, []), (3, 3, [2]), (4, 4, [3])], (4,), 2),
    "nothing, when all are damaged": ([(1, 1, []), (2, 2, [])], (1, 2), None),
}


@pytest.mark.parametrize("what", CHOICES)
def test_what_is_brought(fleet: Fleet, what: str) -> None:
    """Checkpoints by id, epoch and what they give up; which turn out damaged; which one is begun from."""
    sealed, damaged, expected = CHOICES[what]
    machine, bucket = fleet.machine(), fleet.bucket()
    for id, epoch, abandons in sealed:
        bucket.store.save(manifest(id, epoch, timeline=UUID(int=1), generation=1, abandons=abandons))

    def bring(each: CheckpointManifest) -> None:
        if each.checkpoint_id in damaged:
            raise CorruptCheckpoint("one bit is not as it was")

    choice = machine.puller(bucket)._choose(None, bring)
    assert (choice.base and choice.base.checkpoint_id) == expected
    assert {id for id, _ in choice.skipped} == set(damaged)


@pytest.mark.parametrize(("generation", "refused"), [(1, False), (2, True), (3, True)])
def test_only_a_late_checkpoint_gives_way_to_what_is_brought(fleet: Fleet, generation: int, refused: bool) -> None:
    """One of the same generation is the same writer's: this store was restored, or the bucket."""
    machine, bucket = fleet.machine(), fleet.bucket()
    here = machine.store().save(manifest(4, timeline=UUID(int=1), generation=generation, uuid=UUID(int=4)))
    stored = machine.store().medium.read_manifest(4)
    assert stored is not None
    theirs = manifest(4, timeline=UUID(int=1), generation=2, uuid=UUID(int=5)).stamped()
    other = OtherCheckpoint(here, stored.version)
    if refused:
        with pytest.raises(InvalidRequest, match="has another checkpoint 4 than"):
            machine.puller(bucket)._overwrite(theirs, other)
    else:
        machine.puller(bucket)._overwrite(theirs, other)
    found = machine.store().load_by_id(4)
    assert found is not None
    assert found.uuid == (here.uuid if refused else theirs.uuid)


def test_what_a_fence_is_to_repeat_comes_with_it(fleet: Fleet) -> None:
    """It is named by the fence, and given up as a checkpoint: nothing else would bring it."""
    machine, bucket = fleet.machine(), fleet.bucket()
    said = {"timeline": UUID(int=1), "generation": 1}
    for id in (3, 4):
        bucket.store.save(manifest(id, id - 1, uuid=UUID(int=id), **said))
    plan = {REPLAY: [{"checkpoint_id": 4}]}
    bucket.store.save(manifest(5, 2, kind="fence", uuid=UUID(int=5), abandons=[4], recovery=plan, **said))
    pulled = machine.puller(bucket).pull()
    assert pulled is not None
    assert pulled.checkpoint_id == 5
    assert machine.store().list_ids() == [4, 5]


def test_storage_that_does_not_answer_is_never_an_empty_bucket(fleet: Fleet, first: Machine) -> None:
    second = fleet.machine()
    second.requests.cut_off()
    with pytest.raises(TransientStoreError):
        second.link().follow()


def test_a_late_checkpoint_of_a_writer_that_was_replaced_is_not_pulled(fleet: Fleet, first: Machine) -> None:
    late = first.newest()
    second = fleet.machine()
    go_on(fleet, second)
    second.push()
    beyond = second.newest().checkpoint_id + 5
    zombie = late.model_copy(update={"checkpoint_id": beyond, "uuid": new_uuid()}).stamped()
    fleet.objects.create(f"{PREFIX}/manifests/{manifest_name(beyond)}", zombie.to_json().encode())
    third = fleet.machine()
    pulled = third.link().follow()
    assert pulled is not None
    assert pulled.checkpoint_id == second.newest().checkpoint_id
    assert beyond not in third.store().list_ids()


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_what_is_pruned_under_our_hands_gives_way_to_a_newer_one(fleet: Fleet, first: Machine, moment: int) -> None:
    """A newer checkpoint is pushed and the old one pruned when the old one is about to be read."""
    second, old = fleet.machine(), first.newest()
    go_on(fleet, first)
    key = f"{PREFIX}/checkpoints/{old.sidecar}"
    seen: list[str] = []

    def pruned(label: str) -> None:
        seen.append(label)
        if seen.count(f"read_range {key}") == moment:
            second.requests.heal()
            first.push()
            fleet.bucket().store.medium.remove_sidecar(old.sidecar or "")
            for id in (old.checkpoint_id, old.checkpoint_id + 1):
                fleet.objects.delete(f"{PREFIX}/manifests/{manifest_name(id)}")

    second.requests.error = pruned
    pulled = second.link().follow()
    assert pulled is not None
    assert pulled.checkpoint_id == first.newest().checkpoint_id


def test_a_named_checkpoint_is_brought_with_all_that_followed_it(fleet: Fleet, first: Machine) -> None:
    wanted = first.newest()
    go_on(fleet, first)
    first.push()
    second = fleet.machine()
    pulled = second.link().follow(wanted.uuid)
    assert pulled is not None
    assert pulled.checkpoint_id == wanted.checkpoint_id
    assert second.newest().checkpoint_id == first.newest().checkpoint_id
    with pytest.raises(CheckpointNotFound, match="does not hold it"):
        second.link().follow(new_uuid())


def test_a_fork_begins_a_timeline_of_its_own_with_empty_sinks(fleet: Fleet, first: Machine) -> None:
    second = fleet.machine()
    pulled = second.puller(fleet.bucket()).fork()
    assert pulled is not None
    forked = second.newest()
    assert forked.timeline not in (None, first.newest().timeline)
    assert forked.epoch == first.newest().epoch
    assert forked.source_offsets == first.newest().source_offsets
    assert (forked.sink_epochs, forked.sink_tokens, forked.abandons) == ({}, {}, [])
    assert second.store().validate_checkpoint(forked.checkpoint_id).valid
