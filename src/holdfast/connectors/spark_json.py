"""Columns as Spark is to tell them in JSON, where by itself it tells something else.

Of a map's keys Spark tells how it keeps them: of a date the number of its day, of a binary where it is in memory.
"""

from collections.abc import Iterable
from typing import Any

from holdfast.connectors.extras import spark_functions

TIMES = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}
JSON_OPTIONS = {**TIMES, "ignoreNullFields": "false"}
_ILL_TOLD = frozenset({"date", "timestamp", "timestamp_ntz", "binary", "struct", "array"})
_KEY = "key"


def tellable_columns(frame: Any, names: Iterable[str]) -> list[Any]:
    """Return columns of a DataFrame that become the JSON that small epochs have."""
    types = {field.name: field.dataType for field in frame.schema}
    return [_tellable(spark_functions.col(in_ticks(name)), types[name]).alias(name) for name in names]


def in_ticks(name: str) -> str:
    """Return a column's name as Spark takes it, whatever is in it."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _tellable(column: Any, type_: Any) -> Any:
    if not _is_ill_told(type_):
        return column
    match type_.typeName():
        case "struct":
            fields = (_tellable(column.getField(f.name), f.dataType).alias(f.name) for f in type_.fields)
            return spark_functions.when(column.isNotNull(), spark_functions.struct(*fields))
        case "array":
            return spark_functions.transform(column, lambda value: _tellable(value, type_.elementType))
    keys = spark_functions.map_keys(column)
    if type_.keyType.typeName() in _ILL_TOLD:
        keys = spark_functions.transform(keys, lambda key: _text(_tellable(key, type_.keyType)))
    values = spark_functions.map_values(column)
    told = spark_functions.transform(values, lambda value: _tellable(value, type_.valueType))
    return spark_functions.map_from_arrays(keys, told)


def _text(key: Any) -> Any:
    document = spark_functions.to_json(spark_functions.struct(key.alias(_KEY)), dict(JSON_OPTIONS))
    return spark_functions.get_json_object(document, f"$.{_KEY}")


def _is_ill_told(type_: Any) -> bool:
    match type_.typeName():
        case "struct":
            return any(_is_ill_told(field.dataType) for field in type_.fields)
        case "array":
            return _is_ill_told(type_.elementType)
        case "map":
            return type_.keyType.typeName() in _ILL_TOLD or _is_ill_told(type_.valueType)
    return False
