"""Goal: the doubles behave like what they stand for. Method: the same random calls on both, and compare."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from crash_lab import SEED
from obstore.exceptions import AlreadyExistsError
from obstore.store import MemoryStore

from holdfast.clock import new_uuid
from holdfast.core.manifest import CheckpointManifest
from holdfast.errors import CheckpointNotFound, TransientStoreError
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.disk import Disk, LocalDisk
from holdfast.stores.objects import Bucket, ObjectChanged, ObjectExists, Objects
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import (
    NAMES_WITH_ZEROS,
    NAMES_WITHOUT_BYTES,
    NOTHING,
    CrashingDisk,
    CrashPoint,
    InterceptedDisk,
    ManualClock,
    MemoryObjects,
    RecordingStore,
    SimulatedCrash,
    SimulatedDisk,
    Slot,
    Turns,
    When,
    single_losses,
)

# The disk

NAMES = ("a", "b", "a/x", "a/y", "a/d", "b/x", "b/d", "a/d/x", "b/d/x", "gone/x", "a/x/under-a-file")


def random_call(chance: random.Random) -> tuple[str, Callable[[Disk, str], object]]:
    one, two = chance.choice(NAMES), chance.choice(NAMES)
    data = chance.randbytes(chance.randrange(5))

    def write(disk: Disk, base: str) -> None:
        file = disk.create(f"{base}/{one}")
        file.write(data)
        file.sync()
        file.close()

    calls: list[tuple[str, Callable[[Disk, str], object]]] = [
        ("write", write),
        ("mkdir", lambda disk, base: disk.make_directory(f"{base}/{one}")),
        ("mkdir", lambda disk, base: disk.make_directory(f"{base}/{one}")),
        ("rename", lambda disk, base: disk.rename(f"{base}/{one}", f"{base}/{two}")),
        ("rename", lambda disk, base: disk.rename(f"{base}/{one}", f"{base}/{two}")),
        ("link", lambda disk, base: disk.link(f"{base}/{one}", f"{base}/{two}")),
        ("unlink", lambda disk, base: disk.unlink(f"{base}/{one}")),
        ("rmdir", lambda disk, base: disk.remove_directory(f"{base}/{one}")),
        ("sync", lambda disk, base: disk.sync_directory(f"{base}/{one}")),
        ("list", lambda disk, base: sorted((e.name, e.is_directory) for e in disk.entries(f"{base}/{one}"))),
        ("read", lambda disk, base: disk.read(f"{base}/{one}")),
        ("range", lambda disk, base: disk.read_range(f"{base}/{one}", 1, 2)),
        ("exists", lambda disk, base: disk.exists(f"{base}/{one}")),
        ("held", lambda disk, base: disk.is_held(f"{base}/{one}")),
    ]
    what, call = chance.choice(calls)
    return f"{what} {one} {two}", call


def outcome(call: Callable[[Disk, str], object], disk: Disk, base: str) -> object:
    try:
        return call(disk, base)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def test_the_simulated_disk_answers_like_a_real_one(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    for number in range(40):
        real, simulated = LocalDisk(), SimulatedDisk()
        base = f"{tmp_path}/{number}"
        real.make_directory(base)
        simulated.make_directory("/base")
        history = []
        for _ in range(60):
            label, call = random_call(chance)
            expected, found = outcome(call, real, base), outcome(call, simulated, "/base")
            history.append(f"{label} -> {expected}")
            assert found == expected, "\n".join(history)


def test_a_held_file_is_held_until_it_is_closed_or_its_writer_dies() -> None:
    disk = SimulatedDisk()
    file = disk.create("/f")
    assert disk.is_held("/f")
    assert not disk.process_crash().is_held("/f")
    disk.rename("/f", "/g")
    assert disk.is_held("/g")
    file.close()
    assert not disk.is_held("/g")


def test_only_what_was_synced_survives_a_power_loss() -> None:
    disk = SimulatedDisk()
    file = disk.create("/f")
    file.write(b"durable")
    file.sync()
    assert not disk.power_loss(NOTHING).exists("/f")
    disk.sync_directory("/")
    file.write(b", not")
    assert disk.power_loss(NOTHING).read("/f") == b"durable"
    assert disk.power_loss(NAMES_WITH_ZEROS).read("/f") == b"durable" + bytes(5)
    assert disk.process_crash().read("/f") == b"durable, not"


def test_a_name_can_arrive_without_its_bytes() -> None:
    disk = SimulatedDisk()
    disk.create("/f").write(b"lost")
    assert disk.power_loss(NAMES_WITHOUT_BYTES).read("/f") == b""


def test_a_renamed_directory_is_in_one_place_whatever_arrives() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/staging")
    disk.make_directory("/target")
    disk.make_directory("/staging/new")
    disk.create("/staging/new/f").close()
    disk.rename("/staging/new", "/target/new")
    for loss in single_losses(disk.pending):
        after = disk.power_loss(loss)
        assert not (after.exists("/staging/new") and after.exists("/target/new")), loss
    disk.sync_directory("/target")
    assert not disk.power_loss(NOTHING).exists("/target"), "the name of the directory itself was never synced"
    disk.sync_directory("/")
    after = disk.power_loss(NOTHING)
    assert after.exists("/target/new")
    assert not after.exists("/staging/new")
    assert not after.exists("/target/new/f"), "the names in it were never synced"


def test_a_link_can_be_lost_although_the_first_name_is_gone() -> None:
    disk = SimulatedDisk()
    disk.make_directory("/a")
    disk.make_directory("/b")
    disk.create("/a/f").close()
    disk.settle()
    disk.link("/a/f", "/b/f")
    disk.unlink("/a/f")
    found = {(d.exists("/a/f"), d.exists("/b/f")) for d in map(disk.power_loss, single_losses(disk.pending))}
    assert (False, False) in found
    disk.sync_directory("/b")
    found = {(d.exists("/a/f"), d.exists("/b/f")) for d in map(disk.power_loss, single_losses(disk.pending))}
    assert (False, False) not in found


def test_taking_a_lock_twice_is_an_error_and_not_a_wait() -> None:
    disk = SimulatedDisk()
    with disk.locked("/.lock"):
        assert disk.is_locked("/.lock")
        with pytest.raises(RuntimeError, match="deadlock"), disk.locked("/.lock"):
            pass
    assert not disk.is_locked("/.lock")
    assert disk.exists("/.lock")


# Crashes


@pytest.mark.parametrize(("when", "expected"), [(When.BEFORE, b""), (When.MIDDLE, b"12"), (When.AFTER, b"1234")])
def test_a_crash_comes_where_it_was_asked_for_and_nothing_follows(when: When, expected: bytes) -> None:
    disk = SimulatedDisk()
    crashing = CrashingDisk(disk, CrashPoint(1, when))
    file = crashing.create("/f")
    with pytest.raises(SimulatedCrash):
        file.write(b"1234")
    with pytest.raises(SimulatedCrash):
        crashing.exists("/f")
    with pytest.raises(SimulatedCrash):
        file.close()
    assert disk.read("/f") == expected
    assert crashing.plan.trace == ["create /f", "write /f"]


# Buckets


def test_memory_objects_answer_like_a_bucket() -> None:
    chance = random.Random(SEED)
    for _ in range(30):
        pair: tuple[Objects, Objects] = (Bucket(MemoryStore()), MemoryObjects())
        versions: list[dict[str, str]] = [{}, {}]
        for _ in range(40):
            answers = []
            operation, key = chance.randrange(8), chance.choice(("p/a", "p/b", "p/c/d", "q"))
            data, stale = chance.randbytes(3), chance.random() < 0.3
            for which, objects in enumerate(pair):
                answers.append(_ask(objects, operation, key, data, versions[which], stale))
            assert answers[0] == answers[1], (operation, key)


def _ask(objects: Objects, operation: int, key: str, data: bytes, versions: dict[str, str], stale: bool) -> object:
    try:
        match operation:
            case 0:
                objects.create(key, data)
            case 1:
                objects.replace(key, data, versions.get(key, "never"))
            case 2:
                objects.upload(key, [data, memoryview(data)])
            case 3:
                stored = objects.read(key)
                if stored is not None and not stale:
                    versions[key] = stored.version
                return stored and stored.data
            case 4:
                return objects.read_range(key, 1, 4)
            case 5:
                return objects.size(key)
            case 6:
                return objects.list("p")
            case 7:
                objects.delete(key)
    except (ObjectExists, ObjectChanged) as error:
        return type(error)
    return None


def test_a_conflict_that_left_nothing_is_no_sign_of_another_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody is fenced by a 409 of S3, which obstore reports like "it is there". Method: answer so once."""
    real, answers = obstore.put, [AlreadyExistsError("409"), None]

    def put(*args: object, **options: object) -> object:
        if (answer := answers.pop(0)) is not None:
            raise answer
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "put", put)
    bucket = Bucket(MemoryStore())
    bucket.create("key", b"data")
    assert bucket.size("key") == 4
    answers[:] = [AlreadyExistsError("409")] * 3
    with pytest.raises(TransientStoreError):
        bucket.create("other", b"data")
    answers[:] = [AlreadyExistsError("412")]
    with pytest.raises(ObjectExists):
        bucket.create("key", b"data")


