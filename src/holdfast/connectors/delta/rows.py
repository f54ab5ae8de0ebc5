"""Rows of a Delta table's files as Arrow batches in the form that Spark expects. Runs in Spark's workers.

A file has the columns the table had when it was written, without those it is partitioned by. What the query wants
beyond that is filled in: partition values from the log, what happened to the row, NULL for younger columns.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.connectors.delta.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, PlannedFile
from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.extras import pa, pc, pq
from holdfast.errors import SourceError

_BATCH_ROWS = 64 * 1024
_BATCH_BYTES = 32 * 1024 * 1024


class RowReader:
    """Reads files of one table as batches of one Arrow schema."""

    def __init__(self, folder: TableFolder, schema: Any) -> None:
        self._folder, self._schema = folder, schema

    def batches(self, file: PlannedFile) -> Iterator[Any]:
        """Yield a file's rows, one row group after the other, so that memory stays bounded.

        Raises FileNotFoundError when the file is gone.
        """
        with self._open(file) as parquet, _fitting(file):
            constants = self._constants(file)
            found = _spelled(self._schema.names, parquet.schema_arrow.names)
            wanted = {name: stored for name, stored in found.items() if name not in constants}
            self._refuse_other_types(parquet.schema_arrow, wanted, file)
            rows = _batch_rows(parquet.metadata)
            for group in range(parquet.num_row_groups):
                for batch in parquet.iter_batches(rows, [group], list(wanted.values()), use_threads=False):
                    yield self._completed(batch, wanted, constants)

    def _open(self, file: PlannedFile) -> Any:
        size = file.size or self._folder.size(file.path)
        if size is None:
            raise FileNotFoundError(file.path)
        source = self._folder.open_file(file.path, size)
        local = isinstance(source, str)
        try:
            return pq.ParquetFile(
                source,
                memory_map=local,
                pre_buffer=not local,
                coerce_int96_timestamp_unit="us",
                page_checksum_verification=True,
            )
        except pa.ArrowInvalid as error:
            raise SourceError(f"{file.path} of version {file.version} is damaged: {error}") from error

    def _constants(self, file: PlannedFile) -> dict[str, Any]:
        """Return the values that are the same in all rows of a file."""
        found = {
            name: partition_value(text, self._schema.field(name).type)
            for name, text in file.partition.items()
            if name in self._schema.names
        }
        if file.change is not None:
            instant = self._schema.field(COMMIT_TIMESTAMP).type
            at_ms = file.change.timestamp_ms
            found[COMMIT_VERSION] = pa.scalar(file.version, pa.int64())
            found[COMMIT_TIMESTAMP] = pa.scalar(None if at_ms is None else at_ms * 1000, instant)
            if file.change.kind is not None:
                found[CHANGE_TYPE] = pa.scalar(file.change.kind, pa.string())
        return found

    def _refuse_other_types(self, schema: Any, wanted: Mapping[str, str], file: PlannedFile) -> None:
        for name, stored in wanted.items():
            found, expected = schema.field(stored).type, self._schema.field(name).type
            if not _fits(found, expected):
                raise SourceError(
                    f"column '{name}' is {found} in {file.path} of version {file.version}, {expected} in the table: "
                    "its type was changed, so begin at a later version, or a snapshot"
                )

    def _completed(self, batch: Any, wanted: Mapping[str, str], constants: dict[str, Any]) -> Any:
        columns = [self._column(batch, field, wanted, constants) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, batch: Any, field: Any, wanted: Mapping[str, str], constants: dict[str, Any]) -> Any:
        if field.name in constants:
            return pa.repeat(constants[field.name], batch.num_rows)
        if field.name not in wanted:
            return pa.nulls(batch.num_rows, field.type)
        column = batch.column(wanted[field.name])
        return column if column.type.equals(field.type) else column.cast(field.type)


@contextlib.contextmanager
def _fitting(file: PlannedFile) -> Iterator[None]:
    """Say of which file a value is that does not fit its column."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise SourceError(f"a value in {file.path} of version {file.version} cannot be read: {error}") from error


def _spelled(names: Iterable[str], stored: Iterable[str]) -> dict[str, str]:
    """Return how a file spells columns that it has. Delta knows no case, and converted files have their own."""
    exact = set(stored)
    in_any_case = {name.lower(): name for name in exact}
    found = {name: name if name in exact else in_any_case.get(name.lower()) for name in names}
    return {name: spelled for name, spelled in found.items() if spelled is not None}


def _batch_rows(metadata: Any) -> int:
    """Return how many rows make a batch of a size that is quick to pass on and does not fill the memory."""
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    width = max(size // max(metadata.num_rows, 1), 1)
    return int(min(_BATCH_ROWS, max(_BATCH_BYTES // width, 1)))


def partition_value(text: str | None, type_: Any) -> Any:
    """Read a partition value as Delta's log spells it; empty text is NULL."""
    if text is None or text == "":
        return pa.scalar(None, type_)
    if _is_bytes(type_):
        raise SourceError(f"a partition column has type {type_}, which writers spell in different ways")
    value = pa.scalar(text, pa.string())
    if not pa.types.is_timestamp(type_) or type_.tz is None or _has_zone(text):
        return value.cast(type_)
    return pc.assume_timezone(value.cast(pa.timestamp(type_.unit)), type_.tz)


def _has_zone(text: str) -> bool:
    return text.endswith("Z") or "+" in text or text.count("-") > 2


def _fits(found: Any, expected: Any) -> bool:
    """Whether values of a file's type are values of the table's type, however they are stored."""
    is_ = pa.types
    if is_.is_dictionary(found):
        return _fits(found.value_type, expected)
    if is_.is_nested(expected):
        return _nested_fits(found, expected)
    if is_.is_decimal(expected):
        return bool(is_.is_decimal(found) and found.scale == expected.scale and found.precision <= expected.precision)
    for family in (is_.is_signed_integer, is_.is_floating):
        if family(expected):
            return bool(family(found) and found.bit_width <= expected.bit_width)
    for family in (_is_text, _is_bytes, is_.is_timestamp):
        if family(expected):
            return bool(family(found))
    return bool(found.equals(expected))


def _nested_fits(found: Any, expected: Any) -> bool:
    is_ = pa.types
    if is_.is_struct(expected):
        if not is_.is_struct(found):
            return False
        both = {field.name for field in found} & {field.name for field in expected}
        return all(_fits(found.field(name).type, expected.field(name).type) for name in both)
    if is_.is_map(expected):
        return bool(
            is_.is_map(found)
            and _fits(found.key_type, expected.key_type)
            and _fits(found.item_type, expected.item_type)
        )
    return _is_list(found) and _fits(found.value_type, expected.value_type)


def _is_text(type_: Any) -> bool:
    is_ = pa.types
    return bool(is_.is_string(type_) or is_.is_large_string(type_) or is_.is_string_view(type_))


def _is_bytes(type_: Any) -> bool:
    is_ = pa.types
    return bool(is_.is_binary(type_) or is_.is_large_binary(type_) or is_.is_binary_view(type_))


def _is_list(type_: Any) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))
