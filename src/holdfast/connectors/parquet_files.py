"""Parquet files of staged rows: written here when the epoch is small, by Spark when it is large.

Neither pyarrow nor Spark flushes what it writes; the callers do, before an epoch counts as prepared.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.arrow_types import as_plain
from holdfast.connectors.extras import arrow_dataset, pa, pq
from holdfast.core.contracts import Rows
from holdfast.errors import SinkError
from holdfast.stores import durable

_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True)
class StagedFile:
    """A file of staged rows, as a token describes it. Files that Spark wrote have no digest: Parquet checks pages."""

    path: str
    size: int
    sha256: str | None = None


def parquet_bytes(table: Any) -> bytes:
    """Return a table as a Parquet file that any reader takes: no Arrow schema inside, checksums on pages."""
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream, store_schema=False, write_page_checksum=True)
    return stream.getvalue().to_pybytes()  # type: ignore[no-any-return]


def write_with_spark(dataframe: Any, folder: str, partition_by: Sequence[str] = ()) -> list[str]:
    """Have Spark write into a new local folder; return the files' paths relative to it.

    With partition columns the rows are brought together first, so that a partition gets one file, not one per task.
    """
    # The default, INT96, has no statistics and is deprecated in Parquet itself.
    dataframe.sparkSession.conf.set(_TIMESTAMP_TYPE, "TIMESTAMP_MICROS")
    frame = dataframe.repartition(*partition_by) if partition_by else dataframe
    spark_write(frame.write.format("parquet").partitionBy(*partition_by), folder)
    return sorted(files_below(folder))


def spark_write(writer: Any, folder: str) -> None:
    """Run a Spark writer into a local folder and remove what only Hadoop reads (checksum files, markers)."""
    writer.mode("error").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").save(f"file://{folder}")
    for directory, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".crc") or name.startswith("_"):
                os.unlink(os.path.join(directory, name))


def files_below(folder: str) -> Iterator[str]:
    """Yield the relative path of every file below `folder`."""
    for directory, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(directory, name), folder)


def stage_parquet(rows: Rows, folder: str, schema: Any, *, digests: bool = False) -> list[StagedFile]:
    """Write an epoch into a local folder that must not exist, durably; return its files, paths relative to it.

    With `digests` also files of Spark's have one, for which they are read again.
    """
    from_here = rows.small
    if from_here:
        durable.make_directories(folder)
        durable.write_file(os.path.join(folder, "part-00000.parquet"), parquet_bytes(rows.arrow().cast(schema)))
    else:
        write_with_spark(rows.dataframe(), folder)
    durable.sync_tree(folder)
    durable.sync_file(os.path.dirname(folder))
    staged = [describe(folder, path, digest=digests or from_here) for path in sorted(files_below(folder))]
    expect_rows(sum(row_count(os.path.join(folder, file.path)) for file in staged), rows.count)
    return staged


def describe(folder: str, path: str, *, digest: bool) -> StagedFile:
    """Return a file's facts for the token."""
    full = os.path.join(folder, path)
    return StagedFile(path, os.stat(full).st_size, sha256_of(full) if digest else None)


def check_staged(folder: str, files: Sequence[StagedFile], *, deeply: bool) -> None:
    """Compare staged files with what the token says; `deeply` also reads them."""
    for file in files:
        full = os.path.join(folder, file.path)
        try:
            size = os.stat(full).st_size
        except FileNotFoundError:
            raise SinkError(f"staged rows are gone: {full}") from None
        if size != file.size:
            raise SinkError(f"staged rows are damaged: {full} has {size} bytes, {file.size} were written")
        if deeply and file.sha256 is not None and sha256_of(full) != file.sha256:
            raise SinkError(f"staged rows are damaged: {full} does not have the bytes that were written")


def sha256_of(path: str) -> str:
    """Return the digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def row_count(path: str) -> int:
    """Return a Parquet file's row count, from its footer."""
    return int(pq.read_metadata(path).num_rows)


def expect_rows(found: int, expected: int) -> None:
    """Refuse a staged epoch that does not have the rows it should have."""
    if found != expected:
        raise SinkError(f"{found} rows are staged, expected {expected}")


def read_parquet(source: Any, schema: Any) -> Any:
    """Return the rows of one Parquet file (a path or a pyarrow file) as a table; damaged pages are refused."""
    table = pq.ParquetFile(source, page_checksum_verification=True).read()
    return as_plain(table.select(schema.names), schema)


def read_batches(paths: Sequence[str], schema: Any) -> Any:
    """Return a `pyarrow.RecordBatchReader` over local Parquet files, in bounded memory."""
    return arrow_dataset.dataset(list(paths), schema=schema, format="parquet").scanner().to_reader()
