"""Goal: what a pull brought to a disk, and a document written there, survive a power loss; half of it is never seen.

Method: crash at every step of the disk, before and after it, and lose what was not flushed, in several ways.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.worlds import PARTITIONS
from holdfast.engine.sync.catalogue import Catalogue
from holdfast.engine.sync.documents import Documents
from holdfast.engine.sync.pull import Puller
from holdfast.engine.sync.sides import Side
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import (
    NAMED_LOSSES,
    NOTHING,
    CrashPlan,
    InterceptedDisk,
    SimulatedCrash,
    SimulatedDisk,
)
from sync.machines import Fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Return a fleet whose bucket has a whole checkpoint, and decisions after it."""
    fleet = Fleet(tmp_path)
    machine = fleet.machine(standby=True)
    machine.run()
    machine.push()
    fleet.world.source.records += [{"id": 9}, {"id": 10}]
    machine.run()
    return fleet


def side_on(fleet: Fleet, disk: Any) -> Side:
    store = DurableCheckpointStore(DirectoryMedium("/store", disk), retain=None, vnode_count=PARTITIONS)
    return Side(store, fleet.machine().side().materials)


def empty_disk(fleet: Fleet) -> SimulatedDisk:
    disk = SimulatedDisk()
    side_on(fleet, disk).store.medium.prepare()
    disk.settle()
    return disk


def after(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Yield the disk as the next process may find it."""
    yield disk.process_crash()
    for loss in NAMED_LOSSES:
        yield disk.power_loss(loss)


def pull(fleet: Fleet, disk: Any) -> int:
    bucket = fleet.bucket()
    pulled = Puller(bucket, side_on(fleet, disk), Catalogue(bucket.store), fleet.world.clock).pull()
    assert pulled is not None
    return pulled.checkpoint_id


def test_a_pull_that_was_acknowledged_survives_a_power_loss(fleet: Fleet) -> None:
    disk = empty_disk(fleet)
    id = pull(fleet, disk)
    store = side_on(fleet, disk.power_loss(NOTHING)).store
    assert store.validate_checkpoint(id).valid
    assert store.list_ids() == fleet.bucket().store.list_ids()[-len(store.list_ids()) :]
    assert store.state_reader.progress_records(store.list_ids()[-1])


def test_a_crash_at_every_step_leaves_nothing_that_looks_whole_and_is_not(fleet: Fleet) -> None:
    counting = CrashPlan()
    pull(fleet, InterceptedDisk(empty_disk(fleet), counting))
    points = list(counting.crash_points())
    assert len(points) > 50
    for point in points:
        disk = empty_disk(fleet)
        with pytest.raises(SimulatedCrash):
            pull(fleet, InterceptedDisk(disk, CrashPlan(point)))
        for found in after(disk):
            store = side_on(fleet, found).store
            for manifest in store.manifests():
                verdict = store.validate_checkpoint(manifest.checkpoint_id)
                assert verdict.valid or not store.glance_at(manifest).valid, (str(point), verdict.reason)
            id = pull(fleet, found)
            assert side_on(fleet, found).store.recover_latest_validated().chosen_id == id


def test_a_document_is_there_whole_or_as_it_was(fleet: Fleet) -> None:
    before, later = {"generation": 1}, {"generation": 2}

    def written(disk: Any) -> Documents:
        return Documents(side_on(fleet, disk).store.medium, "owner.json")

    def change(disk: Any) -> None:
        written(disk).change(lambda value: later)

    base = empty_disk(fleet)
    written(base).change(lambda value: before)
    assert written(base.power_loss(NOTHING)).read().value == before
    base.settle()
    counting = CrashPlan()
    change(InterceptedDisk(base.process_crash(), counting))
    for point in counting.crash_points():
        disk = base.process_crash()
        with pytest.raises(SimulatedCrash):
            change(InterceptedDisk(disk, CrashPlan(point)))
        for found in after(disk):
            assert written(found).read().value in (before, later), str(point)
            side_on(fleet, found).store.medium.prepare()  # As every process does first.
            change(found)
            assert written(found.power_loss(NOTHING)).read().value == later
