"""pgoutput, the output of PostgreSQL's logical decoding, in protocol version 1: everything but rows.

A transaction comes whole, in the order of commits: Begin, its changes, Commit. Before the first change of a table
comes a Relation that names its columns. Messages with rows are read by `images`, thousands at once.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple

from holdfast.errors import SourceError

_EPOCH = 946_684_800_000_000
"""PostgreSQL counts microseconds from the year 2000; this is that moment, in microseconds since 1970."""
_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_NUMBER = struct.Struct("!I")
_COUNT = struct.Struct("!H")
_TYPE = struct.Struct("!Ii")
_TRUNCATE = struct.Struct("!IB")
_MESSAGE = struct.Struct("!BQ")
_LSN = struct.Struct("!Q")


class Begin(NamedTuple):
    """A transaction begins; when and where it was committed is known already."""

    commit_lsn: int
    committed_at: int
    """Microseconds since 1970, as everywhere here."""
    xid: int


class Commit(NamedTuple):
    """A transaction ends."""

    lsn: int
    end_lsn: int
    """Where the next transaction's commit can be at the earliest."""
    committed_at: int


class RelationColumn(NamedTuple):
    """A column of a table, as it was when the changes after it were made."""

    name: str
    type: int
    modifier: int
    in_key: bool
    """Whether it belongs to what identifies a row: all columns with REPLICA IDENTITY FULL."""


class Relation(NamedTuple):
    """A table whose changes follow."""

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Type(NamedTuple):
    """A type that is not built in."""

    id: int
    schema: str
    name: str


class Truncate(NamedTuple):
    """Tables that were emptied."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


class Origin(NamedTuple):
    """The transaction was replicated from elsewhere."""

    commit_lsn: int
    name: str


class LogicalMessage(NamedTuple):
    """What somebody wrote into the log with pg_logical_emit_message."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


Message = Begin | Commit | Relation | Type | Truncate | Origin | LogicalMessage


def parse(data: bytes) -> Message:
    """Return a message. One that cannot be read to its last byte is an error, never half a message."""
    try:
        message, end = _PARSERS[data[0]](data)
    except (LookupError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise SourceError(f"a pgoutput message cannot be read ({error}): {shown(data)}") from error
    if end != len(data):
        raise SourceError(f"a pgoutput message has {len(data)} bytes, {end} were expected: {shown(data)}")
    return message


def shown(data: bytes) -> str:
    """Only what kind of message it is: the rest is the user's data."""
    return f"kind {data[:1]!r}, {len(data)} bytes"


def _begin(data: bytes) -> tuple[Message, int]:
    lsn, at, xid = _BEGIN.unpack_from(data, 1)
    return Begin(lsn, at + _EPOCH, xid), 1 + _BEGIN.size


def _commit(data: bytes) -> tuple[Message, int]:
    _, lsn, end_lsn, at = _COMMIT.unpack_from(data, 1)
    return Commit(lsn, end_lsn, at + _EPOCH), 1 + _COMMIT.size


def _relation(data: bytes) -> tuple[Message, int]:
    (id,) = _NUMBER.unpack_from(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    identity = chr(data[at])
    (count,) = _COUNT.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        in_key = bool(data[at] & 1)
        column, at = _string(data, at + 1)
        type_, modifier = _TYPE.unpack_from(data, at)
        at += _TYPE.size
        columns.append(RelationColumn(column, type_, modifier, in_key))
    return Relation(id, schema, name, identity, tuple(columns)), at


def _type(data: bytes) -> tuple[Message, int]:
    (id,) = _NUMBER.unpack_from(data, 1)
    schema, at = _string(data, 5)
    name, at = _string(data, at)
    return Type(id, schema, name), at


def _truncate(data: bytes) -> tuple[Message, int]:
    count, options = _TRUNCATE.unpack_from(data, 1)
    at = 1 + _TRUNCATE.size
    relations = struct.unpack_from(f"!{count}I", data, at)
    return Truncate(relations, bool(options & 1), bool(options & 2)), at + 4 * count


def _origin(data: bytes) -> tuple[Message, int]:
    (lsn,) = _LSN.unpack_from(data, 1)
    name, at = _string(data, 1 + _LSN.size)
    return Origin(lsn, name), at


def _message(data: bytes) -> tuple[Message, int]:
    flags, lsn = _MESSAGE.unpack_from(data, 1)
    prefix, at = _string(data, 1 + _MESSAGE.size)
    (length,) = _NUMBER.unpack_from(data, at)
    at += 4
    return LogicalMessage(bool(flags & 1), lsn, prefix, data[at : at + length]), at + length


_PARSERS: dict[int, Callable[[bytes], tuple[Message, int]]] = {
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("Y"): _type,
    ord("T"): _truncate,
    ord("O"): _origin,
    ord("M"): _message,
}


def _string(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1
