"""The Python data source through which Spark reads a Delta table's versions.

Positions and plans are made in one process beside the driver, from the log alone; the files are read by Spark's
workers. Imports pyspark, so it is loaded only when a session is there (`SourceSpec.data_source`).
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.clock import SYSTEM_CLOCK
from holdfast.connectors.delta.changes import CHANGE_COLUMNS, PlannedFile
from holdfast.connectors.delta.feed import Feed, Position
from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.delta.rows import RowReader
from holdfast.connectors.delta.settings import FORMAT, STARTING_OFFSET, DeltaSettings, Limits
from holdfast.connectors.delta.shape import TableShape, nullable_schema
from holdfast.connectors.delta.versions import TableLog
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable

_LEAST_BYTES = 4 * 1024 * 1024
"""Less than this is not worth a task of its own."""
_PAUSE_SECONDS = 1.0
"""How long object storage is not asked again after there was nothing new. Spark asks a hundred times a second."""
_log = logging.getLogger(__name__)


class DeltaDataSource(DataSource):
    """A Delta table as a stream of its added rows, or of changes to its rows."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns that the table has now, and those of the change feed."""
        settings = DeltaSettings.of_options(self.options)
        _, shape = TableLog(settings.path, settings.storage_options).newest()
        return spark_schema(shape, change_feed=settings.change_feed)

    def streamReader(self, schema: StructType) -> "DeltaStreamReader":
        """Return the reader."""
        return DeltaStreamReader(
            DeltaSettings.of_options(self.options), schema, self.options.get(STARTING_OFFSET, "{}")
        )


def spark_schema(shape: TableShape, *, change_feed: bool) -> StructType:
    """Return a table's columns as Spark has them."""
    schema = nullable_schema(shape.schema)
    if change_feed:
        taken = sorted(CHANGE_COLUMNS.keys() & shape.columns.keys())
        if taken:
            raise SourceError(f"the Delta table has a column '{taken[0]}', which a change feed adds by itself")
        extra = [
            {"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in CHANGE_COLUMNS.items()
        ]
        schema["fields"] = schema["fields"] + extra
    return StructType.fromJson(schema)


class FileGroup(InputPartition):
    """The files that one task reads."""

    def __init__(self, files: Sequence[PlannedFile]) -> None:
        super().__init__(None)
        self.files = tuple(files)


class DeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs (in a process beside the driver) and reads their files (in Spark's workers)."""

    def __init__(self, settings: DeltaSettings, schema: StructType, starting_offset: str) -> None:
        self._settings, self._schema, self._starting_offset = settings, schema, starting_offset
        self._opened: Feed | None = None
        self._until: int | None = None
        self._idle_since: tuple[Position, float] | None = None

    # beside the driver

    def initialOffset(self) -> dict[str, str]:
        """Return where the pipeline begins, as it was decided before."""
        found: dict[str, str] = json.loads(self._starting_offset)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit in Spark's terms; it has no word for several, so ours are used whenever there is one."""
        limits = self._settings.limits
        return ReadAllAvailable() if limits == Limits() else ReadMaxFiles(limits.files or 2**31 - 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember where the table ends now."""
        self._until = self._feed.log.newest_after(self._feed.opened_at)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """Return where the epoch ends that begins at `start`; `start` itself when there is nothing new."""
        position = Position.of(start)
        if self._is_pausing(position):
            return start
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._settings.limits
        end = self._feed.advance(position, limits, self._until)
        self._idle_since = (position, SYSTEM_CLOCK.monotonic()) if end == position else None
        return end.offsets()

    def _is_pausing(self, position: Position) -> bool:
        if self._idle_since is None or self._feed.log.folder.root is not None:
            return False
        idle_at, since = self._idle_since
        return idle_at == position and SYSTEM_CLOCK.monotonic() - since < _PAUSE_SECONDS

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Divide the epoch's files among tasks."""
        files = self._feed.files_between(Position.of(start), Position.of(end))
        return [FileGroup(group) for group in grouped(files, self._settings.partitions or os.cpu_count() or 1)]

    def commit(self, end: dict[str, str]) -> None:
        """Do nothing: a table keeps its versions by its own rules."""

    @property
    def _feed(self) -> Feed:
        if self._opened is None:
            feed = Feed(self._settings)
            expected = spark_schema(feed.shape, change_feed=self._settings.change_feed)
            if [(field.name, field.dataType) for field in expected] != [
                (field.name, field.dataType) for field in self._schema
            ]:
                raise SourceError(
                    f"the columns of the Delta table at {feed.log.place} changed while the pipeline started: "
                    "start it again"
                )
            self._opened = feed
        return self._opened

    # in Spark's workers

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task's files as Arrow batches."""
        assert isinstance(partition, FileGroup)
        folder = TableFolder(self._settings.path, self._settings.storage_options)
        reader = RowReader(folder, to_arrow_schema(self._schema, timezone="UTC"))
        for file in partition.files:
            try:
                yield from reader.batches(file)
            except FileNotFoundError:
                self._vacuumed(file)
            except OSError as error:
                raise SourceUnavailable(f"{file.path} of version {file.version} cannot be read: {error}") from error

    def _vacuumed(self, file: PlannedFile) -> None:
        place = self._settings.path
        what = f"version {file.version} of the Delta table at {place} needs {file.path}, which was vacuumed"
        if not self._settings.skips_lost:
            raise SourceHistoryLost(f"{what}. Begin anew, or go on without with on_history_lost 'continue'")
        _log.warning("%s; going on without", what)


def grouped(files: Sequence[PlannedFile], most: int) -> list[list[PlannedFile]]:
    """Divide files into at most `most` groups of about one size: the largest first, each to the smallest group."""
    size = sum(file.size for file in files)
    count = max(1, min(most, len(files), -(-size // _LEAST_BYTES)))
    groups: list[list[PlannedFile]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: (-file.size, file.path)):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(file)
        sizes[smallest] += file.size
    return [sorted(group, key=lambda file: (file.version, file.path)) for group in groups if group]
