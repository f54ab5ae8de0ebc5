"""Values read back from the text that stands for them in JSON and in SQLite: the way back from `row_formats`.

What those cannot tell apart stays lost: a struct whose fields are all NULL in SQLite, NaN in SQLite.
"""

import base64
import datetime
import decimal
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.connectors.extras import pa

_ROWS_AT_ONCE = 10_000
"""Python's values take many times the space of Arrow's."""


def parse_json(text: str | bytes) -> Any:
    """Return a JSON document; numbers with a point keep their digits."""
    return json.loads(text, parse_float=decimal.Decimal)


def json_lines(lines: Iterable[bytes], schema: Any) -> Any:
    """Return JSON objects, one per line, as a `pyarrow.Table`."""

    def columns(chunk: list[bytes]) -> list[Any]:
        rows = [parse_json(line) for line in chunk]
        return [array_of((row.get(field.name) for row in rows), field.type) for field in schema]

    return in_chunks(lines, columns, schema)


def in_chunks(rows: Iterable[Any], columns: Callable[[list[Any]], list[Any]], schema: Any) -> Any:
    """Return a `pyarrow.Table` of rows that `columns` turns into one array per column, some thousand at a time."""
    remaining = iter(rows)
    batches = []
    while chunk := list(itertools.islice(remaining, _ROWS_AT_ONCE)):
        batches.append(pa.record_batch(columns(chunk), schema=schema))
    return pa.Table.from_batches(batches, schema)


def array_of(values: Iterable[Any], type_: Any) -> Any:
    """Return a column of values as JSON or SQLite give them."""
    return pa.array([value_of(value, type_) for value in values], type_)


def value_of(value: Any, type_: Any) -> Any:
    """Return what a value in JSON or SQLite stands for in a column of this type."""
    is_ = pa.types
    if value is None:
        return None
    if is_.is_struct(type_):
        return {field.name: value_of(value.get(field.name), field.type) for field in type_}
    if is_.is_map(type_):
        return [(_key_of(key, type_.key_type), value_of(item, type_.item_type)) for key, item in value.items()]
    if is_.is_list(type_):
        return [value_of(item, type_.value_type) for item in value]
    return next((read(value) for test, read in _SCALARS if getattr(is_, test)(type_)), value)


def _key_of(text: str, type_: Any) -> Any:
    return value_of(parse_json(text) if pa.types.is_nested(type_) else text, type_)


def _truth(value: Any) -> bool:
    return value == "true" if isinstance(value, str) else bool(value)


_SCALARS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("is_boolean", _truth),
    ("is_integer", int),
    ("is_floating", float),
    ("is_decimal", decimal.Decimal),
    ("is_timestamp", datetime.datetime.fromisoformat),
    ("is_date", datetime.date.fromisoformat),
    ("is_binary", lambda value: value if isinstance(value, bytes) else base64.b64decode(value)),
)
