"""What sinks into a table of a SQL database do alike, beyond the contract: rewinds, owners, a ledger to look at."""

import json
from dataclasses import replace
from typing import Any

import pytest

from connectors.databases import Database
from connectors.targets import (
    OTHER_TIMELINE,
    SCHEMA,
    TIMELINE,
    Target,
    Writer,
    bound,
    orders,
    range_digest,
)
from holdfast.connectors.sql_ledger import SqlLedger
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, Owner, RewindOutcome, SinkContext
from holdfast.errors import Fenced, ForeignTimeline, PipelineDefinitionError, SinkError


@pytest.fixture
def database(empty_database: Database) -> Database:
    """Return one that a user has made."""
    return empty_database.made()


@pytest.mark.parametrize("options", [{}, {"key": "id", "epoch_column": True}])
def test_only_append_tables_with_the_epoch_column_can_be_rewound(database: Database, options: dict[str, Any]) -> None:
    writer = Writer(database.target(**options), database.directory)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    assert writer.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert database.ids() == [1, 2]
    found = writer.sink.ledger()
    assert found is not None
    assert found.epoch == 2


def test_a_table_that_two_sinks_write_to_is_not_rewound(database: Database) -> None:
    first = Writer(database.append, database.directory)
    first.write(1, orders(1))
    Writer(database.append, database.directory, pipeline="second").write(1, orders(2))
    assert first.rewind(0) is RewindOutcome.IMPOSSIBLE
    assert database.ids() == [1, 2]


def test_the_users_own_rows_stay_when_another_timelines_rows_go(database: Database) -> None:
    database.query("CREATE TABLE {s}orders (id bigint, name text, amount double precision)")
    database.query("INSERT INTO {s}orders VALUES (50, 'mine', 1.0)")
    old = Writer(database.append, database.directory)
    old.write(1, orders(1))
    late = old.prepare(2, orders(2))
    new = {"timeline": OTHER_TIMELINE, "pipeline": "other", "on_foreign": OnForeign.REWIND}
    Writer(database.append, database.directory, **new)  # type: ignore[arg-type]
    assert database.ids() == [50]
    with pytest.raises(Fenced):
        old.commit(late)


def test_the_ledger_is_a_table_people_can_read(database: Database) -> None:
    Writer(database.append, database.directory, 3).write(7, orders(1, 2))
    assert database.query("SELECT sink, generation, epoch FROM {s}_holdfast_ledger") == [("out", 3, 7)]
    assert database.query("SELECT epoch, rows FROM {s}_holdfast_epochs") == [(7, 2)]


