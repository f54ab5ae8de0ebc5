"""Goal: a start goes on from the right place, in a fixed order, and no error is ever taken for "no checkpoint"."""

import json
from pathlib import Path

import pytest

from holdfast import (
    CheckpointNotFound,
    HoldfastError,
    NoValidCheckpoint,
    PipelineDefinitionError,
    PipelineError,
    StoreConfigurationError,
    SyncSettings,
    TransientStoreError,
)
from holdfast.clock import new_uuid
from holdfast.core.manifest import checksum_of
from holdfast.core.names import manifest_name
from holdfast.engine.startup import StartOptions
from sync.machines import URL, Fleet, Machine, running, settings


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def pushed(fleet: Fleet, epochs: int = 2, **changes: object) -> Machine:
    """Return a machine that ran some epochs and pushed the last one."""
    machine = fleet.machine(**changes)
    with running(machine) as process:
        for _ in range(epochs):
            process.next_epoch()
    machine.push()
    return machine


# The order


def test_what_is_here_comes_first(fleet: Fleet) -> None:
    machine = pushed(fleet)
    with running(machine) as process:
        process.next_epoch()
    with running(machine) as process:
        assert process.started.epoch == 3, "the bucket has only epoch 2"


def test_then_the_bucket(fleet: Fleet) -> None:
    first = pushed(fleet)
    with running(fleet.machine()) as process:
        assert process.started.epoch == 2
        assert process.started.owner.timeline == first.newest().timeline


def test_what_was_copied_since_the_bucket_was_last_looked_at_is_brought_too(fleet: Fleet) -> None:
    """The other machine knew of every decision, and had no state of the newest: now the bucket has it."""
    first = pushed(fleet, 1, standby=True)
    with running(first) as process:
        process.next_epoch()
        process.next_epoch()
        second = fleet.machine(standby=True)
        second.link().follow()
        first.push()
    with running(second) as process:
        assert process.started.epoch == 3


def test_then_the_read_bucket_with_a_timeline_of_its_own(fleet: Fleet, tmp_path: Path) -> None:
    """A machine of another environment begins with production's state, and with empty sinks of its own."""
    production = pushed(fleet)
    other = Fleet(tmp_path / "staging")
    machine = other.machine(read_bucket="s3://production/shop")
    machine.seed = fleet.bucket()
    process = machine.run()
    assert process.started.epoch == 2
    assert process.started.owner.timeline != production.newest().timeline
    shown, expected = other.world.shown(), other.world.expected()
    assert {name: rows[-1] for name, rows in shown.items()} == {name: rows[-1] for name, rows in expected.items()}
    assert [row["id"] for row in shown["a"]] == [5, 6, 7, 8], "what came before the fork is production's output"


@pytest.mark.parametrize("seeded", [True, False])
def test_the_read_bucket_counts_where_a_checkpoint_must_be_found(fleet: Fleet, tmp_path: Path, seeded: bool) -> None:
    seed = Fleet(tmp_path / "seed")
    if seeded:
        pushed(seed)
    machine = fleet.machine(read_bucket="s3://seed/shop", fail_if_no_checkpoint=True)
    machine.seed = seed.bucket()
    if seeded:
        with running(machine) as process:
            assert process.started.epoch == 2
        return
    with pytest.raises(PipelineError, match=r"there is no checkpoint in .*, nor in .*, and fail_if_no_checkpoint is"):
        machine.run()


def test_the_bucket_is_preferred_to_the_read_bucket(fleet: Fleet, tmp_path: Path) -> None:
    first = pushed(fleet)
    seed = Fleet(tmp_path / "seed")
    pushed(seed, 1)
    machine = fleet.machine(read_bucket="s3://seed/shop")
    machine.seed = seed.bucket()
    with running(machine) as process:
        assert process.started.owner.timeline == first.newest().timeline


def test_then_afresh(fleet: Fleet) -> None:
    with running(fleet.machine()) as process:
        assert process.started.epoch == 0


