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
        ({"lake": "a lake"}, 'sink \'lake\' changed: was {"kind":"delta","path":"/lake"}, is a lake'),
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


# --- what a checkpoint of the present version says besides: code, branches, names in any spelling

BRANCHES = [
    {"output": "sums", "stateful": ["Aggregate"], "plan": "a", "functions": {"taxed": "1"}},
    {"output": "peaks", "stateful": ["Aggregate"], "plan": "b", "functions": {}},
    {"output": "cheap", "stateful": [], "plan": "c", "functions": {"round": "1"}},
]
PRESENT: dict[str, Any] = {
    **{key: value for key, value in STATEFUL.items() if key != "plan"},
    "stateful": ["Aggregate", "Aggregate"],
    "python": "3.11",
    "code": {},
    "streams": ["orders"] * 3,
    "inputs": ["orders"] * 3,
    "branches": BRANCHES,
}
FUNCTION = {"views": {"sums": "def sums(): ..."}, "code": {"sums": "1"}}


def branches(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**branch, **change} for branch, change in zip(BRANCHES, changes, strict=True)]


def test_the_text_of_a_function_does_not_count_where_its_code_is_known() -> None:
    old = {**PRESENT, **FUNCTION}
    assert compare(old, {**old, "views": {"sums": "def sums(): ...  # all"}}) == Change()
    assert changed(old, code={"sums": "2"}).questionable == (
        "view 'sums': the code of its function, or of what that calls, changed; its text did not",
    )


def test_code_of_another_python_is_compared_by_its_text() -> None:
    old = {**PRESENT, **FUNCTION}
    assert changed(old, code={"sums": "2"}, python="3.12") == Change(harmless=("Python was 3.11, is 3.12",))
    assert changed(old, views={"sums": "def sums(): 1"}, python="3.12").questionable


def test_plans_of_another_spark_are_not_compared() -> None:
    other = branches({"plan": "z"}, {}, {})
    assert changed(PRESENT, branches=other).questionable == (
        "the plan of 'sums' differs, although its text does not",
    )
    assert changed(PRESENT, branches=other, spark="4.3.1") == Change(harmless=("Spark was 4.3.0, is 4.3.1",))


def test_python_functions_matter_where_there_is_state() -> None:
    assert changed(PRESENT, branches=branches({"functions": {"taxed": "2"}}, {}, {})).questionable == (
        "the Python function 'taxed' in 'sums', or what it calls, changed",
    )
    assert changed(PRESENT, branches=branches({}, {}, {"functions": {"round": "2"}})) == Change(
        harmless=("the Python function 'round' in 'cheap', or what it calls, changed",)
    )
    assert changed(PRESENT, branches=branches({}, {}, {"plan": "z"})) == Change()


def test_state_is_not_continued_for_another_output() -> None:
    swapped = [BRANCHES[1], BRANCHES[0], BRANCHES[2]]
    assert changed(PRESENT, branches=swapped).impossible == (
        "the state of 'sums' would be taken for that of 'peaks'",
        "the state of 'peaks' would be taken for that of 'sums'",
    )
    renamed = branches({"output": "totals"}, {}, {})
    assert changed(PRESENT, branches=renamed).impossible == ()
    moved = [BRANCHES[1], {**BRANCHES[0], "output": "totals"}, BRANCHES[2]]
    assert changed(PRESENT, branches=moved).impossible


def test_sources_that_come_and_go_beside_others() -> None:
    both = {**PRESENT["sources"], "payments": {}}
    old = {**PRESENT, "sources": both, "inputs": ["orders", "payments"]}
    assert changed(old, inputs=["orders"]) == Change(harmless=("source 'payments' is not read any more",))
    assert changed({**old, "inputs": ["orders"]}, inputs=["payments", "orders"]).questionable == (
        "source 'payments' was not read until now: it is read from its beginning",
    )
    assert changed(old, inputs=["payments", "orders", "orders"]) == Change()


def test_names_are_the_same_in_another_spelling() -> None:
    old = {**PRESENT, "sinks": {"lake": {"kind": "delta", "takes": "sums"}}}
    new = {
        **old,
        "sources": {"Orders": old["sources"]["orders"]},
        "views": {"Sums": old["views"]["sums"]},
        "sinks": {"lake": {"kind": "delta", "takes": "Sums"}},
        "inputs": ["Orders"] * 3,
        "streams": ["Orders"] * 3,
        "branches": branches({"output": "Sums"}, {}, {}),
    }
    assert compare(old, new) == Change()


def test_two_manifests_of_different_versions_are_compared_by_what_both_say() -> None:
    before = {**STATEFUL, "stateful": PRESENT["stateful"]}
    assert compare(before, PRESENT) == compare(PRESENT, before) == Change()


# --- the fingerprint


def test_the_fingerprint_is_the_same_for_the_same_definition_in_any_order() -> None:
    assert fingerprint(dict(reversed(STATEFUL.items()))) == fingerprint(STATEFUL)
    assert 0 <= fingerprint(STATEFUL) < 2**64


@pytest.mark.parametrize("key", sorted(PRESENT.keys() - {"spark", "python"}))
def test_the_fingerprint_covers_everything_but_the_versions_of_spark_and_python(key: str) -> None:
    assert fingerprint({**PRESENT, key: "other"}) != fingerprint(PRESENT)
    assert fingerprint({**PRESENT, "spark": "other", "python": "other"}) == fingerprint(PRESENT)
