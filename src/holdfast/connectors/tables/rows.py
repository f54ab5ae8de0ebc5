"""Rows of a reference table, from whatever reads them into one Parquet file that Spark reads."""

import os
from collections.abc import Iterable
from typing import Any

from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.extras import pa, pq
from holdfast.errors import PipelineDefinitionError, SourceError

_FILE = "rows.parquet"
_WIDER = {"uint8": "int16", "uint16": "int32", "uint32": "int64"}
_WIDEST_DECIMAL = 38


def write_rows(schema: Any, batches: Iterable[Any], directory: str) -> None:
    """Write record batches into a folder, one at a time; columns get types that Spark knows."""
    readable = readable_schema(schema)
    path = os.path.join(directory, _FILE)
    with pq.ParquetWriter(path, readable, store_schema=False, write_page_checksum=True) as writer:
        for batch in batches:
            try:
                table = _without_extensions(pa.Table.from_batches([batch]).select(readable.names))
                writer.write_table(table.cast(readable))
            except pa.ArrowInvalid as error:
                raise SourceError(f"a value does not fit its column: {str(error).splitlines()[0]}") from error


def readable_schema(schema: Any) -> Any:
    """Return `schema` with types that Spark reads from Parquet; refuse columns for which there is none."""
    named = [pa.field(field.name, _readable(field.type)) for field in schema]
    repeated = {field.name for field in named if sum(other.name == field.name for other in named) > 1}
    if repeated:
        raise SourceError(f"there are two columns named {', '.join(sorted(repeated))}; rename one in the query")
    try:
        return plain_schema(pa.schema(named))
    except PipelineDefinitionError as error:
        raise SourceError(str(error).replace("in the view", "in the query")) from error


def _readable(type_: Any) -> Any:
    """Return the nearest type that can be stored. What databases have and Spark has not becomes text."""
    is_ = pa.types
    if isinstance(type_, pa.ExtensionType | pa.BaseExtensionType):
        return _readable(type_.storage_type)
    if is_.is_unsigned_integer(type_):
        return pa.type_for_alias(_WIDER[str(type_)]) if str(type_) in _WIDER else pa.decimal128(20, 0)
    if is_.is_null(type_) or is_.is_time(type_):
        return pa.string()
    if is_.is_date64(type_):
        return pa.date32()
    if is_.is_decimal256(type_):
        fits = type_.precision <= _WIDEST_DECIMAL
        return pa.decimal128(type_.precision, type_.scale) if fits else pa.string()
    return type_


def _without_extensions(table: Any) -> Any:
    """Return a table with the storage of extension types, which cannot be cast themselves."""
    for index, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            chunks = [chunk.storage for chunk in table.column(index).chunks]
            plain = pa.chunked_array(chunks, field.type.storage_type)
            table = table.set_column(index, pa.field(field.name, field.type.storage_type), plain)
    return table
