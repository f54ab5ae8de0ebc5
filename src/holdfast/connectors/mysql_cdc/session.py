"""Questions to a MySQL or MariaDB server: what it is, where its log ends, which log files it still has."""

import contextlib
import functools
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.connectors.extras import pymysql
from holdfast.connectors.mysql_cdc.address import Address, TableName
from holdfast.connectors.mysql_cdc.gtid import GtidSet, parse_gtids
from holdfast.connectors.mysql_cdc.position import Place, Position
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable

_NOT_NOW = {1040, 1053, 1158, 1159, 1160, 1161, 1203, 1205, 1927, 2002, 2003, 2006, 2013, 2055, 4031}
"""Errors after which the same question may be answered: no connection, too many of them, shutting down, locked."""
PATIENCE_SECONDS = 60.0
"""How long a server that does not answer is waited for."""
RETRY_SECONDS = 1.0
_LOG_NOT_SENT = 1236
_GONE = ("could not find first log file", "impossible position", "position > file size")
_CLASH = "same server_"
_SAME_MOMENT_ATTEMPTS = 5
_WANTED = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_row_value_options": "",
}
_CONFIGURED = {"log_bin"}
"""Cannot be set while the server runs."""

WHOLE_ANSWERS = "SET sql_select_limit = 18446744073709551615"
"""Undoes what a server may be told to do to every query: to leave out all rows after so many."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ServerFacts:
    """What a server is, as far as it matters here."""

    server_id: int
    mariadb: bool
    version: tuple[int, ...]
    has_gtids: bool
    names_ignore_case: bool


class Session:
    """One connection for questions, opened when needed and opened again after it was lost."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: Any = None
        self._facts: ServerFacts | None = None
        self.opened = 0
        """How many connections there were: what was known of the log is to be asked again on a new one."""

    # asking

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the answer to a question that changes nothing. A connection that was lost meanwhile is made anew."""
        fresh = self._connection is None
        try:
            return self._rows(statement, parameters)
        except SourceUnavailable:
            self.close()
            if fresh:
                raise
        return self._rows(statement, parameters)

    def value(self, statement: str, *parameters: Any) -> Any:
        """Return the first value of the answer; None when there is none."""
        found = self.rows(statement, *parameters)
        return found[0][0] if found else None

    def _rows(self, statement: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with translated(self.address):
            if self._connection is None:
                self._connection, self._facts = connect(self.address), None
                self.opened += 1
            with self._connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return list(cursor.fetchall())

    def close(self) -> None:
        """Let the connection go."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.Error, OSError):
                connection.close()

    # the server

    @property
    def facts(self) -> ServerFacts:
        """What the server is; asked once on each connection."""
        if self._facts is None:
            version = str(self.value("SELECT VERSION()"))
            mariadb = "mariadb" in version.lower()
            self._facts = ServerFacts(
                server_id=int(self.value("SELECT @@GLOBAL.server_id")),
                mariadb=mariadb,
                version=tuple(int(part) for part in version.split("-")[0].split(".")[:3]),
                has_gtids=mariadb or self.variable("gtid_mode") == "ON",
                names_ignore_case=self.variable("lower_case_table_names") != "0",
            )
        return self._facts

    def variable(self, name: str) -> str:
        """Return a system variable as text, empty when the server has none of that name."""
        found = self.rows("SHOW GLOBAL VARIABLES WHERE variable_name = %s", name)
        return str(found[0][1]) if found else ""

    def check_settings(self) -> None:
        """Refuse a server whose log does not hold whole rows with their columns' names."""
        for name, wanted in _WANTED.items():
            found = self.variable(name)
            if found.upper() != wanted:
                how = "in its configuration" if name in _CONFIGURED else f"with SET GLOBAL {name} = '{wanted}'"
                raise SourceError(
                    f"the server {self.address.server} has {name} = '{found}', mysql_cdc needs '{wanted}': set it "
                    f"{how}; MySQL 8.0.14 or MariaDB 10.5 is the oldest that can"
                )

    # the log

    def log_end(self) -> Position:
        """Return where the log ends now: always the end of a transaction."""
        if self.facts.mariadb:
            return self._mariadb_log_end()
        file, offset, _, _, gtids = self._log_status()
        found = parse_gtids(str(gtids)) if self.facts.has_gtids else None
        return Position(Place(str(file), int(offset)), self.facts.server_id, found)

    def _mariadb_log_end(self) -> Position:
        """Pair place and GTIDs, which MariaDB does not show together: nothing was written if the GTIDs stayed."""
        gtids = self._binlog_gtids()
        for _ in range(_SAME_MOMENT_ATTEMPTS):
            file, offset, *_ = self._log_status()
            place, before, gtids = Place(str(file), int(offset)), gtids, self._binlog_gtids()
            if before == gtids:
                return Position(place, self.facts.server_id, gtids)
        return self.mariadb_position(place)

    def mariadb_position(self, place: Place) -> Position:
        """Return a place of MariaDB's log as a position."""
        gtids = self.gtids_at(place)
        if gtids is None:
            raise SourceUnavailable(f"{self.address.server}: {place} is not in the binary log any more")
        return Position(place, self.facts.server_id, gtids)

    def _binlog_gtids(self) -> GtidSet:
        return parse_gtids(str(self.value("SELECT @@GLOBAL.gtid_binlog_pos")))

    def gtids_at(self, place: Place) -> GtidSet | None:
        """Return MariaDB's GTIDs at a place of its log, which it reads for that; None when that place is none."""
        found = self.value("SELECT BINLOG_GTID_POS(%s, %s)", place.file, place.offset)
        return None if found is None else parse_gtids(str(found))

    def _log_status(self) -> tuple[Any, ...]:
        modern = not self.facts.mariadb and self.facts.version >= (8, 2)
        found = self.rows("SHOW BINARY LOG STATUS" if modern else "SHOW MASTER STATUS")
        if not found:
            raise SourceError(
                f"the server {self.address.server} writes no binary log: set log_bin in its configuration"
            )
        return found[0]

    def check_logged(self, table: TableName) -> None:
        """Refuse a database that the server leaves out of its log."""
        only, never = (
            {name.strip() for name in str(names or "").split(",") if name.strip()}
            for names in self._log_status()[2:4]
        )
        if table.database in never or (only and table.database not in only):
            raise SourceError(
                f"the server {self.address.server} does not log database '{table.database}': see binlog_do_db and "
                "binlog_ignore_db in its configuration"
            )

    def log_files(self) -> Mapping[str, int]:
        """Return the log files that the server still has, oldest first, and their sizes."""
        return {str(row[0]): int(row[1]) for row in self.rows("SHOW BINARY LOGS")}


