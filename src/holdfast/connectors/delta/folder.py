"""The folder of a Delta table: data files that no log entry names yet, and notes about who wrote them.

    <table>/holdfast-<timeline>-<sink>-<epoch>-<generation>-<attempt>-<n>-<chance>.parquet    data, also in partitions
    <table>/_holdfast/<staged name>.json      a note: the data files of one attempt, removed once they are committed
    <table>/_holdfast/<staged name>/          rows of a merge, or files that Spark is still writing

Readers know a Delta table by its log, so data files without a log entry are invisible. Notes make an abort cheap: it
lists one small folder, not the table. A note that is lost costs nothing but an invisible file until the next VACUUM.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from holdfast.clock import new_token
from holdfast.connectors.delta.bucket import BucketFolder, RangedFile
from holdfast.connectors.extras import pa, pq
from holdfast.connectors.parquet_files import read_batches
from holdfast.connectors.staging import StagedName
from holdfast.errors import PipelineDefinitionError
from holdfast.stores import durable

NOTES = "_holdfast"
_DATA_FILE = re.compile(r"holdfast-([0-9a-f]{12})-([0-9a-f]{8})-(\d+)-\d+-\d+-\d+-[0-9a-f]+\.parquet")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def local_path(target: str) -> str | None:
    """Return the absolute local path of a target, None when it is a URL of something else."""
    scheme = _SCHEME.match(target)
    if scheme is None:
        return os.path.abspath(target)
    return os.path.abspath(unquote(target[7:])) if scheme[1].lower() == "file" else None


def refuse_misread(root: str) -> None:
    """Refuse a folder for which `deltalake` takes another one: it decodes `%20`, and has `/` for a backslash."""
    if unquote(root) != root or "\\" in root:
        raise PipelineDefinitionError(
            f"{root}: a Delta table cannot be in a folder with '%' and two digits or a backslash in its name, which "
            "deltalake takes for another folder"
        )


@dataclass(frozen=True)
class DataFile:
    """Who wrote a data file, by its name."""

    timeline: str
    sink: str
    epoch: int

    @classmethod
    def parse(cls, path: str) -> "DataFile | None":
        """Return what a path's last part says, None for a file that is not ours."""
        found = _DATA_FILE.fullmatch(path.rsplit("/", 1)[-1])
        return None if found is None else cls(found[1], found[2], int(found[3]))


def sink_tag(sink: str) -> str:
    """Return a short name for a sink that any file system takes."""
    return hashlib.sha256(sink.encode()).hexdigest()[:8]


def data_file_name(sink: str, staged: StagedName, index: int) -> str:
    """Return a new name for a data file; never one that was used before, even if attempts are numbered anew."""
    numbers = f"{staged.epoch:08d}-{staged.generation}-{staged.attempt}-{index:05d}"
    return f"holdfast-{staged.timeline}-{sink_tag(sink)}-{numbers}-{new_token()[:8]}.parquet"


class TableFolder:
    """The table's folder, on a local disk or on object storage. What is written to a local disk is flushed."""

    def __init__(self, target: str, storage_options: dict[str, str] | None) -> None:
        self.root = local_path(target)
        if self.root is not None:
            refuse_misread(self.root)
        self.uri = self.root or target
        self.storage_options = storage_options
        self._bucket = None if self.root is not None else BucketFolder(target, storage_options or {})

    def write(self, files: dict[str, bytes]) -> None:
        """Write new files durably."""
        for path, data in files.items():
            if self._bucket is not None:
                self._bucket.write(path, data)
            else:
                durable.make_directories(os.path.dirname(self.local(path)))
                durable.write_file(self.local(path), data)
        self.sync_folders(files)

    def sync_folders(self, paths: Iterable[str]) -> None:
        """Flush the names of local files."""
        if self.root is not None:
            for folder in {os.path.dirname(self.local(path)) for path in paths}:
                durable.sync_file(folder)

    def local(self, path: str) -> str:
        """Return the full path of a file in a local table."""
        assert self.root is not None
        return os.path.join(self.root, path)

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        if self._bucket is not None:
            return self._bucket.read(path)
        with open(self.local(path), "rb") as file:
            return file.read()

    def open_file(self, path: str, size: int) -> str | RangedFile:
        """Return what a Parquet reader takes: a local path, or a file of `size` bytes that is read in ranges."""
        return self.local(path) if self._bucket is None else RangedFile(self._bucket, path, size)

    def names_after(self, path: str, name: str) -> list[str]:
        """Return the names directly below a folder that sort behind `name`."""
        if self._bucket is not None:
            return self._bucket.names_after(path, name)
        return sorted(found for found in durable.names_in(self.local(path)) if found > name)

    def size(self, path: str) -> int | None:
        """Return a file's size, None when it is not there."""
        try:
            return self._bucket.size(path) if self._bucket is not None else os.stat(self.local(path)).st_size
        except FileNotFoundError:
            return None

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files, or folders with all they hold; one that is not there is fine."""
        for path in paths:
            if self._bucket is not None:
                self._bucket.remove(path)
            else:
                durable.remove(self.local(path))

    def note(self, staged: StagedName, files: Iterable[str]) -> None:
        """Write down which files an attempt is about to write. Not flushed: losing it costs an invisible file."""
        name, text = f"{NOTES}/{staged}.json", json.dumps(sorted(files)).encode()
        if self._bucket is not None:
            self._bucket.write(name, text)
            return
        os.makedirs(self.local(NOTES), exist_ok=True)
        with open(self.local(name), "wb") as file:
            file.write(text)

    def noted_files(self, staged: StagedName) -> list[str]:
        """Return the files of an attempt; none when it never got so far."""
        try:
            return list(json.loads(self.read(f"{NOTES}/{staged}.json")))
        except (FileNotFoundError, ValueError):
            return []

    def noted(self) -> set[StagedName]:
        """Return the attempts that left something behind."""
        names = durable.names_in(self.local(NOTES)) if self._bucket is None else self._bucket.names_in(NOTES)
        parsed = {StagedName.parse(name.removesuffix(".json")) for name in names}
        return {name for name in parsed if name is not None}

    def forget(self, staged: StagedName) -> None:
        """Remove an attempt's note and staged folder; its data files stay."""
        self.remove([f"{NOTES}/{staged}", f"{NOTES}/{staged}.json"])

    def batches(self, paths: Sequence[str], schema: Any) -> Any:
        """Return the rows of Parquet files as a `pyarrow.RecordBatchReader`."""
        if self.root is not None:
            return read_batches([self.local(path) for path in paths], schema)
        tables = [pq.read_table(pa.BufferReader(self.read(path)), schema=schema) for path in paths]
        return pa.concat_tables(tables).to_reader()
