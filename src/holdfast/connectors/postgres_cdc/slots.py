"""The replication slot that holds the server's log back for us, and the log's own positions.

The slot says how far back a checkpoint may ask for changes again. Only what the engine acknowledges moves it: reading
goes through temporary copies of it (`postgres_cdc_feed`).
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.connectors.postgres_cdc.positions import lsn_text, parse_lsn
from holdfast.connectors.postgres_cdc.session import Session, patiently, state_of
from holdfast.connectors.postgres_cdc.settings import CdcSettings
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable

_FIND = """
SELECT plugin::text, database::text = current_database(), confirmed_flush_lsn::text, restart_lsn::text,
  wal_status::text FROM pg_replication_slots WHERE slot_name = $1"""
_HEAD = "SELECT pg_current_wal_flush_lsn()::text"
_CHECKPOINT = "SELECT checkpoint_lsn::text FROM pg_control_checkpoint()"
_CREATE = "SELECT lsn::text FROM pg_create_logical_replication_slot($1, 'pgoutput')"
_OPEN_TRANSACTIONS = """
SELECT 'that of process ' || pid, xact_start FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() UNION ALL
SELECT 'the prepared one ' || quote_literal(gid), prepared FROM pg_prepared_xacts ORDER BY 2 LIMIT 1"""
_PATIENCE_SECONDS = 30.0
_MISSING, _LOCK_NOT_GIVEN = "42704", "55P03"
_LOCK_WAIT = "300s"


@dataclass(frozen=True)
class Slot:
    """A logical slot of this database."""

    name: str
    confirmed: int
    """Changes that were committed before this position are not given any more."""
    lost: bool = False
    """Whether the server removed the log that it needs: max_slot_wal_keep_size, or a conflict."""


def find_slot(session: Session, name: str) -> Slot | None:
    """Return a slot, None when there is none; refuse one that is something else."""
    found = session.run(_FIND, name)
    if not found:
        return None
    plugin, here, confirmed, restart, wal_status = found[0]
    if plugin != "pgoutput" or not here:
        raise SourceError(f"slot '{name}' is not for pgoutput and this database: name another one with slot")
    lost = wal_status == "lost" or restart is None or confirmed is None
    return Slot(name, parse_lsn(confirmed or "0/0"), lost)


def held_slot(session: Session, settings: CdcSettings, wanted: int) -> Slot:
    """Return the slot; raise `SourceHistoryLost` if it cannot give what was committed since `wanted`.

    Of that nobody misses what a start said to be gone; also with on_history_lost='continue' no other changes are
    passed over while a pipeline runs, when nobody says so and the range may have been read already.
    """
    slot = find_slot(session, settings.slot)
    if slot is None:
        raise _history_lost(settings, f"slot '{settings.slot}' is gone from the server", wanted)
    where = lsn_text(slot.confirmed)
    if slot.lost:
        what = f"the server removed the log of slot '{slot.name}', which stood at {where}"
        raise _history_lost(settings, what, wanted)
    if slot.confirmed > max(wanted, parse_lsn(settings.begins_at)):
        gone = slot.confirmed - wanted
        raise _history_lost(settings, f"slot '{slot.name}' begins at {where}, {gone} bytes too late", wanted)
    return slot


def refuse_other_history(session: Session, wanted: int) -> None:
    """Refuse a position beyond the end of the server's log: a backup was restored, it stands for something else."""
    head = head_of(session)
    if head < wanted:
        raise SourceHistoryLost(
            f"the log of the server ends at {lsn_text(head)}, and {lsn_text(wanted)} comes next: it was set back. "
            "Start over with --fresh"
        )


def _history_lost(settings: CdcSettings, what: str, wanted: int) -> SourceHistoryLost:
    way_out = "Start over with --fresh, or go on without the missing changes: on_history_lost='continue'"
    text = f"{what}; {lsn_text(wanted)} comes next"
    return SourceHistoryLost(text if settings.goes_on else f"{text}. {way_out}")


def create_slot(session: Session, name: str) -> Slot:
    """Create a slot at the head of the log; this waits for every transaction that has written already."""
    session.run(limited_wait())
    try:
        with naming_who_is_in_the_way(session):
            ((lsn,),) = session.run(_CREATE, name)
    finally:
        session.run("RESET lock_timeout")
    return Slot(name, parse_lsn(lsn))


def limited_wait() -> str:
    """Return the statement after which the creation of a slot does not wait for others for ever."""
    return f"SET lock_timeout = '{_LOCK_WAIT}'"


@contextlib.contextmanager
def naming_who_is_in_the_way(session: Session) -> Iterator[None]:
    """Say which transaction is in the way when a slot could not be created in time."""
    try:
        yield
    except SourceUnavailable as error:
        if state_of(error) != _LOCK_NOT_GIVEN:
            raise
        raise SourceUnavailable(_who_is_in_the_way(session)) from error


def _who_is_in_the_way(session: Session) -> str:
    found = session.run(_OPEN_TRANSACTIONS)
    who = f"{found[0][0]} is open since {found[0][1]}" if found else "none is open any more"
    return f"a slot can only be created after the transactions that have written already; {who}: end it and try again"


def drop_slot(session: Session, name: str) -> None:
    """Drop a slot; one that is not there is fine. Waits a while for a backend that still uses it."""
    try:
        patiently(lambda: session.run("SELECT pg_drop_replication_slot($1)", name), _PATIENCE_SECONDS)
    except SourceError as error:
        if state_of(error) != _MISSING:
            raise


def advance_slot(session: Session, slot: Slot, lsn: int) -> None:
    """Move a slot forward, never back and never beyond `lsn`."""
    if lsn > slot.confirmed:
        session.run("SELECT pg_replication_slot_advance($1, $2::pg_lsn)", slot.name, lsn_text(lsn))


def head_of(session: Session) -> int:
    """Return where the log ends that is safe on the server's disk."""
    ((lsn,),) = session.run(_HEAD)
    return parse_lsn(lsn)


def checkpoint_of(session: Session) -> int:
    """Return a position that the log is sure to have even after a crash of the server: its last checkpoint."""
    ((lsn,),) = session.run(_CHECKPOINT)
    return parse_lsn(lsn)
