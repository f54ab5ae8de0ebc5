"""How Arrow columns lie in PostgreSQL, and in which form COPY brings them there.

booleans, whole numbers   boolean; smallint, integer, bigint (a byte becomes smallint)
floats                    real, double precision
decimals                  numeric(p, s), every digit kept
text, binaries            text, bytea
instants                  timestamp with time zone
local times, dates        timestamp without time zone, date
lists of those            arrays
structs, maps, the rest   jsonb

A user's own table may have wider types, and for text also varchar, uuid, json, jsonb and enums. COPY's binary form
carries no types, so each column is brought into the form that its column reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from holdfast.connectors.arrow_types import as_plain
from holdfast.connectors.extras import pa, pc
from holdfast.connectors.json_values import json_texts
from holdfast.connectors.text_values import array_of, parse_json
from holdfast.errors import SinkError

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_INTEGERS = {"int2": 16, "int4": 32, "int8": 64}
_FLOATS = {"float4": 32, "float8": 64}
_TEXTS = ("text", "varchar", "citext")
_JSONB_VERSION = "\x01"


@dataclass(frozen=True)
class PgType:
    """The type of a table's column, domains resolved."""

    shown: str
    """As `format_type` spells it."""
    name: str
    """Its name in the catalog; for an array that of its elements."""
    modifier: int = -1
    is_array: bool = False
    is_enum: bool = False


@dataclass(frozen=True)
class Wire:
    """How one column goes to the server."""

    name: str
    type: Any
    """The Arrow type that is copied; None where values are spelled as another kind of value."""
    kind: str = "cast"
    """`cast`, `uuid`, `json` or `jsonb`."""


def natural_type(type_: Any) -> str:
    """Return the PostgreSQL type that holds every value of a plain Arrow type."""
    if pa.types.is_list(type_) and not pa.types.is_nested(type_.value_type):
        return f"{natural_type(type_.value_type)}[]"
    if pa.types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "timestamptz"
    return next((name for test, name in _NATURAL if getattr(pa.types, test)(type_)), "jsonb")


_NATURAL = (
    ("is_boolean", "boolean"),
    ("is_int8", "smallint"),
    ("is_int16", "smallint"),
    ("is_int32", "integer"),
    ("is_int64", "bigint"),
    ("is_float16", "real"),
    ("is_float32", "real"),
    ("is_float64", "double precision"),
    ("is_string", "text"),
    ("is_binary", "bytea"),
    ("is_date32", "date"),
)


def wire_for(name: str, type_: Any, column: PgType) -> Wire | None:
    """Return how values of a plain Arrow type reach a column; None when it cannot hold all of them."""
    if column.name in ("json", "jsonb") and not column.is_array:
        return Wire(name, None, column.name) if _is_text_or_nested(type_) else None
    if column.is_array:
        element = _cast_for(type_.value_type, column) if pa.types.is_list(type_) else None
        return None if element is None else Wire(name, pa.list_(element))
    if column.name == "uuid":
        return Wire(name, None, "uuid") if pa.types.is_string(type_) else None
    cast = _cast_for(type_, column)
    return None if cast is None else Wire(name, cast)


def _is_text_or_nested(type_: Any) -> bool:
    return bool(pa.types.is_nested(type_) or pa.types.is_string(type_))


def _cast_for(type_: Any, column: PgType) -> Any:
    """Return the Arrow type whose binary form the column reads, None when values could be lost on the way."""
    is_, name = pa.types, column.name
    if is_.is_signed_integer(type_) and name in _INTEGERS:
        return getattr(pa, f"int{_INTEGERS[name]}")() if type_.bit_width <= _INTEGERS[name] else None
    if is_.is_floating(type_) and name in _FLOATS:
        return getattr(pa, f"float{_FLOATS[name]}")() if type_.bit_width <= _FLOATS[name] else None
    if name == "numeric":
        return _decimal_for(type_, column.modifier)
    if is_.is_timestamp(type_):
        fits = name == ("timestamp" if type_.tz is None else "timestamptz") and column.modifier in (-1, 6)
        return type_ if fits else None
    if is_.is_string(type_):
        return type_ if column.is_enum or name in _TEXTS else None
    same = {"bool": is_.is_boolean, "bytea": is_.is_binary, "date": is_.is_date32}
    return type_ if name in same and same[name](type_) else None


def _decimal_for(type_: Any, modifier: int) -> Any:
    """Return the decimal type; the server would round what the column's scale cannot hold."""
    if pa.types.is_signed_integer(type_):
        type_ = pa.decimal128(_DIGITS[type_.bit_width], 0)
    if not pa.types.is_decimal(type_):
        return None
    if modifier < 0:
        return type_
    precision, scale = numeric_size(modifier)
    holds = scale >= type_.scale and precision - scale >= type_.precision - type_.scale
    return type_ if holds else None


def numeric_size(modifier: int) -> tuple[int, int]:
    """Return precision and scale of a numeric(p, s); the scale may be negative, or larger than the precision."""
    return (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4) & 0x7FF ^ 1024) - 1024


def encoded(table: Any, schema: Any, wires: Sequence[Wire]) -> Any:
    """Return a table with the columns that COPY takes."""
    plain = as_plain(table, schema)
    columns = [_encoded(plain[wire.name], wire) for wire in wires]
    return pa.table(columns, names=[wire.name for wire in wires])


def _encoded(column: Any, wire: Wire) -> Any:
    if wire.kind == "cast":
        return column.cast(wire.type)
    if wire.kind == "uuid":
        return pa.array(
            [None if text is None else _uuid_bytes(text, wire.name) for text in column.to_pylist()], pa.binary()
        )
    texts = column if pa.types.is_string(column.type) else _json_texts(column)
    return pc.binary_join_element_wise(_JSONB_VERSION, texts, "") if wire.kind == "jsonb" else texts


def _json_texts(column: Any) -> Any:
    return pa.chunked_array([json_texts(chunk) for chunk in column.chunks], pa.string())


def _uuid_bytes(text: str, name: str) -> bytes:
    try:
        return UUID(text).bytes
    except ValueError:
        raise SinkError(f"column '{name}' is a uuid in the table, and '{text[:50]}' is none") from None


def spelled_out(type_: Any, wire: Wire) -> str:
    """Return the SQL type as which a staged column is read back."""
    if wire.kind != "cast" or pa.types.is_decimal(type_):
        return "text"
    if pa.types.is_list(type_) and pa.types.is_decimal(type_.value_type):
        return "text[]"
    return natural_type(type_)


def decoded(column: Any, type_: Any, wire: Wire) -> Any:
    """Return a column that was read back, with the type it had before `encoded`."""
    if wire.kind in ("json", "jsonb") and pa.types.is_nested(type_):
        return array_of((None if text is None else parse_json(text) for text in column.to_pylist()), type_)
    return column.cast(type_)
