"""MySQL's binary form of JSON, as text. MariaDB keeps JSON as text and needs none of this."""

import json
import struct
from base64 import b64encode

from holdfast.connectors.mysql_cdc.decimals import packed_decimal
from holdfast.errors import SourceError

_CONTAINERS = {0: ("<H", "{}"), 1: ("<I", "{}"), 2: ("<H", "[]"), 3: ("<I", "[]")}
"""Type -> how its counts and offsets are written, and what it looks like."""
_LITERAL = 4
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q", 11: "<d"}
_LITERALS = ("null", "true", "false")
_IN_PLACE = {2: {_LITERAL, 5, 6}, 4: {_LITERAL, 5, 6, 7, 8}}
"""Bytes of an offset -> types that stand where the offset would be."""
_DATE = 10


def json_text(data: bytes) -> str | None:
    """Return a document as MySQL prints it, but for the spelling of large floating point numbers."""
    return _value(data[0], data, 1) if data else None


def _value(code: int, data: bytes, at: int) -> str:
    if code in _CONTAINERS:
        return _container(*_CONTAINERS[code], data, at)
    if code in _NUMBERS:
        return json.dumps(struct.unpack_from(_NUMBERS[code], data, at)[0])
    match code:
        case 4:
            return _LITERALS[data[at]]
        case 12:  # text
            return _quoted(_sized(data, at).decode())
        case 15:  # a value of a column type
            return _opaque(data[at], _sized(data, at + 1))
    raise SourceError(f"a JSON value in the binary log has an unknown type ({code})")


def _container(format: str, brackets: str, data: bytes, begin: int) -> str:
    """Read an object or an array: how many members, its size, then where its keys and values are."""
    width = struct.calcsize(format)
    count = struct.unpack_from(format, data, begin)[0]
    at = begin + 2 * width
    keys = []
    for _ in range(count if brackets == "{}" else 0):
        offset, size = struct.unpack_from(format, data, at)[0], struct.unpack_from("<H", data, at + width)[0]
        keys.append(_quoted(data[begin + offset : begin + offset + size].decode()) + ": ")
        at += width + 2
    values = [_member(format, width, data, begin, at + number * (1 + width)) for number in range(count)]
    inside = ", ".join(map("".join, zip(keys, values, strict=True)) if keys else values)
    return f"{brackets[0]}{inside}{brackets[1]}"


def _member(format: str, width: int, data: bytes, begin: int, at: int) -> str:
    code = data[at]
    if code in _IN_PLACE[width]:
        return _value(code, data, at + 1)
    return _value(code, data, begin + struct.unpack_from(format, data, at + 1)[0])


def _sized(data: bytes, at: int) -> bytes:
    size = shift = 0
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return data[at : at + size]


def _opaque(code: int, value: bytes) -> str:
    match code:
        case 246:  # decimal
            return f"{packed_decimal(value[0], value[1])[1](value[2:]):f}"
        case 7 | 10 | 12:  # timestamp, date, datetime
            return _quoted(_moment(int.from_bytes(value, "little"), with_time=code != _DATE))
        case 11:  # time
            return _quoted(_time(int.from_bytes(value, "little", signed=True)))
    return _quoted(f"base64:type{code}:{b64encode(value).decode()}")


def _moment(packed: int, *, with_time: bool) -> str:
    whole = packed >> 24
    year, month = divmod(whole >> 22, 13)
    text = f"{year:04d}-{month:02d}-{whole >> 17 & 31:02d}"
    return f"{text} {_clock(packed, 31)}" if with_time else text


def _time(packed: int) -> str:
    return f"-{_clock(-packed, 1023)}" if packed < 0 else _clock(packed, 1023)


def _clock(packed: int, hours: int) -> str:
    """Return hour, minute and second; `hours` are the bits of the hour, which the day may stand before."""
    whole = packed >> 24
    return f"{whole >> 12 & hours:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}.{packed & 0xFFFFFF:06d}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