def test_or_not_at_all_when_that_was_asked_for(fleet: Fleet) -> None:
    machine = fleet.machine(fail_if_no_checkpoint=True)
    with pytest.raises(PipelineError, match=r"there is no checkpoint in .* and fail_if_no_checkpoint is set"):
        machine.run()
    assert machine.store().list_ids() == []


def test_a_manifest_that_is_damaged_here_comes_from_the_bucket(fleet: Fleet) -> None:
    """It was recorded there: this machine did not go on by itself."""
    machine = pushed(fleet, standby=True)
    newest = machine.newest()
    machine.damage_manifest(newest.checkpoint_id)
    with running(machine) as process:
        assert process.started.epoch == newest.epoch
        assert process.started.replays == ()


def test_one_that_a_later_version_wrote_does_not(fleet: Fleet) -> None:
    machine = pushed(fleet, standby=True)
    newest = machine.newest()
    later = machine.store().medium.read_manifest(newest.checkpoint_id)
    assert later is not None
    document = {**json.loads(later.data), "version": 99}
    data = json.dumps({**document, "manifest_checksum": checksum_of(document)}).encode()
    key = f"world/manifests/{manifest_name(newest.checkpoint_id)}"
    machine.objects.overwrite(key, data)
    with pytest.raises(HoldfastError):
        machine.run()
    stored = machine.objects.read(key)
    assert stored is not None
    assert stored.data == data


# Errors


@pytest.mark.parametrize("damage", ["the record of an epoch", "a late one of a machine that was replaced"])
def test_a_bucket_whose_newest_manifest_does_not_count_holds_no_whole_checkpoint(fleet: Fleet, damage: str) -> None:
    """Nobody writes to it meanwhile, so waiting does not help: it says what does."""
    machine = fleet.machine(standby=True)
    with running(machine) as process:
        process.next_epoch()
        process.next_epoch()
    bucket = fleet.bucket().store
    newest = bucket.list_ids()[-1]
    manifest = bucket.load_by_id(newest)
    assert manifest is not None
    if damage == "the record of an epoch":
        damaged = b"{" + manifest.to_json().encode()
    else:
        late = manifest.model_copy(update={"checkpoint_id": newest + 1, "generation": 0, "manifest_checksum": None})
        damaged = late.stamped().to_json().encode()
        newest += 1
    fleet.objects.overwrite(f"shop/manifests/{manifest_name(newest)}", damaged)  # type: ignore[attr-defined]
    with pytest.raises(NoValidCheckpoint, match="bring back the store"):
        fleet.machine(standby=True).run()


def test_a_bucket_of_which_no_manifest_can_be_read_is_not_taken_for_an_empty_one(fleet: Fleet) -> None:
    machine = fleet.machine(standby=True)
    with running(machine) as process:
        process.next_epoch()
    for id in fleet.bucket().store.list_ids():
        fleet.objects.overwrite(f"shop/manifests/{manifest_name(id)}", b"{")  # type: ignore[attr-defined]
    other = fleet.machine(standby=True)
    with pytest.raises(NoValidCheckpoint, match="bring back the store"):
        other.run()
    assert other.store().list_ids() == []


