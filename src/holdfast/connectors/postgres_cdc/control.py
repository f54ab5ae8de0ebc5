"""A PostgreSQL table beside its changes: its slot, its snapshot, how far behind we are, what may be let go."""

import contextlib
import json
import logging
from collections.abc import Mapping

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.connectors.change_rows import MATERIALS, STARTING_OFFSET
from holdfast.connectors.postgres_cdc.positions import Position, lsn_text
from holdfast.connectors.postgres_cdc.session import Session
from holdfast.connectors.postgres_cdc.settings import BEGINS_AT, CdcSettings
from holdfast.connectors.postgres_cdc.slots import (
    Slot,
    advance_slot,
    create_slot,
    drop_slot,
    find_slot,
    head_of,
    held_slot,
    refuse_other_history,
)
from holdfast.connectors.postgres_cdc.snapshot import (
    FOLDER,
    Overtaken,
    Snapshot,
    check_snapshot,
    find_snapshot,
    remove_snapshot,
    take_snapshot,
)
from holdfast.connectors.postgres_cdc.table import (
    CdcTable,
    can_publish,
    check_publication,
    columns_to_read,
    ensure_publication,
    find_table,
    require_logical_log,
)
from holdfast.connectors.sql_statements import listed
from holdfast.core.sources import Lag, Offsets, SourceContext
from holdfast.errors import SourceError, SourceHistoryLost

_BEGUN = f"{FOLDER}/begun.json"
_TABLE = "table.json"
_ATTEMPTS = 20
"""So often a snapshot is begun that a rewrite of the table comes between."""
_REST = 10
"""After moving the slot it is left alone for so many times as long as that took."""
_log = logging.getLogger(__name__)


