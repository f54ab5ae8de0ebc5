"""A Delta table as a source: its versions, one after the other, read by Spark's workers from the files in its log."""

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from importlib import import_module

from holdfast.connectors.delta.feed import RAISE_LOG_RETENTION, Feed, Position
from holdfast.connectors.delta.folder import local_path
from holdfast.connectors.delta.settings import FORMAT, STARTING_OFFSET, STORAGE_OPTIONS, TUNING, DeltaSettings, Limits
from holdfast.connectors.delta.versions import TableLog
from holdfast.connectors.extras import deltalake
from holdfast.core.sources import Lag, Offsets, SourceContext, SourceSpec
from holdfast.errors import PipelineDefinitionError, SourceError, SourceHistoryLost

_TABLE = "table.json"
_LOOKED_AT = Limits(files=1000, versions=100)
"""How much of what comes next is looked for at a start."""
_THREADS = 16
_EXPECTED = "snapshot, latest, a version, or a time such as 2026-01-31T12:00:00Z"
_NUMBER = re.compile(r"\d+")

Beginning = str | int | datetime
"""`snapshot`, `latest`, a version, or a time."""


def delta_source(settings: DeltaSettings, starting: Beginning) -> SourceSpec:
    """Describe a Delta table as a source."""
    deltalake.require()
    return SourceSpec(
        FORMAT,
        settings.options(),
        read_offsets=json.loads,
        secret_options=frozenset({STORAGE_OPTIONS}),
        tuning_options=TUNING,
        data_source=_data_source,
        control=DeltaControl(settings, _beginning(starting)),
        metadata={"table": settings.path},
        connector="delta",
    )


def _data_source() -> type:
    found: type = import_module("holdfast.connectors.delta.reader").DeltaDataSource
    return found


def absolute(path: str) -> str:
    """Return a table's path as every process of Spark understands it."""
    return local_path(path) or path


def _beginning(starting: Beginning) -> Beginning:
    """Return what `starting` means: a word, a version, or an instant."""
    if starting in ("snapshot", "latest"):
        return starting
    if _NUMBER.fullmatch(str(starting)):
        return int(str(starting))
    try:
        time = starting if isinstance(starting, datetime) else datetime.fromisoformat(str(starting))
    except ValueError:
        raise PipelineDefinitionError(f"starting is '{starting}', expected {_EXPECTED}") from None
    if time.tzinfo is None:
        raise PipelineDefinitionError(f"starting is '{starting}': say in which time zone, as in {time.isoformat()}Z")
    return time


class DeltaControl:
    """What is done about a Delta table beside reading it. The table itself is never written to."""

    def __init__(self, settings: DeltaSettings, starting: Beginning) -> None:
        self._settings, self._starting = settings, starting
        self._newest = -1

    def bind(self, context: SourceContext) -> None:
        """Take the context."""
        self._materials = context.materials
        self._log = TableLog(self._settings.path, self._settings.storage_options)

    def can_read(self, offsets: Offsets | None) -> None:
        """Look into the table's log, where a beginning is noted nowhere."""
        if offsets is None:
            self._first(Feed(self._settings))
        else:
            self.check(offsets)

    def begin(self) -> Offsets:
        """Decide where to begin, and remember which table it was."""
        feed = Feed(self._settings)
        self._materials.put(_TABLE, json.dumps({"id": feed.shape.id}).encode())
        return self._first(feed).offsets()

    def _first(self, feed: Feed) -> Position:
        match self._starting:
            case "snapshot":
                whole = Position(feed.opened_at, snapshot=True)
                one_file = feed.files_between(whole, feed.advance(whole, Limits(files=1)))
                return whole if one_file else Position(feed.opened_at + 1)
            case int(version):
                return self._at_version(feed, version)
            case datetime() as time:
                return self._at_time(feed, time)
        return Position(feed.opened_at + 1)

    def _at_version(self, feed: Feed, version: int) -> Position:
        if version > feed.opened_at + 1:
            raise SourceError(
                f"the Delta table at {feed.log.place} is at version {feed.opened_at}, starting says {version}"
            )
        feed.advance(Position(version), Limits(versions=1))
        return Position(version)

    def _at_time(self, feed: Feed, time: datetime) -> Position:
        """Return the first version that was written at or after a time. Clocks may disagree, so all are looked at."""
        oldest = feed.log.first_from(0) or 0
        versions = range(oldest, feed.opened_at + 1)
        with ThreadPoolExecutor(_THREADS) as pool:
            times = pool.map(feed.log.written_at, versions)
            found = next((version for version, at in zip(versions, times, strict=True) if at >= time), None)
        if found is None:
            raise SourceError(
                f"no version of the Delta table at {feed.log.place} was written at {time.isoformat()} or later, the "
                f"newest one is {feed.opened_at}: start at 'latest' to read what comes next"
            )
        if found == oldest > 0:
            feed.lost(
                f"versions of the Delta table at {feed.log.place} that were written at {time.isoformat()} or later "
                f"may be gone from its log, the first one there is {oldest}",
                RAISE_LOG_RETENTION,
            )
        return Position(found)

    def start_options(self, offsets: Offsets) -> Mapping[str, str]:
        """Return the option that tells the reader."""
        return {STARTING_OFFSET: json.dumps(dict(offsets))}

    def check(self, offsets: Offsets) -> None:
        """Look whether it is the same table, and still has the log and the files of what comes next."""
        feed = Feed(self._settings)
        noted = self._materials.get(_TABLE)
        if noted is not None and json.loads(noted)["id"] != feed.shape.id:
            raise SourceHistoryLost(
                f"the Delta table at {feed.log.place} is not the one that was read before: it was replaced. "
                "Begin anew to read this one"
            )
        start = Position.of(offsets)
        end = feed.advance(start, _LOOKED_AT)
        files = feed.files_between(start, end)
        with feed.log.answering("looking for data files"), ThreadPoolExecutor(_THREADS) as pool:
            sizes = pool.map(lambda file: feed.log.folder.size(file.path), files)
            gone = [file for file, size in zip(files, sizes, strict=True) if size is None]
        if gone:
            what = f"{len(gone)} of the next {len(files)} files of the Delta table at {feed.log.place} were vacuumed"
            feed.lost(
                f"{what}, the first one is {gone[0].path} of version {gone[0].version}",
                "raise delta.deletedFileRetentionDuration on the table",
            )

    def head(self) -> Offsets:
        """Return the version that will come next. Only what is newer than last time is listed."""
        self._newest = self._log.newest_after(self._newest)
        return Position(self._newest + 1).offsets()

    def lag(self, offsets: Offsets, head: Offsets) -> Lag:
        """Count versions; one that is read in parts counts until it is done."""
        return Lag(max(int(head["version"]) - int(offsets["version"]), 0), "versions")

    def committed(self, offsets: Offsets) -> None:
        """Do nothing: nobody at the table waits for us."""

    def acknowledge(self, offsets: Offsets) -> None:
        """Do nothing: a table keeps its versions and files as long as its own settings say."""

    def close(self) -> None:
        """Do nothing: no connection is held."""
