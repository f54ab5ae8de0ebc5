"""Where rows go: constructors for the sinks of a pipeline. Each names the guarantee it gives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from holdfast.connectors.console import ConsoleSink, MemorySink
from holdfast.connectors.delta.sink import DeltaSink
from holdfast.connectors.files import FilesSink
from holdfast.connectors.foreach import BatchKey, ForeachBatchSink
from holdfast.connectors.kafka.cluster import Cluster
from holdfast.connectors.kafka.messages import MessageColumns
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.sqlite.sink import SqliteSink

__all__ = ["BatchKey", "console", "delta", "files", "foreach_batch", "kafka", "memory", "postgres", "sqlite"]


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


def postgres(
    url: str,
    *,
    table: str,
    key: str | Sequence[str] | None = None,
    mode: Literal["append", "upsert"] | None = None,
    order_by: str | None = None,
    delete_when: str | None = None,
    omit: str | Sequence[str] = (),
    epoch_column: bool = False,
    create: bool = True,
    ledger_schema: str | None = None,
    statement_seconds: float = 300.0,
) -> PostgresSink:
    """Write to a table of a PostgreSQL database, exactly once: rows and ledger change in one transaction.

    `url` is libpq's (`postgresql://user:password@host:5432/database`); `table`, or `schema.table`, is taken as it is
    written. With a `key`, which must not be NULL, a row replaces the one that has the same key; rows of one epoch
    must not share one, unless `order_by` names a column (a sequence, a time) whose highest value counts. A row for
    which `delete_when`, an SQL condition over the view's columns such as `op = 'd'`, is true deletes the row with its
    key. Columns in `omit` only steer and are not written.

    The table is created when missing, unless `create=False`; lists become arrays, structs and maps jsonb. Large
    epochs are copied by Spark's tasks, each on a connection of its own. What the table would refuse is found before
    the epoch is decided; one with triggers, foreign keys or further indexes is tried in a transaction that is rolled
    back, which costs as much as the commit. `epoch_column=True` adds `_holdfast_epoch`, which an append table needs
    to be rewound; an upserted one cannot be.

    The ledger and staged rows are tables beside yours, or in `ledger_schema`; sinks that write to one table must
    share it. No statement takes longer than `statement_seconds`, no lock is awaited longer than 10 seconds.
    """
    return PostgresSink(
        url,
        table=table,
        key=_names(key),
        mode=mode,
        order_by=order_by,
        delete_when=delete_when,
        omit=_names(omit),
        epoch_column=epoch_column,
        create=create,
        ledger_schema=ledger_schema,
        statement_seconds=statement_seconds,
    )


def kafka(
    bootstrap_servers: str,
    *,
    topic: str,
    key: str | None = None,
    value: str | None = None,
    headers: Mapping[str, str] | None = None,
    partition: str | None = None,
    omit: str | Sequence[str] = (),
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "lz4",
    create: bool = True,
    marker_topic: str | None = None,
    transaction_seconds: float = 600.0,
    security_protocol: str | None = None,
    sasl_mechanism: str | None = None,
    username: str | None = None,
    password: str | None = None,
    ca_file: str | None = None,
) -> KafkaSink:
    """Write to a topic of Kafka, exactly once for `read_committed` consumers: an epoch is one transaction.

    A message's value is a JSON object of all columns but those in `omit`, or the column named by `value` (text or
    binary; NULL is a tombstone). `key`, `headers` (name of the header: column) and `partition` name columns, too;
    what must be computed is computed in the view. Where `partition` is not given or NULL, the key decides, as in
    Kafka's own clients.

    Rows wait in a folder on this machine until their transaction, and must survive until then. The transaction also
    writes a marker into `marker_topic` (`_holdfast_<topic>`), by which a restart knows what was written. Topics that
    are missing are created, unless `create=False`. A transaction takes at most `transaction_seconds`, which brokers
    limit (`transaction.max.timeout.ms`). What was written cannot be rewound.
    """
    return KafkaSink(
        Cluster(bootstrap_servers, security_protocol, sasl_mechanism, username, password, ca_file),
        topic=topic,
        columns=MessageColumns(key, value, dict(headers or {}), partition, _names(omit)),
        compression=compression,
        marker_topic=marker_topic,
        create=create,
        transaction_seconds=transaction_seconds,
    )


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
