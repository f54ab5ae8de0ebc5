"""What the events of a binary log say: beginnings and ends of transactions, statements, tables, rows as bytes."""

import struct
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.connectors.extras import pa
from holdfast.errors import SourceError

QUERY, STOP, ROTATE, INTVAR, RAND, USER_VARIABLE, FORMAT_DESCRIPTION, XID = 2, 3, 4, 5, 13, 14, 15, 16
BEGIN_LOAD, EXECUTE_LOAD, TABLE_MAP, INCIDENT, IGNORABLE, ROWS_QUERY = 17, 18, 19, 26, 28, 29
GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE, XA_PREPARE = 33, 34, 35, 36, 37, 38
PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD = 39, 40
MARIADB_ANNOTATE, MARIADB_CHECKPOINT, MARIADB_GTID, MARIADB_GTID_LIST, MARIADB_ENCRYPTION = 160, 161, 162, 163, 164
MARIADB_QUERY_COMPRESSED = 165

WITHOUT_ROWS = frozenset(
    (
        *(STOP, ROTATE, INTVAR, RAND, USER_VARIABLE, FORMAT_DESCRIPTION, BEGIN_LOAD, IGNORABLE, ROWS_QUERY),
        *(PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE),
        *(MARIADB_ANNOTATE, MARIADB_CHECKPOINT, MARIADB_GTID_LIST, MARIADB_ENCRYPTION),
    )
)
"""Events that neither change rows nor begin or end a transaction."""
NO_TABLE = frozenset((0xFFFFFF, 0xFFFFFFFFFFFF))
"""Numbers of tables in rows events without rows, which only end a statement."""

_STANDALONE = 0x01
_PREPARED_XA = 0x40
_QUERY_HEADER = struct.Struct("<IIBHH")
_LOAD_HEADER_BYTES = 13
_PAYLOAD_END, _PAYLOAD_SIZE, _PAYLOAD_COMPRESSION = 0, 1, 2
_ZSTANDARD, _UNCOMPRESSED = 0, 255
_EVENT_HEADER = struct.Struct("<IBIIIH")


@dataclass(frozen=True, slots=True)
class Beginning:
    """A transaction begins."""

    gtid: str | None
    standalone: bool
    """MariaDB: it is a single statement and ends with that."""
    prepared_only: bool
    """MariaDB: the first half of an XA transaction, which may still be rolled back."""


def mariadb_gtid(body: bytes, server_id: int) -> Beginning:
    """Read MariaDB's beginning of a transaction."""
    sequence, domain, flags = struct.unpack_from("<QIB", body)
    return Beginning(f"{domain}-{server_id}-{sequence}", bool(flags & _STANDALONE), bool(flags & _PREPARED_XA))


def mysql_gtid(body: bytes) -> Beginning:
    """Read MySQL's beginning of a transaction."""
    number = struct.unpack_from("<q", body, 17)[0]
    return Beginning(f"{uuid.UUID(bytes=body[1:17])}:{number}", False, False)


def mariadb_gtid_list(body: bytes) -> str:
    """Read what MariaDB puts at the beginning of a log file: the last transaction of each domain before it."""
    count = struct.unpack_from("<I", body)[0] & 0x0FFFFFFF
    members: dict[int, str] = {}
    for domain, server, sequence in struct.iter_unpack("<IIQ", body[4 : 4 + 16 * count]):
        # The last one of a domain in the list is the newest.
        members[domain] = f"{domain}-{server}-{sequence}"
    return ",".join(members.values())


