"""Statistics of a data file as Delta's log wants them, read from the Parquet footer.

Row count, and per column the number of NULLs, minimum and maximum; nested struct fields as nested objects. What has
no usable order (lists, maps, binaries, booleans, NaN) has no bounds, which a reader takes for "may hold anything".
"""

import datetime
import decimal
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.extras import pa

_INDEXED_COLUMNS = 32
"""Delta's default: statistics for the first 32 leaf columns."""
_LONGEST_TEXT = 32


@dataclass(frozen=True)
class _Leaf:
    """A leaf column of a Parquet file: its path through structs, and whether it is one value per row."""

    path: tuple[str, ...]
    single: bool


def stats_json(metadata: Any, schema: Any) -> str:
    """Return the `stats` text for a file with this footer (`pyarrow.parquet.FileMetaData`) and Arrow schema."""
    stats: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    leaves = [leaf for field in schema for leaf in _leaves(field, ())]
    for index, leaf in enumerate(leaves[:_INDEXED_COLUMNS]):
        if leaf.single:
            _add_leaf(stats, metadata, index, leaf.path)
    return json.dumps(stats, separators=(",", ":"), ensure_ascii=False)


def null_counts(metadata: Any, schema: Any) -> dict[str, int]:
    """Return how many NULLs each plain (not nested) column has, where the footer says so."""
    counts = {}
    for index, leaf in enumerate(leaf for field in schema for leaf in _leaves(field, ())):
        nulls = _nulls(_chunks(metadata, index))
        if len(leaf.path) == 1 and leaf.single and nulls is not None:
            counts[leaf.path[0]] = nulls
    return counts


def _leaves(field: Any, above: tuple[str, ...]) -> Iterator[_Leaf]:
    path = (*above, field.name)
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from _leaves(child, path)
    elif pa.types.is_map(field.type):
        yield from _repeated(_leaves(field.type.key_field, path))
        yield from _repeated(_leaves(field.type.item_field, path))
    elif pa.types.is_list(field.type):
        yield from _repeated(_leaves(field.type.value_field, path))
    else:
        yield _Leaf(path, single=True)


def _repeated(leaves: Iterator[_Leaf]) -> Iterator[_Leaf]:
    for leaf in leaves:
        yield _Leaf(leaf.path, single=False)


def _chunks(metadata: Any, column: int) -> list[Any]:
    return [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]


def _nulls(chunks: list[Any]) -> int | None:
    if any(chunk is None or not chunk.has_null_count for chunk in chunks):
        return None
    return sum(int(chunk.null_count) for chunk in chunks)


def _add_leaf(stats: dict[str, Any], metadata: Any, index: int, path: tuple[str, ...]) -> None:
    chunks = _chunks(metadata, index)
    nulls = _nulls(chunks)
    if nulls is None:
        return
    _put(stats["nullCount"], path, nulls)
    low, high = _bounds([chunk for chunk in chunks if chunk.num_values > 0])
    if low is not None and high is not None:
        _put(stats["minValues"], path, low)
        _put(stats["maxValues"], path, high)


def _bounds(chunks: list[Any]) -> tuple[Any, Any]:
    if not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None, None
    try:
        return _lower(min(chunk.min for chunk in chunks)), _upper(max(chunk.max for chunk in chunks))
    except (OverflowError, ValueError):  # A time that Python cannot spell.
        return None, None


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value


def _lower(value: Any) -> Any:
    """Return a value that is at most `value`, as JSON has it."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, datetime.datetime):
        return _instant(value - datetime.timedelta(microseconds=value.microsecond % 1000))
    return _bound(value)


def _upper(value: Any) -> Any:
    """Return a value that is at least `value`, as JSON has it."""
    if isinstance(value, str):
        # Cut text sorts before the whole; the largest character behind the cut puts it after.
        return value if len(value) <= _LONGEST_TEXT else value[:_LONGEST_TEXT] + "\U0010ffff"
    if isinstance(value, datetime.datetime):
        return _instant(value + datetime.timedelta(microseconds=-value.microsecond % 1000))
    return _bound(value)


def _instant(value: datetime.datetime) -> str:
    """Spell a time with milliseconds, the precision Delta's statistics have."""
    text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else f"{text}Z"


def _bound(value: Any) -> Any:
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return _decimal_bound(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value if isinstance(value, int) else None


def _decimal_bound(value: decimal.Decimal) -> int | float | None:
    """Return a JSON number that is exactly `value`: a rounded bound would hide rows from readers."""
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    exact = "e" not in repr(number) and decimal.Decimal(repr(number)) == value
    return number if exact else None
