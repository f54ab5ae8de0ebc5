"""Rows as JSON objects, a column at a time: what `row_formats` writes per row, at the speed of Arrow's own code."""

import json
from typing import Any

from holdfast.connectors.extras import pa, pc
from holdfast.connectors.row_formats import as_text, json_text

_TO_ESCAPE = r'["\\\x00-\x1f]'
_WHOLE = r"^-?[0-9]+$"


def json_objects(batch: Any) -> Any:
    """Return one JSON object per row of a record batch with plain types, as a `pyarrow.StringArray`."""
    pieces: list[Any] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        pieces += [f"{',' if pieces else '{'}{_quoted(name)}:", json_values(column)]
    return pc.binary_join_element_wise(*pieces, "}", "")


def json_values(column: Any) -> Any:
    """Return every value of an array as JSON."""
    is_, type_ = pa.types, column.type
    if is_.is_string(type_):
        texts = _quoted_texts(column)
    elif is_.is_timestamp(type_) or is_.is_date(type_):
        texts = pc.binary_join_element_wise('"', as_text(column), '"', "")
    elif is_.is_floating(type_):
        texts = _numbers(column)
    elif is_.is_integer(type_) or is_.is_boolean(type_) or is_.is_decimal(type_):
        texts = column.cast(pa.string())
    else:
        texts = _one_by_one(column)
    return texts.fill_null("null")


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
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if value is None else json_text(value) for value in values], pa.string())
