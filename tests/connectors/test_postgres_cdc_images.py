"""pgoutput's messages with rows, many at once: of every kind, of random content, and damaged anywhere."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.postgres_cdc.images import Column, RowMessages, not_sent
from holdfast.errors import SourceError

UNCHANGED = object()
Row = Sequence[Any]


def row(values: Row) -> bytes:
    parts = [struct.pack("!H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + struct.pack("!I", len(value)) + value)
    return b"".join(parts)


def message(kind: str, *rows: tuple[str, Row]) -> bytes:
    """Return a message of a kind with rows, each with what it is called."""
    return kind.encode() + struct.pack("!I", 16384) + b"".join(tag.encode() + row(values) for tag, values in rows)


MESSAGES = {
    "insert": (message("I", ("N", [b"1", None])), None, [b"1", None]),
    "insert of nothing": (message("I", ("N", [b"", b""])), None, [b"", b""]),
    "update": (message("U", ("N", [b"1", b"x"])), None, [b"1", b"x"]),
    "update of a key": (message("U", ("K", [b"1", None]), ("N", [b"2", b"x"])), [b"1", None], [b"2", b"x"]),
    "update with the old row": (message("U", ("O", [b"1", b"x"]), ("N", [b"1", b"y"])), [b"1", b"x"], [b"1", b"y"]),
    "delete by key": (message("D", ("K", [b"1", None])), [b"1", None], None),
    "delete of a row": (message("D", ("O", [b"1", b"N"])), [b"1", b"N"], None),
    "truncate": (b"T" + struct.pack("!IBI", 1, 0, 16384), None, None),
}
RECORDED = b"I\x00\x00@\x00N\x00\x02t\x00\x00\x00\x011t\x00\x00\x00\x041.50"
"""What PostgreSQL 18 said of a row."""
WITH_ROWS = [kind for kind in MESSAGES if kind != "truncate"]


def rows_of(messages: RowMessages) -> list[tuple[Row | None, Row | None]]:
    def side(image: Any, columns: list[Column]) -> list[Row | None]:
        values = zip(*(messages.texts(column).to_pylist() for column in columns), strict=True)
        return [list(row) if there else None for row, there in zip(values, image.present, strict=True)]

    after = [messages.completed(place) for place in range(len(messages.after.columns))]
    before = side(messages.before, messages.before.columns)
    return list(zip(before, side(messages.after, after), strict=True))


def test_messages_of_every_kind_are_read_together() -> None:
    data, before, after = zip(*MESSAGES.values(), strict=True)
    assert rows_of(RowMessages(data, 2)) == list(zip(before, after, strict=True))


def test_a_recorded_row_is_read() -> None:
    assert rows_of(RowMessages([RECORDED], 2)) == [(None, [b"1", b"1.50"])]


VALUES = st.none() | st.binary(max_size=20) | st.binary(min_size=300, max_size=2000)


@given(
    st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(VALUES, min_size=n, max_size=n), min_size=1, max_size=12))
)
def test_whatever_the_values_are_they_come_back(rows: list[Row]) -> None:
    """Short values are moved all at once, long ones one by one."""
    messages = [message("U", ("O", list(reversed(row))), ("N", row)) for row in rows]
    assert rows_of(RowMessages(messages, len(rows[0]))) == [(list(reversed(row)), row) for row in rows]


def test_what_was_not_sent_is_taken_from_the_row_before_as_far_as_that_has_it() -> None:
    new = [UNCHANGED, UNCHANGED, b"new"]
    messages = RowMessages(
        [
            message("U", ("O", [b"1", b"old", b"old"]), ("N", new)),
            message("U", ("K", [b"2", None, None]), ("N", new)),
            message("U", ("N", new)),
        ],
        3,
    )
    columns = [messages.completed(place) for place in range(3)]
    assert [messages.texts(column).to_pylist() for column in columns] == [
        [b"1", b"2", None],
        [b"old", None, None],
        [b"new", b"new", b"new"],
    ]
    assert [not_sent(column).tolist() for column in columns] == [
        [False, False, True],
        [False, True, True],
        [False, False, False],
    ]


@pytest.mark.parametrize("kind", WITH_ROWS)
@pytest.mark.parametrize("behind", [b"", MESSAGES["insert"][0]])
def test_a_message_that_is_cut_off_anywhere_is_refused(kind: str, behind: bytes) -> None:
    """Whatever comes behind it is not taken for its end."""
    data = MESSAGES[kind][0]
    for length in range(1, len(data)):
        with pytest.raises(SourceError, match="pgoutput message"):
            RowMessages([data[:length], *([behind] if behind else [])], 2)


@pytest.mark.parametrize("kind", WITH_ROWS)
def test_a_message_with_more_bytes_than_it_says_is_refused(kind: str) -> None:
    data = MESSAGES[kind][0]
    with pytest.raises(SourceError, match=f"has {len(data) + 1} bytes, {len(data)} were expected"):
        RowMessages([MESSAGES["insert"][0], data + b"\0"], 2)


@pytest.mark.parametrize(
    "data",
    [
        message("I", ("K", [b"1", b"2"])),
        message("U", ("X", [b"1", b"2"])),
        message("D", ("N", [b"1", b"2"])),
        message("U", ("O", [b"1", b"2"]), ("K", [b"1", b"2"])),
        message("I", ("N", [b"1"])),
        message("I", ("N", [b"1", b"2", b"3"])),
        message("D", ("O", [b"1", UNCHANGED])),
        message("I", ("N", [b"1", b"2"])).replace(b"t", b"b"),  # binary, which we do not ask for
        message("I", ("N", [b"1", b"2"])).replace(b"\0\0\0\1", b"\xff\xff\xff\xff"),
    ],
)
def test_what_does_not_belong_to_the_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        RowMessages([MESSAGES["insert"][0], data, MESSAGES["update"][0]], 2)


def test_the_error_does_not_show_data_of_the_table() -> None:
    with pytest.raises(SourceError) as caught:
        RowMessages([message("I", ("N", [b"hunter2"])) + b"!"], 1)
    assert "hunter2" not in str(caught.value)
