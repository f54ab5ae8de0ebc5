"""The ledger in two tables, on SQLite itself: what is asked, what stays, what an earlier version's ledger says."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import pytest

from holdfast.connectors.ledger import LedgerRecord
from holdfast.connectors.sql_ledger import LEDGER, LedgerPlace, SqlLedger
from holdfast.connectors.sqlite.target import SqliteConnection
from holdfast.core.contracts import Token

TIMELINE, OTHER = UUID(int=1), UUID(int=2)
LOCK = " /* locked */"
PLACE = LedgerPlace(lock=LOCK, fold="lower", columns="SELECT name FROM pragma_table_info(trim($1, '\"'))")
RECORD = LedgerRecord(TIMELINE, 3, 5, "r5", 2, 1, "me", 2, 4)


@pytest.fixture
def connection() -> Iterator[SqliteConnection]:
    with sqlite3.connect(":memory:", factory=SqliteConnection) as connection:
        yield connection
    connection.close()


def ledger(sink: str = "a", target: str = "orders") -> SqlLedger:
    return SqlLedger(PLACE, "shop", sink, target)


def token(epoch: int) -> Token:
    return Token(epoch, 3, 0, epoch - 1, 1, f"r{epoch}")


def test_what_is_read_to_be_written_is_locked_unless_nothing_is_to_be_written(connection: SqliteConnection) -> None:
    """Loss without this: on a server two claims read the same entry, and the older one's write is the last."""
    ledger().create(connection)
    said: list[str] = []
    connection.set_trace_callback(said.append)
    ledger().read(connection)
    ledger().other_timelines(connection)
    assert len([statement for statement in said if LOCK in statement]) == 2
    said.clear()
    ledger().read(connection, to_write=False)
    ledger().other_timelines(connection, to_write=False)
    assert len(said) >= 2
    assert not any(LOCK in statement for statement in said)


def test_an_entry_is_read_back_as_it_was_written(connection: SqliteConnection) -> None:
    ledger().create(connection)
    assert ledger().read(connection) is None
    ledger().write(connection, RECORD)
    assert ledger().read(connection) == RECORD
    assert ledger("b").read(connection) is None


def test_a_ledger_of_an_earlier_version_is_read_and_completed(connection: SqliteConnection) -> None:
    connection.run(
        f'CREATE TABLE "{LEDGER}" (pipeline TEXT, sink TEXT, target TEXT, timeline TEXT, generation BIGINT, '
        "epoch BIGINT, range_digest TEXT, rewinds BIGINT, base BIGINT, PRIMARY KEY (pipeline, sink))"
    )
    values = ["shop", "a", "orders", str(TIMELINE), 3, 5, "r5", 2, 1]
    marks = ", ".join(f"${number}" for number in range(1, 10))
    connection.run(f'INSERT INTO "{LEDGER}" VALUES ({marks})', *values)
    old = replace(RECORD, nonce="", rewound_in=0, rewound_to=0)
    for _ in range(2):
        assert (ledger().read(connection), ledger().fixed_to(connection)) == (old, 0)
        ledger().create(connection)
    ledger().write(connection, RECORD, fixed_to=5)
    assert (ledger().read(connection), ledger().fixed_to(connection)) == (RECORD, 5)


def test_epochs_that_no_rewind_goes_below_stay_so_until_others_are_named(connection: SqliteConnection) -> None:
    """Loss without this: a rewind below rows that replaced others is promised, and cannot be kept."""
    ledger().create(connection)
    assert ledger().fixed_to(connection) == 0
    ledger().write(connection, RECORD, fixed_to=4)
    ledger().write(connection, replace(RECORD, generation=4))
    assert ledger().fixed_to(connection) == 4
    ledger().move(connection, RECORD, token(6), fixed=False)
    assert ledger().fixed_to(connection) == 4
    ledger().move(connection, RECORD, token(7), fixed=True)
    assert ledger().fixed_to(connection) == 7


@pytest.mark.parametrize(("to_epoch", "digest"), [(6, "r6"), (7, "r7"), (2, None)])
def test_a_rewind_knows_the_range_of_the_epoch_it_goes_to(
    connection: SqliteConnection, to_epoch: int, digest: str | None
) -> None:
    ledger().create(connection)
    for epoch in (6, 7, 8):
        ledger().move(connection, RECORD, token(epoch), fixed=False)
    now = replace(RECORD, epoch=8, range_digest="r8")
    back = ledger().go_back(connection, now, to_epoch)
    assert (back.epoch, back.range_digest) == (to_epoch, digest)
    left = connection.run('SELECT epoch FROM "_holdfast_epochs" ORDER BY epoch')
    assert [epoch for (epoch,) in left] == [epoch for epoch in (6, 7, 8) if epoch <= to_epoch]


def test_only_the_newest_thousand_epochs_are_remembered(connection: SqliteConnection) -> None:
    ledger().create(connection)
    for epoch in (1, 2, 1001):
        ledger().move(connection, RECORD, token(epoch), fixed=False)
    left = connection.run('SELECT epoch FROM "_holdfast_epochs" ORDER BY epoch')
    assert [epoch for (epoch,) in left] == [2, 1001]


def test_who_else_writes_to_the_table_is_found_by_any_spelling_and_can_be_ended(connection: SqliteConnection) -> None:
    ledger().create(connection)
    ledger("a").write(connection, RECORD)
    ledger("b", "ORDERS").write(connection, replace(RECORD, timeline=OTHER))
    ledger("c", "elsewhere").write(connection, replace(RECORD, timeline=OTHER))
    assert ledger("a").other_timelines(connection) == {OTHER}
    ledger("a").end_others(connection, TIMELINE)
    assert ledger("a").other_timelines(connection) == set()
    assert [ledger("a").read(connection), ledger("b", "ORDERS").read(connection)] == [RECORD, None]
    assert ledger("c", "elsewhere").read(connection) is not None