def test_rows_and_ledger_move_together_or_not_at_all(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(database.append, database.directory)
    token = writer.prepare(1, orders(1))
    with monkeypatch.context() as patch:
        patch.setattr(SqlLedger, "move", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.commit(token)
    assert database.ids() == []
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 0, None)
    assert writer.commit(token) is CommitOutcome.DONE


def test_the_token_is_small_and_plain(database: Database) -> None:
    token = Writer(database.append, database.directory).prepare(1, orders(*range(1000)))
    assert len(json.dumps(token.to_json_value())) < 1000


@pytest.mark.parametrize(
    "options",
    [{"mode": "upsert"}, {"mode": "append", "key": "id"}, {"mode": "merge"}, {"table": "_holdfast_ledger"}],
)
def test_options_that_contradict_each_other_are_refused(database: Database, options: dict[str, Any]) -> None:
    with pytest.raises(PipelineDefinitionError):
        database.make(**{"table": "orders", **options})


def test_updates_need_a_key(database: Database) -> None:
    with pytest.raises(PipelineDefinitionError, match=r"replaces rows: give the .* sink a key"):
        database.make(table="orders").bind(SinkContext("out", "shop", SCHEMA, "update", str(database.directory)))


# --- what is asked before a start acts


def claim(database: Database, generation: int = 9, target: Target | None = None, **options: Any) -> LedgerState:
    """Ask whether the target can be claimed, through a sink that is not open; nothing may change by that."""
    sink = bound(target or database.append, database.directory)
    timeline = options.pop("timeline", TIMELINE)
    before = database.everything()
    try:
        return sink.can_claim(Owner("shop", timeline, generation), **options)
    finally:
        sink.close()
        assert database.everything() == before


def test_asking_for_a_target_that_is_not_there_creates_nothing(empty_database: Database) -> None:
    before = empty_database.everything()
    assert bound(empty_database.append, empty_database.directory).can_rewind(0) is RewindOutcome.DONE
    assert empty_database.everything() == before
    assert claim(empty_database, 3) == LedgerState(TIMELINE, 3, 0)
    assert Writer(empty_database.append, empty_database.directory, 3).opened == LedgerState(TIMELINE, 3, 0)


def test_asking_says_what_opening_says(database: Database) -> None:
    writer = Writer(database.append, database.directory, 2)
    writer.write(4, orders(1))
    found = claim(database, 3)
    assert found == Writer(database.append, database.directory, 3).opened
    assert found == LedgerState(TIMELINE, 3, 4, range_digest(4))
    with pytest.raises(Fenced, match="generation 3"):
        claim(database, 2)


def test_another_process_of_the_same_generation_is_told_before_it_starts(database: Database) -> None:
    """A copied store gives two processes one generation; the first of them to come owns the table."""
    first = bound(database.append, database.directory)
    opened = first.open(Owner("shop", TIMELINE, 2, "aaaaaaaa"))
    copied = bound(database.append, database.directory)
    owner = Owner("shop", TIMELINE, 2, "bbbbbbbb")
    for act in (copied.can_claim, copied.open):
        with pytest.raises(Fenced, match="another process of generation 2"):
            act(owner)
    assert copied.ledger() == opened
    assert first.can_claim(Owner("shop", TIMELINE, 2, "aaaaaaaa")) == opened
    copied.close()
    first.close()


@pytest.mark.parametrize(
    ("on_foreign", "epoch"), [(OnForeign.REWIND, 0), (OnForeign.ADOPT, 4), (OnForeign.APPEND, 0)]
)
def test_asking_for_a_target_of_another_timeline_changes_nothing(
    database: Database, on_foreign: OnForeign, epoch: int
) -> None:
    old = Writer(database.append, database.directory, 2)
    old.write(4, orders(1))
    with pytest.raises(ForeignTimeline, match="--sinks rewind"):
        claim(database, timeline=OTHER_TIMELINE)
    chosen: dict[str, Any] = {"timeline": OTHER_TIMELINE, "on_foreign": on_foreign, "adopt_epoch": 4}
    found = claim(database, 1, **chosen)
    assert found == LedgerState(OTHER_TIMELINE, 1, epoch)
    old.write(5, orders(2))
    assert Writer(database.append, database.directory, 1, **chosen).opened == found


def test_rows_that_cannot_be_taken_back_are_not_claimed_for_that(database: Database) -> None:
    by_key = database.target(key="id")
    Writer(by_key, database.directory).write(1, orders(1))
    with pytest.raises(SinkError, match="cannot be told from others"):
        claim(database, target=by_key, timeline=OTHER_TIMELINE, on_foreign=OnForeign.REWIND)
    assert database.ids() == [1]


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        ("CREATE TABLE {s}orders (id bigint, name text)", {}, "no column .?amount"),
        ("CREATE TABLE {s}orders (id bigint, name text, amount float8)", {"key": "id"}, "CREATE UNIQUE INDEX"),
        ("CREATE VIEW {s}orders AS SELECT 1 AS id", {}, "is a view"),
    ],
)
def test_a_table_that_rows_do_not_fit_is_refused_when_asked(
    database: Database, made: str, options: dict[str, Any], message: str
) -> None:
    database.query(made)
    target = database.target(**options)
    for refused in (lambda: claim(database, target=target), lambda: Writer(target, database.directory)):
        with pytest.raises(SinkError, match=message):
            refused()


def test_a_column_that_opening_adds_is_not_added_by_asking(database: Database) -> None:
    database.query("CREATE TABLE {s}orders (id bigint, name text, amount float8)")
    claim(database)
    with pytest.raises(Exception, match="_holdfast_epoch"):
        database.query("SELECT orders._holdfast_epoch FROM {s}orders")


@pytest.mark.parametrize(
    ("options", "to_epoch", "expected"),
    [
        ({"epoch_column": True}, 1, "done"),
        ({"epoch_column": True}, 9, "done"),
        ({}, 1, "impossible"),
        ({}, 2, "done"),
        ({"key": "id", "epoch_column": True}, 1, "impossible"),
        ({"key": "id"}, 3, "done"),
    ],
)
def test_how_a_rewind_would_end_is_said_before_anything_is_open(
    database: Database, options: dict[str, Any], to_epoch: int, expected: str
) -> None:
    target = database.target(**options)
    writer = Writer(target, database.directory)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    asked, before = bound(target, database.directory), database.everything()
    assert asked.can_rewind(to_epoch) == RewindOutcome(expected)
    asked.close()
    assert database.everything() == before
    assert writer.rewind(to_epoch) == RewindOutcome(expected)


def test_a_table_that_two_sinks_write_to_cannot_be_rewound(database: Database) -> None:
    Writer(database.append, database.directory).write(1, orders(1))
    Writer(database.append, database.directory, pipeline="second").write(1, orders(2))
    assert bound(database.append, database.directory).can_rewind(0) is RewindOutcome.IMPOSSIBLE


UNNUMBERED: list[dict[str, Any]] = [{}, {"key": "id"}, {"key": "id", "epoch_column": True}]


@pytest.mark.parametrize("before", UNNUMBERED, ids=str)
def test_a_rewind_never_reaches_epochs_whose_rows_were_not_kept_apart(
    database: Database, before: dict[str, Any]
) -> None:
    """They replaced others, or have no number: a rewind would leave them there, and a replay add them again."""
    first = Writer(database.target(**before), database.directory)
    first.write(1, orders(1))
    first.write(2, [{"id": 2, "name": "anna", "amount": 2.5}])
    second = Writer(database.append, database.directory, 2)
    second.write(3, orders(3))
    asked = bound(database.append, database.directory)
    assert [asked.can_rewind(epoch).value for epoch in (0, 1, 2, 3)] == ["impossible"] * 2 + ["done"] * 2
    asked.close()
    assert second.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert database.ids() == [1, 2, 3]
    assert second.rewind(2) is RewindOutcome.DONE
    assert database.ids() == [1, 2]
    with pytest.raises(SinkError, match="cannot be told from others"):
        claim(database, timeline=OTHER_TIMELINE, on_foreign=OnForeign.REWIND)


