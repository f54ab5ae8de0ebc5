"""Rows and columns as JSON, a column at a time, at the speed of Arrow's own code."""

import json
from collections.abc import Callable
from typing import Any

from holdfast.connectors.extras import pa, pc
from holdfast.connectors.json_text import json_text

_TO_ESCAPE = r'["\\\x00-\x1f]'
_WHOLE = r"^-?[0-9]+$"


def json_objects(batch: Any) -> Any:
    """Return one JSON object per row of a record batch with plain types, as a `pyarrow.StringArray`."""
    pieces: list[Any] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces += [f"{',' if pieces else '{'}{_quoted(name)}:", json_values(column)]
    return pc.binary_join_element_wise(*pieces, "}", "")


def json_values(column: Any) -> Any:
    """Return every value of an array as JSON, NULL as the word for it."""
    return json_texts(column).fill_null("null")


def json_texts(column: Any) -> Any:
    """Return every value of an array as JSON; NULL stays NULL."""
    tell = next((tell for fits, tell in _NESTED if getattr(pa.types, fits)(column.type)), _simple)
    return tell(column)


def as_text(column: Any) -> Any:
    """Return times, dates and decimals of a column as the text that stands for them; other columns as they are."""
    is_, type_ = pa.types, column.type
    if is_.is_timestamp(type_):
        return pc.strftime(column, "%Y-%m-%dT%H:%M:%S" + ("Z" if type_.tz else ""))
    if is_.is_date(type_):
        return pc.strftime(column, "%Y-%m-%d")
    return column.cast(pa.string()) if is_.is_decimal(type_) else column


def _simple(column: Any) -> Any:
    is_, type_ = pa.types, column.type
    if is_.is_string(type_):
        return _quoted_texts(_valid(column))
    if is_.is_timestamp(type_) or is_.is_date(type_):
        return pc.binary_join_element_wise('"', as_text(column), '"', "")
    if is_.is_floating(type_):
        return _numbers(column)
    if is_.is_integer(type_) or is_.is_boolean(type_) or is_.is_decimal(type_):
        return column.cast(pa.string())
    return _one_by_one(column)


def _structs(column: Any) -> Any:
    fields = pa.RecordBatch.from_arrays(column.flatten(), [field.name for field in column.type])
    return _where_valid(column, json_objects(fields))


def _lists(column: Any) -> Any:
    return _joined(column, "[", _within(column, column.values, json_values), "]")


def _maps(column: Any) -> Any:
    keys, items = _within(column, column.keys, _key_texts), _within(column, column.items, json_values)
    return _joined(column, "{", pc.binary_join_element_wise(keys, items, ":"), "}")


_NESTED = (("is_struct", _structs), ("is_list", _lists), ("is_map", _maps))


def _key_texts(column: Any) -> Any:
    """Return keys as JSON: what is no text there becomes one."""
    texts = json_values(column)
    if pa.types.is_nested(column.type):
        return _quoted_texts(texts)
    return pc.if_else(pc.starts_with(texts, '"'), texts, pc.binary_join_element_wise('"', texts, '"', ""))


def _within(column: Any, values: Any, tell: Callable[[Any], Any]) -> Any:
    """Return what `tell` says of the values that lists or maps hold, those alone that belong to this slice."""
    if not len(column):
        return tell(values.slice(0, 0))
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return tell(values.slice(first, last - first))


def _joined(column: Any, opening: str, texts: Any, closing: str) -> Any:
    if not len(column):
        return pa.array([], pa.string())
    lists = pa.ListArray.from_arrays(pc.subtract(column.offsets, column.offsets[0]), texts)
    inside = pc.binary_join(lists, ",")
    return _where_valid(column, pc.binary_join_element_wise(opening, inside, closing, ""))


def _where_valid(column: Any, texts: Any) -> Any:
    return pc.if_else(column.is_valid(), texts, None)


def _valid(column: Any) -> Any:
    """Return texts of which JSON can be made: Spark does not look at the bytes that it casts to a text."""
    raw = column.cast(pa.binary())
    try:
        raw.cast(pa.string())
    except ValueError:
        texts = [None if value is None else value.decode(errors="replace") for value in raw.to_pylist()]
        return pa.array(texts, pa.string())
    return column


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _quoted_texts(column: Any) -> Any:
    quoted = pc.binary_join_element_wise('"', column, '"', "")
    special = pc.fill_null(pc.match_substring_regex(column, _TO_ESCAPE), False)
    if not pc.any(special).as_py():
        return quoted
    escaped = [_quoted(text) for text in column.filter(special).to_pylist()]
    return pc.replace_with_mask(quoted, special, pa.array(escaped, pa.string()))


def _numbers(column: Any) -> Any:
    """Return numbers with a point, as others write them: Arrow says 1 for 1.0."""
    texts = column.cast(pa.string())
    whole = pc.match_substring_regex(texts, _WHOLE)
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    odd = pc.invert(pc.is_finite(column))
    if not pc.any(odd).as_py():
        return texts
    return pc.if_else(odd, _one_by_one(column), texts)


def _one_by_one(column: Any) -> Any:
    values = column.to_pylist()
    return pa.array([None if value is None else json_text(value) for value in values], pa.string())
