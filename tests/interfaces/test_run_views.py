"""How a run is shown: in lines, as JSON, and live on a terminal. Events are made up; no Spark."""

import io
import json
import logging
from typing import Any

import pytest
from rich.console import Console

from holdfast.engine.events import (
    CheckpointVerified,
    EpochCommitted,
    EpochReplayed,
    Recovered,
    SinkRetry,
    StepFinished,
    StepStarted,
    Stopped,
    SyncFailed,
)
from holdfast.interfaces.cli.event_lines import lines_of
from holdfast.interfaces.cli.live import LiveWatcher, render
from holdfast.interfaces.cli.watching import JsonWatcher, LineWatcher, Watcher, logs_as_notes
from holdfast.interfaces.progress import RunProgress
from holdfast.testing import ManualClock

TIMELINE = "01890a5d-ac96-774b-bcce-b302099a8057"
REPORT: dict[str, Any] = {
    "chosen_id": 12,
    "skipped": [
        {"checkpoint_id": 15, "reason": "corrupt manifest of checkpoint 15"},
        {"checkpoint_id": 14, "reason": "abandoned by checkpoint 15"},
        {"checkpoint_id": 13, "reason": "abandoned by checkpoint 15"},
    ],
    "examined": 4,
    "epoch": 9,
    "generation": 3,
    "timeline": TIMELINE,
    "abandons": [13, 14, 15],
    "sinks": {"db": "committed epoch 9", "lake": "has everything"},
    "replays": [{"epoch": 10, "found_in": "the sidecar of checkpoint 15"}],
}


def committed(epoch: int, **changes: Any) -> EpochCommitted:
    values: dict[str, Any] = {
        "epoch": epoch,
        "checkpoint_id": epoch + 4,
        "rows_in": 1000,
        "rows_out": {"lake": 1000, "db": 4},
        "new_bytes": 2048,
        "total_bytes": 1024 * 1024,
        "watermark_ms": 1_700_000_000_000 - 90_000,
        "seconds": 0.132,
        "steps": {"compute": 0.08, "prepare": 0.02, "commit": 0.03, "prepare:db": 0.019, "commit:db": 0.012},
    }
    return EpochCommitted(**{**values, **changes})


def test_what_recovery_found_is_readable() -> None:
    assert lines_of(Recovered(REPORT)) == [
        f"recovered from checkpoint 12 (epoch 9), generation 3 of timeline {TIMELINE}",
        "sinks: db committed epoch 9; lake has everything",
        "replaying epoch 10 from the sidecar of checkpoint 15",
        "abandoned checkpoints: 13-14",
        "skipped checkpoint 15: corrupt manifest of checkpoint 15",
    ]


def test_a_fresh_start_is_one_line() -> None:
    started = {"checkpoint_id": 1, "reason": "checkpoint_id is 1 and epoch is 0: nothing to restore"}
    report = {**REPORT, "chosen_id": None, "skipped": [started], "generation": 1, "sinks": {}, "replays": []}
    assert lines_of(Recovered(report)) == [f"fresh start, generation 1 of timeline {TIMELINE}"]


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (committed(7), ["epoch 7: checkpoint 11, 1,000 rows in, out: db 4, lake 1,000, 132 ms"]),
        (
            committed(7, rows_in=1, rows_out={}, seconds=12.0),
            ["epoch 7: checkpoint 11, 1 row in, out: nothing, 12.0s"],
        ),
        (
            SinkRetry("db", 7, "commit", 2, "database is locked", 0.4),
            ["sink db: commit of epoch 7 failed (database is locked), trying again in 0.4 s"],
        ),
        (EpochReplayed(7), ["epoch 7 was computed again to rebuild state; sinks that had it kept theirs"]),
        (Stopped(7, None), ["stopped after epoch 7"]),
        (CheckpointVerified(9, 7, 0, (), 100, 0.1), []),
        (
            CheckpointVerified(9, 7, 0, ("agg/0/3: digest mismatch",), 100, 0.1),
            ["checkpoint 9 is damaged: agg/0/3: digest mismatch"],
        ),
        (SyncFailed("push", "503", 2.0), ["push failed (503), trying again in 2.0 s"]),
        (SyncFailed("activate", "403"), ["activate failed (403), not tried again by itself"]),
        (Stopped(7, "it broke"), []),
        (StepStarted(7, "seal"), []),
    ],
)
def test_events_in_words(event: Any, lines: list[str]) -> None:
    assert lines_of(event) == lines


