"""What the log says of a table before its rows: names and types of its columns as they were then."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from holdfast.connectors.mysql_cdc.events import length_encoded

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 11, 12, 13, 15, 16, 17, 18, 19
JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 245, 246, 247, 248, 252, 253, 254, 255
COMPRESSED_BLOB, COMPRESSED_VARCHAR, VECTOR = 140, 141, 242

_METADATA_BYTES = {
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, JSON, BLOB, GEOMETRY, COMPRESSED_BLOB, VECTOR), 1),
    **dict.fromkeys((VARCHAR, BIT, NEWDECIMAL, ENUM, SET, VAR_STRING, STRING, COMPRESSED_VARCHAR), 2),
}
_NUMERIC = frozenset((TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR))
_CHARACTER = frozenset((STRING, VAR_STRING, VARCHAR, BLOB, COMPRESSED_BLOB, COMPRESSED_VARCHAR))


@dataclass(frozen=True, slots=True)
class LoggedColumn:
    """A column as the log describes it."""

    name: str
    code: int
    """Its type."""
    metadata: bytes
    unsigned: bool = False
    collation: int = 0
    """Of text, and of the members of an enum or set; 0 for none."""
    members: tuple[bytes, ...] = ()


@dataclass(frozen=True, eq=False)
class LoggedTable:
    """A table as the log describes it. Without names (`binlog_row_metadata` was not FULL) it has no columns."""

    width: int
    columns: tuple[LoggedColumn, ...]


def table_name(body: bytes) -> tuple[str, str]:
    """Return a table event's database and table; nothing else of it is read."""
    size = body[8]
    at = 9 + size + 1
    return body[9 : 9 + size].decode(), body[at + 1 : at + 1 + body[at]].decode()


def table_map(body: bytes, mariadb: bool) -> LoggedTable:
    """Read a table event."""
    at = 9 + body[8] + 1
    width, at = length_encoded(body, at + 1 + body[at] + 1)
    types, at = body[at : at + width], at + width
    size, at = length_encoded(body, at)
    metadata, at = list(_metadata(types, body[at : at + size])), at + size
    described = _Description(list(zip(map(_real_type, types, metadata), metadata, strict=True)), mariadb)
    described.read(body[at + (width + 7) // 8 :])
    return LoggedTable(width, tuple(described.columns()))


def _metadata(types: bytes, data: bytes) -> Iterator[bytes]:
    at = 0
    for code in types:
        size = _METADATA_BYTES.get(code, 0)
        yield data[at : at + size]
        at += size


def _real_type(code: int, metadata: bytes) -> int:
    """Return the type; enums and sets are logged as strings, and only their metadata says so."""
    return metadata[0] if code == STRING and metadata[0] in (ENUM, SET) else code


class _Description:
    """The optional part of a table event: fields about groups of columns, with a value for each of the group."""

    def __init__(self, types: list[tuple[int, bytes]], mariadb: bool) -> None:
        self._types = types
        # MariaDB counts geometry among the columns with a character set.
        self._character = _CHARACTER | {GEOMETRY} if mariadb else _CHARACTER
        self._names: list[str] = []
        self._unsigned: dict[int, bool] = {}
        self._collations: dict[int, int] = {}
        self._members: dict[int, tuple[bytes, ...]] = {}

    def read(self, data: bytes) -> None:
        """Read the fields; those that say nothing about values are passed over."""
        readers: dict[int, Callable[[bytes], None]] = {
            1: self._read_signedness,
            2: lambda field: self._read_default_collation(self._group(self._character), field),
            3: lambda field: self._read_collations(self._group(self._character), field),
            4: self._read_names,
            5: lambda field: self._read_members(self._group({SET}), field),
            6: lambda field: self._read_members(self._group({ENUM}), field),
            10: lambda field: self._read_default_collation(self._group({ENUM, SET}), field),
            11: lambda field: self._read_collations(self._group({ENUM, SET}), field),
        }
        at = 0
        while at < len(data):
            reader = readers.get(data[at])
            size, at = length_encoded(data, at + 1)
            if reader is not None:
                reader(data[at : at + size])
            at += size

    def columns(self) -> Iterator[LoggedColumn]:
        """Yield the columns, none if the log has no names for them."""
        for index, name in enumerate(self._names):
            code, metadata = self._types[index]
            yield LoggedColumn(
                name,
                code,
                metadata,
                self._unsigned.get(index, False),
                self._collations.get(index, 0),
                self._members.get(index, ()),
            )

    def _group(self, types: Collection[int]) -> list[int]:
        return [index for index, (code, _) in enumerate(self._types) if code in types]

    def _read_signedness(self, field: bytes) -> None:
        for number, index in enumerate(self._group(_NUMERIC)):
            self._unsigned[index] = bool(field[number // 8] & (0x80 >> number % 8))

    def _read_default_collation(self, group: list[int], field: bytes) -> None:
        default, *exceptions = _numbers(field)
        self._collations.update(dict.fromkeys(group, default))
        for number, collation in zip(exceptions[::2], exceptions[1::2], strict=True):
            self._collations[group[number]] = collation

    def _read_collations(self, group: list[int], field: bytes) -> None:
        self._collations.update(zip(group, _numbers(field), strict=True))

    def _read_names(self, field: bytes) -> None:
        at = 0
        while at < len(field):
            name, at = _text(field, at)
            self._names.append(name.decode())

    def _read_members(self, group: list[int], field: bytes) -> None:
        at = 0
        for index in group:
            count, at = length_encoded(field, at)
            members = []
            for _ in range(count):
                member, at = _text(field, at)
                members.append(member)
            self._members[index] = tuple(members)


def _numbers(field: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(field):
        number, at = length_encoded(field, at)
        numbers.append(number)
    return numbers


def _text(field: bytes, at: int) -> tuple[bytes, int]:
    size, at = length_encoded(field, at)
    return field[at : at + size], at + size
