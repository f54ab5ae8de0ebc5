"""A Spark pipeline whose store and targets the version before made goes on: see tests/golden/README.md."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from golden import orders
from golden.copies import unpack
from holdfast import open_store
from spark.conftest import CrashAt

Shown = dict[str, list[tuple[str, ...]]]


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    with orders.alone():
        yield


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession) -> Callable[[int], Shown]:
    """Return what the present version shows of so many files when nothing ever happens."""
    known: dict[int, Shown] = {}

    def run(files: int) -> Shown:
        if files not in known:
            place = orders.emptied()
            orders.add_input(place, 0, files)
            orders.pipeline(place, spark).run(once=True)
            known[files] = orders.shown(place)
        return known[files]

    return run


def _unpacked(name: str) -> Path:
    """Return the place with a golden copy and its input; what was valid is valid."""
    place = orders.emptied()
    facts = unpack(name, place)
    orders.add_input(place, 0, facts.records)
    assert _said_of(place) == facts.checkpoints
    return place


def _run(
    place: Path, spark: SparkSession, *names: str, selects: Mapping[str, str] | None = None, **run: Any
) -> dict[str, Any]:
    """Run all there is; return the report of the recovery."""
    observer = CrashAt()
    orders.pipeline(place, spark, names or orders.EVERY, **(selects or {})).run(
        once=True, observers=[observer], **run
    )
    return observer.reports[-1]


def _said_of(place: Path) -> dict[str, str]:
    store, found = open_store(place / "store", retain=None), {}
    for manifest in store.manifests():
        verdict = store.validate_checkpoint(manifest.checkpoint_id)
        word = "valid" if verdict.valid else verdict.reason
        found[str(manifest.checkpoint_id)] = f"{manifest.kind} of epoch {manifest.epoch}: {word}"
    return found


def test_a_store_goes_on_and_later_epochs_follow(spark: SparkSession, undisturbed: Callable[[int], Shown]) -> None:
    expected = undisturbed(6)
    place = _unpacked("spark_stopped")
    orders.add_input(place, 3, 6)
    report = _run(place, spark)
    assert report["skipped"] == []
    assert orders.shown(place) == expected
    assert not [line for line in _said_of(place).values() if not line.endswith("valid")]


def test_a_store_goes_on_with_its_sinks_in_another_order(
    spark: SparkSession, undisturbed: Callable[[int], Shown]
) -> None:
    """Goal: state stays with its view, which that version knew by its place only."""
    expected = undisturbed(6)
    place = _unpacked("spark_stopped")
    orders.add_input(place, 3, 6)
    _run(place, spark, *reversed(orders.EVERY))
    assert orders.shown(place) == expected


def test_what_was_owed_is_shown_as_it_was_prepared_although_the_sinks_get_something_else_by_now(
    spark: SparkSession, undisturbed: Callable[[int], Shown]
) -> None:
    """Its token says no form, but the record of its epoch says the columns.

    A column that is gone keeps its values in what was owed, and one that is new is not in it.
    """
    expected = undisturbed(3)
    place = _unpacked("spark_owed")
    selects = {
        "kept": "SELECT id, place, customer, ts FROM weeks",
        "raw": "SELECT id, place, customer, amount, ts, amount * 2 AS doubled FROM weeks",
    }
    report = _run(place, spark, selects=selects)
    assert set(report["sinks"].values()) == {"committed epoch 3"}
    assert orders.shown(place) == expected
    orders.add_input(place, 3, 4)
    _run(place, spark, selects=selects)
    shown = orders.shown(place)
    assert len(shown["raw"]) == 4 * orders.ROWS_PER_FILE
    assert sum(any("doubled" in value for value in row) for row in shown["raw"]) == orders.ROWS_PER_FILE
    # What an upsert does not have, it leaves as it is.
    assert [row[0] for row in shown["kept"]] == [row[0] for row in expected["kept"]]
    assert [row[2] for row in shown["kept"]] != [row[2] for row in expected["kept"]]


def test_a_go_back_follows_one_of_the_version_before(
    spark: SparkSession, undisturbed: Callable[[int], Shown]
) -> None:
    expected = undisturbed(6)
    place = _unpacked("spark_gone_back")
    chosen = [m for m in open_store(place / "store").manifests() if m.epoch == 2][-1]
    orders.add_input(place, 4, 6)
    report = _run(place, spark, *orders.TAKE_BACK, from_id=chosen.checkpoint_id)
    assert {said.removeprefix("rewound from epoch ") for said in report["sinks"].values()} <= {"5 to 2", "6 to 2"}
    assert orders.shown(place, orders.TAKE_BACK) == {name: expected[name] for name in orders.TAKE_BACK}
