"""Batches without data close windows, fire timers and drop state: after a restart, as if there had been none.

Undisturbed, Spark runs one only when it finds nothing new: rows are late by the watermark of the batch before. Run
first by a restart, it would make the rows that wait late, and end what they would have kept.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from holdfast.engine.events import EpochCommitted, Event, StepFinished, StepStarted
from holdfast.engine.startup import StartOptions
from holdfast.errors import PipelineError
from holdfast.spark import query
from holdfast.spark.pipeline import Handle, Pipeline
from marks import long
from spark.conftest import flip
from spark.undisturbed import Stage, event

Operator = Callable[[Stage, Pipeline], dict[str, str]]


def windows(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))
    pipeline.view(
        "w",
        """SELECT date_format(window.start, 'HH:mm:ss') AS start, count(*) AS n
           FROM e GROUP BY window(ts, '10 seconds')""",
    )
    pipeline.view("raw", "SELECT k FROM e")  # Has rows in every epoch, which sinks show and a replay must give again.
    return {"w": "w", "raw": "raw"}


def outer_join(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    for name in ("e", "f"):
        pipeline.source(name, stage.source(name), watermark=("ts", "10 seconds"))
    pipeline.view(
        "pairs",
        """SELECT e.k, f.k AS other FROM e LEFT JOIN f
           ON e.k = f.k AND f.ts BETWEEN e.ts AND e.ts + INTERVAL 1 MINUTE""",
    )
    return {"pairs": "pairs"}


def timers(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    """Count the events of each key, and end it one minute after its last one."""
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))

    def visited(key: Any, rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        n = state.get[0] if state.exists else 0
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "what": ["ended"], "n": [n]})
            return
        newest = 0
        for frame in rows:
            n, newest = n + len(frame), max(newest, int(frame["ts"].max().timestamp() * 1000))
        state.update((n,))
        state.setTimeoutTimestamp(max(newest + 60_000, state.getCurrentWatermarkMs() + 1))
        yield pd.DataFrame({"k": [key[0]], "what": ["seen"], "n": [n]})

    def visits(e: DataFrame) -> DataFrame:
        return e.groupBy("k").applyInPandasWithState(
            visited, "k string, what string, n long", "n long", "append", GroupStateTimeout.EventTimeTimeout
        )

    pipeline.view("visits", visits)
    return {"visits": "visits"}


def first_of_each(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))

    def first(e: DataFrame) -> DataFrame:
        return e.dropDuplicatesWithinWatermark(["k"]).select("k", "v")

    pipeline.view("first", first)
    return {"first": "first"}


# In order: without a late row a key comes again just before it would expire. Late: by more than the delay allows.
IN_ORDER = [[event("a", "00:00:00")], [event("b", "00:03:20", 2)], [event("a", "00:03:25", 3)]]
LATE = [[event("a", "00:00:10")], [event("b", "00:05:00")], [event("c", "00:00:15")]]
LATE_TOO = [[event("x", "00:00:10")], [event("y", "00:05:00")], [event("c", "00:00:20")]]


@pytest.fixture
def staged(tmp_path: Path, spark: SparkSession) -> Callable[[Operator], Stage]:
    def make(operator: Operator) -> Stage:
        stage = Stage(tmp_path, spark, lambda pipeline: operator(stage, pipeline))
        stage.write_all("e", IN_ORDER if operator in (timers, first_of_each) else LATE)
        if operator is outer_join:
            stage.write_all("f", LATE_TOO)
        return stage

    return make


def killed(stage: Stage) -> None:
    stage.run((2, EpochCommitted, "", None))
    stage.run()


def killed_before_showing(stage: Stage) -> None:
    stage.run((2, StepFinished, "seal", None))
    stage.run()


def killed_three_times(stage: Stage) -> None:
    stage.run((1, EpochCommitted, "", None))
    stage.run((2, EpochCommitted, "", None))
    stage.run((3, StepStarted, "seal", None))
    stage.run()


def replayed(stage: Stage) -> None:
    """Damage the newest checkpoint after its rows were shown: its epoch is computed again."""
    stage.run((2, EpochCommitted, "", None))
    state = sorted((stage.base / "store" / "checkpoints").glob("checkpoint_*"))[-1] / "state.bin"
    flip(state, state.stat().st_size - 3)
    shutil.rmtree(stage.base / "work")
    stage.run()


def gone_back(stage: Stage) -> None:
    stage.run((2, EpochCommitted, "", None))
    stage.run(from_id=stage.newest.checkpoint_id)


def taken_over(stage: Stage) -> None:
    """Another process takes over while the first stands before an epoch; then neither goes on, but a third."""
    stage.run((2, EpochCommitted, "", None))
    second = stage.pipeline().runner(StartOptions())
    second.prepare()
    second.close()
    stage.run()


def following(stage: Stage, until: int, **start: Any) -> None:
    """Run without end, up to an epoch, and stop cleanly."""
    reached = Reached(until)
    handle = stage.pipeline().start(observers=[stage, reached], **start)
    reached.wait(handle)
    handle.stop()


def stopped(stage: Stage) -> None:
    following(stage, 2)
    stage.run()


def killed_and_following(stage: Stage) -> None:
    stage.run((2, EpochCommitted, "", None))
    following(stage, 3)


class Reached:
    """Hears that an epoch is committed."""

    def __init__(self, epoch: int) -> None:
        self._epoch, self.heard = epoch, threading.Event()

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochCommitted) and event.epoch >= self._epoch:
            self.heard.set()

    def wait(self, handle: Handle) -> None:
        assert self.heard.wait(120), handle.status()


DISTURBANCES = [
    killed,
    replayed,
    killed_and_following,
    stopped,
    *long(killed_before_showing, killed_three_times, gone_back, taken_over),
]


@pytest.mark.parametrize("operator", [windows, outer_join, timers, first_of_each])
def test_rows_that_wait_while_the_pipeline_is_down_find_what_they_would_have_found(
    operator: Operator, staged: Callable[[Operator], Stage]
) -> None:
    stage = staged(operator)
    killed(stage)
    assert stage.rows == stage.plain()


@pytest.mark.parametrize("disturbed", DISTURBANCES)
def test_however_the_pipeline_went_down(
    disturbed: Callable[[Stage], None], staged: Callable[[Operator], Stage]
) -> None:
    stage = staged(windows)
    disturbed(stage)
    assert stage.rows == stage.plain()
    assert stage.rows["w"][0] == ("00:00:10", 2)


@pytest.fixture
def due(staged: Callable[[Operator], Stage]) -> Stage:
    """Return a pipeline that was killed when a window was about to be closed, with nothing more to read."""
    stage = staged(windows)
    (stage.base / "e" / "002.json").rename(stage.base / "aside")
    stage.run((2, EpochCommitted, "", None))
    return stage


def test_what_is_due_comes_also_where_nothing_more_does(due: Stage) -> None:
    """A run without end waits for data when it is started, and windows are due."""
    following(due, 3)
    assert due.rows == due.plain()
    assert due.rows["w"] == [("00:00:10", 1)]


def test_what_is_due_comes_before_a_late_trigger(due: Stage) -> None:
    """Between two triggers Spark sleeps."""
    due.options["trigger"] = "1 hour"
    following(due, 3)
    assert due.rows == due.plain()


def test_what_is_due_is_held_while_the_pipeline_is_paused(due: Stage) -> None:
    reached = Reached(3)
    handle = due.pipeline().start(paused=True, observers=[reached])
    assert handle.newest.epoch == 2
    handle.resume()
    reached.wait(handle)
    handle.stop()
    assert due.rows == due.plain()


def test_rows_that_come_while_the_batch_is_being_forced_keep_their_batch(
    due: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark found nothing; before it is ended it finds a file, and has written down that a batch reads it."""
    last, reached = due.base / "e" / "002.json", Reached(3)
    runner = due.pipeline().runner(StartOptions(), [reached])
    runner.prepare()
    real = query._begin_no_more

    def too_late(*args: Any) -> None:
        if not last.exists():
            (due.base / "aside").rename(last)
            assert runner._query._began.wait(60)
        real(*args)

    monkeypatch.setattr(query, "_begin_no_more", too_late)
    runner.start_query(once=False, interval=None)
    assert reached.heard.wait(120)
    runner.stop(runner.close)
    assert due.rows == due.plain()
    assert due.rows["w"] == [("00:00:10", 2)]