@pytest.mark.parametrize("fails", ["cut_off", "lock_out"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_bucket_that_cannot_be_asked_stops_the_start(fleet: Fleet, fails: str, empty: bool) -> None:
    """Whether it does not answer or does not let us in; with checkpoints here too: somebody may have taken over."""
    machine = pushed(fleet)
    if empty:
        machine = fleet.machine()
    ids = machine.store().list_ids()
    getattr(machine.requests, fails)()
    with pytest.raises((TransientStoreError, StoreConfigurationError)):
        machine.run()
    assert machine.store().list_ids() == ids


def test_every_failing_request_of_a_first_start_stops_it(tmp_path: Path) -> None:
    """None of them makes an empty machine start afresh beside a bucket that has checkpoints."""
    number = 0
    while True:
        fleet = Fleet(tmp_path / str(number))
        pushed(fleet)
        machine = fleet.machine()
        left = [number]

        def failing(label: str, left: list[int] = left) -> Exception | None:
            left[0] -= 1
            return TransientStoreError("503") if left[0] == -1 else None

        machine.requests.error = failing
        process = machine.process()
        try:
            start = process.start()
        except TransientStoreError:
            pass
        else:
            assert start.epoch == 2
            if left[0] >= 0:
                break
        number += 1
    assert number > 10


def test_decisions_without_a_whole_checkpoint_are_no_reason_to_start_afresh(fleet: Fleet) -> None:
    machine = fleet.machine(standby=True)
    with running(machine) as process:
        process.next_epoch()
    with pytest.raises(NoValidCheckpoint, match="holds no whole checkpoint to go on from"):
        fleet.machine(standby=True).run()


def test_a_start_that_never_sealed_an_epoch_leaves_nothing_in_the_way(fleet: Fleet) -> None:
    with running(fleet.machine()):
        pass
    fleet.machine().run()
    assert fleet.right()


def test_a_start_that_never_sealed_an_epoch_is_no_checkpoint_to_go_on_from(fleet: Fleet) -> None:
    machine = fleet.machine()
    with running(machine):
        pass
    machine.settings = settings(fail_if_no_checkpoint=True)
    with pytest.raises(PipelineError, match="fail_if_no_checkpoint is set"):
        machine.run()


# A named checkpoint


def test_a_named_checkpoint_of_the_bucket_is_gone_back_to_once(fleet: Fleet) -> None:
    first = pushed(fleet, 1)
    wish = first.newest()
    with running(first) as process:
        process.next_epoch()
    first.push()
    machine = fleet.machine(start_from_checkpoint=str(wish.uuid))
    with running(machine) as process:
        assert process.started.epoch == 1
        process.sync._link.notes.honour(str(wish.uuid))
        process.next_epoch()
        process.next_epoch()
    with running(machine) as process:
        assert process.started.epoch == 3, "the wish was fulfilled: from now on the newest counts"
    machine.run()
    assert fleet.right()


def test_a_named_checkpoint_that_is_here_is_not_fetched(fleet: Fleet) -> None:
    machine = pushed(fleet, 1)
    wish = machine.newest()
    with running(machine) as process:
        process.next_epoch()
    machine.settings = SyncSettings(URL, start_from_checkpoint=str(wish.uuid))
    with running(machine) as process:
        assert process.started.epoch == 1


def test_a_named_checkpoint_that_is_nowhere_fails(fleet: Fleet) -> None:
    pushed(fleet)
    with pytest.raises(CheckpointNotFound, match="neither memory://world nor s3://copies/shop holds it"):
        fleet.machine(start_from_checkpoint=str(new_uuid())).run()


def test_a_persons_word_at_this_start_comes_before_the_settings(fleet: Fleet) -> None:
    machine = pushed(fleet, 2)
    ids = machine.store().list_ids()
    with running(machine, options=StartOptions(from_id=ids[1])) as process:
        assert process.started.epoch == 1


# Settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bucket": "somewhere"}, "bucket is 'somewhere', expected a URL"),
        ({"read_bucket": URL + "/"}, "read_bucket is the bucket itself"),
        ({"start_from_checkpoint": "newest"}, "expected 'latest' or the uuid"),
        ({"push_interval": "often"}, "no length of time"),
        ({"pull_interval": "never"}, "no length of time"),
        ({"retention_min_age": "0 days"}, "no time at all"),
        ({"retention_min_count": 0}, "keeps at least 1 checkpoint"),
        ({"standby": True, "push_interval": "never"}, "a standby can only go on from copies"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        SyncSettings(**{"bucket": URL, **changes})  # type: ignore[arg-type]
