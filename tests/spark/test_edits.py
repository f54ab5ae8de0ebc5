"""Every edit of a pipeline gets the verdict it must get, and so does its undoing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.engine.coordinator import PipelineFacts
from holdfast.engine.identity import compare
from holdfast.errors import PipelineError
from holdfast.spark.binding import fit_to
from holdfast.spark.building import build_query
from holdfast.spark.sealed_form import identity_as_before, order_of
from holdfast.spark.session import own_session
from spark.edited_pipelines import EDITS, GOES_ON, IMPOSSIBLE, QUESTION, SAME, TWO, Edit, Edited


def _fitted(spark: SparkSession, edited: Edited, sealed: Mapping[str, Any] | None) -> PipelineFacts:
    """Return what a start finds: a session of its own, and the query as the sealed state needs it."""
    session = own_session(spark)
    for name, value in edited.settings.items():
        session.conf.set(name, value)
    if edited.before is not None:
        edited.before(session)
    definition = edited.definition()
    return fit_to(sealed, definition, build_query(definition, session), session).facts


def _verdict(spark: SparkSession, sealed: Mapping[str, Any], new: Edited) -> str:
    try:
        facts = _fitted(spark, new, sealed)
    except PipelineError:
        return IMPOSSIBLE
    change = compare(sealed, facts.as_sealed or facts.identity)
    if change.impossible:
        return IMPOSSIBLE
    return QUESTION if change.questionable else GOES_ON if change.harmless else SAME


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_and_its_undoing_are_judged_by_what_they_do(spark: SparkSession, edit: Edit) -> None:
    old, new = (_fitted(spark, edited, None).identity for edited in (edit.old, edit.new))
    assert (_verdict(spark, old, edit.new), _verdict(spark, new, edit.old)) == (edit.there, edit.back)


OF_BEFORE = {
    **dict.fromkeys(["nothing", "the order of sinks", "the order of views", "the case of a view"], SAME),
    **dict.fromkeys(["rand() in SQL", "rand() of a function", "a partial", "a callable", "state in pandas"], SAME),
    **dict.fromkeys(["operands beside a UDF", "lambdas of Spark", "a lambda in a function"], SAME),
    **dict.fromkeys(["a sink more, listed first", "a view that reads twice", "another target"], GOES_ON),
    **dict.fromkeys(["sum becomes max", "another key", "a literal of letters", "a view of another name"], QUESTION),
    **dict.fromkeys(["another operator", "partitions of state"], IMPOSSIBLE),
}


@pytest.mark.parametrize("edit", [edit for edit in EDITS if edit.name in OF_BEFORE], ids=lambda edit: edit.name)
def test_a_checkpoint_of_the_version_before_is_judged_by_what_it_says(spark: SparkSession, edit: Edit) -> None:
    """Goal: no question about what did not change. Method: identities in the form that version sealed."""
    session = own_session(spark)
    for name, value in edit.old.settings.items():
        session.conf.set(name, value)
    definition = edit.old.definition()
    built = build_query(definition, session, order=definition.outputs)
    unread: dict[str, Any] = {
        "inputs": [],
        "sources": {},
        "views": {},
        "plan": "of a seed that nobody knows any more",
    }
    old = identity_as_before(definition, built, unread)
    assert _verdict(spark, old, edit.new) == OF_BEFORE[edit.name]


def test_every_edit_of_the_version_before_is_one() -> None:
    assert OF_BEFORE.keys() <= {edit.name for edit in EDITS}


def test_state_stays_where_a_version_put_it_that_went_by_the_order_of_sinks(spark: SparkSession) -> None:
    definition = TWO.definition()
    in_file = tuple(definition.outputs)
    built = build_query(definition, own_session(spark), order=in_file)
    unread: dict[str, Any] = {"inputs": [], "sources": {}, "views": {}}
    sealed = identity_as_before(definition, built, unread)
    turned = replace(TWO, sinks=dict(reversed(TWO.sinks.items()))).definition()
    assert order_of(turned, build_query(turned, own_session(spark)), sealed) == in_file == ("totals", "peaks")
