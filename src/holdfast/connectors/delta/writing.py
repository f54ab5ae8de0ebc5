"""Writing an epoch's data files into a Delta table's folder, where nobody sees them yet."""

import base64
import datetime
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, unquote

from holdfast.clock import SYSTEM_CLOCK
from holdfast.connectors.arrow_types import as_plain
from holdfast.connectors.delta.folder import NOTES, TableFolder, data_file_name
from holdfast.connectors.delta.stats import null_counts, stats_json
from holdfast.connectors.extras import delta_transaction, pa, pq
from holdfast.connectors.parquet_files import expect_rows, parquet_bytes, read_parquet, write_with_spark
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import Rows
from holdfast.errors import SinkError
from holdfast.stores import durable

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_SAFE_IN_PATHS = " !$&()+,;@~"
_LONGEST_PLAIN_LIST = 32 * 1024


@dataclass(frozen=True)
class AddedFile:
    """One data file of an epoch, with what its log entry will say."""

    path: str
    size: int
    partition: dict[str, str | None]
    stats: str
    sha256: str | None = None
    """Of files written from here; Parquet's own page checksums cover the others."""

    def action(self, now_ms: int) -> Any:
        """Return the log action that makes the file visible."""
        return delta_transaction.AddAction(self.path, self.size, self.partition, now_ms, True, self.stats)


def pack_files(files: Sequence[AddedFile]) -> Any:
    """Return the list for a token: plain while it is short, compressed text when it is long."""
    plain = [asdict(file) for file in files]
    text = json.dumps(plain, separators=(",", ":")).encode()
    return plain if len(text) <= _LONGEST_PLAIN_LIST else base64.b64encode(zlib.compress(text)).decode()


def unpack_files(packed: Any) -> list[AddedFile]:
    """Read the list from a token."""
    plain = json.loads(zlib.decompress(base64.b64decode(packed))) if isinstance(packed, str) else packed
    return [AddedFile(**file) for file in plain]


class DataWriter:
    """Writes data files of one sink: where the table's data lies, or hidden until they are merged."""

    def __init__(
        self, folder: TableFolder, sink: str, schema: Any, partition_by: tuple[str, ...] = (), *, hidden: bool = False
    ) -> None:
        self._folder, self._sink, self._hidden = folder, sink, hidden
        self._schema, self._partition_by = schema, partition_by
        kept = [field for field in schema if field.name not in partition_by]
        self._file_schema = pa.schema(kept)

    def write(self, rows: Rows, staged: StagedName, required: set[str]) -> tuple[list[AddedFile], list[str]]:
        """Write an epoch durably; return its files and the columns that have a NULL. Those must not be `required`.

        Large epochs are written by Spark on a local disk; to object storage everything goes through this process.
        """
        with_spark = not rows.small and self._folder.root is not None
        files = self._write_with_spark(rows, staged) if with_spark else self._write_from_here(rows, staged)
        expect_rows(sum(metadata.num_rows for _, metadata in files), rows.count)
        nulls = self._with_nulls(files)
        refuse_nulls(nulls, required)
        return [file for file, _ in files], sorted(nulls)

    def _with_nulls(self, files: list[tuple[AddedFile, Any]]) -> set[str]:
        found: set[str] = set()
        for file, metadata in files:
            found |= {name for name, count in null_counts(metadata, self._file_schema).items() if count}
            found |= {name for name, value in file.partition.items() if value is None}
        return found

    def _write_from_here(self, rows: Rows, staged: StagedName) -> list[tuple[AddedFile, Any]]:
        contents: dict[str, bytes] = {}
        files = []
        for index, (partition, table) in enumerate(self._partitions(as_plain(rows.arrow(), self._schema))):
            data = parquet_bytes(table)
            path = self._path(staged, _partition_folder(partition), index)
            metadata = pq.read_metadata(pa.BufferReader(data))
            digest = hashlib.sha256(data).hexdigest()
            stats = stats_json(metadata, self._file_schema)
            files.append((AddedFile(path, len(data), partition, stats, digest), metadata))
            contents[path] = data
        self._folder.note(staged, contents)
        self._folder.write(contents)
        return files

    def _partitions(self, table: Any) -> list[tuple[dict[str, str | None], Any]]:
        if not self._partition_by:
            return [({}, table)]
        groups: dict[tuple[Any, ...], list[int]] = {}
        columns = [table[name].to_pylist() for name in self._partition_by]
        for index, values in enumerate(zip(*columns, strict=True)):
            groups.setdefault(tuple(_partition_text(value) for value in values), []).append(index)
        rest = table.select(self._file_schema.names)
        return [(dict(zip(self._partition_by, key, strict=True)), rest.take(which)) for key, which in groups.items()]

    def _write_with_spark(self, rows: Rows, staged: StagedName) -> list[tuple[AddedFile, Any]]:
        output = self._folder.local(f"{NOTES}/{staged}/spark")
        durable.make_directories(os.path.dirname(output))
        written = write_with_spark(rows.dataframe(), output, self._partition_by)
        durable.sync_tree(output)
        final = {path: self._path(staged, _folder_of(path), index) for index, path in enumerate(written)}
        self._folder.note(staged, final.values())
        for path, target in final.items():
            durable.make_directories(os.path.dirname(self._folder.local(target)))
            os.rename(os.path.join(output, path), self._folder.local(target))
        self._folder.sync_folders(final.values())
        durable.remove(output)
        return [self._describe(target, _partition_of(path)) for path, target in final.items()]

    def _path(self, staged: StagedName, partition_folder: str, index: int) -> str:
        hidden = f"{NOTES}/{staged}/" if self._hidden else ""
        return hidden + partition_folder + data_file_name(self._sink, staged, index)

    def _describe(self, path: str, partition: dict[str, str | None]) -> tuple[AddedFile, Any]:
        full = self._folder.local(path)
        metadata = pq.read_metadata(full)
        stats = stats_json(metadata, self._file_schema)
        return AddedFile(path, os.stat(full).st_size, partition, stats), metadata


