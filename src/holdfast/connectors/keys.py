"""Keys of an epoch's rows, for sinks that update by key."""

from typing import Any

from holdfast.connectors.extras import pc
from holdfast.core.contracts import Rows
from holdfast.errors import SinkError


def refuse_repeated_keys(rows: Rows, key: tuple[str, ...]) -> None:
    """Refuse an epoch in which two rows have one key: which of them should stay is not ours to guess."""
    repeated = _repeated_here(rows.arrow(), key) if rows.small else _repeated_in_spark(rows.dataframe(), key)
    if repeated:
        raise SinkError(repeated_key(key))


def repeated_key(key: tuple[str, ...]) -> str:
    """Say what is wrong with rows that share a key."""
    return (
        f"several rows of the epoch have the same key ({', '.join(key)}); aggregate or deduplicate them in the view"
    )


def _repeated_here(table: Any, key: tuple[str, ...]) -> bool:
    columns = table.select(list(key))
    while any(hasattr(field.type, "num_fields") and field.type.num_fields for field in columns.schema):
        columns = columns.flatten()
    names = [f"k{index}" for index in range(columns.num_columns)]
    counts = columns.rename_columns(names).group_by(names).aggregate([([], "count_all")])["count_all"]
    return bool(pc.max(counts).as_py() > 1)


def _repeated_in_spark(dataframe: Any, key: tuple[str, ...]) -> bool:
    grouped = dataframe.groupBy(*(f"`{name}`" for name in key)).count()
    return not grouped.filter("count > 1").isEmpty()
