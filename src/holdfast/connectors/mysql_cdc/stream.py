"""A table's changes as a stream: where its epochs end, what they are made of, and how that is read.

`ChangeStream` lives in one process and decides; `read_part` runs in Spark's workers and is told all it needs.
"""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.connectors.mysql_cdc.batches import ChangeBatches
from holdfast.connectors.mysql_cdc.binlog import BinlogStream
from holdfast.connectors.mysql_cdc.columns import columns_of, fields_of, find_table
from holdfast.connectors.mysql_cdc.places import LogPlaces
from holdfast.connectors.mysql_cdc.position import Place, Position
from holdfast.connectors.mysql_cdc.rows import RowDecoder
from holdfast.connectors.mysql_cdc.scan import scan
from holdfast.connectors.mysql_cdc.session import PATIENCE_SECONDS, RETRY_SECONDS, Session, patiently
from holdfast.connectors.mysql_cdc.settings import CdcSettings
from holdfast.connectors.mysql_cdc.snapshot import Snapshot, open_snapshot, read_chunk
from holdfast.connectors.mysql_cdc.transactions import Abandoned, Boundary, Change, TransactionLog
from holdfast.errors import SourceHistoryLost, SourceUnavailable
from holdfast.stores.materials import open_materials

_REST = 4
"""After a look that found nothing, rest so many times as long as it took."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChunkPart:
    """One file of the snapshot."""

    place: str
    snapshot: Snapshot
    number: int


@dataclass(frozen=True)
class LogPart:
    """A range of the log; where it begins is a place in the log of the server that is read now."""

    begin: Position
    end: Position


Part = ChunkPart | LogPart


@dataclass(frozen=True)
class _Quiet:
    """A range of the log that has nothing for us, as one connection saw it."""

    connection: int
    start: Position
    end: Position
    received: int
    """Its bytes."""


def schema_of(settings: CdcSettings) -> Any:
    """Ask the server for the columns that are read now."""
    with contextlib.closing(Session(settings.address)) as session:
        session.check_settings()
        table = find_table(session, settings)
        return fields_of(columns_of(session, table.name, settings.columns))


class ChangeStream:
    """Decides where epochs end. Remembers only what can be found out again."""

    def __init__(self, settings: CdcSettings, columns: Any, place: str | None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Read `columns` (a `pyarrow.Schema`); `place` is where the snapshot is."""
        self._settings, self._columns, self._place, self._clock = settings, columns, place, clock
        self._session = Session(settings.address)
        self._places = LogPlaces(self._session, settings)
        self._target: Position | None = None
        self._quiet: _Quiet | None = None
        self._rest_until = 0.0
        self._gave_up: tuple[Position, Place] | None = None

    def close(self) -> None:
        """Let the connection go."""
        self._session.close()

    def aim(self) -> None:
        """From now on behave as if nothing were written any more."""
        self._target = patiently(self._session.log_end, PATIENCE_SECONDS, self._clock)

    def next_position(self, start: Position, most_rows: int | None) -> Position:
        """Return where an epoch from `start` ends; `start` itself when there is nothing to read."""
        if start.snapshot is not None:
            snapshot = self._snapshot(start)
            return start.after_chunks(snapshot.chunks_within(start.snapshot.chunk, most_rows))
        return patiently(lambda: self._next_in_log(start, most_rows), PATIENCE_SECONDS, self._clock)

    def _next_in_log(self, start: Position, most_rows: int | None) -> Position:
        now = self._clock.monotonic()
        if self._target is None and now < self._rest_until:
            return start
        head = self._target or self._session.log_end()
        begin, passed = self._first_unknown(start)
        if begin.is_at_or_after(head):
            if self._target is None and not head.is_at_or_after(begin):
                # What was read from this log is not in it any more: the next look finds out why.
                self._quiet = None
                self._places.forget()
            return start
        found = scan(self._session, self._settings, self._columns, begin, head, most_rows)
        if found.end is not None:
            self._places.learn(found.end)
            return found.end
        self._rest_until = self._clock.monotonic() + _REST * (self._clock.monotonic() - now)
        self._quiet = _Quiet(self._session.opened, start, found.seen, passed + found.received)
        much = passed + found.received >= self._settings.idle_bytes
        # The server may remove a file that it does not write any more, and all of this one was looked at.
        return found.seen if much or found.seen.place.file != start.place.file else start

    def _first_unknown(self, start: Position) -> tuple[Position, int]:
        """Return the first position at or after `start` that may have a change, and how many bytes are between."""
        located, quiet = self._located(start), self._quiet
        if quiet is not None and quiet.start == start and quiet.connection == self._session.opened:
            return quiet.end, quiet.received
        return located, 0

    def _located(self, start: Position) -> Position:
        """Return a position with its place in the log of the server that answers now."""
        try:
            return replace(start, place=self._places.find(start), server_id=self._session.facts.server_id)
        except SourceHistoryLost as error:
            if not self._settings.goes_on:
                raise
            first = self._places.first()
            if self._gave_up != (start, first):  # Once, not at every look.
                self._gave_up = (start, first)
                _log.error("%s. GOING ON WITHOUT the changes before %s, as on_history_lost says", error, first)
            return Position(first, self._session.facts.server_id, self._places.gtids_before(first.file))

    def parts(self, start: Position, end: Position) -> list[Part]:
        """Return what an epoch is made of."""
        parts: list[Part] = []
        if start.snapshot is not None:
            snapshot = self._snapshot(start)
            stop = start.snapshot.chunks if end.snapshot is None else end.snapshot.chunk
            numbers = range(start.snapshot.chunk, stop)
            parts += [ChunkPart(str(self._place), snapshot, number) for number in numbers]
        if not start.same_place_in_log(end):
            begin = patiently(lambda: self._located(replace(start, snapshot=None)), PATIENCE_SECONDS, self._clock)
            parts += [] if begin.is_at_or_after(end) else [LogPart(begin, end)]
        return parts

    def _snapshot(self, position: Position) -> Snapshot:
        assert position.snapshot is not None
        if self._place is None:
            raise SourceHistoryLost(f"snapshot {position.snapshot} comes next, and nobody said where it is")
        return open_snapshot(open_materials(self._place), position.snapshot.attempt)


