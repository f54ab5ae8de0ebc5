"""Watermarks are Spark's: what we seal is what it goes on with, and a restart is not visible in what sinks show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.core.sources import Lag, Offsets
from holdfast.engine.events import EpochCommitted, Event, StepStarted
from holdfast.engine.startup import StartOptions
from holdfast.errors import PipelineError
from holdfast.spark.event_time import EventTime, operator_names
from holdfast.spark.forecast import Reads
from holdfast.spark.lines import OffsetLines, earlier
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.plan_facts import WatermarkOperator
from marks import long
from spark.conftest import flip
from spark.undisturbed import Define, Stage, event

Staged = Callable[..., Stage]


@pytest.fixture
def staged(tmp_path: Path, spark: SparkSession) -> Staged:
    return lambda define, **options: Stage(tmp_path, spark, define, **options)


def windowed(name: str, rows: str, width: str = "10 seconds") -> str:
    return f"""SELECT date_format(window.start, 'HH:mm:ss') AS start, count(*) AS n, '{name}' AS of
               FROM {rows} GROUP BY window(ts, '{width}')"""


# Branches of one watermarked source. Each file's newest row is of `b`: a filter on `a` sees less of event time.

TWO_KINDS = [[event("a", f"00:{n:02d}:10"), event("b", f"00:{n:02d}:50", 2)] for n in range(5)]


def filtered_and_raw(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))
    pipeline.view("w", windowed("a", "e WHERE k = 'a'"))
    pipeline.view("raw", "SELECT k, v FROM e")
    return {"windows": "w", "rows": "raw"}


def two_windows(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))
    pipeline.view("a", windowed("a", "e WHERE k = 'a'"))
    pipeline.view("b", windowed("b", "e WHERE k = 'b'"))
    return {"a": "a", "b": "b"}


def self_join(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))
    pipeline.view("a", "SELECT ts, v FROM e WHERE k = 'a'")
    pipeline.view("b", "SELECT ts, v FROM e WHERE k = 'b'")
    pipeline.view(
        "pairs",
        """SELECT date_format(a.ts, 'HH:mm:ss') AS at, b.v FROM a LEFT JOIN b
           ON a.v = b.v - 1 AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 MINUTE""",
    )
    return {"pairs": "pairs"}


def by_function(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    """Say `withWatermark` in a view, after a union."""
    for name in ("e", "f"):
        pipeline.source(name, stage.source(name))

    def late(e: DataFrame, f: DataFrame) -> DataFrame:
        return e.union(f).withWatermark("ts", "10 seconds")

    pipeline.view("both", late)
    pipeline.view("w", windowed("a", "both WHERE k = 'a'"))
    pipeline.view("x", windowed("all", "both"))
    return {"w": "w", "x": "x"}


Branching = Callable[[Stage, Pipeline], dict[str, str]]


def on(stage_of: dict[str, Stage], branching: Branching) -> Define:
    return lambda pipeline: branching(stage_of["it"], pipeline)


@pytest.fixture
def branching_stage(staged: Staged) -> Callable[..., Stage]:
    def make(branching: Branching, **options: Any) -> Stage:
        found: dict[str, Stage] = {}
        found["it"] = staged(on(found, branching), **options)
        return found["it"]

    return make


@pytest.mark.parametrize("branching", [filtered_and_raw, two_windows, self_join, by_function])
def test_branches_that_see_different_rows_of_one_watermarked_source(
    branching: Branching, branching_stage: Callable[..., Stage]
) -> None:
    """Spark takes the newest event time of all branches; ours went by each branch and took the oldest."""
    stage = branching_stage(branching)
    stage.write_all("e", TWO_KINDS)
    stage.run()
    assert stage.rows == stage.plain()
    assert all(stage.rows.values())


# Stateless queries with an exchange are planned adaptively: the plan that ran is inside a leaf.


def repartitioned(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))
    pipeline.view("spread", "SELECT /*+ REPARTITION(3) */ k, v FROM e")
    return {"spread": "spread"}


def with_static(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    pipeline.source("e", stage.source("e"), watermark=("ts", "10 seconds"))

    def labelled(e: DataFrame) -> DataFrame:
        labels = e.sparkSession.createDataFrame(
            [("a", "one"), ("b", "two"), ("c", "three")], "k string, label string"
        )
        return e.join(labels, "k").select("k", "v", "label")

    pipeline.view("labelled", labelled)
    return {"labelled": "labelled"}


@pytest.mark.parametrize("branching", [repartitioned, with_static])
def test_a_query_that_is_planned_adaptively_has_a_watermark_and_rows(
    branching: Branching, branching_stage: Callable[..., Stage]
) -> None:
    stage = branching_stage(branching)
    stage.write_all("e", TWO_KINDS)
    stage.run()
    assert stage.rows == stage.plain()
    assert [epoch.rows_in for epoch in stage.sealed.values()] == [2] * 5
    newest_event_ms = 1_704_067_490_000
    assert stage.newest.watermark == newest_event_ms - 10_000
    assert stage.newest.source_watermarks == {"e": newest_event_ms - 10_000}


# A source that is used more than once, by one stream of Spark's or by two, and one that is not used at all.


def joined_and_read(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    """Four lines of the offset log and three streams, not in the order in which the sources are defined."""
    for name in ("unused", "e", "f"):
        pipeline.source(name, stage.source(name), watermark=("ts", "10 seconds"))
    pipeline.view("pairs", "SELECT a.k, b.v FROM f a JOIN f b ON a.v = b.v AND a.ts = b.ts")
    pipeline.view("e_twice", "SELECT k, v FROM e WHERE k = 'a' UNION ALL SELECT k, v + 10 FROM e")
    return {"pairs": "pairs", "twice": "e_twice"}


def test_a_source_that_is_joined_with_itself_beside_others(branching_stage: Callable[..., Stage]) -> None:
    """Undisturbed, after a crash, and when the newest epoch is read again by its recorded range."""
    stage = branching_stage(joined_and_read)
    stage.write_all("e", TWO_KINDS)
    stage.write_all("f", TWO_KINDS[:3])
    stage.run((2, EpochCommitted, "", None))
    assert {name: at.offsets for name, at in stage.newest.source_offsets.items()} == {
        "e": {"log_offset": "1"},
        "f": {"log_offset": "1"},
    }
    assert stage.newest.processed_records == 8
    state = sorted((stage.base / "store" / "checkpoints").glob("checkpoint_*"))[-1] / "state.bin"
    flip(state, state.stat().st_size - 3)
    stage.run()
    assert stage.rows == stage.plain()
    assert all(stage.rows.values())
    assert {name: at.offsets for name, at in stage.newest.source_offsets.items()} == {
        "e": {"log_offset": "4"},
        "f": {"log_offset": "2"},
    }


def test_how_much_is_read_is_told_for_each_source(branching_stage: Callable[..., Stage]) -> None:
    stage = branching_stage(joined_and_read)
    stage.write_all("e", TWO_KINDS[:1])
    stage.write_all("f", TWO_KINDS[:1])
    told: list[Reads] = []

    class Asks:
        def on_event(self, event: Event) -> None:
            if isinstance(event, StepStarted) and event.step == "capture":
                told.append(runner._batches.reads(event.epoch - 1))

    runner = stage.pipeline().runner(StartOptions(), [Asks()])
    runner.prepare()
    runner.start_query(once=True, interval=None)
    runner.wait()
    runner.close()
    assert told[0] == {"f": Lag(2, "files"), "e": Lag(1, "files")}


def test_lines_that_are_not_those_of_the_streams_stop_the_run(
    branching_stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed under other names, a restart would give a stream the position of another."""
    stage = branching_stage(self_join)
    stage.write_all("e", TWO_KINDS)
    monkeypatch.setattr(OffsetLines, "of", lambda frame, inputs: OffsetLines(inputs, ("0", "0")))
    with pytest.raises(PipelineError, match="Spark's streams are"):
        stage.run()
    assert stage.newest.epoch == 0