def test_lines_have_a_time_no_secrets_and_no_control_characters() -> None:
    out = io.StringIO()
    watcher = LineWatcher(lambda text: text.replace("hunter22", "${P}"), out, ManualClock())
    watcher.entering("starting Spark")
    watcher.on_event(SinkRetry("db", 1, "commit", 1, "bad login hunter22\x1b[2J", 0.2))
    watcher.note("pruning failed")
    assert out.getvalue().splitlines() == [
        "2023-11-14T22:13:20.000Z starting Spark",
        "2023-11-14T22:13:20.000Z sink db: commit of epoch 1 failed (bad login ${P}\\x1b[2J), trying again in 0.2 s",
        "2023-11-14T22:13:20.000Z warning: pruning failed",
    ]


def test_json_is_one_document_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = JsonWatcher(lambda text: text.replace("hunter22", "${P}"))
    watcher.entering("recovering")
    for event in (Recovered(REPORT), StepStarted(1, "seal"), SinkRetry("db", 1, "commit", 1, "hunter22", 0.2)):
        watcher.on_event(event)
    watcher.note("pruning failed")
    captured = capsys.readouterr()
    documents = [json.loads(line) for line in captured.out.splitlines()]
    assert [document["event"] for document in documents] == ["Recovered", "StepStarted", "SinkRetry"]
    assert documents[0]["report"] == REPORT
    assert documents[2]["error"] == "${P}"
    assert captured.err == "holdfast: warning: pruning failed\n"


def test_whoever_watches_no_more_does_not_stop_the_pipeline() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    LineWatcher(file=Closed()).on_event(committed(1))
    JsonWatcher(file=Closed()).on_event(committed(1))


def test_warnings_from_inside_become_notes(capsys: pytest.CaptureFixture[str]) -> None:
    notes: list[str] = []
    watcher = Watcher()
    watcher.note = notes.append  # type: ignore[method-assign]
    with logs_as_notes(watcher, debug=False):
        logging.getLogger("holdfast.spark.runner").warning("pruning failed: %s", "busy")
        logging.getLogger("holdfast").warning("an event, which the watcher shows itself")
        logging.getLogger("py4j.clientserver").error("a traceback")
    assert notes == ["pruning failed: busy"]
    assert capsys.readouterr().err == ""
    assert logging.getLogger("holdfast").propagate


# The state of a run


def test_progress_counts_since_the_start() -> None:
    clock = ManualClock()
    progress = RunProgress(["lake", "db"], clock)
    assert progress.snapshot().state == "starting Spark"
    progress.enter("recovering")
    progress.on_event(StepStarted(9, "recovery.restore"))
    assert (progress.snapshot().state, progress.snapshot().step) == ("recovering", "recovery.restore")
    progress.on_event(Recovered(REPORT))
    assert (progress.snapshot().state, progress.snapshot().epoch) == ("waiting for data", 9)
    progress.on_event(StepStarted(10, "compute"))
    progress.on_event(StepStarted(10, "prepare"))
    progress.on_event(StepStarted(10, "prepare", "db"))
    progress.on_event(StepFinished(10, "prepare", 0.1, "db"))
    assert (progress.snapshot().state, progress.snapshot().step) == ("running", "prepare")
    clock.advance(10)
    progress.on_event(committed(10))
    progress.on_event(committed(11, rows_out={"lake": 5}))
    clock.advance(2)
    snapshot = progress.snapshot()
    assert (snapshot.epoch, snapshot.epochs, snapshot.rows_in, snapshot.step) == (11, 2, 2000, None)
    assert snapshot.sinks["lake"].rows == 1005
    assert (snapshot.sinks["db"].epoch, snapshot.sinks["db"].commit_seconds) == (10, 0.012)
    assert snapshot.checkpoint_age_seconds == 2
    assert snapshot.watermark_lag_seconds == 102
    assert snapshot.uptime_seconds == 12
    assert round(snapshot.rows_per_second) == 167


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    clock = ManualClock()
    progress = RunProgress(clock=clock)
    progress.on_event(Recovered(REPORT))
    for epoch in range(100):
        clock.advance(1)
        progress.on_event(committed(epoch, rows_in=50))
    assert 45 <= progress.snapshot().rows_per_second <= 55
    clock.advance(60)
    assert progress.snapshot().rows_per_second == 0


