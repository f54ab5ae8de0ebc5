"""What retention sees of a store while others seal: nothing that is new may be taken for what nobody needs."""

import pytest

from holdfast.core.planning import Condition
from holdfast.engine.fencing import take_over
from holdfast.stores.survey import Survey
from holdfast.stores.verification import Verifier
from stores.builders import seal
from stores.jobs import TIMELINE
from stores.places import Place


def survey_of(place: Place) -> Survey:
    medium = place.medium()
    return Survey(medium, Verifier(medium, 256), lambda id: False)


def ids(survey: Survey) -> list[int]:
    return [facts.checkpoint_id for facts in survey.facts()]


def test_nothing_new_is_seen_where_nothing_was_sealed(place: Place) -> None:
    seal(place.open(), 1, 2)
    survey = survey_of(place)
    assert (survey.went_on(), ids(survey)) == (False, [1, 2])


@pytest.mark.parametrize("new", [3, 5])
def test_what_is_sealed_since_is_seen_also_behind_a_gap(place: Place, new: int) -> None:
    """Loss without this: a sidecar that only the new checkpoint needs is removed."""
    seal(place.open(), 1, 2)
    survey = survey_of(place)
    seal(place.open(), new)
    assert (survey.went_on(), ids(survey)) == (True, [1, 2, new])
    assert [facts.condition for facts in survey.facts()] == [Condition.VALID] * 3
    assert not survey.went_on()


def test_what_is_sealed_is_seen_before_the_pointer_moves(place: Place) -> None:
    seal(place.open(), 1, 2)
    survey = survey_of(place)
    seen: list[bool] = []
    seal(place.interposed("advance_pointer", lambda: seen.append(survey.went_on())), 3)
    assert (seen, ids(survey)) == ([True], [1, 2, 3])


def test_the_word_of_one_that_was_given_up_does_not_count_and_that_of_earlier_ones_does(place: Place) -> None:
    """Loss without this: retention rests on a checkpoint that recovery will never choose."""
    store = place.open()
    for id, abandons in [(1, []), (2, []), (3, [2]), (4, [1]), (5, [4])]:
        seal(store, id, abandons=abandons)
    found = {facts.checkpoint_id: facts.condition for facts in survey_of(place).facts()}
    assert [id for id, condition in found.items() if condition is Condition.VALID] == [1, 3, 5]
    assert [id for id, condition in found.items() if condition is Condition.BROKEN] == [2, 4]


def test_a_sidecar_is_needed_by_others_as_long_as_one_of_them_is_there(place: Place) -> None:
    store = place.open()
    seal(store, 1, 2)
    fence = take_over(store).fence
    (name,) = fence.needed_sidecars
    survey = survey_of(place)
    assert [survey.needed_by_others(id) for id in (1, 2)] == [frozenset(), {name}]
    assert survey.needs(name)
    survey.forget(2)
    assert survey.needs(name)
    survey.forget(fence.checkpoint_id)
    assert not survey.needs(name)


def test_what_came_too_late_counts_for_nothing_and_hides_nobody_elses_word(place: Place) -> None:
    """Generation 2 began at id 4. What generation 1 sealed as 6 gave up 2; what generation 2 sealed gave up 3."""
    store = place.open()
    seal(store, 2, 3, generation=1, timeline=TIMELINE)
    for id, generation, said in ((5, 2, {"abandons": [3]}), (6, 1, {"abandons": [2]}), (7, 2, {"began": [(2, 4)]})):
        seal(store, id, generation=generation, timeline=TIMELINE, **said)
    valid = {facts.checkpoint_id for facts in survey_of(place).facts() if facts.condition is Condition.VALID}
    assert valid == {2, 5, 7}
