"""Goal: the bucket lets go of old checkpoints, but never of too many, of young ones, or of what others need."""

from pathlib import Path

import pytest

from holdfast.engine.sync.catalogue import Catalogue
from holdfast.engine.sync.retention import BucketRetention
from holdfast.engine.sync.sides import Side
from holdfast.interfaces.service import CheckpointService
from sync.machines import Fleet, Machine, running, settings

MINUTE = 60


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, 40)


def pushed(fleet: Fleet, count: int) -> Machine:
    """Return a machine that pushed every epoch, a minute apart."""
    machine = fleet.machine()
    with running(machine) as process:
        for _ in range(count):
            process.next_epoch()
            machine.push()
            fleet.world.clock.advance(MINUTE)
    return machine


def retention(bucket: Side, fleet: Fleet, **changes: object) -> BucketRetention:
    return BucketRetention(bucket, settings(**changes), Catalogue(bucket.store), fleet.world.clock)


def prune(fleet: Fleet, **changes: object) -> list[int]:
    return retention(fleet.bucket(), fleet, **changes).prune()


def whole(fleet: Fleet) -> list[int]:
    store = fleet.bucket().store
    return [id for id in store.list_ids() if store.validate_checkpoint(id).valid]


def test_what_stays_is_whole_and_as_many_as_were_asked_for(fleet: Fleet) -> None:
    pushed(fleet, 12)
    removed = prune(fleet, retention_min_count=4)
    assert removed
    kept = whole(fleet)
    assert kept[-4:] == list(range(10, 14))
    assert set(kept) | {1} >= set(fleet.bucket().store.list_ids())


def test_nothing_goes_below_the_least_number(fleet: Fleet) -> None:
    pushed(fleet, 5)
    fleet.world.clock.advance(365 * 24 * 3600)
    assert prune(fleet, retention_min_count=10, retention_min_age="1 day") == []
    assert len(whole(fleet)) == 5


@pytest.mark.parametrize("minutes", [3, 9])
def test_nothing_young_goes_however_many_there_are(fleet: Fleet, minutes: int) -> None:
    pushed(fleet, 12)
    removed = prune(fleet, retention_min_count=2, retention_min_age=f"{minutes} minutes")
    young = [
        m.checkpoint_id
        for m in fleet.bucket().store.manifests()
        if fleet.world.clock.now_ms() - m.timestamp_ms <= minutes * MINUTE * 1000
    ]
    assert len(removed) == 12 - minutes + 1, "the first fence goes too"
    assert len(young) >= minutes
    assert set(young) <= set(whole(fleet))


def test_a_sidecar_that_a_kept_checkpoint_needs_stays(fleet: Fleet) -> None:
    pushed(fleet, 12)
    prune(fleet, retention_min_count=2)
    store = fleet.bucket().store
    for id in store.list_ids():
        manifest = store.load_by_id(id)
        assert manifest is not None
        assert manifest.needed_sidecars <= store.sidecars().keys()


def test_the_next_survey_waits_until_a_tenth_more_have_come(fleet: Fleet) -> None:
    machine = pushed(fleet, 15)
    pruning = retention(fleet.bucket(machine.requests), fleet, retention_min_count=2)
    assert pruning.prune()
    machine.requests.labels.clear()
    assert pruning.prune() == []
    assert all(label.startswith("list") for label in machine.requests.labels)


def test_another_machine_can_go_on_from_what_is_left(fleet: Fleet) -> None:
    pushed(fleet, 12)
    prune(fleet, retention_min_count=1)
    fleet.machine().run()
    assert fleet.right()


def test_a_prune_by_hand_keeps_what_was_copied_last(fleet: Fleet) -> None:
    """Another process runs the pipeline; whoever takes over reads on from the copy."""
    machine = fleet.machine()
    with running(machine) as process:
        process.next_epoch()
        copied = machine.push()
        machine.link().notes.pushed(copied, 0)
        for _ in range(6):
            process.next_epoch()
    service = CheckpointService(machine.store())
    assert copied.checkpoint_id in service.plan_prune(1).remaining
    service.prune(1)
    assert copied.checkpoint_id in machine.store().list_ids()
