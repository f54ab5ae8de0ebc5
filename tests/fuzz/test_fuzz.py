"""Goal: a pipeline shows what plain Spark shows, whatever happens. Method: draw ten, and disturb them.

`make fuzz` draws many more. What it finds becomes a named pipeline here.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fuzz.described import Case, Life, Sink, Source, View, as_text, from_text
from fuzz.driven import Stage
from fuzz.fuzz_run import features
from fuzz.grammar import draw
from fuzz.judge import Refusal, Values, bad_refusal, difference, disagreement, newest_by_key, normal
from fuzz.kept_pipelines import KEPT
from fuzz.shrinking import shrunk
from fuzz.verdicts import judged
from holdfast.spark.session import local_session

SEEDS = (100, 179, 378, 432, 487, 1108, 1115, 1275, 1755, 1757)
"""Chosen so that nearly every operator, sink and disturbance is among them."""


@pytest.fixture(scope="module")
def session() -> SparkSession:
    return local_session("tests", master="local[2]")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_pipeline_shows_what_plain_spark_shows(seed: int, session: SparkSession) -> None:
    case = draw(seed)
    verdict = judged(case, session)
    assert not verdict.broken, f"{verdict.kind}: {verdict.said}\n{as_text(case)}"


@pytest.mark.parametrize("what", KEPT)
def test_what_once_differed_is_equal(what: str, session: SparkSession) -> None:
    verdict = judged(KEPT[what], session)
    assert not verdict.broken, f"{verdict.kind}: {verdict.said}"


# The generator itself


def test_one_seed_is_one_pipeline() -> None:
    """Whatever was drawn before in the process, and in another process, whose sets have another order."""
    first = [as_text(draw(seed)) for seed in range(50)]
    assert [as_text(draw(seed)) for seed in reversed(range(50))] == first[::-1]
    assert len(set(first)) == len(first)
    program = "from fuzz.grammar import draw\nfrom fuzz.described import as_text\n"
    program += "print([as_text(draw(seed)) for seed in range(50)])"
    path = f"{Path(__file__).parent.parent}:{os.environ.get('PYTHONPATH', '')}"
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_what_is_printed_can_be_read_again() -> None:
    for seed in range(200):
        case = draw(seed)
        assert repr(from_text(as_text(case))) == repr(case)


def test_every_operator_sink_setting_and_disturbance_is_drawn() -> None:
    found: Counter[str] = Counter()
    for seed in range(400):
        case = draw(seed)
        found.update(features(case))
        for life in case.lives:
            found.update([f"end: {life.end}", *(f"start: {name}" for name, _ in life.start)])
            found.update(f"then: {name}" for name, _ in life.then)
    for kind in ("files", "delta", "delta by key", "sqlite", "sqlite by key", "recording"):
        assert found[f"sink kind: {kind}"] >= 4, kind
    for operator in (
        "filter", "project", "explode", "union", "union with itself", "static join INNER", "window", "session",
        "total", "distinct", "dedup", "dedup within", "join INNER", "join with itself LEFT", "join FULL",
        "join LEFT SEMI", "udf pandas", "state in pandas", "state with timers", "free", "rename", "nested",
    ):  # fmt: skip
        assert found[f"operator: {operator}"] >= 1, operator
    for end in ("crash", "stop", "overtaken", "full disk", "sigkill", "sigterm", "sigstop"):
        assert found[f"end: {end}"] >= 3, end
    for what in ("start: clock", "start: order", "start: from", "start: prune", "start: max_files"):
        assert found[what] >= 3, what
    for what in ("then: lose work", "then: flip", "then: flip work", "then: prune"):
        assert found[what] >= 3, what


SMALL = Case(
    sources=(Source("e", ((("a", 1, 1.0, 0.0), ("b", 2, 1.0, 1.0)), (("a", 3, 1.0, 20.0),))),),
    views=(View("odd", "filter", ("e",), ("v % 2 = 1",)),),
    sinks=(Sink("s", "recording", "odd"), Sink("other", "recording", "e")),
    lives=(Life("crash"),),
)


Spoil = Callable[[list[Values]], list[Values]]
SPOILED: dict[str, Spoil] = {
    "lost": lambda rows: rows[1:],
    "repeated": lambda rows: [*rows, rows[0]],
    "unexpected": lambda rows: [(*rows[0][:1], 99, *rows[0][2:]), *rows[1:]],
}


@pytest.mark.parametrize("what", SPOILED)
def test_rows_that_are_lost_doubled_or_changed_are_found(
    what: str, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Stage.shown

    def spoiled(stage: Stage, sink: Sink) -> list[Values]:
        rows = shown(stage, sink)
        return SPOILED[what](rows) if sink.name == "s" else rows

    monkeypatch.setattr(Stage, "shown", spoiled)
    verdict = judged(SMALL, session)
    assert verdict.broken
    assert what in verdict.said


def test_what_spark_refuses_is_refused_by_both(session: SparkSession) -> None:
    totals = View("t", "total", ("e",), ("count(*)",))
    refused = replace(SMALL, views=(totals,), sinks=(Sink("s", "files", "t"),))
    assert judged(refused, session).outcome == "refused by both"
    assert (
        judged(replace(refused, mode="update", sinks=(Sink("s", "delta by key", "t"),)), session).outcome == "equal"
    )


def test_the_judge_compares_by_value() -> None:
    rows = [normal(("a", 1, float("nan"))), normal(("a", 1, float("nan"))), normal(("b", 2, -0.0))]
    assert difference(rows, rows[::-1]) is None
    assert difference(rows, [normal(("b", 2, 0.0)), *rows[:2]]) is None
    assert "1 lost" in (difference(rows, rows[1:]) or "")
    assert "1 repeated" in (difference(rows, [*rows, rows[2]]) or "")
    assert "1 unexpected" in (difference(rows, [*rows, ("c", 2, 0.0)]) or "")
    assert newest_by_key([("a", 1), ("b", 2), ("a", 3)], [0]) == [("a", 3), ("b", 2)]
    assert disagreement({"s": rows, "t": rows}) is None
    assert "s and t" in (disagreement({"s": rows, "t": rows[1:]}) or "")


def test_a_refusal_is_one_line_of_ours_and_changes_nothing() -> None:
    assert bad_refusal(Refusal("PipelineError", "no", ours=True)) is None
    assert bad_refusal(Refusal("PipelineError", "no\nand more", ours=True)) is not None
    assert bad_refusal(Refusal("PipelineError", "no", ours=True, changed={"store/manifest.json"})) is not None
    assert bad_refusal(Refusal("KeyError", "no", ours=False)) is not None


def test_a_case_that_fails_is_made_small() -> None:
    """As if every pipeline failed of which SQLite shows windows."""

    def fails(case: Case) -> bool:
        windows = {view.name for view in case.views if view.operator == "window"}
        return any(sink.kind == "sqlite" and sink.takes in windows for sink in case.sinks)

    seed = next(seed for seed in range(400) if fails(draw(seed)) and len(draw(seed).sinks) > 2)
    small = shrunk(draw(seed), fails, most_runs=2000)
    assert fails(small)
    assert (len(small.sinks), len(small.lives), len(small.settings)) == (1, 0, 0)
    assert small.operators() == ["window"]
    assert not any(source.files for source in small.sources)
