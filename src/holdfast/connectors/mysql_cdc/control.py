"""A MySQL table beside its changes: its snapshot, whether the log still has what comes next, how far behind we are.

The log is the server's own: nobody can ask it to keep more, so there is nothing to let go of but the snapshot.
"""

import json
import logging
from collections.abc import Mapping

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.connectors.change_rows import MATERIALS, STARTING_OFFSET
from holdfast.connectors.mysql_cdc.columns import CdcColumn, CdcTable, columns_of, find_table
from holdfast.connectors.mysql_cdc.places import LogPlaces
from holdfast.connectors.mysql_cdc.position import Position, file_number
from holdfast.connectors.mysql_cdc.session import Session
from holdfast.connectors.mysql_cdc.settings import CdcSettings
from holdfast.connectors.mysql_cdc.snapshot import check_snapshot, find_snapshot, remove_snapshots, take_snapshot
from holdfast.core.sources import Lag, Offsets, SourceContext
from holdfast.errors import SourceHistoryLost

_log = logging.getLogger(__name__)


class MysqlCdcControl:
    """The engine's side of a mysql_cdc source."""

    def __init__(self, settings: CdcSettings, *, snapshot: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings, self._wants_snapshot, self._clock = settings, snapshot, clock
        self._session = Session(settings.address)
        self._asking = Session(settings.address)
        self._file_sizes: Mapping[str, int] = {}
        self._context: SourceContext
        self._has_materials = True

    def bind(self, context: SourceContext) -> None:
        """Take the place where the snapshot goes."""
        self._context = context

    # start

    def can_read(self, offsets: Offsets | None) -> None:
        """Ask the server. Without a position: whether its log can be followed, and where that ends."""
        if offsets is None:
            self._can_begin()
        else:
            self._refuse_lost(offsets)

    def _can_begin(self) -> None:
        table, columns = self._check_table()
        if self._wants_snapshot and find_snapshot(self._context.materials) is None:
            selected = ", ".join(column.selected for column in columns)
            self._session.rows(f"SELECT {selected} FROM {table.name.sql} LIMIT 0")  # Whether we may.
        self._session.log_end()

    def begin(self) -> Offsets:
        """Take the snapshot, or the end of the log without one; an attempt that broke off is made again."""
        self._check_table()
        if not self._wants_snapshot:
            return self._session.log_end().offsets()
        materials = self._context.materials
        snapshot = find_snapshot(materials)
        if snapshot is None:
            snapshot = take_snapshot(self._settings, self._session, materials, self._clock)
        return snapshot.beginning.offsets()

    def start_options(self, offsets: Offsets) -> Mapping[str, str]:
        """Tell the reader where to begin and where the snapshot is."""
        return {STARTING_OFFSET: json.dumps(dict(offsets)), MATERIALS: self._context.materials.place}

    def check(self, offsets: Offsets) -> None:
        """Look whether the snapshot's rest is there, and whether the log still has what comes after it."""
        lost = self._refuse_lost(offsets)
        if lost is not None:
            _log.error(
                "source %s: %s. GOING ON WITHOUT what is gone, as on_history_lost says", self._context.name, lost
            )

    def _refuse_lost(self, offsets: Offsets) -> SourceHistoryLost | None:
        """Return what is gone, unless the pipeline is to stop for it."""
        position = Position.from_offsets(offsets)
        self._check_table()
        if position.snapshot is not None:
            check_snapshot(self._context.materials, position.snapshot)
        try:
            LogPlaces(self._session, self._settings).find(position)
        except SourceHistoryLost as error:
            if not self._settings.goes_on:
                raise
            return error
        return None

    def _check_table(self) -> tuple[CdcTable, list[CdcColumn]]:
        self._session.check_settings()
        table = find_table(self._session, self._settings)
        return table, columns_of(self._session, table.name, self._settings.columns)

    # beside the epochs

    def head(self) -> Offsets:
        """Return the end of the server's log."""
        if not self._asking.facts.has_gtids:
            self._file_sizes = self._asking.log_files()
        return self._asking.log_end().offsets()

    def lag(self, offsets: Offsets, head: Offsets) -> Lag:
        """Count transactions, of all tables; bytes where the server has no GTIDs."""
        behind, ahead = Position.from_offsets(offsets), Position.from_offsets(head)
        if behind.gtids is not None and ahead.gtids is not None:
            return Lag(ahead.gtids.count_since(behind.gtids), "transactions")
        first, last = file_number(behind.place.file), file_number(ahead.place.file)
        files = [size for file, size in self._file_sizes.items() if first <= file_number(file) < last]
        return Lag(max(0, sum(files) + ahead.place.offset - behind.place.offset), "bytes")

    def committed(self, offsets: Offsets) -> None:
        """Do nothing: what was delivered may have to be read again."""

    def acknowledge(self, offsets: Offsets) -> None:
        """Remove the snapshot once no checkpoint reads it."""
        if Position.from_offsets(offsets).snapshot is None and self._has_materials:
            remove_snapshots(self._context.materials)
            self._has_materials = False

    def close(self) -> None:
        """Let connections go."""
        self._session.close()
        self._asking.close()
