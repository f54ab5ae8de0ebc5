"""A changed query whose state does not fit is refused before the fence; one that stayed as it was is not tried."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast import open_store, sinks
from holdfast.core.sources import SourceSpec
from holdfast.engine.resolution import approve
from holdfast.engine.work_places import LOCK, HeldFolder
from holdfast.errors import ApprovalNeeded, PipelineError
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.trial import may_not_fit
from marks import long
from spark.conftest import Lab
from spark.files import everything_in
from spark.pipelines import PIPELINES

# Spark's Python workers cannot import this module: what they run is sent to them whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Undisturbed = Callable[[str, int], dict[str, Any]]
Labs = Callable[[str], Lab]

ANOTHER_VALUE = """SELECT window(ts, '1 minute') w, customer, sum(amount) + 0 * max(amount) total
FROM orders GROUP BY ALL"""
ANOTHER_KEY = """SELECT w, customer, total FROM (
SELECT window(ts, '1 minute') w, customer, id % 2 part, sum(amount) total FROM orders GROUP BY ALL)"""
ANOTHER_KEY_TYPE = """SELECT w, decode(name, 'UTF-8') customer, total FROM (
SELECT window(ts, '1 minute') w, encode(customer, 'UTF-8') name, sum(amount) total FROM orders GROUP BY ALL)"""
THE_SAME_STATE = "SELECT window(ts, '1 minute') w, customer, sum(amount * 1) total FROM orders GROUP BY ALL"


def changed(here: Lab, query: str, on_change: str = "allow") -> Pipeline:
    """Return the pipeline with another view, of the same columns."""
    pipeline: Pipeline = here.pipeline(on_change=on_change)
    (view,) = pipeline._definition.views
    pipeline._definition.views.clear()
    pipeline.view(view, query)
    return pipeline


def approved(here: Lab, query: str) -> Pipeline:
    """Return it with a person's word for it."""
    with pytest.raises(ApprovalNeeded) as refused:
        changed(here, query, "approve").run(once=True)
    assert refused.value.fingerprint is not None
    approve(open_store(here.base / "store", retain=None), int(refused.value.fingerprint, 16))
    return changed(here, query, "approve")


def everything(here: Lab) -> dict[str, object]:
    """Return what every folder and file holds, the working directories too, but for the history.

    That tells of refused starts; and when a lock was last taken is no change.
    """
    found = {name: seen[0] if isinstance(seen, tuple) else seen for name, seen in everything_in(here.base).items()}
    return {name: seen for name, seen in found.items() if "history" not in Path(name).parts}


def refused(here: Lab, pipeline: Callable[[], Pipeline], says: str, **said: Any) -> None:
    """Start and plan; both are refused, and every file and folder is as it was."""
    before = everything(here)
    with pytest.raises(PipelineError, match=says):
        pipeline().run(once=True, **said)
    assert everything(here) == before
    with pytest.raises(PipelineError, match=says):
        pipeline().plan(**said)
    assert everything(here) == before


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is filled with where each query of Spark's keeps its checkpoint."""
    started: list[str] = []
    option = DataStreamWriter.option

    def noting(writer: DataStreamWriter, key: str, value: Any) -> DataStreamWriter:
        if key == "checkpointLocation":
            started.append(os.path.basename(value))
        return option(writer, key, value)

    monkeypatch.setattr(DataStreamWriter, "option", noting)
    return started


@pytest.mark.parametrize(
    ("query", "says"),
    [(ANOTHER_VALUE, "VALUE"), (ANOTHER_KEY, "KEY"), (ANOTHER_KEY_TYPE, "KEY")],
    ids=["a value more", "a key more", "another type of key"],
)
def test_state_that_does_not_fit_is_refused_before_the_fence(
    query: str, says: str, lab: Labs, undisturbed: Undisturbed
) -> None:
    """Going back, too: the sinks would have been rewound by the time that Spark sees the state."""
    here = lab("windows")
    here.add(0, 3)
    assert here.run()
    here.add(3, 4)
    what = rf"{says}_SCHEMA_NOT_COMPATIBLE.*\. Undo the change, or start over with --fresh"
    refused(
        here,
        lambda: changed(here, query),
        rf"^the query does not start with the state of checkpoint 5 \(epoch 4\): .*{what}",
    )
    refused(here, lambda: changed(here, query), rf"state of checkpoint 3 \(epoch 2\): .*{what}", from_id=3)
    assert here.run()
    assert here.contents() == undisturbed("windows", 4)


def test_an_approved_change_whose_state_fits_goes_on(lab: Labs, undisturbed: Undisturbed, queries: list[str]) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    pipeline = approved(here, THE_SAME_STATE)
    here.add(2, 4)
    wanted = undisturbed("windows", 4)
    queries.clear()
    pipeline.run(once=True)
    assert here.contents() == wanted
    trial, *generations = queries
    assert trial.startswith("trial-")
    assert set(generations) == {here.newest_work.name}
    assert not list(here.work.glob("trial-*"))


