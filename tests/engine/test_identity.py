"""What a pipeline is, and what a difference between two of them means for state."""

from typing import Any

import pytest

from holdfast.engine.identity import Change, compare, fingerprint

STATELESS: dict[str, Any] = {
    "spark": "4.3.0",
    "sources": {"orders": {"format": "json", "path": "/in"}},
    "views": {"cheap": "SELECT * FROM orders WHERE amount < 5"},
    "sinks": {"lake": {"kind": "delta", "path": "/lake"}},
    "inputs": ["orders"],
    "stateful": [],
    "state": "rocksdb",
    "state_partitions": 2,
    "output_mode": "append",
    "plan": "Filter",
}
STATEFUL = {**STATELESS, "stateful": ["aggregate"], "views": {"sums": "SELECT sum(amount)"}, "plan": "Aggregate"}


def changed(old: dict[str, Any], **changes: Any) -> Change:
    return compare(old, {**old, **changes})


@pytest.mark.parametrize("identity", [STATELESS, STATEFUL])
def test_the_same_pipeline_has_no_difference(identity: dict[str, Any]) -> None:
    assert compare(identity, dict(identity)) == Change()
    assert Change().lines() == []


@pytest.mark.parametrize(
    ("sinks", "line"),
    [
        ({}, "sink 'lake' is gone"),
        ({**STATEFUL["sinks"], "db": {"kind": "sqlite"}}, "sink 'db' is new"),
        ({"lake": {"kind": "delta", "path": "/sea"}}, "sink 'lake' changed: path was /lake, is /sea"),
    ],
)
def test_sinks_may_change(sinks: dict[str, Any], line: str) -> None:
    assert changed(STATEFUL, sinks=sinks) == Change(harmless=(line,))


def test_another_spark_only_warns() -> None:
    assert changed(STATEFUL, spark="4.3.1") == Change(harmless=("Spark was 4.3.0, is 4.3.1",))


def test_a_view_without_state_may_change() -> None:
    change = changed(STATELESS, views={"cheap": "SELECT 1"}, plan="Project")
    assert change.harmless == ("view 'cheap' changed: was SELECT * FROM orders WHERE amount < 5, is SELECT 1",)
    assert (change.questionable, change.impossible) == ((), ())


def test_a_view_with_state_is_for_a_person_to_judge() -> None:
    change = changed(STATEFUL, views={"sums": "SELECT max(amount)"})
    assert change.questionable == ("view 'sums' changed: was SELECT sum(amount), is SELECT max(amount)",)


@pytest.mark.parametrize("views", [{}, {**STATEFUL["views"], "more": "SELECT 1"}])
def test_views_that_come_and_go_beside_state_are_for_a_person_to_judge(views: dict[str, Any]) -> None:
    assert len(changed(STATEFUL, views=views).questionable) == 1


@pytest.mark.parametrize("identity", [STATELESS, STATEFUL])
def test_another_source_is_for_a_person_to_judge(identity: dict[str, Any]) -> None:
    change = changed(identity, sources={"orders": {"format": "json", "path": "/elsewhere"}})
    assert change.questionable == ("source 'orders' changed: path was /in, is /elsewhere",)


def test_another_output_mode_is_for_a_person_to_judge() -> None:
    assert changed(STATELESS, output_mode="update").questionable == ("output mode was append, is update",)


def test_another_plan_for_the_same_text_is_noticed_when_there_is_state() -> None:
    assert changed(STATEFUL, plan="Join").questionable == (
        "the plan of the query differs, although its text does not",
    )
    assert changed(STATELESS, plan="Join") == Change()


def test_a_plan_that_differs_because_the_text_does_is_said_once() -> None:
    assert len(changed(STATEFUL, plan="Join", views={"sums": "SELECT max(amount)"}).questionable) == 1


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"inputs": ["orders", "orders"]}, 'inputs of the query: was ["orders"], is ["orders","orders"]'),
        ({"stateful": ["join"]}, 'stateful operators: was ["aggregate"], is ["join"]'),
        ({"state": "hdfs"}, "state store: was rocksdb, is hdfs"),
        ({"state_partitions": 3}, "state partitions: was 2, is 3"),
    ],
)
def test_what_spark_cannot_go_on_from(changes: dict[str, Any], line: str) -> None:
    change = changed(STATEFUL, **changes)
    assert change.impossible == (line,)
    assert change.lines()[0] == line


def test_without_state_the_number_of_partitions_is_free() -> None:
    assert changed(STATELESS, state_partitions=3) == Change()


def test_long_values_are_shortened() -> None:
    (line,) = changed(STATELESS, views={"cheap": "x" * 1000}).harmless
    assert len(line) < 400
    assert line.endswith("...")


def test_values_of_up_to_200_characters_are_shown_as_they_are() -> None:
    (line,) = changed(STATELESS, views={"cheap": "x" * 200}).harmless
    assert line.endswith("x" * 200)


# --- the fingerprint


def test_the_fingerprint_is_the_same_for_the_same_definition_in_any_order() -> None:
    assert fingerprint(dict(reversed(STATEFUL.items()))) == fingerprint(STATEFUL)
    assert 0 <= fingerprint(STATEFUL) < 2**64


@pytest.mark.parametrize("key", sorted(STATEFUL.keys() - {"spark"}))
def test_the_fingerprint_covers_everything_but_the_version_of_spark(key: str) -> None:
    assert fingerprint({**STATEFUL, key: "other"}) != fingerprint(STATEFUL)
    assert fingerprint({**STATEFUL, "spark": "other"}) == fingerprint(STATEFUL)
