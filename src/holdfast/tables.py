"""Reference tables: constructors for what a sink's `select` may join. A version of each is pinned for every epoch."""

from collections.abc import Mapping
from typing import Any, Literal

from holdfast.connectors.tables.delta import DeltaReference
from holdfast.connectors.tables.files import FilesTable
from holdfast.connectors.tables.mysql import MysqlTable
from holdfast.connectors.tables.postgres import PostgresTable
from holdfast.connectors.tables.sqlite import SqliteTable

__all__ = ["delta", "files", "mysql", "postgres", "sqlite"]


def delta(path: str, *, copy: bool = False, storage_options: Mapping[str, str] | None = None) -> DeltaReference:
    """Join a Delta table, on a local disk or on object storage (`s3://`, `gs://`, `az://`).

    Its versions are pinned by their numbers, so the table must keep the files of a version (do not vacuum it) as long
    as a checkpoint names it. `copy=True` copies each version that is used into the store instead.
    """
    return DeltaReference(path, copy=copy, storage_options=storage_options)


def files(
    path: str, *, format: Literal["parquet", "json", "csv"] = "parquet", schema: str | None = None, **options: Any
) -> FilesTable:
    """Join files: one, all below a folder, or those that match a pattern, on a local disk.

    They are pinned by their content and copied into the store, so they may be replaced; move them into place whole.
    `schema` is Spark's DDL; without it Spark looks into the files. Other options go to Spark's reader.
    """
    return FilesTable(path, format=format, schema=schema, options=options)


def postgres(url: str, *, query: str, schema: str | None = None, statement_seconds: float = 300.0) -> PostgresTable:
    """Join the rows of a query on a PostgreSQL database, copied into the store whenever the table is looked at.

    `url` is libpq's. `schema` is Spark's DDL, to which columns are cast; without it a `numeric` is text.
    """
    return PostgresTable(url, query=query, schema=schema, statement_seconds=statement_seconds)


def mysql(url: str, *, query: str, schema: str | None = None, statement_seconds: float = 300.0) -> MysqlTable:
    """Join the rows of a query on a MySQL or MariaDB database, copied into the store whenever it is looked at.

    `url` is `mysql://user:password@host:3306/database`. `schema` is Spark's DDL, to which columns are cast.
    """
    return MysqlTable(url, query=query, schema=schema, statement_seconds=statement_seconds)


def sqlite(path: str, *, query: str, schema: str | None = None) -> SqliteTable:
    """Join the rows of a query on a SQLite database, copied into the store whenever the table is looked at.

    `schema` is Spark's DDL, to which columns are cast. Give it: SQLite's columns have no types of their own, and
    without it a column is what its values are today.
    """
    return SqliteTable(path, query=query, schema=schema)
