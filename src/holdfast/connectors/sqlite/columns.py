"""How Arrow columns lie in SQLite, which knows whole numbers, reals, text and blobs.

whole numbers, booleans   INTEGER (booleans 0 and 1)
floats                    REAL (SQLite keeps NaN as NULL)
decimals                  TEXT, every digit kept
text, binaries            TEXT, BLOB
instants                  TEXT 2024-01-31T12:00:00.000000Z: sorts as it should, SQLite's date functions read it
local times, dates        TEXT 2024-01-31T12:00:00.000000 and 2024-01-31
structs                   one column per field: a window column `w` becomes `w_start` and `w_end`
lists, maps               TEXT, as JSON
"""

from collections.abc import Iterator
from typing import Any

from holdfast.connectors.arrow_types import as_plain
from holdfast.connectors.extras import pa
from holdfast.connectors.json_values import as_text, json_texts
from holdfast.connectors.sql_statements import Column
from holdfast.errors import PipelineDefinitionError


def sqlite_columns(schema: Any) -> list[Column]:
    """Return the columns for a plain schema; refuse names that meet after flattening."""
    columns = [column for field in schema for column in _columns(field.name, field.type, field.name)]
    seen: dict[str, Column] = {}
    for column in columns:
        # SQLite does not tell upper from lower case in names.
        other = seen.setdefault(column.name.lower(), column)
        if other is not column:
            raise PipelineDefinitionError(
                f"columns '{other.source}' and '{column.source}' both become '{column.name}' in SQLite; "
                "rename one in the view"
            )
    return columns


def _columns(name: str, type_: Any, source: str) -> Iterator[Column]:
    if pa.types.is_struct(type_):
        for field in type_:
            yield from _columns(f"{name}_{field.name}", field.type, source)
    else:
        yield Column(name, _sqlite_type(type_), source)


def _sqlite_type(type_: Any) -> str:
    is_ = pa.types
    if is_.is_boolean(type_) or is_.is_integer(type_):
        return "INTEGER"
    if is_.is_floating(type_):
        return "REAL"
    return "BLOB" if is_.is_binary(type_) else "TEXT"


def sqlite_rows(table: Any, schema: Any) -> Any:
    """Return a table with the columns and values that SQLite gets."""
    arrays: list[Any] = []
    for column in as_plain(table, schema).columns:
        arrays.extend(_flat(column.combine_chunks()))
    return pa.table(arrays, names=[column.name for column in sqlite_columns(schema)])


def sqlite_schema(schema: Any) -> Any:
    """Return the Arrow schema of `sqlite_rows`."""
    return sqlite_rows(schema.empty_table(), schema).schema


def _flat(array: Any) -> Iterator[Any]:
    is_ = pa.types
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if is_.is_struct(array.type):
        for child in array.flatten():
            yield from _flat(child)
    elif is_.is_list(array.type) or is_.is_map(array.type):
        yield json_texts(array)
    elif is_.is_boolean(array.type):
        yield array.cast(pa.int8())
    else:
        yield as_text(array)
