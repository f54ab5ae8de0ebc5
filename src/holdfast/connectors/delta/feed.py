"""What a pipeline reads of a Delta table, in order: the files of a snapshot, then those of each version.

A position is the next file to read. A version's entry never changes and its files are taken in the order of their
paths, so the files between two positions are the same whenever they are read.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.connectors.delta.changes import AddedRows, ChangedRows, PlannedFile, RowMode
from holdfast.connectors.delta.commits import Commit
from holdfast.connectors.delta.settings import DeltaSettings, Limits
from holdfast.connectors.delta.shape import TableShape, refuse_changed_columns, refuse_unreadable
from holdfast.connectors.delta.versions import TableLog
from holdfast.errors import SourceError, SourceHistoryLost

RAISE_LOG_RETENTION = "raise delta.logRetentionDuration on the table"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Position:
    """The next file to read: of a version's entry, or of the whole table at a version (`snapshot`)."""

    version: int
    file: int = 0
    snapshot: bool = False

    @classmethod
    def of(cls, offsets: Mapping[str, str]) -> "Position":
        """Read offsets as they stand in a manifest."""
        snapshot = "snapshot" in offsets
        return cls(int(offsets["version"]), int(offsets.get("snapshot" if snapshot else "file", 0)), snapshot)

    def offsets(self) -> dict[str, str]:
        """Return the offsets, always with the same keys in the same order: Spark compares them as text."""
        if self.snapshot:
            return {"version": str(self.version), "snapshot": str(self.file)}
        return {"version": str(self.version), **({"file": str(self.file)} if self.file else {})}


