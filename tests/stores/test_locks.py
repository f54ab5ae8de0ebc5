"""Locks are waited for, not for ever; who holds one can be named; a forked child never does."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import TransientStoreError
from holdfast.stores import locks
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
from holdfast.testing.clock import ManualClock
from holding import SINCE, held_elsewhere, other_process

DIE_AFTER_FORKING = """
import os, sys
from holdfast.stores import locks
from holdfast.stores.disk import LocalDisk
lock, file = locks.take(sys.argv[1]), LocalDisk().create(sys.argv[2])
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os._exit(1)
"""
NO_ROOM = """
import resource, sys
from holdfast.stores import locks
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with locks.locked(sys.argv[1]):
    print("held")
"""


class Counting(ManualClock):
    """A clock that ends a wait that would have no end."""

    sleeps = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.sleeps += 1
        assert self.sleeps < 1000


@contextlib.contextmanager
def forked_child() -> Iterator[int]:
    """Fork a child that lives on until the block ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        yield child
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


def test_the_wait_ends_and_the_error_says_who_holds_the_lock(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "lock"), Counting()
    with held_elsewhere(path) as pid, pytest.raises(locks.LockHeld) as raised:
        locks.take(path, patience=12.5, clock=clock)
    assert clock.monotonic() == pytest.approx(12.5)
    holder = f"process {pid} on {os.uname().nodename} since {SINCE}"
    assert raised.value.holder == holder
    assert str(raised.value) == f"{path} is locked by {holder}, for longer than 12.5 s; end that process if it hangs"
    assert isinstance(raised.value, OSError)
    locks.take(path, patience=0).release()


def test_a_store_whose_lock_is_held_says_so_and_may_be_tried_again(tmp_path: Path) -> None:
    medium = DirectoryMedium(str(tmp_path), LocalDisk(patience=5, clock=Counting()))
    medium.prepare()
    for change in (lambda: medium.stage(1, [b"state"], 5), medium.sweep, lambda: medium.advance_pointer(1)):
        with (
            held_elsewhere(str(tmp_path / "checkpoints" / ".lock")) as pid,
            pytest.raises(TransientStoreError, match=rf"cannot .*locked by process {pid} on .* since {SINCE}"),
        ):
            change()
        change()


def test_a_lock_that_comes_free_meanwhile_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    held = locks.take(path)

    class Letting(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.monotonic() > 1:
                held.release()

    clock = Letting()
    with locks.locked(path, patience=60, clock=clock):
        assert 1 < clock.monotonic() < 1.1


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    lock = locks.take(path)
    with forked_child():
        lock.release()
        locks.take(path, patience=0).release()


def test_a_child_of_a_process_that_died_does_not_keep_its_locks(tmp_path: Path) -> None:
    """Goal: nobody unlocked before the death, and still a worker that lives on keeps nothing."""
    path, file = str(tmp_path / "lock"), str(tmp_path / "file")
    with other_process(DIE_AFTER_FORKING, path, file) as (pid, child):
        os.waitpid(pid, 0)
        os.kill(int(child), 0)  # It lives.
        assert not LocalDisk().is_held(file)
        locks.take(path, patience=0).release()


def test_a_child_that_leaves_the_block_does_not_give_its_parents_lock_away(tmp_path: Path) -> None:
    """Goal: what a child leaves is not its own. Method: the descriptors carry other files of the child by then."""
    path, block = str(tmp_path / "lock"), contextlib.ExitStack()
    with block:
        block.enter_context(locks.locked(path))
        file = block.enter_context(contextlib.closing(LocalDisk().create(str(tmp_path / "file"))))
        child = os.fork()
        if child == 0:
            own = [os.open(os.devnull, os.O_RDONLY) for _ in range(9)]
            block.close()
            os._exit(sum(not _is_open(descriptor) for descriptor in own))
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(locks.LockHeld, match=f"process {os.getpid()} "):
            locks.take(path, patience=0)
        assert LocalDisk().is_held(str(tmp_path / "file"))
        file.write(b"mine")


def _is_open(descriptor: int) -> bool:
    try:
        return os.fstat(descriptor) is not None
    except OSError:
        return False


def test_the_note_is_gone_when_nobody_holds_the_lock_and_new_when_its_holder_died(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locks.locked(str(path)):
        assert f"process {os.getpid()} on" in path.read_text()
    assert path.read_bytes() == b""
    path.write_text("process 1 of a long name that was killed, " * 9)
    with locks.locked(str(path)), pytest.raises(locks.LockHeld) as raised:
        locks.take(str(path), patience=0)
    assert raised.value.holder.startswith(f"process {os.getpid()} on ")


@pytest.mark.parametrize("note", [b"", b"\x1b[31mred", b"\xff\xfe"])
def test_a_holder_without_a_note_that_people_can_read_is_nobody_known(tmp_path: Path, note: bytes) -> None:
    path = tmp_path / "lock"
    with locks.locked(str(path)):
        path.write_bytes(note)
        with pytest.raises(locks.LockHeld, match=r"locked by (a process that left no note|\ufffd\ufffd),"):
            locks.take(str(path), patience=0)


def test_a_disk_without_room_for_the_note_keeps_nobody_from_the_lock(tmp_path: Path) -> None:
    """Goal: pruning a full disk must work. Method: this process may not make a file longer."""
    with other_process(NO_ROOM, str(tmp_path / "lock")) as (_, said):
        assert said == "held"


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with locks.locked(path):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(locks.LockHeld):
                locks.take(path, patience=0)
        assert LocalDisk().is_held(path)
    assert len(os.listdir("/proc/self/fd")) == before - 1
