"""Finding a position in a server's log: where it says, if this is still that log, or else by its transactions."""

import logging
from collections.abc import Iterator, Mapping, Sequence

from holdfast.connectors.mysql_cdc.address import TableName
from holdfast.connectors.mysql_cdc.binlog import BinlogStream
from holdfast.connectors.mysql_cdc.events import GTID, mysql_gtid
from holdfast.connectors.mysql_cdc.gtid import GtidSet, parse_gtids
from holdfast.connectors.mysql_cdc.position import LOG_BEGINNING, Place, Position
from holdfast.connectors.mysql_cdc.session import Session
from holdfast.connectors.mysql_cdc.settings import CdcSettings
from holdfast.connectors.mysql_cdc.transactions import Boundary, TransactionLog
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable

_NO_TABLE = TableName("", "")
_REMEMBERED = 8
_log = logging.getLogger(__name__)


class LogPlaces:
    """The log of one server. Remembers where positions are for as long as the connection lasts."""

    def __init__(self, session: Session, settings: CdcSettings) -> None:
        self._session, self._settings = session, settings
        self._found: dict[str, Place] = {}
        self._found_on = 0

    def find(self, position: Position) -> Place:
        """Return where a position is in this server's log; raise `SourceHistoryLost` when it is not there."""
        self._forget_other_connections()
        known = self._found.get(str(position.offsets()))
        return known or self._keep(position, self._look_up(position, self._session.log_files()))

    def learn(self, position: Position) -> None:
        """Take in a position that was read from this log just now: looking it up is work for the server."""
        self._forget_other_connections()
        if position.server_id == self._session.facts.server_id:
            self._keep(position, position.place)

    def _keep(self, position: Position, place: Place) -> Place:
        self._found[str(position.offsets())] = place
        while len(self._found) > _REMEMBERED:
            del self._found[next(iter(self._found))]
        return place

    def first(self) -> Place:
        """Return where the log begins that the server still has."""
        return Place(next(iter(self._session.log_files())), LOG_BEGINNING)

    def forget(self) -> None:
        """Look positions up anew."""
        self._found = {}

    def _forget_other_connections(self) -> None:
        """Forget what was found before: a new connection may lead to another server, or to one that lost its end."""
        self._session.rows("SELECT 1")
        if self._found_on != self._session.opened:
            self._found, self._found_on = {}, self._session.opened

    def _look_up(self, position: Position, files: Mapping[str, int]) -> Place:
        place = position.place
        if position.server_id == self._session.facts.server_id:
            if place.offset <= files.get(place.file, -1) and self._is_there(position, files):
                return place
        elif position.gtids is not None:
            found = self._by_transactions(position.gtids, files)
            if found is not None:
                _log.warning("%s of server %d is %s here, by its GTIDs", place, position.server_id, found)
                return found
        raise SourceHistoryLost(self._message(position, files))

    def _is_there(self, position: Position, files: Mapping[str, int]) -> bool:
        """Whether this is the log that the position was taken from, as far as its GTIDs can tell."""
        if position.gtids is None:
            return True
        if self._session.facts.mariadb:
            return self._gtids_at(position.place) == position.gtids
        return self._is_within(position.gtids, position.place.file, list(files)) and self._goes_on(position)

    def _gtids_at(self, place: Place) -> GtidSet | None:
        if place.can_be_asked_for:
            return self._session.gtids_at(place)
        boundaries = (boundary.position for boundary in self._boundaries(place.file))
        reached = next((position for position in boundaries if position.place.order >= place.order), None)
        return reached.gtids if reached is not None and reached.place == place else None

    def _is_within(self, gtids: GtidSet, file: str, files: Sequence[str]) -> bool:
        """Whether a MySQL server's file begins with no more transactions than these, and ends with no fewer."""
        later = files[files.index(file) + 1 :]
        after = self.gtids_before(later[0]) if later else self._session.log_end().gtids
        before = self.gtids_before(file)
        return before is not None and after is not None and gtids.includes(before) and after.includes(gtids)

    def _goes_on(self, position: Position) -> bool:
        """Whether the next transaction in a MySQL server's log is none of those before the position."""
        assert position.gtids is not None
        try:
            with BinlogStream(self._session.address, position, self._settings.new_replica_id()) as stream:
                first = next((mysql_gtid(event.body).gtid for event in stream if event.code == GTID), None)
        except SourceUnavailable:
            raise
        except SourceError:  # There is no event at that place.
            return False
        return first is None or not position.gtids.includes(parse_gtids(first))

    def _by_transactions(self, gtids: GtidSet, files: Mapping[str, int]) -> Place | None:
        for file in reversed(list(files)):
            before = self.gtids_before(file)
            if before is not None and gtids.includes(before):
                return self._place_after(gtids, file)
        return None

    def gtids_before(self, file: str) -> GtidSet | None:
        """Return the transactions before a log file."""
        known = (boundary.position.gtids for boundary in self._boundaries(file))
        return next((gtids for gtids in known if gtids is not None), None) if self._session.facts.has_gtids else None

    def _place_after(self, gtids: GtidSet, file: str) -> Place | None:
        """Return the place in a file, or in those after it, where exactly these transactions are over."""
        for boundary in self._boundaries(file):
            if boundary.position.gtids == gtids:
                return boundary.position.place
        return None

    def _boundaries(self, file: str) -> Iterator[Boundary]:
        start = Position(Place(file, LOG_BEGINNING), self._session.facts.server_id)
        log = TransactionLog(_NO_TABLE, start, self._session.facts)
        with BinlogStream(self._session.address, start, self._settings.new_replica_id()) as stream:
            yield from (item for item in log.items(stream) if isinstance(item, Boundary))

    def _message(self, position: Position, files: Mapping[str, int]) -> str:
        names = list(files)
        there = f"{names[0]}:{LOG_BEGINNING} to {names[-1]}:{files[names[-1]]}" if names else "none"
        what = "" if position.gtids is None else f" (after {position.gtids})"
        return (
            f"{position.place} of the binary log of server {position.server_id}{what} comes next, and server "
            f"{self._session.facts.server_id} at {self._session.address.server} has {there}: start over with "
            "--fresh, or go on without what is gone with on_history_lost; and let the server keep its log longer "
            "(binlog_expire_logs_seconds)"
        )
