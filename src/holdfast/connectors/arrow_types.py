"""One spelling for the Arrow types that Spark's rows come in.

Spark gives timestamps in the session's time zone and may give large or dictionary-encoded variants. Targets see one
form: microseconds, UTC for instants and no zone for local times, plain strings and binaries. Every column may be
NULL: that Spark can prove a column is never NULL today says nothing about the view's next version.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.connectors.extras import pa
from holdfast.errors import PipelineDefinitionError


def plain_schema(schema: Any) -> Any:
    """Return `schema` with every type in its plain form; refuse types that no target here can hold."""
    return pa.schema([pa.field(f.name, _plain(f.type, f.name)) for f in schema])


def as_plain(table: Any, schema: Any) -> Any:
    """Return `table` cast to a plain schema; values do not change."""
    return table if table.schema.equals(schema) else table.cast(schema)


def is_nested(type_: Any) -> bool:
    """Whether a type is a struct, a list or a map."""
    return bool(pa.types.is_nested(type_))


def key_columns(schema: Any, key: tuple[str, ...]) -> tuple[str, ...]:
    """Return the key, or say which of its columns are not there or cannot be compared."""
    for name in key:
        if name not in schema.names:
            raise PipelineDefinitionError(f"key column '{name}' is not among the columns {', '.join(schema.names)}")
        if any(_is_list(type_) for type_ in _types_within(schema.field(name).type)):
            raise PipelineDefinitionError(f"key column '{name}' is or holds a list or map, which cannot be a key")
    return key


def _plain(type_: Any, where: str) -> Any:
    is_ = pa.types
    if is_.is_timestamp(type_):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if is_.is_struct(type_):
        return _plain_struct(type_, where)
    if is_.is_map(type_):
        return pa.map_(_plain(type_.key_type, where), _plain_field(type_.item_field, where))
    if is_.is_list(type_) or is_.is_large_list(type_):
        return pa.list_(_plain_field(type_.value_field, where))
    if is_.is_dictionary(type_):
        return _plain(type_.value_type, where)
    if is_.is_large_string(type_):
        return pa.string()
    if is_.is_large_binary(type_):
        return pa.binary()
    if _is_simple(type_):
        return type_
    if is_.is_null(type_):
        raise PipelineDefinitionError(f"column '{where}' has no type (it is always NULL); cast it in the view")
    raise PipelineDefinitionError(f"column '{where}' has type {type_}, which cannot be stored; cast it in the view")


def _plain_struct(type_: Any, where: str) -> Any:
    if type_.num_fields == 0:
        raise PipelineDefinitionError(f"column '{where}' is a struct without fields, which cannot be stored")
    return pa.struct([_plain_field(field, f"{where}.{field.name}") for field in type_])


def _plain_field(field: Any, where: str) -> Any:
    return pa.field(field.name, _plain(field.type, where))


def _is_simple(type_: Any) -> bool:
    is_ = pa.types
    tests = (is_.is_boolean, is_.is_signed_integer, is_.is_floating, is_.is_decimal, is_.is_date32)
    return any(test(type_) for test in (*tests, is_.is_string, is_.is_binary))


def _is_list(type_: Any) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_map(type_))


def _types_within(type_: Any) -> Iterator[Any]:
    yield type_
    if pa.types.is_struct(type_):
        for field in type_:
            yield from _types_within(field.type)
