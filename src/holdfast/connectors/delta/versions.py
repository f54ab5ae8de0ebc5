"""Reading a Delta table's log: one version's entry, the files of a snapshot, and which versions there are.

Entries are read as they are, one small file each; `deltalake` is asked where log checkpoints have to be understood.
"""

import contextlib
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from holdfast.clock import utc_from_ms
from holdfast.connectors.delta.commits import Commit, LoggedFile, parse_commit
from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.delta.shape import TableShape, refuse_unreadable
from holdfast.connectors.delta.table import first_line
from holdfast.connectors.extras import delta_exceptions, deltalake, pa
from holdfast.errors import SourceError, SourceUnavailable
from holdfast.secrets import scrub

_LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..+")


class TableLog:
    """The log of one table, on a local disk or on object storage."""

    def __init__(self, target: str, storage_options: dict[str, str] | None) -> None:
        self._options = storage_options
        self.place = scrub(target)
        self.folder = TableFolder(target, storage_options)

    def table(self, version: int | None = None) -> Any:
        """Return the table as `deltalake` sees it, at its newest version or another one."""
        with self.answering("reading the table"):
            try:
                return deltalake.DeltaTable(self.folder.uri, version=version, storage_options=self._options)
            except delta_exceptions.TableNotFoundError:
                raise SourceError(f"there is no Delta table at {self.place}") from None

    def newest(self) -> tuple[int, TableShape]:
        """Return the newest version and what the table is there; refuse one that cannot be read."""
        table = self.table()
        shape, protocol = TableShape.of_table(table), table.protocol()
        with self.naming():
            refuse_unreadable(protocol.min_reader_version, protocol.reader_features or (), shape.settings)
        return int(table.version()), shape

    def newest_after(self, version: int) -> int:
        """Return the newest version, given that `version` is there. Only what is newer is listed."""
        return max(self._versions(_ENTRY, version), default=version)

    def commit(self, version: int) -> Commit | None:
        """Return a version's entry, None when it is not there."""
        with self.answering(f"reading version {version}"):
            try:
                data = self.folder.read(_entry(version))
            except FileNotFoundError:
                return None
        try:
            return parse_commit(version, data)
        except (ValueError, KeyError) as error:
            raise SourceError(f"the log entry of version {version} at {self.place} is damaged: {error}") from error

    def written_at(self, version: int) -> datetime:
        """Return when a version was written; long ago when nobody knows."""
        commit = self.commit(version)
        return utc_from_ms(0 if commit is None else commit.timestamp_ms or 0)

    def has_entry(self, version: int) -> bool:
        """Whether a version's entry is there."""
        with self.answering(f"looking for version {version}"):
            return self.folder.size(_entry(version)) is not None

    def first_from(self, version: int) -> int | None:
        """Return the oldest version that is there, of `version` and later ones."""
        return min(self._versions(_ENTRY, version - 1), default=None)

    def reaches(self, version: int) -> bool:
        """Whether the table has been at `version`, by its entries and log checkpoints."""
        return bool(self._versions(_ENTRY, version - 1) or self._versions(_CHECKPOINT, version - 1))

    def can_rebuild(self, version: int) -> bool:
        """Whether the whole table at a version can be found out: from all entries, or from a log checkpoint on."""
        oldest = self.first_from(0)
        if oldest is None or not self.reaches(version):
            return False
        return oldest == 0 or any(oldest - 1 <= found <= version for found in self._versions(_CHECKPOINT, -1))

    def _versions(self, form: re.Pattern[str], after: int) -> list[int]:
        with self.answering("listing the log"):
            names = self.folder.names_after(_LOG, f"{after:020d}.json" if after >= 0 else "")
        found = (form.fullmatch(name) for name in names)
        return [int(match[1]) for match in found if match is not None and int(match[1]) > after]

    def snapshot(self, version: int) -> list[LoggedFile]:
        """Return the files that a version of the table consists of, in the order of their paths."""
        table = self.table(version)
        with self.answering(f"reading the files of version {version}"):
            actions = pa.table(table.get_add_actions(flatten=True))
            vectors = _has_deletion_vectors(table)
        names = table.metadata().partition_columns
        columns = [actions["path"].to_pylist(), actions["size_bytes"].to_pylist()]
        columns += [actions[f"partition.{name}"].cast(pa.string()).to_pylist() for name in names]
        files = [
            LoggedFile(unquote(path), size, dict(zip(names, values, strict=True)), vectors)
            for path, size, *values in zip(*columns, strict=True)
        ]
        return sorted(files, key=lambda file: file.path)

    @contextlib.contextmanager
    def answering(self, what: str) -> Iterator[None]:
        """Turn a failure of the storage or of `deltalake` into one that may be tried again."""
        try:
            yield
        except (delta_exceptions.DeltaError, OSError) as error:
            raise SourceUnavailable(f"the Delta table at {self.place}: {what}: {first_line(error)}") from error

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Say in an error which table it is about."""
        try:
            yield
        except SourceError as error:
            raise type(error)(f"the Delta table at {self.place} cannot be read on: {error}") from None


def _has_deletion_vectors(table: Any) -> bool:
    """Whether some file of a table has rows that do not count any more; which one, nobody needs to know."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False
    return any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()))


def _entry(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"
