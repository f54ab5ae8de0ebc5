"""plan, and recover --file: what is passed on, what is printed, and how a refusal ends; needs no Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import (
    ApprovalNeeded,
    ForeignTimeline,
    HoldfastError,
    NoValidCheckpoint,
    PipelineError,
    SinkError,
    SourceHistoryLost,
    SourceUnavailable,
)
from holdfast.interfaces.cli import pipelines
from holdfast.interfaces.cli.watching import Watcher
from holdfast.interfaces.execution import RunOptions, plan_pipeline, running
from holdfast.interfaces.exit_codes import exit_code_of
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.run_reports import StartPlan
from interfaces.chains import Chain
from interfaces.conftest import Run
from interfaces.test_pipeline_file import BASE

TIMELINE = "01890a5d-ac96-774b-bcce-b302099a8057"
PLAN: dict[str, Any] = {
    "pipeline": "orders",
    "store": "/srv/orders",
    "store_exists": True,
    "outcome": "restore",
    "chosen_id": 3,
    "epoch": 2,
    "sealed_ms": 1767225720000,
    "examined": 3,
    "skipped": [{"checkpoint_id": 4, "reason": "abandoned: going back to 3"}],
    "abandons": [4, 5],
    "fence_id": 6,
    "generation": 2,
    "timeline": TIMELINE,
    "sinks": [
        {
            "name": "db",
            "epoch": 4,
            "timeline": TIMELINE,
            "commits": [],
            "rewind_to": 2,
            "what": "shows epoch 4; would be rewound to epoch 2",
        }
    ],
    "replays": [{"epoch": 3, "found_in": "checkpoint 4"}],
    "sources": [
        {"name": "clicks", "asked": False, "offsets": {"file": "part-4"}},
        {"name": "new", "asked": True, "offsets": None},
        {"name": "orders", "asked": True, "offsets": {f"p-{number}": "20" for number in range(6)}},
    ],
    "notes": ["the bucket was not asked"],
}
FIRST: dict[str, Any] = {
    **PLAN,
    **{"store_exists": False, "outcome": "fresh", "chosen_id": None, "epoch": 0, "sealed_ms": None, "timeline": None},
    **{"skipped": [], "abandons": [], "replays": [], "sources": [], "notes": [], "fence_id": 1, "generation": 1},
    "sinks": [],
}
Answer = Callable[[dict[str, Any] | Exception], list[RunOptions]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(BASE.replace("./checkpoints", "./store"))
    return path


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return a function that says what every plan answers; it returns what was asked."""

    def choose(answer: dict[str, Any] | Exception) -> list[RunOptions]:
        seen: list[RunOptions] = []

        def ask(file: PipelineFile, options: RunOptions, watcher: Watcher) -> StartPlan:
            seen.append(options)
            if isinstance(answer, Exception):
                raise answer
            return StartPlan.of(answer)

        monkeypatch.setattr(pipelines, "plan_pipeline", ask)
        return seen

    return choose


def test_a_plan_is_shown_choice_first(file: Path, run: Run, answers: Answer) -> None:
    answers(PLAN)
    ran = run("plan", file)
    assert (ran.code, ran.err) == (0, "")
    assert [line.rstrip() for line in ran.out.splitlines()] == [
        "a start would go on from checkpoint 3: epoch 2, sealed 2026-01-01T00:02:00.000Z",
        f"it would seal fence 6 with generation 2 on timeline {TIMELINE}",
        "ids it would abandon: 4-5",
        "skipped 4: abandoned: going back to 3",
        "  sink    db       shows epoch 4; would be rewound to epoch 2",
        "  replay  epoch 3  computed again from the range in checkpoint 4",
        "  source  clicks   goes on from file part-4; only reading it tells more",
        "  source  new      can be read from its beginning",
        "  source  orders   can be read from p-0 20, p-1 20, p-2 20, p-3 20 and 2 more",
        "note: the bucket was not asked",
        "every sink and source that can be asked was asked; nothing was changed",
    ]


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({}, "a start would begin afresh and make the store, /srv/orders, which is not there yet"),
        ({"store_exists": True}, "a start would begin afresh in /srv/orders: nothing is there to restore"),
        (
            {"store_exists": True, "abandons": [1, 2]},
            "a start would begin afresh in /srv/orders: of what is there nothing would be restored",
        ),
    ],
)
def test_a_fresh_start_says_what_becomes_of_the_store(
    file: Path, run: Run, answers: Answer, changes: dict[str, Any], first: str
) -> None:
    answers({**FIRST, **changes})
    lines = run("plan", file).out.splitlines()
    assert lines[0] == first
    assert lines[1] == "it would seal fence 1 with generation 1 on a new timeline"