def mysql_previous_gtids(body: bytes) -> str:
    """Read what MySQL puts at the beginning of a log file: all transactions before it."""
    members, at = [], 8
    for _ in range(struct.unpack_from("<Q", body)[0]):
        server, count = uuid.UUID(bytes=body[at : at + 16]), struct.unpack_from("<Q", body, at + 16)[0]
        at += 24
        intervals = struct.unpack_from(f"<{2 * count}Q", body, at)
        at += 16 * count
        pairs = zip(intervals[::2], intervals[1::2], strict=True)
        members.append(f"{server}:" + ":".join(f"{first}-{after - 1}" for first, after in pairs))
    return ",".join(members)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that was logged as text."""

    database: str
    """The one that was current when it ran."""
    text: str


def query(body: bytes, *, compressed: bool = False, load: bool = False) -> Statement:
    """Read a statement."""
    _, _, name_bytes, _, variable_bytes = _QUERY_HEADER.unpack_from(body)
    at = _QUERY_HEADER.size + (_LOAD_HEADER_BYTES if load else 0) + variable_bytes
    database, text = body[at : at + name_bytes], body[at + name_bytes + 1 :]
    text = inflated(text) if compressed else text
    return Statement(database.decode(errors="replace"), text.decode(errors="replace"))


def inflated(data: bytes) -> bytes:
    """Undo MariaDB's compression of one event's data (`log_bin_compress`)."""
    size_bytes = data[0] & 0x07
    size = int.from_bytes(data[1 : 1 + size_bytes], "big")
    plain = zlib.decompress(data[1 + size_bytes :])
    if len(plain) != size:
        raise SourceError(f"a compressed event of the binary log has {len(plain)} bytes instead of {size}")
    return plain


@dataclass(frozen=True, slots=True)
class RowsKind:
    """A kind of rows event: what it does, and how it is written."""

    operation: str
    second_version: bool
    compressed: bool


ROWS: dict[int, RowsKind] = {
    **{23 + n: RowsKind(name, False, False) for n, name in enumerate(("insert", "update", "delete"))},
    **{30 + n: RowsKind(name, True, False) for n, name in enumerate(("insert", "update", "delete"))},
    **{166 + n: RowsKind(name, False, True) for n, name in enumerate(("insert", "update", "delete"))},
    **{169 + n: RowsKind(name, True, True) for n, name in enumerate(("insert", "update", "delete"))},
}


@dataclass(frozen=True, slots=True)
class RowsBody:
    """The rows of an event, undecoded."""

    operation: str
    columns: int
    present: tuple[bytes, ...]
    """Which columns the row images have, a bit each: one image per row, two for updates."""
    data: bytes


def table_id(body: bytes) -> int:
    """Return the number that rows name their table with, in a table or rows event."""
    return int.from_bytes(body[:6], "little")


def rows_body(kind: RowsKind, body: bytes) -> RowsBody:
    """Split a rows event."""
    at = 8
    if kind.second_version:
        at += int.from_bytes(body[8:10], "little")
    columns, at = length_encoded(body, at)
    images, width = (2 if kind.operation == "update" else 1), (columns + 7) // 8
    present = tuple(body[at + n * width : at + (n + 1) * width] for n in range(images))
    data = body[at + images * width :]
    return RowsBody(kind.operation, columns, present, inflated(data) if kind.compressed else data)


def length_encoded(data: bytes, at: int) -> tuple[int, int]:
    """Read a number as the protocol writes lengths; return it and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def payload_events(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield code and body of the events in MySQL's compressed transaction, one at a time."""
    compression, at = _ZSTANDARD, 0
    while True:
        field, at = length_encoded(body, at)
        if field == _PAYLOAD_END:
            break
        size, at = length_encoded(body, at)
        if field == _PAYLOAD_COMPRESSION:
            compression, _ = length_encoded(body, at)
        at += size
    packed = pa.BufferReader(memoryview(body)[at:])
    if compression not in (_ZSTANDARD, _UNCOMPRESSED):
        raise SourceError(f"the binary log has a transaction whose compression ({compression}) is unknown")
    plain = pa.CompressedInputStream(packed, "zstd") if compression == _ZSTANDARD else packed
    while len(header := plain.read(_EVENT_HEADER.size)) == _EVENT_HEADER.size:
        _, code, _, size, _, _ = _EVENT_HEADER.unpack(header)
        yield code, plain.read(size - _EVENT_HEADER.size)