class Feed:
    """The files of one table for one pipeline."""

    def __init__(self, settings: DeltaSettings) -> None:
        self.log = TableLog(settings.path, settings.storage_options)
        self.opened_at, self.shape = self.log.newest()
        self._skips_lost = settings.skips_lost
        self._mode: RowMode = AddedRows(settings.on_rewrite)
        if settings.change_feed:
            self._mode = ChangedRows(self._records_changes, partitioned=bool(self.shape.partition_columns))
        self._commits: dict[int, Commit] = {}
        self._snapshots: dict[int, list[PlannedFile]] = {}
        self._lost_before = 0

    def _records_changes(self, version: int) -> bool:
        return TableShape.of_table(self.log.table(version)).records_changes

    def advance(self, start: Position, limits: Limits, until: int | None = None) -> Position:
        """Return how far an epoch gets that begins at `start`, at most behind version `until`."""
        self._forget_before(start)
        budget = _Budget(limits)
        position = start
        while not budget.spent and (until is None or position.version <= until):
            files = self._files_at(position)
            if files is None:
                break
            taken = budget.take(files[position.file :], whole=not (self._mode.divisible or position.snapshot))
            if position.file + taken < len(files):
                return replace(position, file=position.file + taken)
            position = Position(position.version + 1)
        return position

    def files_between(self, start: Position, end: Position) -> list[PlannedFile]:
        """Return the files of an epoch."""
        found: list[PlannedFile] = []
        position = start
        while position != end:
            files = self._files_at(position)
            last = (position.version, position.snapshot) == (end.version, end.snapshot)
            if files is None or position.version > end.version or (last and end.file > len(files)):
                raise SourceHistoryLost(
                    f"the Delta table at {self.log.place} does not have what was to be read from {start.offsets()} "
                    f"to {end.offsets()}: it was put back to an older copy, or is read in another way now"
                )
            found += files[position.file : end.file if last else None]
            position = end if last else Position(position.version + 1)
        return found

    def _files_at(self, position: Position) -> list[PlannedFile] | None:
        """Return the files of a position's version; None when it is not written yet, none when it is lost."""
        if position.snapshot:
            return self._snapshot(position.version)
        commit = self._commit(position.version)
        if commit is None:
            return [] if position.version < self._lost_before else None
        with self.log.naming():
            return self._mode.files(commit)

    def _snapshot(self, version: int) -> list[PlannedFile]:
        if version not in self._snapshots:
            if not self.log.can_rebuild(version):
                what = f"the files of version {version} of the Delta table at {self.log.place}"
                first = self.log.first_from(0)
                self.lost(f"{what} cannot be found out any more, its log begins at {first}", RAISE_LOG_RETENTION)
                return []
            commit = None if self._mode.divisible else self._commit(version)
            files = self.log.snapshot(version)
            with self.log.naming():
                at_ms = None if commit is None else commit.timestamp_ms
                self._snapshots[version] = self._mode.snapshot_files(files, version, at_ms)
        return self._snapshots[version]

    def _commit(self, version: int) -> Commit | None:
        if version < self._lost_before:
            return None
        if version not in self._commits:
            commit = self.log.commit(version) or self._missing(version)
            if commit is None:
                return None
            with self.log.naming():
                self._check(commit)
            self._commits[version] = commit
        return self._commits[version]

    def _check(self, commit: Commit) -> None:
        """Refuse a version that changed the table into something else than what the query was made for."""
        then, protocol = commit.shape, commit.protocol
        if protocol is not None:
            refuse_unreadable(protocol.reader_version, protocol.features, {})
        if then is None:
            return
        refuse_unreadable(0, (), then.settings)
        if then.id != self.shape.id:
            raise SourceError(f"it is another table since version {commit.version}: its id is {then.id}")
        refuse_changed_columns(self.shape, then, commit.version, later=commit.version > self.opened_at)

    def _missing(self, version: int) -> Commit | None:
        """Find out why an entry is not there: not written yet (None), lost, or written just now."""
        if version > 0 and self.log.has_entry(version - 1):
            return None
        first = self.log.first_from(version)
        if first == version:
            return self.log.commit(version)
        if first is None:
            if not self.log.reaches(version - 1):
                raise SourceHistoryLost(
                    f"the Delta table at {self.log.place} has never been at version {version - 1}, which was read "
                    "before: it was replaced, or put back to an older copy"
                )
            return None
        what = f"version {version} of the Delta table at {self.log.place} is gone from its log"
        self.lost(f"{what}, the first one there is {first}", RAISE_LOG_RETENTION)
        self._lost_before = first
        return None

    def lost(self, what: str, advice: str) -> None:
        """Stop because rows are gone, or say so and go on if that was chosen."""
        if not self._skips_lost:
            raise SourceHistoryLost(f"{what}. Begin anew, or go on without with on_history_lost 'continue'; {advice}")
        _log.warning("%s; going on without", what)

    def _forget_before(self, start: Position) -> None:
        self._commits = {version: commit for version, commit in self._commits.items() if version >= start.version}
        if not start.snapshot:
            self._snapshots.clear()


class _Budget:
    """What is left of an epoch's limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = self._bytes = self._versions = 0

    @property
    def spent(self) -> bool:
        """Whether nothing more may be taken."""
        limits = self._limits
        pairs = ((self._files, limits.files), (self._bytes, limits.bytes), (self._versions, limits.versions))
        return any(limit is not None and used >= limit for used, limit in pairs)

    def take(self, files: Sequence[PlannedFile], *, whole: bool) -> int:
        """Return how many of a version's files fit: at least one if there was none yet; all or none if `whole`."""
        self._versions += 1
        if whole and self._files == 0:
            fit = len(files)
        else:
            fit = self._fitting(files)
            fit = 0 if whole and fit < len(files) else fit
        self._files += fit
        self._bytes += sum(file.size for file in files[:fit])
        return fit

    def _fitting(self, files: Sequence[PlannedFile]) -> int:
        count, size = self._files, self._bytes
        for index, file in enumerate(files):
            count, size = count + 1, size + file.size
            over = (self._limits.files is not None and count > self._limits.files) or (
                self._limits.bytes is not None and size > self._limits.bytes
            )
            if over and count > 1:
                return index
        return len(files)
