"""Goal: on a real disk, a real process that is killed at any moment loses nothing it acknowledged.

Method: a child seals checkpoints in a loop and prints each id once it was acknowledged; the parent kills it after a
random moment, fifteen times on the same store, and looks after each round at what is there.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from crash_lab import FULL, SEED

from holdfast.engine.fencing import take_over
from holdfast.stores.disk import LocalDisk
from holdfast.stores.urls import open_store

ROUNDS = 60 if FULL else 15
CHILD = Path(__file__).with_name("killed_child.py")


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path, tally: Counter[str]) -> None:
    chance = random.Random(SEED)
    acknowledged: dict[int, int] = {}
    for number in range(ROUNDS):
        sealed = run_and_kill(tmp_path / "store", chance.uniform(0.0, 0.15))
        assert not acknowledged.keys() & sealed.keys(), f"ids were used again: {sealed} (seed {SEED})"
        acknowledged |= sealed
        tally["processes killed"] += 1
        check(tmp_path / "store", acknowledged, f"round {number}, seed {SEED}")
    assert acknowledged, "no child lived long enough to seal anything"
    leave_no_trace(tmp_path / "store")


def run_and_kill(store: Path, after_seconds: float) -> dict[int, int]:
    """Let a child work for a moment, from opening the store on; return id and epoch of what it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(store)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    assert first.startswith("started"), first + child.stdout.read()
    time.sleep(after_seconds)
    os.kill(child.pid, signal.SIGKILL)
    lines = child.stdout.read().split("\n")
    child.stdout.close()
    child.wait()
    assert child.returncode == -signal.SIGKILL, lines
    words = [line.split() for line in lines[:-1]]
    return {int(id): int(epoch) for _, id, epoch in words}


def check(path: Path, acknowledged: dict[int, int], where: str) -> None:
    store = open_store(path, retain=None, read_only=True)
    for id in store.list_ids():
        manifest = store.load_by_id(id)
        if manifest is not None and manifest.epoch > 0:
            assert store.validate_checkpoint(id).valid, f"{where}: checkpoint {id} is visible and not whole"
            assert acknowledged.get(id, manifest.epoch) == manifest.epoch, where
    chosen = store.recover_latest_validated().chosen_id
    newest = max(acknowledged, default=None)
    if newest is not None:
        assert chosen is not None, f"{where}: {newest} was acknowledged and is lost"
        assert chosen >= newest, f"{where}: {newest} was acknowledged and is lost, there is {chosen}"


def leave_no_trace(path: Path) -> None:
    """Check that clean-up leaves nothing of the dead behind."""
    store = open_store(path, retain=None)
    take_over(store)
    store.cleanup_orphans()
    assert store.cleanup_orphans() == 0
    assert list((path / "checkpoints" / ".staging").iterdir()) == []
    assert list(path.rglob("*.tmp")) == []
    needed = {name for manifest in store.manifests() for name in manifest.needed_sidecars}
    assert set(store.sidecars()) == needed


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Goal: a pool of workers never stops the store. Method: fork while lock and file are held, then let go."""
    disk = LocalDisk()
    reader, writer = os.pipe()
    with disk.locked(f"{tmp_path}/.lock"):
        file = disk.create(f"{tmp_path}/held")
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            os._exit(0)
    file.close()
    try:
        assert not disk.is_held(f"{tmp_path}/.lock")
        assert not disk.is_held(f"{tmp_path}/held")
    finally:
        os.write(writer, b"x")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
