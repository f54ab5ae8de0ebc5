"""From the bytes of a logged row to values: one decoder for each column, made from what the log says of it.

Times are whole numbers as Arrow keeps them: days, or microseconds since 1970. A date that is none (`0000-00-00`, a
month or day of zero) is None.
"""

import struct
from collections.abc import Callable, Sequence
from datetime import date
from enum import Enum
from typing import Any

from holdfast.connectors.mysql_cdc import table_map as logged
from holdfast.connectors.mysql_cdc.decimals import packed_decimal
from holdfast.connectors.mysql_cdc.json_documents import json_text
from holdfast.connectors.mysql_cdc.table_map import LoggedColumn
from holdfast.errors import SourceError

Decoder = Callable[[bytes, int], tuple[Any, int]]
"""From the data of an event and where a value begins to the value and where it ends."""
TextDecoder = Callable[[bytes], str]

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAY_SECONDS = 86_400
_MICROSECONDS = 1_000_000
_INTEGERS = {
    logged.TINY: (1, "bB"),
    logged.SHORT: (2, "hH"),
    logged.INT24: (3, ""),
    logged.LONG: (4, "iI"),
    logged.LONGLONG: (8, "qQ"),
}
_BEFORE_5_6 = {logged.TIMESTAMP, logged.TIME, logged.DATETIME}


class Kind(Enum):
    """What a column's values are, whatever the number of bytes."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"
    BINARY = "binary"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    BIT = "bit"


def decoder(column: LoggedColumn, text: TextDecoder | None) -> tuple[Kind, Decoder]:
    """Return what the values of a logged column are, and what reads them; `text` is None for plain bytes."""
    code, metadata = column.code, column.metadata
    if code in _INTEGERS:
        return Kind.INTEGER, _integer(*_INTEGERS[code], column.unsigned)
    if code in _BEFORE_5_6:
        raise SourceError(
            f"column '{column.name}' keeps its times as servers before MySQL 5.6 did: rebuild the table, "
            "ALTER TABLE ... FORCE"
        )
    match code:
        case logged.YEAR:
            return Kind.INTEGER, lambda data, at: (data[at] and data[at] + 1900, at + 1)
        case logged.FLOAT:
            return Kind.FLOAT, _unpacked("<f")
        case logged.DOUBLE:
            return Kind.DOUBLE, _unpacked("<d")
        case logged.NEWDECIMAL:
            return Kind.DECIMAL, _decimal(metadata[0], metadata[1])
        case logged.DATE:
            return Kind.DATE, _read_date
        case logged.DATETIME2:
            return Kind.DATETIME, _datetime(metadata[0])
        case logged.TIMESTAMP2:
            return Kind.TIMESTAMP, _timestamp(metadata[0])
        case logged.TIME2:
            return Kind.TIME, _time(metadata[0])
        case logged.BIT:
            return Kind.BIT, _bytes_as_number(metadata[1] + (metadata[0] > 0), "big")
        case logged.ENUM:
            return Kind.TEXT, _enum(metadata[1], _members(column, text))
        case logged.SET:
            return Kind.TEXT, _set(metadata[1], _members(column, text))
        case logged.JSON:
            return Kind.TEXT, _sized(metadata[0], json_text)
        case logged.VAR_STRING | logged.STRING:
            return _padded(metadata, text)
        case logged.VARCHAR | logged.COMPRESSED_VARCHAR:
            return _text_or_bytes(1 if int.from_bytes(metadata, "little") < 256 else 2, text)
        case logged.BLOB | logged.COMPRESSED_BLOB | logged.GEOMETRY | logged.VECTOR:
            return _text_or_bytes(metadata[0], text)
    raise SourceError(f"column '{column.name}' has a type ({code}) that mysql_cdc cannot read")


# numbers


def _integer(size: int, formats: str, unsigned: bool) -> Decoder:
    if formats:
        return _unpacked("<" + formats[unsigned])
    return lambda data, at: (int.from_bytes(data[at : at + size], "little", signed=not unsigned), at + size)


def _unpacked(format: str) -> Decoder:
    form = struct.Struct(format)
    read, size = form.unpack_from, form.size
    return lambda data, at: (read(data, at)[0], at + size)


def _bytes_as_number(size: int, order: Any) -> Decoder:
    return lambda data, at: (int.from_bytes(data[at : at + size], order), at + size)


def _decimal(precision: int, scale: int) -> Decoder:
    size, convert = packed_decimal(precision, scale)
    return lambda data, at: (convert(data[at : at + size]), at + size)


# text and bytes


def _padded(metadata: bytes, text: TextDecoder | None) -> tuple[Kind, Decoder]:
    """Return what reads CHAR and BINARY, which are logged without the spaces or zeros at their end."""
    # Two bits of a long CHAR's size hide, flipped, in the byte of its type.
    longest = ((metadata[0] & 0x30) ^ 0x30) << 4 | metadata[1]
    size = 1 if longest < 256 else 2
    if text is None:
        return Kind.BINARY, _sized(size, lambda value: value.ljust(longest, b"\0"))
    return Kind.TEXT, _sized(size, text)


def _text_or_bytes(size: int, text: TextDecoder | None) -> tuple[Kind, Decoder]:
    return (Kind.BINARY, _sized(size, bytes)) if text is None else (Kind.TEXT, _sized(size, text))


def _sized(size: int, convert: Callable[[bytes], Any]) -> Decoder:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        begin = at + size
        end = begin + int.from_bytes(data[at:begin], "little")
        return convert(data[begin:end]), end

    return read


def _members(column: LoggedColumn, text: TextDecoder | None) -> list[str]:
    return [member.decode(errors="replace") if text is None else text(member) for member in column.members]


def _enum(size: int, members: Sequence[str]) -> Decoder:
    # Number 0 stands for a value that the server refused and kept as empty text.
    values = ["", *members]
    return lambda data, at: (values[int.from_bytes(data[at : at + size], "little")], at + size)


def _set(size: int, members: Sequence[str]) -> Decoder:
    def read(data: bytes, at: int) -> tuple[str, int]:
        bits = int.from_bytes(data[at : at + size], "little")
        return ",".join(member for number, member in enumerate(members) if bits >> number & 1), at + size

    return read


# times


def _read_date(data: bytes, at: int) -> tuple[int | None, int]:
    packed = int.from_bytes(data[at : at + 3], "little")
    return days(packed >> 9, packed >> 5 & 15, packed & 31), at + 3


def days(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970; None for what is no date."""
    try:
        return date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None