class Numbered:
    """Stands for the control of a source whose positions only it can compare."""

    def lag(self, offsets: Offsets, head: Offsets) -> Lag:
        return Lag(max(0, int(head["lsn"], 16) - int(offsets["lsn"], 16)), "bytes")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"log_offset": "12"}, {"log_offset": "9"}, {"log_offset": "9"}),
        ({"t-0": "5", "t-1": "7"}, {"t-0": "6", "t-1": "2"}, {"t-0": "5", "t-1": "2"}),
        ({"lsn": "0A"}, {"lsn": "2F"}, {"lsn": "0A"}),
        ({"lsn": "2F"}, {"lsn": "0A"}, {"lsn": "0A"}),
    ],
)
def test_of_two_streams_of_a_source_the_earlier_position_counts(
    one: dict[str, str], other: dict[str, str], expected: dict[str, str]
) -> None:
    """Up to there an upstream is told to let go."""
    assert earlier(Numbered(), one, other) == expected  # type: ignore[arg-type]


def test_a_source_of_which_a_stream_has_read_nothing_has_no_position_yet() -> None:
    """Told the position of the other stream, an upstream would let go of what this one still needs."""
    lines = OffsetLines(("e", "f", "e", "e"), ("0", "1", "2", "0"))
    assert lines.by_source(("5", "7", "-", "5")) == {"f": ["7"]}
    assert lines.by_source(("5", "7", "4", "5")) == {"e": ["5", "4"], "f": ["7"]}


