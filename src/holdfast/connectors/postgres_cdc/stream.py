"""A table's rows as a stream: where its epochs end, what they are made of, and how that is read.

`ChangeStream` lives in one process and decides; `read_part` runs in Spark's workers and is told all it needs. A range
[begin, end) of the log has the transactions whose commit record begins in it: whole ones, in the order of commits,
the same whenever it is read.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.connectors.postgres_cdc.feed import Feed
from holdfast.connectors.postgres_cdc.positions import Position
from holdfast.connectors.postgres_cdc.rows import Catalog, ChangeRows
from holdfast.connectors.postgres_cdc.session import Session, patiently
from holdfast.connectors.postgres_cdc.settings import CdcSettings
from holdfast.connectors.postgres_cdc.slots import checkpoint_of, head_of
from holdfast.connectors.postgres_cdc.snapshot import Snapshot, find_snapshot, read_chunk
from holdfast.connectors.postgres_cdc.spool import Spool, SpoolSlice, SpoolWriter
from holdfast.connectors.postgres_cdc.table import (
    CdcTable,
    Types,
    attributes_of,
    check_publication,
    columns_to_read,
    find_table,
    numbers_of,
    resolve_types,
    types_of,
)
from holdfast.connectors.postgres_cdc.transactions import TableMessages
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable
from holdfast.stores.materials import open_materials

PATIENCE_SECONDS = 60.0
"""How long a server that does not answer is waited for."""
_LOOK_SECONDS = 10.0
_EPOCH_BYTES = 256 << 20
"""An epoch ends after the transaction that brings it to this, however few rows it has."""
_PART_BYTES = 8 << 20
"""So much is read by one task, or one transaction if that is more."""


@dataclass(frozen=True)
class ChunkPart:
    """One file of the snapshot."""

    place: str
    snapshot: Snapshot
    number: int


@dataclass(frozen=True)
class LogPart:
    """A range of the log, and where its messages are if they were received already."""

    table: CdcTable
    types: Types
    begin: int
    end: int
    file: SpoolSlice | None


Part = ChunkPart | LogPart


def schema_of(settings: CdcSettings) -> Any:
    """Ask the server for the columns that are read now."""
    with contextlib.closing(Session(settings.address)) as session:
        return columns_to_read(session, settings, find_table(session, settings))


@dataclass(frozen=True)
class _Received:
    """A range whose transactions were received, all of them."""

    begin: int
    end: int
    parts: tuple[tuple[int, int, SpoolSlice | None], ...] = ()
    """Ranges that have rows, one after the other, and where their messages are."""


class ChangeStream:
    """Decides where epochs end. Remembers only what can be found out again."""

    def __init__(self, settings: CdcSettings, place: str | None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings, self._place, self._clock = settings, place, clock
        self._session = Session(settings.address)
        self._spool = Spool(settings)
        self._feed: Feed | None = None
        self._messages: TableMessages
        self._table: CdcTable | None = None
        self._types: Types = {}
        self._looked_at = 0.0
        self._target: int | None = None
        self._epoch = _Received(-1, -1)

    def close(self) -> None:
        """Let connections and files go."""
        self._drop_feed()
        self._session.close()
        self._spool.close()

    def aim(self) -> None:
        """From now on behave as if nothing were written any more."""
        self._target = patiently(lambda: head_of(self._session), PATIENCE_SECONDS, self._clock)

    # Where an epoch ends

    def next_position(self, start: Position, most_rows: int | None) -> Position:
        """Return where an epoch from `start` ends; `start` itself when there is nothing to read."""
        if start.chunk is not None:
            snapshot = self._snapshot(start.chunk)
            chunk = snapshot.chunk_after(start.chunk, most_rows)
            return Position(start.lsn, chunk if chunk < len(snapshot.chunks) else None)
        if not self._epoch.begin == start.lsn < self._epoch.end:  # Asked again, it is still the same epoch.
            self._epoch = patiently(lambda: self._gather(start.lsn, most_rows), PATIENCE_SECONDS, self._clock)
        return Position(self._epoch.end)

    def _gather(self, begin: int, most_rows: int | None) -> _Received:
        """Receive whole transactions until there are enough of them, or no more."""
        feed, messages = self._feed_from(begin)
        file = self._spool.begin()
        try:
            parts = list(self._received_parts(begin, feed, messages, file, most_rows))
            file.finish()
            end = parts[-1][1] if parts else self._past_other_tables(begin, feed.seen)
        except BaseException:
            file.discard()
            self._drop_feed()
            raise
        return _Received(begin, end, ((begin, end, None),) if file.is_lost else tuple(parts))

    def _received_parts(
        self, begin: int, feed: Feed, messages: TableMessages, file: SpoolWriter, most_rows: int | None
    ) -> Iterator[tuple[int, int, SpoolSlice]]:
        messages.rows, messages.end = 0, begin
        for message in messages.passed(feed.read(self._target), before=self._target):
            file.add(message, messages.form)
            if not messages.inside and messages.end > begin:
                full = file.size >= _EPOCH_BYTES or (most_rows is not None and messages.rows >= most_rows)
                if full or file.slice_size >= _PART_BYTES:
                    yield begin, messages.end, file.slice()
                    begin = messages.end
                if full:
                    return
        if messages.end > begin:
            yield begin, messages.end, file.slice()

    def _feed_from(self, begin: int) -> tuple[Feed, TableMessages]:
        """Return the feed at `begin`, where it stands after the epoch before; a new one for anything else."""
        table = self._known_table()
        if self._feed is not None and not self._epoch.end <= begin <= max(self._epoch.end, self._feed.seen):
            self._drop_feed()
        if self._feed is None:
            self._feed, self._messages = Feed(self._session, self._settings, begin), TableMessages(table)
        return self._feed, self._messages

    def _drop_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _past_other_tables(self, begin: int, seen: int) -> int:
        """Move on over much of the log that has nothing for us, so that the server may let go of it."""
        if seen - begin < self._settings.idle_bytes:
            return begin
        safe = checkpoint_of(self._session)
        return safe if begin + self._settings.idle_bytes <= safe <= seen else begin

    def _known_table(self) -> CdcTable:
        """Return the table; look now and then whether it is still what was published."""
        now = self._clock.monotonic()
        if self._table is None or now - self._looked_at > _LOOK_SECONDS:
            self._table = find_table(self._session, self._settings)
            check_publication(self._session, self._settings, self._table)
            self._types = types_of(self._session, self._table)
            self._looked_at = now
        return self._table

    # What it is made of

    def parts(self, start: Position, end: Position) -> list[Part]:
        """Return what an epoch is made of."""
        parts: list[Part] = []
        if start.chunk is not None:
            snapshot = self._snapshot(start.chunk)
            assert self._place is not None
            patiently(lambda: self._refuse_renamed(snapshot), PATIENCE_SECONDS, self._clock)
            stop = len(snapshot.chunks) if end.chunk is None else end.chunk
            parts += [ChunkPart(self._place, snapshot, number) for number in range(start.chunk, stop)]
        if end.lsn > start.lsn:
            table = patiently(self._known_table, PATIENCE_SECONDS, self._clock)
            received = (self._epoch.begin, self._epoch.end) == (start.lsn, end.lsn)
            ranges = self._epoch.parts if received else ((start.lsn, end.lsn, None),)
            parts += [LogPart(table, self._types, *range_) for range_ in ranges]
        return parts

    def _refuse_renamed(self, snapshot: Snapshot) -> None:
        """Refuse a snapshot that has a column under another name: it would be NULL."""
        then = {number: name for name, number in snapshot.numbers.items()}
        table, wanted = self._known_table(), self._settings.columns
        for name, number in numbers_of(self._session, table.id).items():
            if then.get(number, name) != name and (not wanted or name in wanted):
                raise SourceError(
                    f"column '{name}' of table {table.sql} was '{then[number]}' when the snapshot was "
                    "taken, which is not read to its end: start over with --fresh"
                )

    def _snapshot(self, chunk: int) -> Snapshot:
        found = None if self._place is None else find_snapshot(open_materials(self._place))
        if found is None:
            raise SourceHistoryLost(f"chunk {chunk} of the snapshot comes next, and it is not at {self._place}")
        return found


# In a worker


def read_part(settings: CdcSettings, part: Part, columns: Any, clock: Clock = SYSTEM_CLOCK) -> Iterator[Any]:
    """Yield the rows of a part of an epoch, as `pyarrow.RecordBatch`; `columns` are those of the table."""
    if isinstance(part, ChunkPart):
        yield from read_chunk(open_materials(part.place), part.snapshot, part.number, columns)
        return
    given, until = 0, clock.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            for batch in _without(_attempt(settings, part, columns), given):
                yield batch
                given += batch.num_rows
                until = clock.monotonic() + PATIENCE_SECONDS
            return
        except SourceUnavailable:
            if clock.monotonic() > until:
                raise
            clock.sleep(1.0)


def _attempt(settings: CdcSettings, part: LogPart, columns: Any) -> Iterator[Any]:
    """Read a range from its beginning."""
    with contextlib.closing(Session(settings.address)) as session:
        catalog = Catalog(
            types=lambda asked: {**part.types, **resolve_types(session, asked - part.types.keys())},
            attributes=lambda: attributes_of(session, part.table.id),
        )
        rows = ChangeRows(part.table, columns, catalog, only_these=bool(settings.columns))
        if part.file is not None and part.file.is_here:
            yield from rows.batches(part.file.messages())
            return
        with contextlib.closing(Feed(session, settings, part.begin)) as feed:
            messages = TableMessages(part.table).passed(feed.read(part.end), before=part.end)
            yield from rows.batches(messages)


def _without(batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Leave out the first rows: those that were given before the server went away."""
    for batch in batches:
        skipped = min(rows, batch.num_rows)
        rows -= skipped
        if skipped < batch.num_rows:
            yield batch.slice(skipped)
