"""Looking ahead in the log: where an epoch ends that begins at some position."""

from dataclasses import dataclass
from typing import Any

from holdfast.connectors.mysql_cdc.binlog import BinlogStream
from holdfast.connectors.mysql_cdc.position import Position
from holdfast.connectors.mysql_cdc.rows import RowDecoder
from holdfast.connectors.mysql_cdc.session import Session
from holdfast.connectors.mysql_cdc.settings import CdcSettings
from holdfast.connectors.mysql_cdc.transactions import Abandoned, Boundary, Change, TransactionLog


@dataclass(frozen=True)
class Scan:
    """What was found."""

    end: Position | None
    """Where the epoch ends; None when nothing of the table was seen."""
    seen: Position
    """The end of the last transaction that was looked at."""
    received: int
    """Bytes of the log."""


def scan(
    session: Session, settings: CdcSettings, columns: Any, begin: Position, head: Position, most_rows: int | None
) -> Scan:
    """Read from `begin` on, to the transaction that brings the epoch to `most_rows`, or to `head`.

    Without a limit the first change is enough: the epoch then ends with the log.
    """
    log = TransactionLog(settings.name, begin, session.facts)
    decoder = RowDecoder(session, settings.name, columns, only_these=bool(settings.columns))
    seen, rows, rows_before = begin, 0, 0
    with BinlogStream(session.address, begin, settings.new_replica_id()) as stream:
        for item in log.items(stream):
            match item:
                case Change():
                    if most_rows is None:
                        return Scan(head, seen, stream.received)
                    rows += sum(1 for _ in decoder.images(item))
                case Abandoned():
                    rows = rows_before
                case Boundary(position):
                    seen, rows_before = position, rows
                    if (most_rows is not None and rows >= most_rows) or position.is_at_or_after(head):
                        break
    return Scan(seen if rows_before else None, seen, stream.received)