def refuse_nulls(columns: Iterable[str], required: set[str]) -> None:
    """Refuse rows with a NULL where the table forbids one."""
    if refused := sorted(required.intersection(columns)):
        raise SinkError(f"NULL in columns that must not be NULL: {', '.join(refused)}")


def check_files(folder: TableFolder, files: Sequence[AddedFile], rows: int, *, deeply: bool) -> None:
    """Compare staged files with what the token says; `deeply` also reads those that have a digest."""
    expect_rows(sum(int(json.loads(file.stats)["numRecords"]) for file in files), rows)
    for file in files:
        size = folder.size(file.path)
        if size is None:
            raise SinkError(f"staged rows are gone: {file.path}")
        if size != file.size:
            raise SinkError(f"staged rows are damaged: {file.path} has {size} bytes, {file.size} were written")
        if deeply and file.sha256 is not None and hashlib.sha256(folder.read(file.path)).hexdigest() != file.sha256:
            raise SinkError(f"staged rows are damaged: {file.path} does not have the bytes that were written")


def read_files(folder: TableFolder, files: Sequence[AddedFile], schema: Any) -> Any:
    """Return the rows of staged files as a `pyarrow.Table`, with the partition columns that only the token has."""
    tables = []
    for file in files:
        source = folder.local(file.path) if folder.root is not None else pa.BufferReader(folder.read(file.path))
        found = read_parquet(source, pa.schema([field for field in schema if field.name not in file.partition]))
        columns = [
            _repeated(file.partition[field.name], field.type, found.num_rows)
            if field.name in file.partition
            else found[field.name]
            for field in schema
        ]
        tables.append(pa.table(columns, schema=schema))
    return pa.concat_tables(tables)


def _repeated(text: str | None, type_: Any, count: int) -> Any:
    """Return a partition value, which stands in the log as text, once for each row."""
    return pa.array([text], pa.string()).cast(type_).take(pa.repeat(0, count))


def now_ms() -> int:
    """Return the time stamp for a log action."""
    return SYSTEM_CLOCK.now_ms()


def _partition_text(value: Any) -> str | None:
    """Spell a partition value as Delta's log does. Delta has no empty text there: it is NULL."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _partition_folder(partition: Mapping[str, str | None]) -> str:
    """Return the folder of a partition as Hive and Spark name it."""
    parts = {name: _NO_VALUE if value is None else quote(value, _SAFE_IN_PATHS) for name, value in partition.items()}
    return "".join(f"{quote(name, _SAFE_IN_PATHS)}={value}/" for name, value in parts.items())


def _folder_of(path: str) -> str:
    """Return the folder of a relative path, with a slash behind it when there is one."""
    return path[: path.rfind("/") + 1]


def _partition_of(path: str) -> dict[str, str | None]:
    pairs = (part.split("=", 1) for part in path.split("/")[:-1])
    return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, value in pairs}
