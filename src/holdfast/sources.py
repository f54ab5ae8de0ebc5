"""Where rows come from: constructors for the sources of a pipeline."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.connectors.delta.settings import DeltaSettings, Limits
from holdfast.connectors.delta.source import absolute, delta_source
from holdfast.connectors.kafka.cluster import Cluster
from holdfast.connectors.kafka.source import kafka_source
from holdfast.connectors.kafka.topics import Subscription
from holdfast.connectors.mysql_cdc.source import mysql_cdc_source
from holdfast.connectors.postgres_cdc.source import postgres_cdc_source
from holdfast.connectors.spark_sources import file_source, spark_source
from holdfast.core.sources import SourceSpec

__all__ = ["delta", "files", "kafka", "mysql_cdc", "postgres_cdc", "rate", "spark"]


def delta(
    path: str,
    *,
    starting: str | int | datetime = "snapshot",
    change_feed: bool = False,
    on_rewrite: str = "stop",
    on_history_lost: str = "stop",
    max_files: int | None = 1000,
    max_versions: int | None = None,
    max_bytes: int | None = None,
    partitions: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> SourceSpec:
    """Read a Delta table, version by version, on a local disk or on object storage (`s3://`, `gs://`, `az://`).

    `starting` counts once, when the pipeline has no checkpoint: "snapshot" (what is in the table, then what comes),
    "latest" (only what comes), a version, or a time with its zone. Rows are those that versions add; a version that
    removes or rewrites rows stops the pipeline, unless `on_rewrite` is "skip" (nothing of it is read) or
    "read_added" (the files it adds are read, with rows that were there before). With `change_feed` rows are changes:
    inserts, deletes and updates, with `_change_type`, `_commit_version` and `_commit_timestamp`.

    `max_files`, `max_versions` and `max_bytes` bound an epoch, `partitions` its tasks (one per core). Versions or
    files that were not read and are gone stop the pipeline, unless `on_history_lost` is "continue".
    `storage_options` are those of `deltalake`; what they do not say comes from the environment.
    """
    settings = DeltaSettings(
        absolute(path),
        change_feed,
        on_rewrite,
        on_history_lost,
        Limits(max_files, max_versions, max_bytes),
        partitions,
        None if storage_options is None else dict(storage_options),
    )
    return delta_source(settings, starting)


def files(
    path: str, *, schema: str, format: str = "json", max_files: int | None = None, **options: Any
) -> SourceSpec:
    """Read files that appear in a directory (or match a glob). Files must be moved into place whole.

    `schema` is Spark's DDL, for example `"id long, ts timestamp"`. `max_files` bounds an epoch. Other options go to
    Spark's reader; those that would break a replay (cleanSource, ignoreMissingFiles, ignoreCorruptFiles) are refused.
    """
    return file_source(path, format=format, schema=schema, max_files=max_files, options=options)


def kafka(
    bootstrap_servers: str,
    *,
    topics: str | Sequence[str] = (),
    pattern: str | None = None,
    starting: str | datetime | Mapping[str, int] = "earliest",
    max_records: int | None = None,
    group_id: str | None = None,
    on_history_lost: str = "stop",
    security_protocol: str | None = None,
    sasl_mechanism: str | None = None,
    username: str | None = None,
    password: str | None = None,
    ca_file: str | None = None,
    **options: Any,
) -> SourceSpec:
    """Read topics of Kafka, by name or all that match a regular expression, with Spark's own connector.

    `starting` counts once, when the pipeline has no checkpoint: "earliest", "latest", a time with its zone, or
    offsets as a manifest has them. `max_records` bounds an epoch. With `group_id`, positions are published as that
    consumer group's after each commit, for tools that watch lag. Records that were not read and are gone stop the
    pipeline, unless `on_history_lost` is "continue". Other options go to Spark; those that Holdfast sets are refused.
    """
    return kafka_source(
        Cluster(bootstrap_servers, security_protocol, sasl_mechanism, username, password, ca_file),
        Subscription((topics,) if isinstance(topics, str) else tuple(topics), pattern),
        starting=starting,
        max_records=max_records,
        group_id=group_id,
        on_history_lost=on_history_lost,
        options=options,
    )


def mysql_cdc(
    url: str,
    table: str,
    *,
    snapshot: bool = True,
    columns: Sequence[str] = (),
    max_rows: int | None = None,
    idle_bytes: int = 16 << 20,
    server_id: int | None = None,
    on_history_lost: str = "stop",
    on_cascade: str = "stop",
) -> SourceSpec:
    """Read a table of a MySQL or MariaDB server: its rows first, then every change, in the order of commits.

    Rows have `op` (snapshot, insert, update, delete, truncate), `position` and `seq` (where the transaction stands in
    the binary log, as text that sorts, and the change's number in it), `transaction` (its GTID), `committed_at`,
    `before` and `after` (the whole row), and `unchanged`, which is always empty.

    `table` is a table of the URL's database, or `database.table`. With `snapshot=False` only changes are read, from
    the end of the log on. `columns` are those to read, all without them. `max_rows` bounds an epoch, which always
    ends with a transaction. When `idle_bytes` of the log have nothing of this table, the position moves on without
    rows. The log is read as replicas do, under numbers that no replica has; `server_id` names the first of two to use
    instead. Changes that were not read and are gone stop the pipeline, unless `on_history_lost` is "continue".
    Foreign keys that change rows with those of another table (CASCADE, SET NULL) stop it too: no log has that. With
    `on_cascade` "ignore" such changes are missed.
    """
    return mysql_cdc_source(
        url,
        table,
        snapshot=snapshot,
        columns=columns,
        max_rows=max_rows,
        idle_bytes=idle_bytes,
        server_id=server_id,
        on_history_lost=on_history_lost,
        on_cascade=on_cascade,
    )


def postgres_cdc(
    url: str,
    table: str,
    *,
    slot: str | None = None,
    publication: str | None = None,
    snapshot: bool = True,
    columns: str | Sequence[str] = (),
    as_text: str | Sequence[str] = (),
    max_rows: int | None = None,
    idle_bytes: int = 16 << 20,
    on_history_lost: str = "stop",
) -> SourceSpec:
    """Read a table of a PostgreSQL database: its rows first, then every change, in the order of commits.

    Rows have `op` (snapshot, insert, update, delete, truncate), `position` and `seq` (where the transaction stands in
    the server's log, as text that sorts, and the change's number in it), `transaction` (its xid), `committed_at`,
    `before` and `after` (the row, as far as the server tells), and `unchanged`: columns that are NULL in `after` only
    because the server did not send their large values.

    `slot` and `publication` are created when they are missing; without a name they are named after the table, so two
    pipelines that read one table need a slot each. With `snapshot=False` only changes are read, from the creation of
    the slot on. `columns` are those to read, all without them; those in `as_text` come as the text that PostgreSQL
    prints. An epoch ends with the transaction that brings it to `max_rows`. When `idle_bytes` of the server's log
    have nothing of this table, the position moves on without rows. Changes that were not read and are gone stop the
    pipeline, unless `on_history_lost` is "continue".
    """
    return postgres_cdc_source(
        url,
        table,
        slot=slot,
        publication=publication,
        snapshot=snapshot,
        columns=columns,
        as_text=as_text,
        max_rows=max_rows,
        idle_bytes=idle_bytes,
        on_history_lost=on_history_lost,
    )


def rate(rows_per_second: int = 1, **options: Any) -> SourceSpec:
    """Spark's generator of numbered rows, for trying things."""
    return spark_source("rate", schema=None, options={"rowsPerSecond": rows_per_second, **options})


def spark(format: str, *, schema: str | None = None, **options: Any) -> SourceSpec:
    """Any Spark streaming source, by its format name and options."""
    return spark_source(format, schema=schema, options=options)
