"""Offset lines and log directories belong to streams by name, whatever number of branches reads them."""

import json

import pytest

from holdfast.core.sidecar import StateFile
from holdfast.errors import PipelineError
from holdfast.spark.moved_lines import MovedLines


def offsets(*lines: str) -> bytes:
    return "\n".join(["v1", json.dumps({"batchWatermarkMs": 5}, separators=(",", ":")), *lines]).encode()


def file(path: str) -> StateFile:
    return StateFile("op", path, 1, "0" * 64, None, b"x")


def test_nothing_is_touched_where_the_streams_are_the_same() -> None:
    lines = MovedLines(("a", "b", "a"), ("a", "b", "a"))
    parts = {"offsets/3": offsets("1", "2", "3"), "metadata": b"{}"}
    assert lines.same
    assert lines.parts(parts) == parts
    assert lines.files([file("sources/0/1")]) == [file("sources/0/1")]


def test_lines_are_repeated_dropped_and_reordered_by_name() -> None:
    lines = MovedLines(("a", "b", "a"), ("b", "b", "a", "new"))
    parts = lines.parts({"offsets/3": offsets("1", "2", "1"), "commits/3": b"v1", "tokens": b"{}"})
    assert parts == {"offsets/3": offsets("2", "2", "1", "-"), "commits/3": b"v1", "tokens": b"{}"}


def test_logs_go_to_where_their_streams_are_numbered() -> None:
    lines = MovedLines(("a", "b", "c"), ("c", "a"))
    files = [file(f"sources/{n}/7.compact") for n in range(3)] + [file("state/0/1/2.delta")]
    assert [moved.path for moved in lines.files(files)] == [
        "sources/1/7.compact",
        "sources/0/7.compact",
        "state/0/1/2.delta",
    ]


def test_a_source_that_is_to_be_joined_with_itself_is_refused() -> None:
    with pytest.raises(PipelineError, match="source 'a' was read by one stream"):
        MovedLines(("a", "a"), ("a", "a/2"))
    MovedLines(("a", "a/2"), ("a", "a/2", "a"))


def test_lines_of_one_stream_that_differ_are_refused() -> None:
    """They may, where an earlier version wrote down no more than the source of a stream."""
    with pytest.raises(PipelineError, match="stands at two places"):
        MovedLines(("a", "a"), ("a",)).parts({"offsets/3": offsets("1", "2")})
    with pytest.raises(PipelineError, match="have 1 lines"):
        MovedLines(("a", "a"), ("a",)).parts({"offsets/3": offsets("1")})