def read_part(settings: CdcSettings, part: Part, columns: Any, clock: Clock = SYSTEM_CLOCK) -> Iterator[Any]:
    """Yield the rows of a part of an epoch, as `pyarrow.RecordBatch`; `columns` are those of the table."""
    if isinstance(part, ChunkPart):
        yield from read_chunk(open_materials(part.place), part.snapshot, part.number, columns)
        return
    with contextlib.closing(Session(settings.address)) as session:
        yield from _LogReader(settings, session, columns, clock).read(part)


class _LogReader:
    """Reads a range of the log to its exact end, over lost connections."""

    def __init__(self, settings: CdcSettings, session: Session, columns: Any, clock: Clock) -> None:
        self._settings, self._session, self._clock = settings, session, clock
        self._decoder = RowDecoder(session, settings.name, columns, only_these=bool(settings.columns))
        self._batches = ChangeBatches(columns)
        self._position: Position

    def read(self, part: LogPart) -> Iterator[Any]:
        """Yield the rows of the range. Those of a transaction come once it is known to be whole."""
        self._position, until = part.begin, None
        while not self._position.same_place_in_log(part.end):
            before = self._position
            try:
                yield from self._attempt(part.end)
            except SourceUnavailable:
                self._batches.abandon_transaction()
                if until is None or self._position != before:
                    # From here on, however long it took to come here: a large transaction may take longer than this.
                    until = self._clock.monotonic() + PATIENCE_SECONDS
                if self._clock.monotonic() > until:
                    raise
                self._clock.sleep(RETRY_SECONDS)
        yield from self._batches.rest()

    def _attempt(self, end: Position) -> Iterator[Any]:
        log = TransactionLog(self._settings.name, self._position, self._session.facts)
        replica_id = self._settings.new_replica_id(1)
        with BinlogStream(self._session.address, self._position, replica_id) as stream:
            for item in log.items(stream):
                match item:
                    case Change():
                        yield from self._batches.add(item, self._decoder)
                    case Abandoned():
                        self._batches.abandon_transaction()
                    case Boundary(position):
                        yield from self._batches.end_transaction()
                        self._position = position
                        if position.same_place_in_log(end):
                            return
                        if position.is_at_or_after(end):
                            raise SourceHistoryLost(self._passed(end))
        self._refuse_short_log(end)

    def _passed(self, end: Position) -> str:
        return (
            f"the log of {self._session.address.server} is not the one that was read before: no transaction ends at "
            f"{_described(end)}, the next one at {_described(self._position)}; start over with --fresh"
        )

    def _refuse_short_log(self, end: Position) -> None:
        """Wait for what the server has and did not send yet; refuse a log that ends before what was read from it."""
        head = self._session.log_end()
        if head.is_at_or_after(end):
            raise SourceUnavailable(f"{self._session.address.server} did not send its log up to {end.place} yet")
        raise SourceHistoryLost(
            f"the log of {self._session.address.server} ends at {_described(head)}, before {_described(end)} that "
            "was seen in it earlier: it lost its end; start over with --fresh"
        )


def _described(position: Position) -> str:
    return str(position.place) if position.gtids is None else f"{position.place} ({position.gtids})"
