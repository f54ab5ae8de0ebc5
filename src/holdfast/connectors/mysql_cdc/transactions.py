"""The log as transactions: what changes a table, and where transactions end.

Rows are found before their transaction's end is. They count once a `Boundary` follows; `Abandoned` takes back what
came since the last one, which happens where a server died while it wrote.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from holdfast.connectors.mysql_cdc import events
from holdfast.connectors.mysql_cdc.address import TableName
from holdfast.connectors.mysql_cdc.binlog import LogEvent
from holdfast.connectors.mysql_cdc.events import Beginning, RowsBody, Statement
from holdfast.connectors.mysql_cdc.gtid import GtidSet, parse_gtids
from holdfast.connectors.mysql_cdc.position import Place, Position
from holdfast.connectors.mysql_cdc.session import ServerFacts
from holdfast.connectors.mysql_cdc.statements import Effect, effect_of
from holdfast.connectors.mysql_cdc.table_map import LoggedTable, table_map, table_name
from holdfast.errors import SourceError, SourceHistoryLost

_IGNORABLE = 0x80
_TAGGED_GTID = 42
_XA = "XA START"


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that began."""

    begin: Place
    gtid: str | None
    timestamp: int
    """Seconds since 1970."""

    @property
    def name(self) -> str:
        """What tells it from all others: its GTID, or its place where there are none."""
        return self.gtid or str(self.begin)


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happened to the table."""

    operation: str
    transaction: Transaction
    table: LoggedTable | None = None
    rows: RowsBody | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """Between two transactions: what came before is final."""

    position: Position


class Abandoned:
    """A transaction was not written to its end, so it never happened."""


Item = Change | Boundary | Abandoned


class TransactionLog:
    """Reads events from a position on. For one pass over one stream."""

    def __init__(self, table: TableName, start: Position, server: ServerFacts) -> None:
        self._table, self._server = table, server
        self._gtids: GtidSet | None = start.gtids
        self._file = start.place.file
        self._tables: dict[int, LoggedTable | None] = {}
        self._described: dict[bytes, LoggedTable] = {}
        self._open: Transaction | None = None
        self._until_commit = False
        """Whether the open transaction ends with a commit, not with its first statement."""
        self._undecided = ""
        """Why the open transaction may not count in the end."""
        self._touched = False

    def items(self, stream: Iterable[LogEvent]) -> Iterator[Item]:
        """Yield what the events mean for the table."""
        for event in stream:
            if event.begin.file != self._file:
                self._file = event.begin.file
                self._tables.clear()
                if self._open is not None:
                    self._open = None
                    yield Abandoned()
            yield from self._event(event)
            if self._open is None:
                yield Boundary(Position(event.end, self._server.server_id, self._gtids))

    def _event(self, event: LogEvent) -> Iterator[Item]:
        kind = events.ROWS.get(event.code)
        if kind is not None:
            table = self._rows_table(event)
            if table is not None:
                yield self._change(kind.operation, event, table, events.rows_body(kind, event.body))
            return
        match event.code:
            case events.TABLE_MAP:
                self._describe(event.body)
            case events.MARIADB_GTID:
                self._begin(event, events.mariadb_gtid(event.body, event.server_id))
            case events.GTID:
                self._begin(event, events.mysql_gtid(event.body))
            case events.ANONYMOUS_GTID:
                self._begin(event, Beginning(None, False, False))
            case events.QUERY:
                yield from self._statement(event, events.query(event.body))
            case events.MARIADB_QUERY_COMPRESSED:
                yield from self._statement(event, events.query(event.body, compressed=True))
            case events.EXECUTE_LOAD:
                yield from self._statement(event, events.query(event.body, load=True))
            case events.XID | events.XA_PREPARE:
                self._end()
            case events.TRANSACTION_PAYLOAD:
                for code, body in events.payload_events(event.body):
                    yield from self._event(replace(event, code=code, body=body))
            case events.MARIADB_GTID_LIST | events.PREVIOUS_GTIDS:
                self._at_beginning_of_file(event)
            case _:
                self._pass_over(event)

    # transactions

    def _begin(self, event: LogEvent, beginning: Beginning) -> None:
        if self._open is not None:
            raise SourceError(f"the transaction at {self._open.begin} of the binary log has no end")
        self._open = Transaction(event.begin, beginning.gtid, event.timestamp)
        self._until_commit = self._server.mariadb and not beginning.standalone
        self._undecided = "an XA transaction" if beginning.prepared_only else ""
        self._touched = False

    def _end(self) -> None:
        if self._open is not None and self._open.gtid is not None and self._gtids is not None:
            self._gtids = self._gtids.plus(self._open.gtid)
        self._open = None

    def _statement(self, event: LogEvent, statement: Statement) -> Iterator[Item]:
        text = statement.text.strip()
        verb = text[:32].upper()
        if verb == "BEGIN" or verb.startswith(_XA):
            if self._open is None:
                self._begin(event, Beginning(None, False, False))
            self._until_commit = True
            self._undecided = "an XA transaction" if verb.startswith(_XA) else self._undecided
        elif verb == "COMMIT":
            self._end()
        elif verb.startswith("ROLLBACK"):
            self._roll_back(event, whole=verb == "ROLLBACK")
        else:
            yield from self._other_statement(event, statement)
            if not self._until_commit:
                self._end()

    def _roll_back(self, event: LogEvent, *, whole: bool) -> None:
        if self._touched:
            raise SourceError(
                f"rows of {self._table} were rolled back in the log at {event.begin}, which happens when tables of "
                "several engines are written in one transaction: mysql_cdc cannot read that"
            )
        if whole:
            self._end()

    def _other_statement(self, event: LogEvent, statement: Statement) -> Iterator[Item]:
        match effect_of(statement, self._table, ignore_case=self._server.names_ignore_case):
            case Effect.TRUNCATED:
                yield self._change("truncate", event)
            case Effect.REPLACED:
                raise SourceError(
                    f"at {event.begin} of the binary log {self._table} was dropped, renamed or had partitions moved: "
                    "its rows are not those of the changes before any more; start over with --fresh"
                )
            case Effect.WRITTEN:
                raise SourceError(
                    f"at {event.begin} of the binary log a statement that names {self._table} was logged as text: "
                    "binlog_format must be ROW in every session; start over with --fresh"
                )
            case Effect.HIDDEN | Effect.UNREADABLE as effect:
                raise SourceError(
                    f"at {event.begin} of the binary log stands a statement that may have changed {self._table}, and "
                    f"{effect.value}; start over with --fresh"
                )

    # rows

    def _change(
        self, operation: str, event: LogEvent, table: LoggedTable | None = None, rows: RowsBody | None = None
    ) -> Change:
        if self._undecided:
            raise SourceError(
                f"rows of {self._table} are in {self._undecided} at {event.begin} of the binary log, which may be "
                "rolled back later: mysql_cdc cannot read that"
            )
        self._touched = True
        transaction = self._open or Transaction(event.begin, None, event.timestamp)
        return Change(operation, transaction, table, rows)

    def _describe(self, body: bytes) -> None:
        database, table = table_name(body)
        ours = self._same(table, self._table.table) and self._same(database, self._table.database)
        if ours and body not in self._described:
            self._described[body] = table_map(body, self._server.mariadb)
        self._tables[events.table_id(body)] = self._described[body] if ours else None

    def _rows_table(self, event: LogEvent) -> LoggedTable | None:
        id = events.table_id(event.body)
        if id in events.NO_TABLE:
            return None
        if id not in self._tables:
            raise SourceError(f"the rows at {event.begin} of the binary log are of a table that it does not name")
        return self._tables[id]

    def _same(self, one: str, other: str) -> bool:
        return one.lower() == other.lower() if self._server.names_ignore_case else one == other

    # other events

    def _at_beginning_of_file(self, event: LogEvent) -> None:
        """Take the GTIDs that a file begins with where none are known: reading began with this file."""
        if self._gtids is None and self._server.has_gtids:
            read = events.mariadb_gtid_list if self._server.mariadb else events.mysql_previous_gtids
            self._gtids = parse_gtids(read(event.body))

    def _pass_over(self, event: LogEvent) -> None:
        if event.code == events.INCIDENT:
            raise SourceHistoryLost(f"the server says that events are missing at {event.begin} of its binary log")
        if event.code == events.PARTIAL_UPDATE_ROWS and self._rows_table(event) is None:
            return
        if event.code not in events.WITHOUT_ROWS and not event.flags & _IGNORABLE:
            what = {
                events.PARTIAL_UPDATE_ROWS: "a partial update: binlog_row_value_options must be ''",
                _TAGGED_GTID: "a GTID with a tag",
            }.get(event.code, f"an event of an unknown kind ({event.code})")
            raise SourceError(f"at {event.begin} of the binary log stands {what}, which mysql_cdc cannot read")
