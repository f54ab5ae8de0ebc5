"""What a start says it would do: the words and values of a preview, against what the start then does."""

from typing import Any
from uuid import UUID

import pytest

from engine.test_refusals import crashed_before, damaged, everything, going_back
from engine.worlds import World, records
from holdfast.core.contracts import OnForeign
from holdfast.engine.preview import preview
from holdfast.engine.startup import StartOptions

OFFSETS = {"orders": {"partition-0": "4"}, "clicks": None}


@pytest.fixture
def world() -> World:
    world = World(8)
    world.run()
    return world


def previewed(world: World, options: StartOptions | None = None, **process: Any) -> dict[str, Any]:
    options = options or StartOptions()
    before = everything(world)
    process_of_start = world.process(options=options, **process)
    intent = process_of_start.startup().ask(process_of_start.old_ranges)
    assert everything(world) == before
    return preview(intent, options.on_foreign, OFFSETS, ["orders"])


def said(plan: dict[str, Any]) -> dict[str, str]:
    return {sink["name"]: sink["what"] for sink in plan["sinks"]}


def test_a_plain_start_goes_on(world: World) -> None:
    newest = world.newest()
    plan = previewed(world)
    assert (plan["outcome"], plan["chosen_id"], plan["epoch"]) == ("restore", newest.checkpoint_id, 4)
    assert (plan["fence_id"], plan["generation"]) == (newest.checkpoint_id + 1, (newest.generation or 0) + 1)
    assert plan["timeline"] == str(newest.timeline)
    assert (plan["abandons"], plan["skipped"], plan["replays"]) == ([], [], [])
    assert plan["sealed_ms"] == newest.timestamp_ms
    assert said(plan) == dict.fromkeys("ac", "shows epoch 4; has everything") | {"b": "shows epoch 3; has everything"}
    assert plan["sources"] == [
        {"name": "clicks", "asked": False, "offsets": None},
        {"name": "orders", "asked": True, "offsets": {"partition-0": "4"}},
    ]


def test_going_back_says_who_is_rewound_and_the_start_does_that(world: World) -> None:
    options = going_back(world)
    plan = previewed(world, options)
    assert said(plan) == {
        "a": "shows epoch 4; would be rewound to epoch 2",
        "b": "shows epoch 3; would be rewound to epoch 2",
        "c": "shows epoch 4; would be rewound to epoch 2",
    }
    assert [sink["rewind_to"] for sink in plan["sinks"]] == [2, 2, 2]
    report = world.process(options=options).start().report
    same = ("chosen_id", "epoch", "fence_id", "generation", "timeline", "abandons", "replays", "skipped")
    assert {key: plan[key] for key in same} == {key: report[key] for key in same}


def test_a_sealed_epoch_would_be_committed(world: World) -> None:
    world.source.records = records(10)
    crashed_before(world, 5, "c")
    plan = previewed(world)
    assert said(plan)["c"] == "shows epoch 4; would be given what is sealed for it: epoch 5"
    assert {sink["name"]: sink["commits"] for sink in plan["sinks"]}["c"] == [5]


def test_what_is_replayed_is_named_and_sinks_stay_ahead(world: World) -> None:
    world.damage_sidecar(world.newest().sidecar)
    plan = previewed(world)
    assert [record["epoch"] for record in plan["replays"]] == [4]
    assert said(plan)["a"] == "shows epoch 4; stays ahead: of what is replayed it has that already"
    assert plan["skipped"][0]["checkpoint_id"] == world.newest().checkpoint_id


def test_a_lost_range_rewinds(world: World) -> None:
    damaged(world, all_of_it=True)
    assert said(previewed(world))["a"] == "shows epoch 4; would be rewound to epoch 3"


def test_a_first_start(world: World) -> None:
    plan = previewed(World(8))
    assert (plan["outcome"], plan["chosen_id"], plan["epoch"], plan["sealed_ms"]) == ("fresh", None, 0, None)
    assert (plan["fence_id"], plan["generation"], plan["timeline"]) == (1, 1, None)
    assert said(plan) == dict.fromkeys("abc", "knows nothing of us yet; new")
    assert {(sink["epoch"], sink["timeline"]) for sink in plan["sinks"]} == {(None, None)}


@pytest.mark.parametrize(
    ("on_foreign", "becomes"), [(OnForeign.REWIND, "would be removed"), (OnForeign.APPEND, "would stay")]
)
def test_starting_over_says_what_becomes_of_the_other_timeline(
    world: World, on_foreign: OnForeign, becomes: str
) -> None:
    timeline: UUID | None = world.newest().timeline
    plan = previewed(world, StartOptions(fresh=True, on_foreign=on_foreign))
    assert plan["timeline"] is None
    assert plan["abandons"] == [manifest.checkpoint_id for manifest in world.store().manifests()]
    assert said(plan)["a"] == f"shows epoch 4 of timeline {timeline}, which {becomes}; new"
