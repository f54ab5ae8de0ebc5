"""The binary log as the server sends it to a replica: one event after the other, each with its place, all verified.

PyMySQL makes the connection; the few bytes that ask for the log, and the header of an event, are handled here. Every
event that arrives comes out, also of a kind that nobody here knows: passed over in silence it might have been rows.
"""

import contextlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.extras import pymysql
from holdfast.connectors.mysql_cdc.address import Address
from holdfast.connectors.mysql_cdc.position import LOG_BEGINNING, Place, Position
from holdfast.connectors.mysql_cdc.session import connect, translated
from holdfast.errors import SourceError, SourceUnavailable

ROTATE, FORMAT_DESCRIPTION, HEARTBEATS = 4, 15, (27, 41)
_COM_BINLOG_DUMP = 0x12
_NON_BLOCKING = 0x01
_HEADER = struct.Struct("<IBIIIH")
_ARTIFICIAL = 0x20
_CHECKSUM_BYTES = 4
_WRAP = 1 << 32
_PREPARATION = (
    "SET @master_binlog_checksum = @@global.binlog_checksum, @source_binlog_checksum = @@global.binlog_checksum",
    # Without it MariaDB leaves its GTIDs out.
    "SET @mariadb_slave_capability = 4",
)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event of the log."""

    code: int
    """What kind of event it is."""
    flags: int
    timestamp: int
    """Seconds since 1970."""
    server_id: int
    """Of the server that it comes from, which may be the sender's own source."""
    body: bytes
    """What follows the header, without the checksum."""
    begin: Place
    end: Place
    """Where the event after it begins."""


class BinlogStream:
    """What the log holds from a position on, up to where it ends when that is reached. One pass; close it."""

    def __init__(self, address: Address, start: Position, replica_id: int) -> None:
        """Read from where `start` is in the log of its server, under a number that no replica has."""
        self._address, self._start, self._replica_id = address, start, replica_id
        # What cannot be asked for is looked for from the beginning of its file.
        self._place = start.place if start.place.can_be_asked_for else Place(start.place.file, LOG_BEGINNING)
        self._checksums = False
        self._connection: Any = None
        self.received = 0
        """Bytes of events so far."""

    def __enter__(self) -> "BinlogStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the connection go; the server notices."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.Error):  # It was closed because it was lost.
                connection.close()

    def __iter__(self) -> Iterator[LogEvent]:
        with translated(self._address):
            self._connection = self._asked()
            # Private to PyMySQL, and the only way it has to read a packet.
            read_packet = self._connection._read_packet
            while True:
                packet = read_packet()
                if packet.is_eof_packet():
                    return
                data = packet.get_all_data()
                self.received += len(data)
                event = self._event(data)
                if event is not None and event.begin.order >= self._start.place.order:
                    yield event

    def _asked(self) -> Any:
        connection = connect(self._address)
        with connection.cursor() as cursor:
            for statement in _PREPARATION:
                cursor.execute(statement)
            cursor.execute("SELECT @@GLOBAL.server_id")
            self._refuse_other_server(int(cursor.fetchone()[0]))
        command = struct.pack("<IHI", self._place.offset, _NON_BLOCKING, self._replica_id)
        connection._execute_command(_COM_BINLOG_DUMP, command + self._place.file.encode())
        return connection

    def _refuse_other_server(self, server_id: int) -> None:
        if server_id != self._start.server_id:
            raise SourceUnavailable(
                f"{self._address.server} is server {server_id} now, and {self._place} is in the log of server "
                f"{self._start.server_id}"
            )

    def _event(self, data: bytes) -> LogEvent | None:
        """Return the event in a packet; None for those that the server makes up on the way."""
        timestamp, code, server_id, size, end, flags = _HEADER.unpack_from(data, 1)
        made_up = bool(flags & _ARTIFICIAL) or (code == FORMAT_DESCRIPTION and end == 0)
        if code in HEARTBEATS:
            return None
        if code == ROTATE and made_up:
            self._place = _next_file(_without_checksum(data, _is_checksummed(data)))
            return None
        if code == FORMAT_DESCRIPTION:
            # It says whether the events of its file have checksums, and always has one itself.
            self._checksums = data[-_CHECKSUM_BYTES - 1] == 1
        if made_up:
            return None
        body = self._verified(data, code)
        begin = self._place
        self._place = Place(begin.file, begin.offset + ((end - begin.offset) % _WRAP if end else size))
        if code == ROTATE:
            self._place = _next_file(body)
        return LogEvent(code, flags, timestamp, server_id, body, begin, self._place)

    def _verified(self, data: bytes, code: int) -> bytes:
        if self._checksums and not _is_checksummed(data):
            raise SourceError(
                f"{self._address.server}: the event at {self._place} of the binary log is damaged (checksum)"
            )
        return _without_checksum(data, self._checksums or code == FORMAT_DESCRIPTION)


def _is_checksummed(data: bytes) -> bool:
    return zlib.crc32(data[1:-_CHECKSUM_BYTES]) == int.from_bytes(data[-_CHECKSUM_BYTES:], "little")


def _without_checksum(data: bytes, checksummed: bool) -> bytes:
    return data[1 + _HEADER.size : -_CHECKSUM_BYTES if checksummed else None]


def _next_file(body: bytes) -> Place:
    return Place(body[8:].decode(), max(int.from_bytes(body[:8], "little"), LOG_BEGINNING))