class PostgresCdcControl:
    """The engine's side of a postgres_cdc source."""

    def __init__(
        self, settings: CdcSettings, *, snapshot: bool, slot_is_named: bool, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._clock, self._rest_until = clock, 0.0
        self._settings, self._wants_snapshot, self._slot_is_named = settings, snapshot, slot_is_named
        self._session = Session(settings.address)
        self._asking = Session(settings.address)
        self._context: SourceContext
        self._has_materials = True
        self._begins_at: int | None = None

    def bind(self, context: SourceContext) -> None:
        """Take the place where the snapshot goes."""
        self._context = context

    # start

    def can_read(self, offsets: Offsets | None) -> None:
        """Ask the server. Neither publication nor slot is created or moved, and nothing is noted."""
        if offsets is None:
            self._can_begin()
        else:
            self._refuse_lost(offsets)

    def _can_begin(self) -> None:
        table = self._checked_table()
        can_publish(self._session, self._settings, table)
        slot = find_slot(self._session, self._settings.slot)
        if not self._wants_snapshot:
            self._refuse_slot_of_others(slot)
        elif self._kept_snapshot(slot) is None:
            columns = columns_to_read(self._session, self._settings, table)
            self._session.run(f"SELECT {listed(columns.names)} FROM {table.only} LIMIT 0")  # Whether we may.
            self._refuse_slot_in_the_way(slot)

    def begin(self) -> Offsets:
        """Create publication and slot and take the snapshot; what a crash left half done is done again."""
        table = self._checked_table()
        ensure_publication(self._session, self._settings, table)
        self._note_table(table)
        if not self._wants_snapshot:
            return Position(self._slot_to_begin_with()).offsets()
        snapshot = self._kept_snapshot(find_slot(self._session, self._settings.slot))
        if snapshot is None:
            # What this refuses is refused before there is a slot.
            columns_to_read(self._session, self._settings, table)
            snapshot = self._taken_snapshot(table)
        return Position(snapshot.lsn, 0 if snapshot.chunks else None).offsets()

    def _kept_snapshot(self, slot: Slot | None) -> Snapshot | None:
        """Return the snapshot that an earlier attempt took, if the slot still goes on behind it."""
        snapshot = find_snapshot(self._context.materials)
        if snapshot is None or slot is None or slot.lost or slot.confirmed > snapshot.lsn:
            return None
        return snapshot

    def _taken_snapshot(self, table: CdcTable) -> Snapshot:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(Overtaken):
                return self._take_snapshot(table)
        return self._take_snapshot(table)

    def _take_snapshot(self, table: CdcTable) -> Snapshot:
        self._make_room()
        try:
            return take_snapshot(self._settings, table, self._context.materials)
        except BaseException:
            self._forget_slot()
            raise

    def _make_room(self) -> None:
        """Drop the slot of an attempt that broke off, and note that the next one is ours."""
        settings, materials = self._settings, self._context.materials
        slot = find_slot(self._session, settings.slot)
        self._refuse_slot_in_the_way(slot)
        if slot is not None:
            drop_slot(self._session, settings.slot)
        remove_snapshot(materials)
        self._note_slot()

    def _refuse_slot_in_the_way(self, slot: Slot | None) -> None:
        """Refuse a slot of somebody else where a snapshot needs a new one."""
        if slot is not None and self._context.materials.get(_BEGUN) is None:
            raise SourceError(
                f"slot '{slot.name}' exists already, and this pipeline did not make it: name another one "
                f"with slot, or if nobody needs it: SELECT pg_drop_replication_slot('{slot.name}')"
            )

    def _forget_slot(self) -> None:
        """Take back the note about a slot that was not created: one of that name would be somebody else's."""
        with contextlib.suppress(SourceError):
            if find_slot(self._session, self._settings.slot) is None:
                self._context.materials.remove(_BEGUN)

    def _note_slot(self) -> None:
        self._context.materials.put(_BEGUN, json.dumps({"slot": self._settings.slot}).encode())

    def _slot_to_begin_with(self) -> int:
        slot = find_slot(self._session, self._settings.slot)
        if slot is None:
            self._note_slot()
            try:
                return create_slot(self._session, self._settings.slot).confirmed
            except BaseException:
                self._forget_slot()
                raise
        self._refuse_slot_of_others(slot)
        return slot.confirmed

    def _refuse_slot_of_others(self, slot: Slot | None) -> None:
        """Refuse to go on with a slot that neither we made nor the user named."""
        if slot is not None and not self._slot_is_named and self._context.materials.get(_BEGUN) is None:
            raise SourceError(
                f"slot '{slot.name}' exists already, and this pipeline did not make it: name another one with slot; "
                f"to go on with this one from {lsn_text(slot.confirmed)}, say slot='{slot.name}'"
            )

    def start_options(self, offsets: Offsets) -> Mapping[str, str]:
        """Tell the reader where to begin, where the snapshot is, and what is gone."""
        options = {STARTING_OFFSET: json.dumps(dict(offsets)), MATERIALS: self._context.materials.place}
        return options if self._begins_at is None else {**options, BEGINS_AT: lsn_text(self._begins_at)}

    def check(self, offsets: Offsets) -> None:
        """Look whether slot, publication and snapshot still give what comes next."""
        self._begins_at = None
        lost = self._refuse_lost(offsets)
        if self._context.materials.get(_TABLE) is None:
            self._note_table(self._checked_table())
        if lost is not None:
            slot = self._usable_slot()
            self._begins_at = slot.confirmed
            self._say_what_is_lost(str(lost), slot)

    def _refuse_lost(self, offsets: Offsets) -> SourceHistoryLost | None:
        """Return what is gone, unless the pipeline is to stop for it."""
        wanted = Position.parse(offsets)
        table = self._checked_table()
        self._refuse_other_table(table)
        check_publication(self._session, self._settings, table)
        if wanted.chunk is not None:
            check_snapshot(self._context.materials, wanted.chunk)
        refuse_other_history(self._session, wanted.lsn)
        try:
            held_slot(self._session, self._settings, wanted.lsn)
        except SourceHistoryLost as error:
            if not self._settings.goes_on:
                raise
            return error
        return None

    def _usable_slot(self) -> Slot:
        """Return the slot, wherever it stands; a new one if it is of no use any more."""
        slot = find_slot(self._session, self._settings.slot)
        if slot is None or slot.lost:
            drop_slot(self._session, self._settings.slot)
            slot = create_slot(self._session, self._settings.slot)
        return slot

    def _note_table(self, table: CdcTable) -> None:
        self._context.materials.put(_TABLE, json.dumps({"id": table.id}).encode())

    def _refuse_other_table(self, table: CdcTable) -> None:
        """Refuse a new table of that name, which a publication of all tables has: nothing tells of the old rows."""
        kept = self._context.materials.get(_TABLE)
        if kept is not None and json.loads(kept)["id"] != table.id:
            raise SourceError(f"table {table.sql} was dropped and made again: start over with --fresh")

    def _say_what_is_lost(self, what: str, slot: Slot) -> None:
        going_on = "source %s: %s. GOING ON WITHOUT the changes before %s, because on_history_lost is 'continue'"
        _log.error(going_on, self._context.name, what, lsn_text(slot.confirmed))

    def _checked_table(self) -> CdcTable:
        require_logical_log(self._session)
        return find_table(self._session, self._settings)

    # beside the epochs

    def head(self) -> Offsets:
        """Return the end of the server's log."""
        return Position(head_of(self._asking)).offsets()

    def lag(self, offsets: Offsets, head: Offsets) -> Lag:
        """Count bytes of the log, of all tables."""
        return Lag(max(0, Position.parse(head).lsn - Position.parse(offsets).lsn), "bytes")

    def committed(self, offsets: Offsets) -> None:
        """Do nothing: what was delivered may have to be read again."""

    def acknowledge(self, offsets: Offsets) -> None:
        """Move the held slot, and remove the snapshot once no checkpoint reads it."""
        position = Position.parse(offsets)
        if self._clock.monotonic() >= self._rest_until:
            self._advance(position.lsn)
        if position.chunk is None and self._has_materials:
            remove_snapshot(self._context.materials)
            self._has_materials = False

    def _advance(self, lsn: int) -> None:
        """Move the slot, not too often: the server decodes the log for it, from the oldest open transaction on."""
        began = self._clock.monotonic()
        slot = find_slot(self._asking, self._settings.slot)
        if slot is not None and not slot.lost:
            advance_slot(self._asking, slot, lsn)
        ended = self._clock.monotonic()
        self._rest_until = ended + _REST * (ended - began)

    def close(self) -> None:
        """Let connections go. The slot stays: it holds what comes next."""
        self._session.close()
        self._asking.close()
