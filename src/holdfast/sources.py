"""Where rows come from: constructors for the sources of a pipeline."""

from typing import Any

from holdfast.connectors.spark_sources import file_source, spark_source
from holdfast.core.sources import SourceSpec

__all__ = ["files", "rate", "spark"]


def files(
    path: str, *, schema: str, format: str = "json", max_files: int | None = None, **options: Any
) -> SourceSpec:
    """Read files that appear in a directory (or match a glob). Files must be moved into place whole.

    `schema` is Spark's DDL, for example `"id long, ts timestamp"`. `max_files` bounds an epoch. Other options go to
    Spark's reader; those that would break a replay (cleanSource, ignoreMissingFiles, ignoreCorruptFiles) are refused.
    """
    return file_source(path, format=format, schema=schema, max_files=max_files, options=options)


def rate(rows_per_second: int = 1, **options: Any) -> SourceSpec:
    """Spark's generator of numbered rows, for trying things."""
    return spark_source("rate", schema=None, options={"rowsPerSecond": rows_per_second, **options})


def spark(format: str, *, schema: str | None = None, **options: Any) -> SourceSpec:
    """Any Spark streaming source, by its format name and options."""
    return spark_source(format, schema=schema, options=options)