def test_no_batch_is_forced_that_spark_would_not_run(tmp_path: Path, spark: SparkSession) -> None:
    """State without timers: the watermark moves, and there is nothing to do about it."""

    def counts(key: Any, rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        n = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in rows)
        state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def counted(e: DataFrame) -> DataFrame:
        return e.groupBy("k").applyInPandasWithState(
            counts, "k string, n long", "n long", "append", GroupStateTimeout.NoTimeout
        )

    def define(pipeline: Pipeline) -> dict[str, str]:
        pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))
        pipeline.view("counted", counted)
        return {"counted": "counted"}

    stage = Stage(tmp_path, spark, define)
    stage.write_all("e", LATE)
    stage.run((3, EpochCommitted, "", None))
    stage.run()
    assert stage.rows == stage.plain()
    assert stage.newest.epoch == 3


def test_a_failure_that_comes_before_the_query_is_started_is_not_lost(due: Stage) -> None:
    """Whoever finds us fenced off may do so between two queries: then the second would run for ever."""
    runner = due.pipeline().runner(StartOptions())
    runner.prepare()
    runner._query.fail(PipelineError("replaced meanwhile"))
    runner.start_query(once=False, interval=None)
    with pytest.raises(PipelineError, match="replaced meanwhile"):
        runner.wait()
    runner.close()