def microseconds(day: int | None, seconds: int, fraction: int) -> int | None:
    """Return the microseconds since 1970; None without a day."""
    return None if day is None else (day * _DAY_SECONDS + seconds) * _MICROSECONDS + fraction


def _fraction(digits: int) -> tuple[int, int]:
    """Return how many bytes a fraction with so many digits has, and the microseconds of its last one."""
    size = (digits + 1) // 2
    return size, 10 ** (6 - 2 * size)


def _datetime(digits: int) -> Decoder:
    size, unit = _fraction(digits)

    def read(data: bytes, at: int) -> tuple[int | None, int]:
        packed = int.from_bytes(data[at : at + 5], "big")
        end = at + 5 + size
        year, month = divmod(packed >> 22 & 0x1FFFF, 13)
        seconds = (packed >> 12 & 31) * 3600 + (packed >> 6 & 63) * 60 + (packed & 63)
        day = days(year, month, packed >> 17 & 31)
        return microseconds(day, seconds, int.from_bytes(data[at + 5 : end], "big") * unit), end

    return read


def _timestamp(digits: int) -> Decoder:
    size, unit = _fraction(digits)

    def read(data: bytes, at: int) -> tuple[int | None, int]:
        end = at + 4 + size
        value = int.from_bytes(data[at : at + 4], "big") * _MICROSECONDS
        value += int.from_bytes(data[at + 4 : end], "big") * unit
        # The first moment of 1970 stands for 0000-00-00 00:00:00; no true timestamp can be there.
        return value or None, end

    return read


def _time(digits: int) -> Decoder:
    size, unit = _fraction(digits)
    middle = 1 << (8 * (3 + size) - 1)

    def read(data: bytes, at: int) -> tuple[str, int]:
        end = at + 3 + size
        packed = int.from_bytes(data[at:end], "big") - middle
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        whole, fraction = packed >> 8 * size, packed & ((1 << 8 * size) - 1)
        text = f"{sign}{whole >> 12 & 0x3FF:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
        return (f"{text}.{fraction * unit:06d}"[: digits - 6 or None] if digits else text), end

    return read
