"""`Pipeline.plan` says what `start` then does, and leaves every file as it was, whatever it answers."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast import open_store, sinks, sources
from holdfast.engine.sync.settings import SyncSettings
from holdfast.errors import ApprovalNeeded, CheckpointNotFound, ForeignTimeline, SinkError
from holdfast.spark.pipeline import Pipeline
from spark.conftest import Lab
from spark.files import everything_in
from spark.orders import SCHEMA

Undisturbed = Callable[[str, int], dict[str, Any]]
Labs = Callable[[str], Lab]
SAME = ("chosen_id", "epoch", "fence_id", "generation", "abandons", "skipped", "replays")


def planned(here: Lab, pipeline: Pipeline | None = None, **said: Any) -> Any:
    """Return the plan; nothing may have changed meanwhile."""
    before = everything_in(here.base)
    try:
        return (pipeline or here.pipeline()).plan(**said)
    finally:
        assert everything_in(here.base) == before


def test_a_first_start_is_planned_without_making_anything(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 2)
    plan = planned(here)
    assert (plan["pipeline"], plan["store"], plan["store_exists"]) == ("orders", str(here.base / "store"), False)
    assert (plan["outcome"], plan["chosen_id"], plan["timeline"]) == ("fresh", None, None)
    assert {sink["what"] for sink in plan["sinks"]} == {"knows nothing of us yet; new"}
    assert plan["sources"] == [{"name": "orders", "asked": False, "offsets": None}]
    with pytest.raises(CheckpointNotFound):
        planned(here, from_id=3)
    assert here.run()
    assert here.contents() == undisturbed("windows", 2)


def test_going_back_is_planned_as_it_is_then_done(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 4)
    assert here.run()
    plan = planned(here, from_id=3)
    assert {sink["name"]: sink["what"] for sink in plan["sinks"]} == {
        "lake": "shows epoch 5; would be rewound to epoch 2",
        "db": "shows epoch 5; would be rewound to epoch 2",
        "raw": "shows epoch 4; would be rewound to epoch 2",
    }
    assert plan["store_exists"]
    assert here.run(from_id=3)
    assert {key: plan[key] for key in SAME} == {key: here.last_report[key] for key in SAME}
    assert plan["timeline"] == here.last_report["timeline"]
    assert here.contents() == undisturbed("windows", 4)


def test_reference_tables_are_read_elsewhere_and_no_working_directory_is_made(lab: Labs) -> None:
    here = lab("referenced")
    here.add(0, 2)
    (here.base / "labels.csv").write_text("customer,label\nc1,one\n")
    assert planned(here)["outcome"] == "fresh"
    assert here.run()
    shutil.rmtree(here.base / "work")
    assert planned(here)["outcome"] == "restore"


def test_a_plan_beside_a_run_does_not_disturb_it(lab: Labs, undisturbed: Undisturbed) -> None:
    here = lab("windows")
    here.add(0, 2)
    handle = here.pipeline().start(paused=True)
    plan = here.pipeline().plan()
    assert plan["generation"] == handle.newest.generation + 1
    handle.resume()
    while handle.status()["epoch"] < 2:
        handle._runner._query.streaming.processAllAvailable()
    handle.stop()
    assert here.contents() == undisturbed("windows", 2)


def test_what_would_be_refused_is_refused_and_nothing_is_changed(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    changed = here.pipeline()
    changed._definition.views.clear()
    changed.view("revenue", "SELECT window(ts, '1 minute') w, customer, sum(amount + 0) t FROM orders GROUP BY ALL")
    with pytest.raises(ApprovalNeeded, match="approve it with: holdfast approve"):
        planned(here, changed)
    with pytest.raises(ForeignTimeline, match="written by another timeline"):
        planned(here, fresh=True)
    plan = planned(here, fresh=True, sinks="rewind")
    assert (plan["outcome"], plan["abandons"]) == ("fresh", open_store(here.base / "store").list_ids())
    assert all("which would be removed" in sink["what"] for sink in plan["sinks"])


def test_a_sink_that_cannot_be_rewound_refuses_the_plan(tmp_path: Path, spark: SparkSession) -> None:
    here = Lab(tmp_path, "windows", spark)
    here.add(0, 3)

    def pipeline() -> Pipeline:
        made = Pipeline("orders", store=tmp_path / "store", spark=spark, guarantee="at-least-once")
        made.source("orders", sources.files(str(tmp_path / "in"), schema=SCHEMA, max_files=1))
        made.sink("db", "orders", sinks.sqlite(str(tmp_path / "app.db"), table="orders", epoch_column=True))
        made.sink("mail", "orders", sinks.foreach_batch(lambda rows, key: None))
        return made

    pipeline().run(once=True)
    with pytest.raises(SinkError, match=r"sink 'mail' shows epoch 3, .* cannot be rewound"):
        planned(here, pipeline(), from_id=3)


def test_the_bucket_of_sync_is_not_asked_and_the_plan_says_so(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 1)
    plan = planned(here, here.pipeline(sync=SyncSettings("s3://nowhere/orders")))
    assert plan["notes"][0].startswith("the bucket of its sync was not asked")
