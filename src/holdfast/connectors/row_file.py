"""The rows of one epoch as one file, for a person: Parquet, JSON lines or CSV, by the file's ending."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.clock import new_token
from holdfast.connectors.arrow_types import as_plain, plain_schema
from holdfast.connectors.extras import arrow_ipc, pa
from holdfast.connectors.parquet_files import sha256_of
from holdfast.connectors.row_formats import FORMATS, RowFormat
from holdfast.errors import InvalidRequest
from holdfast.stores import durable

_ENDINGS: Mapping[str, RowFormat] = {
    ".parquet": FORMATS["parquet"],
    ".jsonl": FORMATS["json"],
    ".json": FORMATS["json"],
    ".csv": FORMATS["csv"],
}


@dataclass(frozen=True)
class RowFile:
    """A file with rows, durable under its name and counted."""

    path: str
    rows: int
    bytes: int
    sha256: str
    existed: bool
    """Whether it was there before, with the same content: somebody wrote it and did not get further."""


def read_schema(data: bytes) -> Any:
    """Return the schema that a checkpoint keeps for a sink."""
    return arrow_ipc.read_schema(pa.BufferReader(data))


def check_path(path: str) -> None:
    """Refuse a path that nothing can be written to."""
    _kind(path)
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise InvalidRequest(f"{path}: there is no directory {directory}")


def check_columns(path: str, schema: Any) -> None:
    """Refuse columns that the format cannot hold."""
    if (misfit := _kind(path).misfit(plain_schema(schema))) is not None:
        raise InvalidRequest(f"{path}: {misfit}; use .parquet or .jsonl")


def write_row_file(table: Any, path: str) -> RowFile:
    """Write a table durably under a name that is free; a file that holds the same already is fine, another is not."""
    kind, path = _kind(path), os.path.abspath(path)
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{new_token()}.tmp")
    open(temporary, "xb").close()
    try:
        kind.write(as_plain(table, plain_schema(table.schema)), temporary)
        durable.sync_file(temporary)
        size, digest = os.path.getsize(temporary), sha256_of(temporary)
        existed = not _named(temporary, path)
        if existed and sha256_of(path) != digest:
            raise InvalidRequest(f"{path} exists and does not hold these rows: give another name, or move it away")
        durable.sync_file(path)
    finally:
        durable.remove(temporary)
    durable.sync_file(directory)
    return RowFile(path, kind.count(path), size, digest, existed)


def _kind(path: str) -> RowFormat:
    kind = _ENDINGS.get(os.path.splitext(path)[1].lower())
    if kind is None:
        raise InvalidRequest(f"{path}: the ending says the format, and must be one of {', '.join(_ENDINGS)}")
    return kind


def _named(temporary: str, path: str) -> bool:
    """Give a file its name in one act; False when the name is taken. A rename would replace what is there."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        # No hard links on this file system. Nobody but the person who chose the name can come in between.
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)
    return True