def test_trouble_with_a_sink_is_shown_until_it_commits() -> None:
    progress = RunProgress(["db"])
    progress.on_event(SinkRetry("db", 1, "commit", 2, "locked", 0.2))
    assert progress.snapshot().sinks["db"].trouble == "commit failed 2x: locked"
    progress.on_event(committed(1))
    assert progress.snapshot().sinks["db"].trouble is None


@pytest.mark.parametrize(("error", "state"), [(None, "stopped"), ("boom", "failed")])
def test_the_end_is_a_state(error: str | None, state: str) -> None:
    progress = RunProgress()
    progress.on_event(Stopped(1, error))
    assert progress.snapshot().state == state


# The live view


def drawn(progress: RunProgress, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(render("orders", progress.snapshot()))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_live_view_shows_what_matters() -> None:
    clock = ManualClock()
    progress = RunProgress(["lake", "db"], clock)
    assert "orders  starting Spark" in drawn(progress)
    progress.on_event(StepStarted(9, "recovery.claim"))
    assert "orders  starting Spark, claim " in drawn(progress)
    progress.on_event(Recovered(REPORT))
    clock.advance(10)
    progress.on_event(committed(10))
    progress.on_event(SinkRetry("db", 11, "commit", 2, "locked", 0.2))
    progress.on_event(StepStarted(11, "commit"))
    clock.advance(5)
    view = " ".join(drawn(progress).split())
    for part in (
        "orders running, epoch 11: commit up 15s",
        "epoch 10, last took 132 ms",
        "rows in 1,000, 67 rows/s",
        "checkpoint 14, 5s old, state 1.0 MiB (2.0 KiB new)",
        "steps compute 80 ms prepare 20 ms commit 30 ms",
        "watermark 2023-11-14T22:11:50.000Z, 1m 45s behind now",
        "start recovered from checkpoint 12 (epoch 9), generation 3",
        "SINK EPOCH ROWS OUT LAST PREPARE COMMIT",
        "db 10 4 4 19 ms 12 ms commit failed 2x: locked",
        "lake 10 1,000 1,000 - -",
    ):
        assert part in view


def test_the_live_view_fits_a_narrow_terminal() -> None:
    progress = RunProgress(["lake", "db"], ManualClock())
    progress.on_event(Recovered(REPORT))
    progress.on_event(committed(10))
    assert all(len(line) <= 40 for line in drawn(progress, width=40).splitlines())


def test_a_watermark_in_the_future_is_ahead() -> None:
    progress = RunProgress(clock=ManualClock())
    progress.on_event(committed(1, watermark_ms=1_700_000_060_000))
    assert "1m ahead of now" in drawn(progress)
    progress.on_event(committed(2, watermark_ms=None))
    assert "watermark" in drawn(progress)
    assert "none" in drawn(progress)


def test_a_terminal_sees_recovery_above_the_view_and_a_summary_at_the_end() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None, soft_wrap=True)
    clock = ManualClock()
    with LiveWatcher("orders", RunProgress(["db"], clock), console=console) as watcher:
        watcher.entering("recovering")
        watcher.on_event(Recovered(REPORT))
        watcher.on_event(committed(10))
        watcher.note("pruning failed")
        clock.advance(65)
        watcher.on_event(Stopped(10, None))
    seen = out.getvalue()
    assert "skipped checkpoint 15: corrupt manifest of checkpoint 15" in seen
    assert "warning: pruning failed" in seen
    assert seen.rstrip().endswith("orders: 1 epoch in 1m 5s, 1,000 rows in, out: db 4, lake 1,000; at epoch 10")
    assert "\x1b[?25h" in seen
