"""Which files of a version are read, and what their rows mean: rows that were added, or changes to rows."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from holdfast.connectors.delta.commits import Commit, LoggedFile
from holdfast.errors import SourceError

_ABSOLUTE = re.compile(r"([a-z][a-z0-9+.-]*:)?/", re.IGNORECASE)
"""A path, or a URL: Hadoop writes `file:/folder`, with one slash."""
CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
CHANGE_COLUMNS = {CHANGE_TYPE: "string", COMMIT_VERSION: "long", COMMIT_TIMESTAMP: "timestamp"}
"""The columns that a change feed adds, with their Delta types."""


@dataclass(frozen=True)
class Change:
    """What happened to a file's rows, and when. Without a kind, a column of the file says it row by row."""

    kind: str | None
    timestamp_ms: int | None


@dataclass(frozen=True)
class PlannedFile:
    """A file that is to be read as part of a version."""

    path: str
    size: int
    partition: Mapping[str, str | None]
    version: int
    change: Change | None = None


class RowMode(Protocol):
    """What a pipeline reads of a version."""

    divisible: bool
    """Whether an epoch may end in the middle of a version."""

    def files(self, commit: Commit) -> list[PlannedFile]:
        """Return the files to read of a version, in an order that never changes."""
        ...

    def snapshot_files(self, files: Iterable[LoggedFile], version: int, at_ms: int | None) -> list[PlannedFile]:
        """Return the files to read of a whole table."""
        ...


class AddedRows:
    """Rows that were added. Rows that a version removes cannot be told; `on_rewrite` says what to do then."""

    divisible = True

    def __init__(self, on_rewrite: str) -> None:
        self._on_rewrite = on_rewrite

    def files(self, commit: Commit) -> list[PlannedFile]:
        """Return the added files."""
        if commit.removed and self._on_rewrite == "stop":
            raise SourceError(
                f"version {commit.version} ({commit.operation}) removes or rewrites rows, which reading added rows "
                "cannot tell: use change_feed, or choose on_rewrite 'skip' or 'read_added'"
            )
        if commit.removed and self._on_rewrite == "skip":
            return []
        return [_planned(file, commit.version) for file in commit.added]

    def snapshot_files(self, files: Iterable[LoggedFile], version: int, at_ms: int | None) -> list[PlannedFile]:
        """Return all files."""
        return [_planned(file, version) for file in files]


class ChangedRows:
    """Every change to a row, from files with changes where there are some, else from files added and removed.

    A version is read as a whole: half of it is a state that the table never had.
    """

    divisible = False

    def __init__(self, records_changes: Callable[[int], bool], *, partitioned: bool) -> None:
        self._records_changes, self._partitioned = records_changes, partitioned

    def files(self, commit: Commit) -> list[PlannedFile]:
        """Return the files with the version's changes."""
        at_ms = commit.timestamp_ms
        if commit.changes:
            return [_planned(file, commit.version, Change(None, at_ms)) for file in commit.changes]
        if commit.added and commit.removed and not self._records_changes(commit.version):
            raise SourceError(
                f"version {commit.version} ({commit.operation}) rewrote rows while the table did not record changes: "
                "set delta.enableChangeDataFeed on the table, and begin behind that version"
            )
        inserts = [_planned(file, commit.version, Change("insert", at_ms)) for file in commit.added]
        deletes = [_planned(self._located(file), commit.version, Change("delete", at_ms)) for file in commit.removed]
        return inserts + deletes

    def _located(self, file: LoggedFile) -> LoggedFile:
        """Fill in what an entry need not say of a removed file where there are no partitions."""
        return file if self._partitioned or file.partition is not None else replace(file, partition={})

    def snapshot_files(self, files: Iterable[LoggedFile], version: int, at_ms: int | None) -> list[PlannedFile]:
        """Return all files; what a table holds at the start counts as inserted."""
        return [_planned(file, version, Change("insert", at_ms)) for file in files]


def _planned(file: LoggedFile, version: int, change: Change | None = None) -> PlannedFile:
    if file.has_deletion_vector:
        raise SourceError(f"version {version} uses deletionVectors ({file.path}), which this source cannot read")
    if _ABSOLUTE.match(file.path):
        raise SourceError(f"version {version} names a file outside of the table ({file.path}): a shallow clone")
    if file.partition is None:
        raise SourceError(f"version {version} does not say in which partition {file.path} is")
    return PlannedFile(file.path, file.size, file.partition, version, change)
