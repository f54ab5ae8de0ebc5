"""PostgreSQL's columns as Arrow types, and the text that its types print as Arrow values.

smallint, integer, bigint      short, int, long
real, double precision         float, double
numeric(p, s)                  decimal(p, s) up to 38 digits; other numerics are text: they have no largest scale
boolean, bytea, date           the same
timestamp, timestamptz         timestamp_ntz, timestamp
arrays of these, of one level  array
everything else                its text: uuid, json, jsonb, enums, intervals, ranges, composites
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.connectors.extras import pa, pc
from holdfast.connectors.postgres.columns import PgType, numeric_size
from holdfast.errors import SourceError

_MOST_DIGITS = 38
_LONGEST_SHOWN = 40
_PLAIN: dict[str, Callable[[], Any]] = {
    "int2": lambda: pa.int16(),
    "int4": lambda: pa.int32(),
    "int8": lambda: pa.int64(),
    "float4": lambda: pa.float32(),
    "float8": lambda: pa.float64(),
    "bool": lambda: pa.bool_(),
    "bytea": lambda: pa.binary(),
    "date": lambda: pa.date32(),
    "timestamp": lambda: pa.timestamp("us"),
    "timestamptz": lambda: pa.timestamp("us", "UTC"),
}
_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^,"{}\\]+)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def arrow_type(type_: PgType) -> Any:
    """Return the Arrow type that holds a column's values."""
    scalar = _scalar_type(type_)
    return list_of(scalar) if type_.is_array else scalar


def list_of(type_: Any) -> Any:
    """Return the type of a list as Spark names its parts."""
    return pa.list_(pa.field("element", type_))


def _scalar_type(type_: PgType) -> Any:
    if type_.name == "numeric" and type_.modifier >= 0:
        precision, scale = numeric_size(type_.modifier)
        return pa.decimal128(precision, scale) if 0 <= scale <= precision <= _MOST_DIGITS else pa.string()
    return _PLAIN.get(type_.name, pa.string)()


def holds(wide: Any, narrow: Any) -> bool:
    """Whether every value of one Arrow type, printed, can be read as another: a column that was only widened."""
    is_ = pa.types
    if wide.equals(narrow) or is_.is_string(wide):
        return True
    if is_.is_list(wide) and is_.is_list(narrow):
        return holds(wide.value_type, narrow.value_type)
    if is_.is_decimal(wide) and is_.is_decimal(narrow):
        return bool(wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale)
    same_kind = any(test(wide) and test(narrow) for test in (is_.is_signed_integer, is_.is_floating))
    return same_kind and bool(wide.bit_width >= narrow.bit_width)


def column_of(texts: Any, type_: Any, name: str) -> Any:
    """Return a column of printed values (a `pyarrow.BinaryArray`) as an array of their type.

    What the type cannot hold is an error, never NULL.
    """
    try:
        return _read(texts, type_)
    except (pa.ArrowInvalid, ValueError):
        raise SourceError(
            f"column '{name}': {_first_unreadable(texts, type_)} cannot be read as {type_}; "
            f"name the column in as_text to read its values as text"
        ) from None


def _first_unreadable(texts: Any, type_: Any) -> str:
    for text in texts.to_pylist():
        try:
            _read(pa.array([text], pa.binary()), type_)
        except (pa.ArrowInvalid, ValueError):
            shown = text[:_LONGEST_SHOWN].decode(errors="replace")
            return f"'{shown}'" if len(text) <= _LONGEST_SHOWN else f"'{shown}...'"
    return "a value"


def _read(texts: Any, type_: Any) -> Any:
    if pa.types.is_list(type_):
        return _lists(texts.to_pylist(), type_)
    if pa.types.is_binary(type_):
        return pa.array([None if text is None else _unhexed(text) for text in texts.to_pylist()], type_)
    column = texts.cast(pa.string())
    if pa.types.is_boolean(type_):
        return pc.equal(column, "t")
    return column.cast(type_)


def _unhexed(text: bytes) -> bytes:
    if not text.startswith(b"\\x"):
        raise ValueError("bytea that is not in hex")
    return bytes.fromhex(text[2:].decode())


def _lists(texts: Sequence[bytes | None], type_: Any) -> Any:
    ends: list[int] = [0]
    elements: list[bytes | None] = []
    for text in texts:
        elements += [] if text is None else array_elements(text)
        ends.append(len(elements))
    values = _read(pa.array(elements, pa.binary()), type_.value_type)
    missing = pa.array([text is None for text in texts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=type_, mask=missing)


def array_elements(text: bytes) -> list[bytes | None]:
    """Return the elements of a printed array of one level, as `{1,NULL,"a,b"}`. Bounds before it are let go."""
    inner = text[text.index(b"{") + 1 : -1]
    if not text.endswith(b"}"):
        raise ValueError("an array without an end")
    if b'"' not in inner and b"{" not in inner:
        return [None if element == b"NULL" else element for element in inner.split(b",")] if inner else []
    elements: list[bytes | None] = []
    at = 0
    while at < len(inner):
        found = _ELEMENT.match(inner, at)
        if found is None or inner[found.end() : found.end() + 1] not in (b"", b","):
            raise ValueError("an array with more than one level")
        quoted, plain = found.groups()
        elements.append(_ESCAPED.sub(rb"\1", quoted) if quoted is not None else None if plain == b"NULL" else plain)
        at = found.end() + 1
    return elements
