"""pgoutput's messages without rows: recorded ones, ones of every kind, and ones that are damaged."""

import struct

import pytest

from holdfast.connectors.postgres_cdc.messages import (
    Begin,
    Commit,
    LogicalMessage,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    Type,
    parse,
)
from holdfast.errors import SourceError

Y2K = 946_684_800_000_000


def number(value: int) -> bytes:
    return struct.pack("!I", value)


def lsn(value: int) -> bytes:
    return struct.pack("!Q", value)


MESSAGES = {
    "begin": (b"B" + lsn(0x16B3748) + struct.pack("!q", 5) + number(742), Begin(0x16B3748, Y2K + 5, 742)),
    "commit": (b"C\0" + lsn(7) + lsn(9) + struct.pack("!q", -5), Commit(7, 9, Y2K - 5)),
    "relation": (
        b"R" + number(16385) + b"shop\0caf\xc3\xa9\0f" + struct.pack("!H", 2)
        + b"\x01id\0" + struct.pack("!Ii", 23, -1) + b"\x00n\0" + struct.pack("!Ii", 1700, 655366),
        Relation(
            16385, "shop", "café", "f",
            (RelationColumn("id", 23, -1, True), RelationColumn("n", 1700, 655366, False)),
        ),
    ),
    "relation without columns": (
        b"R" + number(1) + b"\0t\0n" + struct.pack("!H", 0),
        Relation(1, "", "t", "n", ()),
    ),
    "type": (b"Y" + number(16390) + b"shop\0mood\0", Type(16390, "shop", "mood")),
    "truncate": (
        b"T" + number(2) + b"\x03" + number(1) + number(2),
        Truncate((1, 2), True, True),
    ),
    "origin": (b"O" + lsn(5) + b"elsewhere\0", Origin(5, "elsewhere")),
    "message": (
        b"M\x01" + lsn(5) + b"audit\0" + number(3) + b"a\0b",
        LogicalMessage(True, 5, "audit", b"a\0b"),
    ),
}  # fmt: skip

RECORDED = (
    b"B\x00\x00\x00\x00\x01q\x88\xe8\x00\x03\x03d\xd31\x05,\x00\x00\x02\xf2",
    b"R\x00\x00@\x00public\x00t\x00d\x00\x02\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff"
    b"\x00n\x00\x00\x00\x06\xa4\x00\n\x00\x06",
    b"C\x00\x00\x00\x00\x00\x01q\x88\xe8\x00\x00\x00\x00\x01q\x89\x18\x00\x03\x03d\xd31\x05,",
)
"""What PostgreSQL 18 said of a transaction, without its row."""


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_of_every_kind_is_read(kind: str) -> None:
    data, expected = MESSAGES[kind]
    found = parse(data)
    assert found == expected
    assert type(found) is type(expected)


def test_a_recorded_transaction_is_read() -> None:
    begin, relation, commit = map(parse, RECORDED)
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert begin == Begin(0x17188E8, commit.committed_at, 754)
    assert (commit.lsn, commit.end_lsn) == (begin.commit_lsn, 0x1718918)
    assert isinstance(relation, Relation)
    assert [(column.name, column.in_key) for column in relation.columns] == [("id", True), ("n", False)]


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_that_is_cut_off_anywhere_is_refused(kind: str) -> None:
    data, _ = MESSAGES[kind]
    for length in range(len(data)):
        with pytest.raises(SourceError, match="pgoutput message"):
            parse(data[:length])


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_with_more_bytes_than_it_says_is_refused(kind: str) -> None:
    data, _ = MESSAGES[kind]
    with pytest.raises(SourceError, match=f"has {len(data) + 1} bytes"):
        parse(data + b"\0")


@pytest.mark.parametrize(
    "data",
    [
        b"S" + number(5) + b"\x01",  # streaming, which protocol version 1 does not have
        b"R" + number(1) + b"\xff\0t\0d" + struct.pack("!H", 0),
    ],
)
def test_what_does_not_belong_to_the_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(SourceError, match="cannot be read"):
        parse(data)


def test_the_error_does_not_show_data_of_the_table() -> None:
    with pytest.raises(SourceError) as caught:
        parse(b"M\x01" + lsn(5) + b"audit\0" + number(7) + b"hunter2" + b"!")
    assert "hunter2" not in str(caught.value)