def test_a_word_for_state_that_does_not_fit_is_not_enough(lab: Labs) -> None:
    here = lab("running")
    here.add(0, 1)
    assert here.run()
    pipeline = approved(here, "SELECT customer, sum(amount) + 0 * max(id) total, count(*) n FROM orders GROUP BY ALL")
    here.add(1, 2)
    refused(here, lambda: pipeline, "does not start with the state")


def test_what_stayed_as_it_was_is_not_tried(lab: Labs, queries: list[str]) -> None:
    """Neither is a change of sinks, which is none of the query."""
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    here.add(2, 3)
    without = here.pipeline()
    del without._definition.sinks["lake"]
    for pipeline in (here.pipeline(), without):
        queries.clear()
        pipeline.plan()
        assert queries == []
        pipeline.run(once=True)
        assert queries
        assert set(queries) == {here.newest_work.name}


def test_what_a_trial_left_that_died_goes_with_the_next_start(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 1)
    dead, living = here.work / "trial-dead", HeldFolder(str(here.work / "trial-living"))
    for folder in (dead, Path(living.path)):
        (folder / "state" / "0").mkdir(parents=True)
    (here.work / f"trial-killed{LOCK}").touch()
    living.take()
    assert here.run()
    assert {path.name for path in here.work.glob("trial-*")} == {"trial-living", f"trial-living{LOCK}"}
    living.release()


OTHERS = sorted(set(PIPELINES) - {"fan_out", "referenced", "windows", "python_state", "several"})


@pytest.mark.parametrize("kind", ["windows", "python_state", "several", *long(*OTHERS)])
def test_under_another_spark_every_kind_of_state_is_tried(
    kind: str, lab: Labs, queries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits, since this Spark is the same. Two epochs, so that there is state, a watermark and what is due."""
    here = lab(kind)
    here.add(0, 2)
    assert here.run()
    before = everything(here)
    queries.clear()
    monkeypatch.setattr(pyspark, "__version__", "4.9.0")
    assert here.pipeline().plan()["outcome"] == "restore"
    assert [name[:6] for name in queries] == ["trial-"]
    assert everything(here) == before


def test_a_trial_beside_a_run_does_not_end_it(lab: Labs, undisturbed: Undisturbed) -> None:
    """Spark ends a query when another one of the same id is started in its process."""
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    handle = here.pipeline().start()
    assert changed(here, THE_SAME_STATE).plan()["outcome"] == "restore"
    here.add(2, 3)
    handle._runner._query.streaming.processAllAvailable()
    assert handle.status()["state"] == "running"
    handle.stop()
    assert here.contents() == undisturbed("windows", 3)


def test_a_trial_makes_no_folder_that_stays_where_none_is(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 1)
    assert here.run()
    here.work.parent.rename(here.base / "elsewhere")
    before = everything(here)
    assert changed(here, THE_SAME_STATE).plan()["outcome"] == "restore"
    assert everything(here) == before


class NotedReader(DataSourceStreamReader):
    """Numbers up to a fixed one, and a note of every reader that is made."""

    def __init__(self, notes: str) -> None:
        with open(notes, "a", encoding="utf-8") as file:
            file.write("made\n")

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, *limits: Any) -> dict[str, int]:
        return {"n": 7}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for n in range(*partition.value):
            yield (n,)


class Noted(DataSource):
    """Its data source."""

    @classmethod
    def name(cls) -> str:
        return "noted"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NotedReader(self.options["notes"])


def test_no_source_is_touched(tmp_path: Path, spark: SparkSession) -> None:
    notes = tmp_path / "notes"

    def pipeline(query: str) -> Pipeline:
        made = Pipeline("noted", store=tmp_path / "store", spark=spark, on_change="allow", output_mode="update")
        made.source("numbers", SourceSpec("noted", {"notes": str(notes)}, data_source=lambda: Noted))
        made.view("sums", query)
        made.sink("db", "sums", sinks.sqlite(str(tmp_path / "app.db"), table="sums", key="odd"))
        return made

    pipeline("SELECT n % 2 AS odd, sum(n) AS total FROM numbers GROUP BY ALL").run(once=True)
    before = notes.read_text()
    pipeline("SELECT n % 2 AS odd, sum(n + 0) AS total FROM numbers GROUP BY ALL").plan()
    with pytest.raises(PipelineError, match="does not start with the state"):
        pipeline("SELECT n % 2 AS odd, sum(n) + 0 * max(n) AS total FROM numbers GROUP BY ALL").plan()
    assert notes.read_text() == before


def test_what_may_not_fit() -> None:
    """Goal: nothing is tried without a reason. Method: one identity, changed key by key."""
    known = {"sinks": {"a": 1}, "views": {"v": "x"}, "plan": "p", "spark": "4.3.0", "stateful": ["Aggregate"]}
    assert may_not_fit(None, known)
    assert not may_not_fit(dict(known), known)
    assert not may_not_fit({**known, "sinks": {}, "tables": {"t": 1}}, known)
    assert not may_not_fit(known, {**known, "stateful": ("Aggregate",)})  # As it is before it was written down.
    for key in ("views", "plan", "spark", "stateful"):
        assert may_not_fit({**known, key: "other"}, known)
