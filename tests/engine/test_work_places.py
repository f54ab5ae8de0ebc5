"""Working directories: a root for each pipeline on each store, and folders that their processes hold."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.engine.clearing import clear_store
from holdfast.engine.work_places import (
    LOCK,
    HeldFolder,
    WorkRoot,
    check_writable,
    generations,
    remove_generations,
    work_root,
)
from holdfast.errors import PipelineError
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing.clock import ManualClock

BUCKET_URL = "s3://bucket"
HOLDS = """
import os, sys
from holdfast.engine.work_places import HeldFolder
folder = HeldFolder(sys.argv[1])
folder.take()
os.makedirs(sys.argv[1], exist_ok=True)
if sys.argv[2] == "forks" and os.fork() > 0:
    os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "work" / "3"


def another(folder: Path, how: str) -> "subprocess.Popen[str]":
    """Let another process hold a folder until its input ends."""
    command = [sys.executable, "-c", HOLDS, str(folder), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def live(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    process = another(folder, "holds")
    yield process
    process.communicate()


def opened(url: str, **options: str) -> DurableCheckpointStore:
    return open_store(url, read_only="://" in url, options=options)


def test_every_pipeline_on_every_store_has_a_root_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: staging beside prod, or two pipelines with one work_dir, share nothing. Method: all combinations."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    there = {"skip_signature": "true", "allow_http": "true"}
    stores = [
        opened(str(tmp_path / "a")),
        opened(str(tmp_path / "b")),
        opened(BUCKET_URL + "/prod", endpoint="http://one:9000", **there),
        opened(BUCKET_URL + "/staging", endpoint="http://one:9000", **there),
        opened(BUCKET_URL + "/prod", endpoint="http://two:9000", **there),
    ]
    cases = [(store, name, where) for store in stores for name in ("orders", "returns") for where in (None, "work")]
    roots = {(i, name, where): work_root(store, name, where).path for i, (store, name, where) in enumerate(cases)}
    beside = {roots[i, name, where] for i, name, where in roots if where is None and i < 8}
    assert beside == {str(tmp_path / "a" / "work"), str(tmp_path / "b" / "work")}  # One store is one pipeline.
    others = [root for (i, _, where), root in roots.items() if where is not None or i >= 8]
    assert len(set(others)) == len(others)
    again = {work_root(store, name, where).path for store, name, where in cases}
    assert again == set(roots.values())


def test_a_variable_of_the_environment_may_say_which_store_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"skip_signature": "true", "allow_http": "true", "region": "eu-central-1"}
    found = set()
    for endpoint in ("http://one:9000", "http://two:9000"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        found.add(work_root(opened(BUCKET_URL, **there), "orders").path)
    assert len(found) == 2


def test_a_name_is_no_path(tmp_path: Path) -> None:
    store = opened(str(tmp_path / "store"))
    names = ("../../etc/ä b", "../../etc/ä_b", "_" * 70, "_" * 71)
    roots = [work_root(store, name, str(tmp_path / "work")).path for name in names]
    for root in roots:
        assert re.fullmatch(r"[A-Za-z0-9_-]+-[0-9a-f]{12}", os.path.relpath(root, tmp_path / "work"))
    assert len(set(roots)) == len(names)


def test_what_another_process_holds_is_not_removed(
    folder: Path, live: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    (folder.parent / "2").mkdir()
    (folder / "state").touch()
    remove_generations(str(folder.parent))
    assert generations(str(folder.parent)) == [str(folder)]
    assert (folder / "state").exists()
    live.communicate()
    remove_generations(str(folder.parent))
    assert list(folder.parent.iterdir()) == []


def test_clearing_a_store_leaves_what_a_process_holds(tmp_path: Path) -> None:
    store = opened(str(tmp_path / "store"))
    root = work_root(store, "orders", str(tmp_path / "work"))
    for name in ("1", "2", "mine"):
        os.makedirs(os.path.join(root.path, name))
    held = HeldFolder(os.path.join(root.path, "2"))
    held.take()
    clear_store(store, "orders", work_dir=str(tmp_path / "work"))
    held.release()
    assert sorted(name for name in os.listdir(root.path) if not name.endswith(LOCK)) == ["2", "mine"]


def test_who_waits_too_long_is_told_who_has_it(folder: Path, live: "subprocess.Popen[str]") -> None:
    clock = ManualClock()
    before = clock.monotonic()
    with pytest.raises(
        PipelineError, match=rf"{folder} is in use by process {live.pid} on \S+ since 20\d\d-\d\d-\d\dT"
    ):
        HeldFolder(str(folder), clock).take(patience_seconds=10)
    assert 10 <= clock.monotonic() - before < 11


def test_the_process_may_be_gone_and_its_children_not(folder: Path) -> None:
    """Goal: a lock ends with its process. Method: the holder forks and exits; the child lives on."""
    child = another(folder, "forks")
    child.wait()
    HeldFolder(str(folder)).take(patience_seconds=0)
    child.communicate()


def test_a_fork_does_not_take_the_lock_from_its_parent(folder: Path) -> None:
    held = HeldFolder(str(folder))
    held.take()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert not HeldFolder(str(folder)).take_if_free()
    held.release()
    assert HeldFolder(str(folder)).take_if_free()


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever removes a folder removes its lock: what somebody opened just before that holds nothing."""
    held = HeldFolder(str(folder))
    held.take()
    real, lock = os.open, str(folder) + LOCK

    def opened_too_early(path: str, *rest: int) -> int:
        descriptor = real(path, *rest)
        monkeypatch.setattr(os, "open", real)
        held.release()
        os.unlink(lock)
        return descriptor

    monkeypatch.setattr(os, "open", opened_too_early)
    assert not HeldFolder(str(folder)).take_if_free()
    assert HeldFolder(str(folder)).take_if_free()


def test_a_lock_file_without_words_still_locks(folder: Path, live: "subprocess.Popen[str]") -> None:
    (folder.parent / ("3" + LOCK)).write_bytes(b"")
    with pytest.raises(PipelineError, match="in use by a process that left no note"):
        HeldFolder(str(folder), ManualClock()).take()


def test_a_place_that_cannot_be_written_is_said_before_anything_is_done(tmp_path: Path) -> None:
    check_writable(WorkRoot(str(tmp_path / "new" / "root")))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match="cannot be written: Not a directory"):
        check_writable(WorkRoot(str(tmp_path / "file" / "root")))


def test_a_late_start_leaves_the_working_directory_of_who_replaced_it(tmp_path: Path) -> None:
    for generation in (2, 3, 4, 10):
        (tmp_path / str(generation)).mkdir()
    remove_generations(str(tmp_path), before=3)
    assert [os.path.basename(path) for path in generations(str(tmp_path))] == ["10", "4", "3"]
    shutil.rmtree(tmp_path)
    assert generations(str(tmp_path)) == []


def test_what_a_removal_left_that_was_cut_off_goes_the_next_time(tmp_path: Path) -> None:
    """Goal: no crash of a removal stands in the way of the next. Method: the folder is gone, its lock is not."""
    path = tmp_path / "work" / "1"
    held = HeldFolder(str(path))
    held.take()
    held.release()
    assert [found.name for found in path.parent.iterdir()] == [f"1{LOCK}"]
    assert HeldFolder(str(path)).remove_if_free()
    assert list(path.parent.iterdir()) == []
