"""Rows as files that other programs read: Parquet, JSON lines, CSV.

Small epochs are written from here, large ones by Spark, with options that make both say the same:

    instants        2024-01-31T12:00:00.000000Z     local times   the same without Z     dates   2024-01-31
    NULL            null in JSON, nothing between the commas in CSV (empty text is "")
    binaries        base64 in JSON; not in CSV
    NaN, infinity   "NaN", "Infinity", "-Infinity"
"""

import os
from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.connectors.arrow_types import as_plain, is_nested
from holdfast.connectors.extras import arrow_csv, pa, pq
from holdfast.connectors.json_values import as_text, json_objects
from holdfast.connectors.parquet_files import parquet_bytes, read_parquet, spark_write, write_with_spark
from holdfast.connectors.spark_json import JSON_OPTIONS, TIMES, tellable_columns
from holdfast.connectors.text_values import json_lines
from holdfast.stores import durable

_CSV_OPTIONS = {**TIMES, "header": "true", "escape": '"', "emptyValue": '""', "nullValue": ""}
_ROWS_AT_ONCE = 10_000
_READ_BYTES = 1 << 20
_LARGEST_BLOCK = (1 << 31) - 1


class RowFormat(Protocol):
    """One kind of file."""

    suffix: str

    def misfit(self, schema: Any) -> str | None:
        """Say which column the format cannot hold; None when it holds them all."""
        ...

    def write(self, table: Any, path: str) -> None:
        """Write a table of plain types into a new local file; the caller flushes it."""
        ...

    def read(self, path: str, schema: Any) -> Any:
        """Return a file's rows as a `pyarrow.Table` of these plain types."""
        ...

    def write_with_spark(self, dataframe: Any, folder: str) -> None:
        """Have Spark write into a local folder that does not exist."""
        ...

    def count(self, path: str) -> int:
        """Return a file's row count."""
        ...


class Parquet:
    """Parquet, with timestamps in microseconds."""

    suffix = ".parquet"

    def misfit(self, schema: Any) -> str | None:
        """Take every plain type."""
        return None

    def write(self, table: Any, path: str) -> None:
        """Write the table."""
        durable.write_file(path, parquet_bytes(table))

    def read(self, path: str, schema: Any) -> Any:
        """Read the file and compare the checksums in it."""
        return read_parquet(path, schema)

    def write_with_spark(self, dataframe: Any, folder: str) -> None:
        """Write one file per task."""
        write_with_spark(dataframe, folder)

    def count(self, path: str) -> int:
        """Read the footer."""
        return int(pq.read_metadata(path).num_rows)


class Json:
    """One JSON object per line."""

    suffix = ".json"

    def misfit(self, schema: Any) -> str | None:
        """Take every plain type."""
        return None

    def write(self, table: Any, path: str) -> None:
        """Write a line per row."""
        with open(path, "wb") as file:
            for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
                file.writelines(f"{line}\n".encode() for line in json_objects(batch).to_pylist())

    def read(self, path: str, schema: Any) -> Any:
        """Parse every line."""
        with open(path, "rb") as file:
            return json_lines(file, schema)

    def write_with_spark(self, dataframe: Any, folder: str) -> None:
        """Write one file per task."""
        told = dataframe.select(*tellable_columns(dataframe, dataframe.columns))
        spark_write(told.write.format("json").options(**JSON_OPTIONS), folder)

    def count(self, path: str) -> int:
        """Count lines."""
        with open(path, "rb") as file:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_READ_BYTES), b""))


class Csv:
    """CSV as RFC 4180 has it, with a header in every file."""

    suffix = ".csv"

    def misfit(self, schema: Any) -> str | None:
        """Take neither nested columns nor binaries."""
        for field in schema:
            if is_nested(field.type) or pa.types.is_binary(field.type):
                return f"column '{field.name}' has type {field.type}, which CSV cannot hold"
        return None

    def write(self, table: Any, path: str) -> None:
        """Write a record per row."""
        columns = [as_text(column) for column in table.columns]
        options = arrow_csv.WriteOptions(quoting_style="needed")
        arrow_csv.write_csv(pa.table(columns, names=table.schema.names), path, options)

    def read(self, path: str, schema: Any) -> Any:
        """Parse the file in one piece: no record is too long for that."""
        options = (
            arrow_csv.ReadOptions(block_size=min(os.path.getsize(path) + 1, _LARGEST_BLOCK)),
            arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            arrow_csv.ConvertOptions(
                column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            ),
        )
        return as_plain(arrow_csv.read_csv(path, *options).select(schema.names), schema)

    def write_with_spark(self, dataframe: Any, folder: str) -> None:
        """Write one file per task."""
        spark_write(dataframe.write.format("csv").options(**_CSV_OPTIONS), folder)

    def count(self, path: str) -> int:
        """Count records behind the header; quoted text may hold line breaks."""
        ends, quoted = 0, False
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(_READ_BYTES), b""):
                for index, piece in enumerate(chunk.split(b'"')):
                    quoted ^= index > 0
                    ends += 0 if quoted else piece.count(b"\n")
        return ends - 1


FORMATS: Mapping[str, RowFormat] = {"parquet": Parquet(), "json": Json(), "csv": Csv()}


def write_rows(kind: RowFormat, table: Any, schema: Any, folder: str) -> None:
    """Write a small epoch into a new local folder."""
    durable.make_directories(folder)
    kind.write(as_plain(table, schema), os.path.join(folder, f"part-00000{kind.suffix}"))
