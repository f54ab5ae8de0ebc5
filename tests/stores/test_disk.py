"""The door to the disk does exactly what its contract says, with the errors of the system."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from holdfast.stores import durable
from holdfast.stores.disk import LocalDisk

disk = LocalDisk()


def test_create_makes_a_new_file_and_writes_all_of_every_buffer(tmp_path: Path) -> None:
    file = disk.create(str(tmp_path / "a"))
    for chunk in (b"one", bytearray(b"two"), memoryview(b"three"), memoryview(bytes(8)).cast("Q"), b""):
        file.write(chunk)
    file.sync()
    file.close()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"onetwothree" + bytes(8)


def test_create_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        disk.create(str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b"old"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    file = disk.create(str(tmp_path / "a"))
    file.write(b"more than three bytes")
    file.close()
    assert (tmp_path / "a").read_bytes() == b"more than three bytes"


def test_a_rename_never_replaces_a_directory_that_is_not_empty(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError, match="not empty"):
        disk.rename(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b" / "file").read_text() == "b"


def test_a_link_refuses_a_name_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        disk.link(str(tmp_path / "a"), str(tmp_path / "b"))


def test_ranges_end_where_the_file_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"0123456789")
    assert disk.read_range(path, 2, 3) == b"234"
    assert disk.read_range(path, 8, 10) == b"89"
    assert disk.read_range(path, 10, 1) == disk.read_range(path, 99, 1) == disk.read_range(path, 0, 0) == b""
    assert disk.size(path) == 10
    assert disk.read(path) == b"0123456789"
    with pytest.raises(FileNotFoundError):
        disk.read_range(str(tmp_path / "b"), 0, 1)


def test_entries_tell_directories_from_files_and_links(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "directory")
    found = {entry.name: entry.is_directory for entry in disk.entries(str(tmp_path))}
    assert found == {"directory": True, "file": False, "link": False}
    assert disk.exists(str(tmp_path / "link"))
    assert not disk.exists(str(tmp_path / "nothing"))


def test_a_file_is_held_until_it_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    assert not disk.is_held(path)
    file = disk.create(path)
    assert disk.is_held(path)
    assert disk.is_held(path)
    file.close()
    assert not disk.is_held(path)


def test_being_looked_at_does_not_fail_a_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `is_held` beside a writer is harmless. Method: somebody looks between creation and lock."""
    path = str(tmp_path / "a")
    lock = fcntl.flock
    looked: list[int] = []

    def look_first(descriptor: int, operation: int) -> None:
        if not looked and operation & fcntl.LOCK_EX:
            looked.append(os.open(path, os.O_RDONLY))
            lock(looked[0], fcntl.LOCK_SH)
            threading.Timer(0.05, os.close, looked).start()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", look_first)
    file = disk.create(path)
    monkeypatch.undo()
    assert looked
    assert disk.is_held(path)
    file.close()


def test_one_at_a_time_holds_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    counter = {"inside": 0, "most": 0, "turns": 0}

    def enter() -> None:
        for _ in range(50):
            with disk.locked(path):
                counter["inside"] += 1
                counter["most"] = max(counter["most"], counter["inside"])
                counter["turns"] += 1
                counter["inside"] -= 1

    threads = [threading.Thread(target=enter) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter == {"inside": 0, "most": 1, "turns": 400}


def test_a_lock_is_released_when_its_holder_fails(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with pytest.raises(RuntimeError), disk.locked(path):
        raise RuntimeError
    with disk.locked(path):
        pass


def test_flushing_reaches_the_file_and_the_directory_that_were_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    file = disk.create(str(tmp_path / "new"))
    file.sync()
    file.close()
    disk.sync_directory(str(tmp_path))
    assert flushed == [str(tmp_path / "new"), str(tmp_path)]


def test_what_cannot_be_removed_stays_and_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "staged"
    folder.mkdir()

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        durable.remove(str(folder))
    assert folder.exists()
    durable.remove(str(folder))
    assert not folder.exists()


def test_flushing_a_directory_that_is_gone_is_an_error(tmp_path: Path) -> None:
    disk.sync_directory(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(str(tmp_path / "gone"))