@pytest.mark.parametrize(("on_foreign", "epoch"), [(OnForeign.ADOPT, 2), (OnForeign.APPEND, 0)])
def test_what_was_not_kept_apart_stays_so_for_whoever_takes_it_over(
    database: Database, on_foreign: OnForeign, epoch: int
) -> None:
    old = Writer(database.target(), database.directory)
    old.write(1, orders(1))
    old.write(2, orders(2))
    chosen: dict[str, Any] = {"timeline": OTHER_TIMELINE, "on_foreign": on_foreign, "adopt_epoch": 2}
    new = Writer(database.append, database.directory, **chosen)
    new.write(epoch + 1, orders(3))
    assert new.rewind(1) is (RewindOutcome.IMPOSSIBLE if epoch else RewindOutcome.DONE)
    assert new.rewind(epoch) is RewindOutcome.DONE
    assert database.ids() == [1, 2]


# --- what a rewind leaves in the ledger


@pytest.mark.parametrize("to_epoch", [1, 2, 7])
def test_a_rewind_is_noted_even_where_nothing_is_to_be_taken_back(database: Database, to_epoch: int) -> None:
    first = Writer(database.append, database.directory)
    first.write(1, orders(1))
    first.write(2, orders(2))
    second = Writer(database.append, database.directory, 3)
    assert second.rewind(to_epoch) is RewindOutcome.DONE
    found = bound(database.append, database.directory).ledger()
    assert found == LedgerState(
        TIMELINE, 3, min(2, to_epoch), range_digest(min(2, to_epoch)), rewound_in=3, rewound_to=to_epoch
    )
    assert found.gives_up(TIMELINE, 1, to_epoch + 1)
    assert Writer(database.append, database.directory, 4).opened == replace(found, generation=4)
    assert claim(database, 5) == replace(found, generation=5)


def test_without_the_epoch_column_a_rewind_takes_nothing(database: Database) -> None:
    """To SQLite the quoted name would be a text, which is higher than every number."""
    writer = Writer(database.append, database.directory)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    database.query("ALTER TABLE {s}orders DROP COLUMN _holdfast_epoch")
    with pytest.raises(SinkError, match="_holdfast_epoch"):
        writer.rewind(1)
    assert database.ids() == [1, 2]


# --- ledgers of earlier versions

OLD_LEDGER = (
    "CREATE TABLE {s}_holdfast_ledger (pipeline TEXT NOT NULL, sink TEXT NOT NULL, target TEXT NOT NULL, "
    "timeline TEXT NOT NULL, generation BIGINT NOT NULL, epoch BIGINT NOT NULL, range_digest TEXT, "
    "rewinds BIGINT NOT NULL, base BIGINT NOT NULL{nonce}, PRIMARY KEY (pipeline, sink))"
)


@pytest.mark.parametrize("nonce", ["", ", nonce TEXT NOT NULL DEFAULT ''"], ids=["first", "nonce"])
def test_a_ledger_of_an_earlier_version_is_read_unharmed_and_upgraded_on_open(database: Database, nonce: str) -> None:
    database.query("CREATE TABLE {s}orders (id bigint, name text, amount double precision, _holdfast_epoch bigint)")
    database.query("INSERT INTO {s}orders VALUES (1, 'anna', 1.5, 1), (2, 'anna', 2.5, 2)")
    database.query(OLD_LEDGER.replace("{nonce}", nonce))
    schema, dot, table = database.table.rpartition(".")
    target = f'"{schema}"."{table}"' if dot else table
    database.query(
        "INSERT INTO {s}_holdfast_ledger "
        "(pipeline, sink, target, timeline, generation, epoch, range_digest, rewinds, base) "
        f"VALUES ('shop', 'out', '{target}', '{TIMELINE}', 4, 2, '{range_digest(2)}', 1, 0)"
    )
    before = database.everything()
    reader = bound(database.append, database.directory)
    assert reader.ledger() == LedgerState(TIMELINE, 4, 2, range_digest(2))
    assert reader.can_rewind(1) is RewindOutcome.DONE
    assert claim(database, 5) == LedgerState(TIMELINE, 5, 2, range_digest(2))
    reader.close()
    assert database.everything() == before
    writer = Writer(database.append, database.directory, 5)
    assert writer.opened == LedgerState(TIMELINE, 5, 2, range_digest(2))
    assert writer.rewind(1) is RewindOutcome.DONE
    assert writer.sink.ledger() == LedgerState(TIMELINE, 5, 1, None, rewound_in=5, rewound_to=1)
    assert database.ids() == [1]
    writer.write(2, orders(20))
    assert database.ids() == [1, 20]