# Approved changes of a watermark.


def windows_of(delay: str | None, pipeline: Pipeline, stage: Stage) -> dict[str, str]:
    watermark = None if delay is None else ("ts", delay)
    pipeline.source("e", stage.source("e"), watermark=watermark)
    pipeline.view("raw", "SELECT k, v FROM e")
    return {"rows": "raw"}


def test_a_source_may_lose_its_watermark(tmp_path: Path, spark: SparkSession) -> None:
    """Spark goes on with the watermark it had, though nothing moves it any more; and so must we."""
    delays: list[str | None] = ["10 seconds", None, None, "20 seconds", "20 seconds"]

    def define(pipeline: Pipeline) -> dict[str, str]:
        return windows_of(delays[0], pipeline, stage)

    stage = Stage(tmp_path, spark, define, on_change="allow")
    newest: list[int | None] = []
    for rows in TWO_KINDS:
        stage.write("e", *rows)
        stage.run()
        newest.append(stage.newest.watermark)
        delays.pop(0)
    assert stage.rows["rows"] == sorted((row["k"], row["v"]) for rows in TWO_KINDS for row in rows)
    assert [None if at is None else at - newest_at(n) for n, at in enumerate(newest)] == [
        -10_000,
        None,
        None,
        -20_000,
        -20_000,
    ]


def newest_at(file: int) -> int:
    """Return the newest event time of a file of `TWO_KINDS`."""
    return 1_704_067_250_000 + file * 60_000


# Two watermarked sources of which one is ahead and idle: the watermark depends on how far each had come.

SLOW = [[event("x", f"00:{n:02d}:30")] for n in range(7)]
AHEAD = [[event("y", "01:00:00")]]


def two_sources(stage: Stage, pipeline: Pipeline) -> dict[str, str]:
    for name in ("e", "f"):
        pipeline.source(name, stage.source(name), watermark=("ts", "10 seconds"))
    pipeline.view("w", windowed("both", "(TABLE e UNION ALL TABLE f)", "1 minute"))
    return {"w": "w"}


@pytest.mark.parametrize("policy", ["min", *long("max")])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_restart_remembers_how_far_each_source_had_come(
    policy: str, damaged: bool, branching_stage: Callable[..., Stage], spark: SparkSession
) -> None:
    """Spark forgets it: the windows would stay open until the source that is ahead brings a row."""
    stage = branching_stage(two_sources)
    stage.write_all("e", SLOW)
    stage.write_all("f", AHEAD)
    spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", policy)
    try:
        stage.run((3, EpochCommitted, "", None))
        if damaged:
            state = sorted((stage.base / "store" / "checkpoints").glob("checkpoint_*"))[-1] / "state.bin"
            flip(state, state.stat().st_size - 3)
        stage.run((5, EpochCommitted, "", None))
        stage.run()
        assert stage.rows == stage.plain()
        assert len(stage.rows["w"]) == 6
    finally:
        spark.conf.unset("spark.sql.streaming.multipleWatermarkPolicy")


def test_what_was_sealed_before_event_time_was_recorded_is_gone_on_from() -> None:
    """Then a batch is due if the watermark moved, and nothing is known of single sources."""
    offsets = b'v1\n{"batchWatermarkMs":5}\n{"logOffset":1}'
    moved = EventTime.sealed({"offsets/3": offsets, "commits/3": b'v1\n{"nextBatchWatermarkMs":7}'}, 3)
    assert moved == EventTime(7, {}, another_batch=True)
    assert not EventTime.sealed(
        {"offsets/3": offsets, "commits/3": b'v1\n{"nextBatchWatermarkMs":5}'}, 3
    ).another_batch


def test_two_watermarks_of_one_source_are_told_apart() -> None:
    late = [WatermarkOperator(at, ("0",), 1000, "ts") for at in (5, 6)]
    names = operator_names([*late, WatermarkOperator(7, ("1", "0"), 1000, "ts")], {"0": "e", "1": "f"})
    assert names == ["e 1000 ts", "e 1000 ts#1", "e+f 1000 ts"]
