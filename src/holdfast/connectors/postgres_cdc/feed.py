"""The server's stream of changes from a position on, decoded once, while it is read.

It comes through the replication protocol, from a temporary copy of the held slot that vanishes with the connection.
Functions that peek into a slot would decode the log again at every call, from the beginning of the oldest transaction
that is still open; and the server would keep the whole answer on its disk.
"""

import functools
import select
import struct
from collections.abc import Iterator
from typing import Any

from holdfast.clock import new_token
from holdfast.connectors.extras import psycopg, psycopg_pq
from holdfast.connectors.postgres_cdc.positions import lsn_text, parse_lsn
from holdfast.connectors.postgres_cdc.session import APPLY_SETTINGS, Session, connect, failure, translated
from holdfast.connectors.postgres_cdc.settings import CdcSettings
from holdfast.connectors.postgres_cdc.slots import Slot, held_slot, refuse_other_history
from holdfast.connectors.sql_statements import quoted
from holdfast.errors import SourceError, SourceUnavailable

_DATA, _KEEPALIVE = ord("w"), ord("k")
_HEADER = 25
"""Bytes before a message: its kind, two positions and a time."""
_WANTS_REPLY = 17
"""The byte of a keepalive that asks for an answer."""
_STATUS = struct.Struct("!cQQQqB")
_BEGIN, _COMMIT = b"BC"
_NOT_READY = "55000"
_QUIET_SECONDS, _PAUSE_SECONDS = 0.1, 0.02
_ANSWER_SECONDS = 300.0


class Feed:
    """What was committed from `begin` on, message by message."""

    def __init__(self, session: Session, settings: CdcSettings, begin: int) -> None:
        """Copy the held slot and start; `session` is asked whether it can give what comes next."""
        self._settings = settings
        self._warnings: list[str] = []
        self.seen = begin
        """Everything that was committed before this position was given."""
        self._inside = False
        self._answered = False
        refuse_other_history(session, begin)
        held = held_slot(session, settings, begin)
        self._connection = connect(settings.address, replication="database")
        self._connection.add_notice_handler(functools.partial(_note_warning, self._warnings))
        self._pq = self._connection.pgconn
        try:
            self._start(held, begin)
        except psycopg.Error as error:
            self.close()
            raise translated(error, self._settings.address) from error
        except BaseException:
            self.close()
            raise

    def _start(self, held: Slot, begin: int) -> None:
        copy = f"{held.name}_{new_token()[:8]}"
        publication = quoted(self._settings.publication).replace("'", "''")
        self._connection.execute(APPLY_SETTINGS)
        copied = f"SELECT lsn::text FROM pg_copy_logical_replication_slot('{held.name}', '{copy}', true)"
        ((lsn,),) = self._connection.execute(copied).fetchall()
        if parse_lsn(lsn) > max(begin, held.confirmed):  # The server would begin there, and say nothing.
            raise SourceUnavailable(f"slot '{held.name}' was moved to {lsn} while it was copied")
        options = f"proto_version '1', publication_names '{publication}'"
        started = self._pq.exec_(f"START_REPLICATION SLOT {copy} LOGICAL {lsn_text(begin)} ({options})".encode())
        if started.status != psycopg_pq.ExecStatus.COPY_BOTH:
            raise failure(started, self._settings.address)

    def close(self) -> None:
        """Let the connection go, and the copy with it."""
        self._connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self.close()

    def read(self, upto: int | None) -> Iterator[bytes]:
        """Yield messages until everything before `upto` was given; without it, what there is at the moment.

        Never stops within a transaction, except where the caller does.
        """
        asked, patience = upto is not None and self._ask(), _QUIET_SECONDS
        while upto is None or self._inside or self.seen < upto:
            message = self._next_here()
            if message is not None:
                yield message
                patience = 0.0
            elif asked and self._answered:
                if upto is None and not self._inside:
                    return
                asked = not self._comes_within(_PAUSE_SECONDS) and self._ask()
            elif asked:
                self._expect_answer()
            else:
                asked = not self._comes_within(patience) and self._ask()

    def _next_here(self) -> bytes | None:
        """Return the next message that arrived; None when there is none."""
        while True:
            try:
                size, data = self._pq.get_copy_data(1)
            except psycopg.Error as error:
                raise translated(error, self._settings.address) from error
            self._refuse_warnings()
            if size == 0:
                return None
            if size < 0:
                raise self._ended()
            if data[0] == _DATA:
                self._inside = data[_HEADER] != _COMMIT if self._inside else data[_HEADER] == _BEGIN
                return bytes(data[_HEADER:])
            if data[0] == _KEEPALIVE:
                self.seen, self._answered = max(self.seen, int.from_bytes(data[1:9])), True
                if data[_WANTS_REPLY]:
                    self._tell(reply=False)

    def _comes_within(self, seconds: float) -> bool:
        """Wait for something to arrive."""
        waiting = select.poll()
        waiting.register(self._pq.socket, select.POLLIN)
        arrived = bool(waiting.poll(seconds * 1000))
        try:
            self._pq.consume_input()
        except psycopg.Error as error:
            raise translated(error, self._settings.address) from error
        return arrived

    def _expect_answer(self) -> None:
        if not self._comes_within(_ANSWER_SECONDS):
            raise SourceUnavailable(
                f"PostgreSQL at {self._settings.address.server} did not answer for {_ANSWER_SECONDS:g} seconds"
            )

    def _ask(self) -> bool:
        """Ask how far the server has come; the answer arrives after all that it sent before."""
        self._answered = False
        self._tell(reply=True)
        return True

    def _tell(self, *, reply: bool) -> None:
        """Say that all is well with what was seen: a server that shuts down waits for that. The held slot stays."""
        status = _STATUS.pack(b"r", self.seen, self.seen, self.seen, 0, reply)
        try:
            self._pq.put_copy_data(status)
            self._pq.flush()
        except psycopg.Error as error:
            raise translated(error, self._settings.address) from error

    def _ended(self) -> SourceError:
        result = self._pq.get_result()
        if result is None or result.status != psycopg_pq.ExecStatus.FATAL_ERROR:
            return SourceUnavailable(f"PostgreSQL at {self._settings.address.server} ended the stream")
        return failure(result, self._settings.address)

    def _refuse_warnings(self) -> None:
        """Stop when the server goes on without the publication, as PostgreSQL 18 does: that is not "no changes"."""
        if self._warnings:
            raise SourceError(
                f"PostgreSQL at {self._settings.address.server}: {self._warnings[0]}. Changes made without the "
                "publication are in no slot: start over with --fresh"
            )


def _note_warning(warnings: list[str], notice: Any) -> None:
    if notice.sqlstate == _NOT_READY and notice.severity_nonlocalized == "WARNING":
        warnings.append(notice.message_primary)
