"""Lengths of time as people write them."""

import pytest

from holdfast.core.intervals import INTERVAL, interval_seconds
from holdfast.errors import PipelineDefinitionError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 seconds", 10),
        ("1 second", 1),
        ("1 hour 30 minutes", 5400),
        ("0.5 days", 43200),
        ("2 Weeks", 1_209_600),
        ("250 milliseconds", 0.25),
    ],
)
def test_a_length_of_time_is_numbers_and_units(text: str, seconds: float) -> None:
    assert INTERVAL.fullmatch(text)
    assert interval_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "10 minutes 5", "10minutes", "-1 minutes", "1 month"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(PipelineDefinitionError, match="length of time"):
        interval_seconds(text)


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(PipelineDefinitionError, match="no time at all"):
        interval_seconds("0 seconds")