def patiently(work: Callable[[], _Result], seconds: float, clock: Clock = SYSTEM_CLOCK) -> _Result:
    """Do something until the server answers; after `seconds` raise what stood in the way."""
    until = clock.monotonic() + seconds
    while True:
        try:
            return work()
        except SourceUnavailable:
            if clock.monotonic() + RETRY_SECONDS > until:
                raise
            clock.sleep(RETRY_SECONDS)


def connect(address: Address, **settings: Any) -> Any:
    """Open a connection of PyMySQL's, encrypted if the server can. Use it within `translated`."""
    given = {**address.connection_settings(), "init_command": WHOLE_ANSWERS, **settings}
    if address.verifies_server:
        return pymysql.connect(**given)
    # PyMySQL would read all certificates of the system for each connection, only to verify nothing with them.
    connection = pymysql.connect(**given, ssl_disabled=True, defer_connect=True)
    connection.ssl, connection.ctx = True, _encryption()
    connection.connect()
    return connection


def hang_up(connection: Any) -> None:
    """Close a connection at once. PyMySQL would first receive all rows of an answer that nobody wants any more."""
    result, connection._result = connection._result, None
    if result is not None:
        result.unbuffered_active = False
    connection.close()


@functools.cache
def _encryption() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextlib.contextmanager
def translated(address: Address) -> Iterator[None]:
    """Turn errors of PyMySQL into ours: one line that names the server and keeps its secrets."""
    try:
        yield
    except pymysql.MySQLError as error:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        said = address.hide(" ".join(str(part) for part in error.args[1:] or error.args))
        raise _kind(number, said)(f"{address.server}: {said} ({number})") from error


def _kind(number: int, said: str) -> type[SourceError]:
    if number == _LOG_NOT_SENT and any(words in said.lower() for words in _GONE):
        return SourceHistoryLost
    return SourceUnavailable if number in _NOT_NOW or _CLASH in said else SourceError
