"""Where rows go: constructors for the sinks of a pipeline. Each names the guarantee it gives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from holdfast.connectors.console import ConsoleSink, MemorySink
from holdfast.connectors.delta import DeltaSink
from holdfast.connectors.files import FilesSink
from holdfast.connectors.foreach import BatchKey, ForeachBatchSink
from holdfast.connectors.sqlite import SqliteSink

__all__ = ["BatchKey", "console", "delta", "files", "foreach_batch", "memory", "sqlite"]


def delta(
    path: str,
    *,
    mode: Literal["append", "merge"] = "append",
    key: str | Sequence[str] | None = None,
    partition_by: str | Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
) -> DeltaSink:
    """Write to a Delta table, exactly once: an epoch's files and the ledger become visible in one log entry.

    The table is created on first use, from the view's columns. `mode="merge"` updates the row with the same `key`
    (NULL counts as equal to NULL) and adds it when there is none; it needs a key, and rows of one epoch must not
    share one. `path` is a local path or a URL that `deltalake` knows (`s3://`, `gs://`, `az://`) with
    `storage_options` for it; there, even large epochs pass through this process. On a local disk everything is
    flushed before it counts, except in the few milliseconds between a log entry's creation by `deltalake` and its
    flush.

    Rewind: append removes later epochs' files, if nothing rewrote them (OPTIMIZE); merge restores the earlier
    version, if nobody else wrote since.
    """
    options = None if storage_options is None else dict(storage_options)
    return DeltaSink(path, mode=mode, key=_names(key), partition_by=_names(partition_by), storage_options=options)


def files(path: str, *, format: Literal["parquet", "json", "csv"] = "parquet") -> FilesSink:
    """Write one folder per epoch, `holdfast_epoch=<n>`, exactly once: a folder appears whole, by one rename.

    Readers with plain Spark, pandas or pyarrow never see a part of an epoch and get its number as a partition column.
    JSON is one object per line; CSV has a header and refuses nested columns. Needs a local disk; on object storage
    use `delta`. Rewind removes the folders of later epochs.
    """
    return FilesSink(path, format=format)


def sqlite(
    path: str,
    *,
    table: str,
    key: str | Sequence[str] | None = None,
    epoch_column: bool = False,
    mode: Literal["append", "upsert"] | None = None,
) -> SqliteSink:
    """Write to a table of a SQLite database, exactly once: rows and ledger change in one transaction.

    With a `key` a row replaces the one that has the same key (NULL counts as equal to NULL). The table is created
    when missing; times are ISO-8601 text in UTC, decimals text, structs one column per field (`w` becomes `w_start`
    and `w_end`), lists and maps JSON text. What the table would refuse is found before the epoch is decided.
    `epoch_column=True` adds `_holdfast_epoch`, which an append table needs to be rewound; an upserted one cannot be.
    """
    return SqliteSink(path, table=table, key=_names(key), epoch_column=epoch_column, mode=mode)


def foreach_batch(
    function: Callable[[Any, BatchKey], object],
    *,
    last_committed: Callable[[UUID], int | None] | None = None,
    rows_as: Literal["arrow", "spark"] = "arrow",
) -> ForeachBatchSink:
    """Call `function(rows, key)` for each epoch, at least once; after a crash again with the same rows and key.

    `rows` is a `pyarrow.Table`, or a Spark DataFrame with `rows_as="spark"`; `key` has `timeline` and `epoch`, and
    `str(key)` is the same for ever. Exactly once with `last_committed(timeline)`, which asks your target for the last
    epoch it has (None: nothing yet), provided that your function writes rows and epoch in one act. Rows wait in a
    folder on this machine until they are handed over. Cannot be rewound.
    """
    return ForeachBatchSink(function, last_committed=last_committed, rows_as=rows_as)


def console(*, rows: int = 20) -> ConsoleSink:
    """Print the first rows of each epoch, for trying things. No guarantee: after a crash epochs may be missing."""
    return ConsoleSink(rows=rows)


def memory() -> MemorySink:
    """Keep rows in this process, for trying things: `.rows()` returns them. Nothing survives the process."""
    return MemorySink()


def _names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())