# Turns, clock and record


def test_turns_follow_the_slots() -> None:
    order: list[str] = []
    disk = SimulatedDisk()

    def writer(name: str) -> Callable[[object], None]:
        def run(gate: object) -> None:
            mine = InterceptedDisk(disk, gate)  # type: ignore[arg-type]
            for number in range(3):
                mine.make_directory(f"/{name}{number}")
                order.append(f"{name}{number}")

        return run

    Turns([Slot("b", 2), Slot("a", 1)]).run({"a": writer("a"), "b": writer("b")})
    assert order == ["b0", "b1", "a0", "a1", "a2", "b2"]


def test_a_writer_that_waits_for_a_lock_lets_the_other_move() -> None:
    disk = SimulatedDisk()

    def writer(gate: object) -> None:
        mine = InterceptedDisk(disk, gate)  # type: ignore[arg-type]
        with mine.locked("/.lock"):
            mine.exists("/a")
            mine.exists("/b")

    def blocked(label: str) -> bool:
        return label == "lock /.lock" and disk.is_locked("/.lock")

    outcomes = Turns([Slot("a", 2), Slot("b")], blocked).run({"a": writer, "b": writer})
    assert [outcome.error for outcome in outcomes.values()] == [None, None]


def test_sleeping_moves_the_manual_clock() -> None:
    clock = ManualClock(1000)
    clock.sleep(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2500, 1.5)
    first = new_uuid(clock)
    clock.step_wall_clock(-100)
    assert new_uuid(clock) > first
    assert clock.monotonic() == 1.5
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_a_recording_store_keeps_what_was_asked_and_what_came_of_it() -> None:
    medium = BucketMedium(MemoryObjects(), "memory://")
    store = RecordingStore(DurableCheckpointStore(medium, retain=None))
    sealed = store.save(CheckpointManifest.new(1, 1))
    with pytest.raises(CheckpointNotFound):
        store.update_manifest(CheckpointManifest.new(2, 2))
    assert store.methods == ["save", "update_manifest"]
    assert store.calls[0].result == sealed
    assert isinstance(store.calls[1].error, CheckpointNotFound)

    def refuse(method: str, arguments: tuple[object, ...]) -> None:
        raise TransientStoreError(f"not now: {method}")

    store.before = refuse
    with pytest.raises(TransientStoreError):
        store.list_ids()
