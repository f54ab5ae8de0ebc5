"""health: the verdict on a screen and as JSON, and the exit code that a monitor reads."""

import shutil
from pathlib import Path

from holdfast import SinkCommitStatus
from holdfast.clock import SYSTEM_CLOCK
from holdfast.engine.events import CheckpointVerified, Recovered
from holdfast.engine.history import HistoryObserver
from interfaces.chains import TIMELINE, Chain
from interfaces.conftest import Run, writable

DONE = {"lake": SinkCommitStatus.COMMITTED, "pg": SinkCommitStatus.COMMITTED}


def settle(chain: Chain) -> None:
    """Seal one more checkpoint, now, that all sinks show."""
    chain.seal(6, epoch=5, sink_commit_statuses=DONE, timestamp_ms=SYSTEM_CLOCK.now_ms() - 90_000)


def test_yes_is_0(chain: Chain, path: Path, run: Run) -> None:
    settle(chain)
    ran = run("health", path)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0] == "can we recover now: yes"
    assert lines[1].startswith("  from           checkpoint 6, epoch 5, 1m 3")
    assert lines[2] == "  verified       never, as far as history knows"
    assert lines[3] == "  in about       unknown: history knows no start that restored a checkpoint"
    assert lines[4] == "  if that fails  4 checkpoints (2-5); all of them share bytes with it"
    assert lines[5] == f"  writer         generation 1 of timeline {TIMELINE}"
    assert lines[6].startswith("  store          6 checkpoints, ")


def test_what_history_knows_is_shown(chain: Chain, path: Path, run: Run) -> None:
    settle(chain)
    observer = HistoryObserver(chain.store.history, SYSTEM_CLOCK)
    report = {"chosen_id": 5, "epoch": 4, "generation": 1, "timeline": str(TIMELINE), "fence_id": 6, "skipped": []}
    observer.on_event(Recovered({**report, "seconds": 2.5, "state_bytes": 100, "host": "a1", "process": 7}))
    observer.on_event(CheckpointVerified(6, 5, SYSTEM_CLOCK.now_ms(), (), 100, 0.1))
    observer.close()
    ran = run("health", path)
    assert ran.code == 0
    assert "  verified       checkpoint 6, 0s ago, in the background" in ran.out
    assert "  in about       2s: the start at " in ran.out
    assert f"generation 1 of timeline {TIMELINE}, process 7 on a1 since " in ran.out


def test_degraded_is_9(chain: Chain, path: Path, run: Run) -> None:
    ran = run("health", path)
    assert ran.code == 9
    assert ran.out.startswith("can we recover now: degraded\n  because sink 'pg' is not known to show epoch 4")
    assert "\nsinks in doubt\n  NAME  STATUS   MESSAGE\n  pg    Pending\n" in ran.out


def test_nothing_to_recover_is_1(path: Path, run: Run) -> None:
    writable(path)
    ran = run("health", path)
    assert ran.code == 1
    assert ran.out.startswith("can we recover now: no\n  because there is no checkpoint yet")


def test_a_refusal_is_3(chain: Chain, path: Path, run: Run) -> None:
    for id in range(2, 6):
        shutil.rmtree(path / "checkpoints" / f"checkpoint_{id:06d}")
    ran = run("health", path, "--json")
    assert ran.code == 3
    assert (ran.json["recoverable"], ran.json["refused"]) == ("no", True)


def test_skipped_ones_are_listed(chain: Chain, path: Path, run: Run) -> None:
    settle(chain)
    (path / "checkpoints" / "checkpoint_000006" / "state.bin").unlink()
    ran = run("health", path)
    assert ran.code == 9
    assert "\nskipped\n  ID  REASON\n   6  sidecar state-000006.bin is missing\n" in ran.out


def test_it_works_on_every_kind_of_store(url: str, run: Run) -> None:
    chain = Chain(writable(url))
    chain.seal(1, sink_commit_statuses=DONE)
    assert run("health", url).code == 0
    assert run("health", url, "--json").json["checkpoint"]["checkpoint_id"] == 1
