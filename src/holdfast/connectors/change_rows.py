"""The rows that sources of changes give, whatever database they come from: one shape, so one view reads them all."""

from collections.abc import Sequence
from typing import Any

from holdfast.connectors.extras import pa

STARTING_OFFSET, MATERIALS = "starting_offset", "materials"
"""Options through which the engine tells a reader where the pipeline begins, and where the first copy is."""


def row_schema(columns: Any) -> Any:
    """Return the schema of the rows; `columns` (a `pyarrow.Schema`) are those of the table.

    `position` is where a transaction stands in the server's log, as text that sorts, and `seq` the number of the
    change in it: together they order all rows of one log. `unchanged` names the columns that are NULL in `after`
    only because the server did not send their values.
    """
    image = pa.struct(list(columns))
    return pa.schema(
        [
            pa.field("op", pa.string()),
            pa.field("position", pa.string()),
            pa.field("seq", pa.int64()),
            pa.field("transaction", pa.string()),
            pa.field("committed_at", pa.timestamp("us", "UTC")),
            pa.field("before", image),
            pa.field("after", image),
            # Spark calls the parts of a list so; another name would be another type.
            pa.field("unchanged", pa.list_(pa.field("element", pa.string()))),
        ]
    )


def snapshot_rows(after: Sequence[Any], columns: Any, *, position: str, seq: int, taken_at_us: int) -> Any:
    """Return rows of a table's first copy, numbered from `seq`, as a `pyarrow.RecordBatch`."""
    schema, count = row_schema(columns), len(after[0])
    values = {
        "op": pa.repeat("snapshot", count),
        "position": pa.repeat(position, count),
        "seq": pa.array(range(seq, seq + count), pa.int64()),
        "committed_at": pa.repeat(pa.scalar(taken_at_us, schema.field("committed_at").type), count),
        "after": pa.StructArray.from_arrays(after, fields=list(columns)),
        "unchanged": pa.repeat(pa.scalar([], schema.field("unchanged").type), count),
    }
    arrays = [values[field.name] if field.name in values else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
