"""history, recoveries: what happened beyond the checkpoints that are kept, for people and as JSON."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.events import EpochCommitted, EpochReplayed, Event, Recovered, SinkRetry, Stopped
from holdfast.engine.history import HistoryObserver
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import ManualClock
from interfaces.chains import START_MS, TIMELINE, Chain
from interfaces.conftest import Run, writable

REPORT: dict[str, Any] = {
    "chosen_id": 12,
    "skipped": [{"checkpoint_id": 13, "reason": "state.bin checksum mismatch"}],
    "examined": 2,
    "elapsed_seconds": 0.1,
    "fence_id": 14,
    "epoch": 11,
    "generation": 3,
    "timeline": str(TIMELINE),
    "abandons": [13],
    "sinks": {"lake": "has everything", "db": "committed epoch 11"},
    "replays": [{"epoch": 12, "found_in": "the sidecar of checkpoint 13"}],
    "at_ms": START_MS,
    "seconds": 1.25,
}
FRESH = {**REPORT, "chosen_id": None, "fence_id": 1, "epoch": 0, "generation": 1, "skipped": [], "replays": []}


def committed(epoch: int) -> EpochCommitted:
    steps = {"compute": 0.08, "commit": 0.09, "commit:db": 0.088, "commit:lake": 0.02}
    return EpochCommitted(epoch, epoch + 3, 1500, {"lake": 1000, "db": 4}, 2048, 1024 * 1024, None, 0.2, steps)


def run_of(store: DurableCheckpointStore, *events: Event, start_ms: int = START_MS) -> None:
    """Let the engine keep the events of one run, a second apart."""
    clock = ManualClock(start_ms)
    observer = HistoryObserver(store.history, clock)
    for event in events:
        observer.on_event(event)
        clock.advance(1)
    observer.close()


@pytest.fixture
def store(path: Path) -> DurableCheckpointStore:
    """Return a store with three starts: a fresh one, one that was refused, and one that is running or was killed."""
    store = writable(path)
    run_of(store, Recovered(FRESH), *map(committed, range(1, 5)), Stopped(4, None))
    refusal = "pipeline 'orders' changed since checkpoint 7:\n  - view revenue: other SQL"
    run_of(store, Stopped(0, refusal), start_ms=START_MS + 60_000)
    claim = SinkRetry("db", 11, "claim", 1, "no route", 0.25)
    retries = [SinkRetry("db", 12, "commit", attempt, "locked", 0.5) for attempt in (1, 2)]
    run_of(store, claim, Recovered(REPORT), *retries, committed(12), EpochReplayed(12), start_ms=START_MS + 119_000)
    return store


def lines(out: str) -> list[str]:
    """Return what is written, without how it is aligned."""
    return [" ".join(line.split()) for line in out.splitlines() if line]


def test_history_is_a_table_with_one_line_per_epoch(store: DurableCheckpointStore, path: Path, run: Run) -> None:
    header, first, *others = lines(run("history", path).out)
    assert header == "TIME ID EPOCH ROWS IN ROWS OUT NEW TOTAL TOOK SLOWEST STEP"
    assert first == "2026-01-01T00:00:01Z 4 1 1,500 1,004 2.0 KiB 1.0 MiB 200 ms commit db 88 ms"
    assert [line.split()[2] for line in others] == ["2", "3", "4", "12"]
    assert others[-1].endswith("200 ms commit db 88 ms, db tried again 2 times")


def test_history_as_json(store: DurableCheckpointStore, path: Path, run: Run) -> None:
    document = run("history", path, "--json", "--last", 1).json
    assert document == {
        "store": str(path),
        "epochs": [
            {
                "at": "2026-01-01T00:02:03.000Z",
                "checkpoint_id": 15,
                "epoch": 12,
                "generation": 3,
                "rows_in": 1500,
                "rows_out": {"lake": 1000, "db": 4},
                "new_bytes": 2048,
                "total_bytes": 1048576,
                "watermark": None,
                "seconds": 0.2,
                "steps": {"compute": 0.08, "commit": 0.09, "commit:db": 0.088, "commit:lake": 0.02},
                "slowest_step": "commit:db",
                "retries": [{"sink": "db", "action": "commit", "times": 2, "seconds": 1.0, "error": "locked"}],
            }
        ],
        "notes": [],
    }


def test_history_shows_the_newest_twenty_unless_told_otherwise(path: Path, run: Run) -> None:
    run_of(writable(path), *map(committed, range(1, 31)))
    shown = [line.split()[2] for line in lines(run("history", path).out)]
    assert shown[1:] == [str(epoch) for epoch in range(11, 31)]
    assert len(run("history", path, "--last", 99, "--json").json["epochs"]) == 30
    assert run("history", path, "--last", 0).code == 2


def test_history_outlives_the_checkpoints(chain: Chain, path: Path, run: Run) -> None:
    run_of(chain.store, *map(committed, range(1, 5)))
    assert run("prune", path, "--keep", 1, "--yes").code == 0
    assert len(run("history", path, "--json").json["epochs"]) == 4


def test_recoveries_are_a_table_with_one_line_per_start(store: DurableCheckpointStore, path: Path, run: Run) -> None:
    assert lines(run("recoveries", path).out) == [
        "TIME FENCE FROM SKIPPED REPLAYED TOOK ENDED",
        "2026-01-01T00:00:00Z 1 fresh 0 0 1.2s stopped after epoch 4",
        "2026-01-01T00:01:00Z - refused 0 0 - failed: pipeline 'orders' changed since checkpoint 7:",
        "2026-01-01T00:02:00Z 14 12 1 1 1.2s -",
    ]
    assert len(lines(run("recoveries", path, "--last", 1).out)) == 2


def test_one_recovery_in_full(store: DurableCheckpointStore, path: Path, run: Run) -> None:
    out = run("recoveries", path, 14).out
    assert lines(out) == [
        "start with fence 14 at 2026-01-01T00:02:00.000Z",
        "went on from checkpoint 12, epoch 11",
        "generation 3",
        f"timeline {TIMELINE}",
        "took 1.2s",
        "examined 2 checkpoints",
        "abandons 13",
        "ended nobody wrote it down",
        "skipped",
        "ID REASON",
        "13 state.bin checksum mismatch",
        "sinks",
        "NAME WHAT WAS DONE",
        "db committed epoch 11",
        "lake has everything",
        "replays",
        "EPOCH FOUND IN",
        "12 the sidecar of checkpoint 13 done",
        "retries",
        "SINK ACTION TIMES WAITED LAST ERROR",
        "db claim 1 250 ms no route",
    ]
    assert run("recoveries", path, "latest").out == out


def test_recoveries_as_json(store: DurableCheckpointStore, path: Path, run: Run) -> None:
    document = run("recoveries", path, "--json").json
    assert [start["outcome"] for start in document["recoveries"]] == ["fresh", "refuse", "restore"]
    assert document["recoveries"][1]["error"].endswith("\n  - view revenue: other SQL")
    one = run("recoveries", path, 14, "--json").json
    assert one == document["recoveries"][2]
    assert one["replays"] == [{"epoch": 12, "found_in": "the sidecar of checkpoint 13", "done": True}]
    assert (one["seconds"], one["ended_at"], one["lost_entries"]) == (1.25, None, 0)
    assert one["retries"] == [{"sink": "db", "action": "claim", "times": 1, "seconds": 0.25, "error": "no route"}]


def test_how_a_run_failed_is_told(path: Path, run: Run) -> None:
    run_of(writable(path), Recovered(REPORT), Stopped(12, "sink 'db': gone\nfor good\x1b[31m"))
    assert "failed: sink 'db': gone\n" in run("recoveries", path).out
    told = lines(run("recoveries", path, "latest").out)
    assert "ended 2026-01-01T00:00:01.000Z after epoch 12" in told
    assert told[told.index("it failed") + 1 :][:2] == ["sink 'db': gone", "for good\\x1b[31m"]


def test_a_recovery_nobody_knows_is_an_error_in_one_line(store: DurableCheckpointStore, path: Path, run: Run) -> None:
    ran = run("recoveries", path, 99)
    assert ran.code == 2
    assert ran.err == (
        "holdfast: history knows no start that sealed fence 99; 'holdfast recoveries' shows those it knows\n"
    )


def test_a_store_without_history_says_so(path: Path, run: Run) -> None:
    writable(path)
    assert run("history", path).out == f"no epochs in the history of {path}\n"
    assert run("recoveries", path).out == f"no starts in the history of {path}\n"


def test_damage_is_a_note_and_not_the_end(store: DurableCheckpointStore, path: Path, run: Run) -> None:
    """Everything of the first run is damaged, in as many segments as its thread happened to write."""
    damaged = sorted((path / "history").glob("epochs-*"))[:-1]
    for segment in damaged:
        segment.write_bytes(segment.read_bytes()[:-10])
    notes = [f"history segment {segment.name} is damaged and left out" for segment in damaged]
    ran = run("history", path)
    assert ran.code == 0
    assert lines(ran.out)[1].split()[2] == "12"
    assert all(f"note: {note}" in ran.out for note in notes)
    assert run("history", path, "--json").json["notes"] == notes


def test_history_works_on_every_kind_of_store(url: str, run: Run) -> None:
    run_of(writable(url), Recovered(REPORT), committed(12), Stopped(12, None))
    assert [entry["epoch"] for entry in run("history", url, "--json").json["epochs"]] == [12]
    assert [start["last_epoch"] for start in run("recoveries", url, "--json").json["recoveries"]] == [12]