def test_a_plan_is_one_document(file: Path, run: Run, answers: Answer) -> None:
    answers(PLAN)
    document = run("plan", file, "--json").json
    assert document == {
        **{key: PLAN[key] for key in PLAN if key != "sealed_ms"},
        "sealed_at": "2026-01-01T00:02:00.000Z",
    }


def test_a_plan_is_told_what_a_run_would_be_told(file: Path, run: Run, answers: Answer, chain: Chain) -> None:
    seen = answers(PLAN)
    assert run("plan", file, "--from", "latest", "--sinks", "adopt", "--on-change", "allow").code == 0
    assert run("plan", file, "--fresh", "--sinks", "rewind").code == 0
    assert seen == [
        RunOptions(from_id=5, sinks="adopt", on_change="allow"),
        RunOptions(fresh=True, sinks="rewind"),
    ]
    assert run("plan", file, "--fresh", "--from", "3").code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NoValidCheckpoint("none can be trusted"), 3),
        (ApprovalNeeded("changed", fingerprint=None, changes=[]), 6),
        (SinkError("cannot be rewound"), 7),
        (ForeignTimeline("another timeline"), 7),
        (SourceHistoryLost("records are gone"), 8),
        (SourceUnavailable("nobody answers"), 8),
        (PipelineError("view 'x' failed"), 8),
    ],
)
def test_a_refusal_ends_as_the_run_would(
    file: Path, run: Run, answers: Answer, error: HoldfastError, code: int
) -> None:
    answers(error)
    ran = run("plan", file)
    assert (ran.code, ran.out, ran.err) == (code, "", f"holdfast: {error}\n")
    assert exit_code_of(error) == code
    ran = run("plan", file, "--json")
    assert (ran.code, ran.json) == (code, {"error": str(error), "exit_code": code})


def test_a_plan_goes_to_the_pipeline_as_the_run_would(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Planned:
        def plan(self, **said: Any) -> dict[str, Any]:
            self.said = said
            return PLAN

    pipeline = Planned()
    monkeypatch.setattr(running, "start_session", lambda file, debug: object())
    monkeypatch.setattr(running, "build_pipeline", lambda file, spark, on_change: pipeline)
    plan = plan_pipeline(read_pipeline_file(str(file)), RunOptions(from_id=3, sinks="adopt"), Watcher())
    assert plan == StartPlan.of(PLAN)
    assert len(pipeline.said.pop("observers")) == 2
    assert pipeline.said == {"fresh": False, "from_id": 3, "sinks": "adopt"}


# recover --file


def test_recover_asks_the_pipeline_of_a_file(file: Path, run: Run, answers: Answer, chain: Chain, path: Path) -> None:
    seen = answers(PLAN)
    assert run("recover", path, "--dry-run", "--file", file).out == run("plan", file).out
    assert run("recover", path, "--dry-run", "--file", file, "--json").json == run("plan", file, "--json").json
    assert seen == [RunOptions()] * 4
    answers(SinkError("cannot be rewound"))
    assert run("recover", path, "--dry-run", "--file", file).code == 7


def test_recover_refuses_the_file_of_another_store(
    file: Path, run: Run, answers: Answer, chain: Chain, path: Path, tmp_path: Path
) -> None:
    seen = answers(PLAN)
    (tmp_path / "link").symlink_to(path)
    assert run("recover", tmp_path / "link", "--dry-run", "--file", file).code == 0
    path.rename(tmp_path / "moved")
    (tmp_path / "link").unlink()
    (tmp_path / "store" / "checkpoints").mkdir(parents=True)
    ran = run("recover", tmp_path / "moved", "--dry-run", "--file", file)
    assert (ran.code, ran.err) == (2, f"holdfast: {file} is a pipeline on {path}, not on {tmp_path}/moved\n")
    assert len(seen) == 1
