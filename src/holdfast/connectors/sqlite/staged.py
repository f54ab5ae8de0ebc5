"""Staged rows of the SQLite sink, read back with the types they had."""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from holdfast.connectors.extras import pa
from holdfast.connectors.parquet_files import StagedFile, check_staged, expect_rows
from holdfast.connectors.sql_statements import quoted
from holdfast.connectors.sqlite.columns import sqlite_columns
from holdfast.connectors.staging import reading_back
from holdfast.connectors.text_values import array_of, in_chunks, parse_json
from holdfast.core.contracts import Token


def read_staged(folder: str, token: Token, schema: Any) -> Any:
    """Return the rows of a token's staging database as a `pyarrow.Table` of these plain types, verified."""
    facts = StagedFile(**token.payload["file"])
    check_staged(folder, [facts], deeply=True)
    file = os.path.join(folder, facts.path)
    with reading_back(file):
        rows = _read(file, schema)
    expect_rows(rows.num_rows, token.rows)
    return rows


def _read(file: str, schema: Any) -> Any:
    names = ", ".join(f"rows.{quoted(column.name)}" for column in sqlite_columns(schema))
    uri = f"file:{quote(file)}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        rows = connection.execute(f"SELECT {names} FROM rows ORDER BY rowid")
        return in_chunks(rows, lambda chunk: _columns(chunk, schema), schema)


def _columns(rows: list[tuple[Any, ...]], schema: Any) -> list[Any]:
    flat = iter(zip(*rows, strict=True))
    return [_column(flat, field.type) for field in schema]


def _column(flat: Iterator[Iterable[Any]], type_: Any) -> Any:
    """Return the next column; a struct takes as many of the flat ones as it has fields, also in structs within."""
    is_ = pa.types
    if is_.is_struct(type_):
        fields = [_column(flat, field.type) for field in type_]
        nulls = pa.array([not any(valid) for valid in zip(*(f.is_valid().to_pylist() for f in fields), strict=True)])
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=nulls)
    values = next(flat)
    if is_.is_list(type_) or is_.is_map(type_):
        values = (None if text is None else parse_json(text) for text in values)
    return array_of(values, type_)
