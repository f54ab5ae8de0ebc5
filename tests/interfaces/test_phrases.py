"""Numbers and times in words."""

import pytest

from holdfast.interfaces.cli.phrases import (
    age_text,
    counted,
    duration_text,
    folded_ids,
    moment_text,
    printable,
    sink_summary,
    size_text,
    span_text,
    stopwatch_text,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (-2048, "-2.0 KiB"), (5 * 2**30, "5.0 GiB")],
)
def test_sizes(size: int | None, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h"), (-5, "5s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_ages_and_stopwatches() -> None:
    assert age_text(None) == "-"
    assert age_text(5) == "5s"
    assert age_text(-5) == "5s in the future"
    assert stopwatch_text(0.26) == "0.3s"
    assert stopwatch_text(90) == "1m 30s"


def test_moments() -> None:
    assert moment_text(None) == "none"
    assert moment_text(0) == "1970-01-01T00:00:00.000Z (0)"
    assert moment_text(2**63 - 1) == "9223372036854775807"


def test_foreign_text_is_made_harmless() -> None:
    assert printable("a\r\n\x1b[0m\u202eü") == "a\\r\\n\\x1b[0m\\u202eü"


def test_counts() -> None:
    assert counted(1, "checkpoint") == "1 checkpoint"
    assert counted(0, "checkpoint") == "0 checkpoints"
    assert sink_summary({}) == "-"
    assert sink_summary({"a": "Committed", "b": "Failed", "c": "Failed"}) == "1/3 committed, 2 failed"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0124, "12 ms"), (0.99, "990 ms"), (1.5, "1.5s"), (90, "1m 30s")]
)
def test_spans(seconds: float | None, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(("ids", "text"), [([], "none"), ([3], "3"), ([4, 1, 2, 3, 7], "1-4, 7")])
def test_ids_are_folded(ids: list[int], text: str) -> None:
    assert folded_ids(ids) == text
