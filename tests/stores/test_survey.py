"""What retention sees of a store while others seal: nothing that is new may be taken for what nobody needs."""

import pytest

from holdfast.core.planning import Condition
from holdfast.stores.survey import Survey
from holdfast.stores.verification import Verifier
from stores.builders import seal
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
