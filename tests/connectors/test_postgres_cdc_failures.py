"""What the postgres_cdc source does when something else fails: the server, the slot, the table, we ourselves."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from connectors.postgres_cdc_world import Replica, World, worlds
from connectors.postgres_server import Server, running
from holdfast import sources
from holdfast.connectors.postgres_cdc import feed as postgres_cdc_feed
from holdfast.connectors.postgres_cdc import slots as postgres_cdc_slots
from holdfast.connectors.postgres_cdc import snapshot as postgres_cdc_snapshot
from holdfast.connectors.postgres_cdc import stream as postgres_cdc_stream
from holdfast.connectors.postgres_cdc.positions import parse_lsn
from holdfast.connectors.postgres_cdc.session import patiently
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable
from holdfast.stores.materials import DirectoryMaterials
from marks import long

New = Callable[..., World]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(max_prepared_transactions="1") as server:
        yield server


@pytest.fixture
def new(server: Server, tmp_path: Path) -> Iterator[New]:
    if not server.is_running:
        server.start()
    with worlds(server.url, tmp_path) as new:
        yield new


def insert(world: World, *ids: int) -> None:
    for id in ids:
        world.sql(f"INSERT INTO {world.table} VALUES (%s, 'x')", id)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["after"]["id"] for row in rows]


# The snapshot breaks off


class Crash(Exception):
    pass


@pytest.mark.parametrize("survives", range(5))
def test_a_snapshot_that_broke_off_is_taken_again(new: New, monkeypatch: pytest.MonkeyPatch, survives: int) -> None:
    """Goal: after a crash the snapshot is whole and fits the log. Method: crash at every file, change the table."""
    monkeypatch.setattr(postgres_cdc_snapshot, "_BATCH_ROWS", 2)
    monkeypatch.setattr(postgres_cdc_snapshot, "_CHUNK_BYTES", 1)
    world = new()
    insert(world, 1, 2, 3, 4, 5)
    left = survives

    def dying(write: Any) -> Any:
        def put(self: Any, name: str, *data: Any) -> None:
            nonlocal left
            if left == 0:
                raise Crash(name)
            left -= 1
            write(self, name, *data)

        return put

    with monkeypatch.context() as patch:
        for method in ("put", "put_file"):
            patch.setattr(DirectoryMaterials, method, dying(getattr(DirectoryMaterials, method)))
        with pytest.raises(Crash):
            world.begin()
    world.sql(f"DELETE FROM {world.table} WHERE id = 1")
    insert(world, 6)
    world.life()
    start = world.begin()
    insert(world, 7)
    assert ids(world.changes(start)) == [2, 3, 4, 5, 6, 7]
    world.life()
    assert world.begin() == start, "a snapshot that is complete is taken once"


def test_a_snapshot_without_its_slot_is_taken_again(new: New) -> None:
    world = new()
    insert(world, 1)
    first = world.begin()
    world.sql("SELECT pg_drop_replication_slot(%s)", world.slot)
    insert(world, 2)
    second = world.begin()
    assert second != first
    assert ids(world.changes(second)) == [1, 2]


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_slot_of_somebody_else_is_left_alone(new: New, tmp_path: Path, snapshot: bool) -> None:
    world = new(snapshot=snapshot)
    start = world.begin()
    insert(world, 1)
    world.directory = tmp_path / "another pipeline"
    world.life()
    for refused in (lambda: world.control.can_read(None), world.control.begin):
        with pytest.raises(SourceError, match="exists already, and this pipeline did not make it"):
            refused()
    world.directory = tmp_path / "0"
    world.life()
    world.control.check(start)
    assert ids(world.changes(start)) == [1]


def test_a_slot_that_was_made_for_us_is_used(new: New) -> None:
    world = new(slot="made_for_us", snapshot=False)
    world.slot = "made_for_us"
    world.sql(f"CREATE PUBLICATION {world.schema} FOR TABLE {world.table}")
    ((lsn,),) = world.sql("SELECT lsn::text FROM pg_create_logical_replication_slot('made_for_us', 'pgoutput')")
    world.life(publication=world.schema)
    assert world.begin() == {"lsn": lsn}
    insert(world, 1)
    assert ids(world.changes(world.begun)) == [1]


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_transaction_that_is_open_is_named(new: New, monkeypatch: pytest.MonkeyPatch, snapshot: bool) -> None:
    """Goal: a start that cannot be says who is in the way. Method: leave a transaction open that has written."""
    monkeypatch.setattr(postgres_cdc_slots, "_LOCK_WAIT", "200ms")
    world, other = new(snapshot=snapshot), new()
    with other.database.transaction():
        insert(other, 1)
        pid = other.database.info.backend_pid
        with pytest.raises(SourceUnavailable, match=f"that of process {pid} is open since"):
            world.begin()
    assert world.begin()


def test_a_prepared_transaction_is_named(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_cdc_slots, "_LOCK_WAIT", "200ms")
    world = new()
    with psycopg.connect(world.url, autocommit=True) as other:
        other.execute(f"BEGIN; CREATE TABLE {world.schema}.written (id int); PREPARE TRANSACTION 'transfer 7'")
    with pytest.raises(SourceUnavailable, match="the prepared one 'transfer 7' is open since"):
        world.begin()
    world.sql("COMMIT PREPARED 'transfer 7'")
    assert world.begin()


@pytest.mark.parametrize("snapshot", [True, False])
def test_after_a_slot_could_not_be_created_one_of_its_name_is_not_ours(
    new: New, monkeypatch: pytest.MonkeyPatch, snapshot: bool
) -> None:
    """Goal: nobody's slot is dropped, or read, by us. Method: somebody else creates it after our start failed."""
    monkeypatch.setattr(postgres_cdc_slots, "_LOCK_WAIT", "200ms")
    world, other = new(snapshot=snapshot), new()
    with other.database.transaction():
        insert(other, 1)
        with pytest.raises(SourceUnavailable, match="is open since"):
            world.begin()
    world.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", world.slot)
    stands_at = world.slot_stands_at()
    world.life()
    with pytest.raises(SourceError, match="exists already, and this pipeline did not make it"):
        world.begin()
    assert world.slot_stands_at() == stands_at


def test_a_column_that_is_added_while_the_slot_waits_is_in_the_snapshot(new: New) -> None:
    """Goal: the snapshot has the columns of its own moment. Method: add one in a transaction that the slot awaits."""
    world = new("id int PRIMARY KEY")
    world.sql(f"INSERT INTO {world.table} VALUES (1)")
    world.sql(f"CREATE PUBLICATION {world.slot} FOR TABLE {world.table}")
    waiting = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'CREATE_REP%' AND wait_event_type = 'Lock'"
    with psycopg.connect(world.url) as other, ThreadPoolExecutor() as pool:
        other.execute(f"CREATE TABLE {world.schema}.written (id int)")
        beginning = pool.submit(world.begin)
        while not world.sql(waiting):
            assert not beginning.done()
        other.execute(f"ALTER TABLE {world.table} ADD COLUMN extra int DEFAULT 7")
        other.commit()
        start = beginning.result()
    assert [row["after"] for row in world.changes(start)] == [{"id": 1, "extra": 7}]


@pytest.mark.parametrize("times", [1, 99])
@pytest.mark.parametrize("shape", ["", "PARTITION BY RANGE (id)"])
def test_a_table_that_is_rewritten_before_it_is_copied_is_not_empty(
    new: New, monkeypatch: pytest.MonkeyPatch, shape: str, times: int
) -> None:
    """Goal: no snapshot is without rows because the server hides those of a rewritten table from it."""
    world = new("id int PRIMARY KEY")
    world.sql(f"DROP TABLE {world.table}")
    world.sql(f"CREATE TABLE {world.table} (id int PRIMARY KEY, amount int) {shape}")
    if shape:
        world.sql(f"CREATE TABLE {world.table}_0 PARTITION OF {world.table} DEFAULT")
    world.sql(f"INSERT INTO {world.table} VALUES (1, 1)")
    create = postgres_cdc_snapshot._create_slot

    def overtaken(*given: Any) -> Any:
        nonlocal times
        created = create(*given)
        if times > 0:
            world.sql(f"ALTER TABLE {world.table} ALTER COLUMN amount TYPE {('int', 'bigint')[times % 2]}")
        times -= 1
        return created

    with monkeypatch.context() as patch:
        patch.setattr(postgres_cdc_snapshot, "_create_slot", overtaken)
        if times > 1:
            with pytest.raises(SourceUnavailable, match="was rewritten"):
                world.begin()
            world.life()
            times = 0
        assert ids(world.changes(world.begin())) == [1]


# Changes that are gone


def test_a_slot_that_was_dropped_is_history_lost(new: New) -> None:
    world = new()
    start = world.begin()
    insert(world, 1)
    end = world.next(start)
    world.sql("SELECT pg_drop_replication_slot(%s)", world.slot)
    said = f"slot '{world.slot}' is gone from the server; {end['lsn']} comes next.*--fresh.*on_history_lost"
    with pytest.raises(SourceHistoryLost, match=said):
        world.control.check(end)
    world.life()
    with pytest.raises(SourceHistoryLost, match=said):
        world.next(end)
    with pytest.raises(SourceHistoryLost):
        world.read(start, end)


def test_a_slot_that_somebody_moved_is_history_lost(new: New) -> None:
    world = new()
    start = world.begin()
    insert(world, 1)
    ((head,),) = world.sql("SELECT pg_current_wal_flush_lsn()::text")
    world.sql("SELECT pg_replication_slot_advance(%s, %s)", world.slot, head)
    gone = parse_lsn(head) - parse_lsn(start["lsn"])
    said = f"begins at {head}, {gone} bytes too late; {start['lsn']} comes next"
    with pytest.raises(SourceHistoryLost, match=said):
        world.control.check(start)
    with pytest.raises(SourceHistoryLost, match=said):
        world.next(start)


def lose_log(world: World) -> None:
    """Have the server remove the log that the world's slot needs."""
    world.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    world.sql("SELECT pg_reload_conf()")
    for _ in range(100):
        world.sql(f"CREATE TABLE IF NOT EXISTS {world.schema}.other (id int)")
        world.sql(f"INSERT INTO {world.schema}.other VALUES (1)")
        world.sql("SELECT pg_switch_wal()")
        world.sql("CHECKPOINT")
        if world.sql("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", world.slot) == [("lost",)]:
            break
    world.sql("ALTER SYSTEM RESET max_slot_wal_keep_size")
    world.sql("SELECT pg_reload_conf()")


def test_a_slot_that_is_moved_while_it_is_copied_is_history_lost(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no change is passed over because the slot moved after a look at it. Method: move it at that moment."""
    world = new()
    start = world.begin()
    insert(world, 1)
    look = postgres_cdc_feed.held_slot

    def overtaken(*given: Any) -> Any:
        found = look(*given)
        world.sql("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", world.slot)
        return found

    monkeypatch.setattr(postgres_cdc_feed, "held_slot", overtaken)
    with pytest.raises(SourceHistoryLost, match=r"begins at .* bytes too late"):
        world.next(start)


def test_a_slot_whose_log_was_removed_is_history_lost(new: New) -> None:
    world = new()
    start = world.begin()
    insert(world, 1)
    lose_log(world)
    said = f"removed the log of slot '{world.slot}', which stood at {start['lsn']}; {start['lsn']} comes next"
    with pytest.raises(SourceHistoryLost, match=said):
        world.control.check(start)
    with pytest.raises(SourceHistoryLost, match=said):
        world.next(start)
    world.control.acknowledge(start)


@pytest.mark.parametrize("on_history_lost", ["stop", "continue"])
def test_a_server_that_was_set_back_is_history_lost(new: New, on_history_lost: str) -> None:
    """Goal: positions of another history are not waited for. Method: one beyond the end of the server's log."""
    world = new(on_history_lost=on_history_lost)
    world.begin()
    head = world.control.head()["lsn"]
    with pytest.raises(SourceHistoryLost, match=f"ends at {head}, and F/0 comes next"):
        world.control.check({"lsn": "F/0"})
    with pytest.raises(SourceHistoryLost, match="F/0 comes next"):
        world.next({"lsn": "F/0"})


@pytest.mark.parametrize("how", ["dropped", "moved", "lost"])
def test_with_continue_what_is_gone_is_left_out_and_said(
    new: New, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    world = new(on_history_lost="continue")
    start = world.begin()
    insert(world, 1)
    if how == "dropped":
        world.sql("SELECT pg_drop_replication_slot(%s)", world.slot)
    elif how == "moved":
        world.sql("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", world.slot)
    else:
        lose_log(world)
    world.life()
    with caplog.at_level(logging.ERROR):
        world.control.check(start)
    assert "GOING ON WITHOUT" in caplog.text
    assert start["lsn"] in caplog.text
    insert(world, 2)
    assert ids(world.changes(start)) == [2]


def test_also_with_continue_a_slot_that_is_moved_while_a_pipeline_runs_stops_it(new: New) -> None:
    """Goal: an epoch that was read does not become a smaller one unsaid. Method: move the slot, read it again."""
    world = new(on_history_lost="continue")
    start = world.begin()
    world.control.check(start)
    insert(world, 1)
    end = world.next(start)
    assert ids(world.read(start, end)) == [1]
    world.sql("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", world.slot)
    again = world.new_reader()
    with pytest.raises(SourceHistoryLost, match="bytes too late"):
        [list(again.read(part)) for part in again.partitions(dict(start), dict(end))]
    again.stop()


def test_a_snapshot_that_was_removed_is_history_lost(new: New) -> None:
    world = new()
    insert(world, 1)
    start = world.begin()
    for file in (world.directory / "materials").rglob("*.json"):
        file.unlink()
    for look in (world.control.can_read, world.control.check):
        with pytest.raises(SourceHistoryLost, match="chunk 0 of the snapshot comes next"):
            look(start)
    with pytest.raises(SourceHistoryLost, match="chunk 0 of the snapshot comes next"):
        world.next(start)


def test_a_chunk_of_the_snapshot_that_is_gone_is_found_at_the_start(new: New) -> None:
    world = new()
    insert(world, 1)
    start = world.begin()
    [chunk] = (world.directory / "materials").rglob("*.parquet")
    chunk.unlink()
    for look in (world.control.can_read, world.control.check):
        with pytest.raises(SourceHistoryLost, match="chunk 0 of the snapshot comes next, and it is gone"):
            look(start)
    world.control.check(world.control.head())


def test_whoever_only_asks_makes_no_slot_and_notes_no_table(new: New) -> None:
    """Goal: a start that is refused elsewhere gave nothing up. Method: ask as one that goes on without its slot."""
    world = new(snapshot=False)
    start = world.begin()
    world.sql("SELECT pg_drop_replication_slot(%s)", world.slot)
    noted = world.directory / "materials" / "table.json"
    noted.unlink()
    world.life(on_history_lost="continue")
    world.control.can_read(start)
    assert world.sql("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", world.slot) == []
    assert not noted.exists()
    world.control.check(start)
    assert world.slot_stands_at()
    assert noted.exists()


def test_a_publication_that_was_dropped_stops_the_reader(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: silence is never taken for "no changes". Method: drop it, write, create it again."""
    monkeypatch.setattr(postgres_cdc_stream, "_LOOK_SECONDS", 3600.0)
    world = new()
    start = world.begin()
    insert(world, 1)
    assert ids(world.changes(start)) == [1]
    world.sql(f"DROP PUBLICATION {world.slot}")
    insert(world, 2)
    with pytest.raises(SourceError, match="publication"):
        world.changes(start)
    with pytest.raises(SourceError, match=r"publication .* is gone"):
        world.control.check(start)
    world.sql(f"CREATE PUBLICATION {world.slot} FOR TABLE {world.table}")
    insert(world, 3)
    world.life()
    with pytest.raises(SourceError, match="publication"):
        world.changes(start)


def test_a_table_that_was_made_again_is_noticed_while_reading(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a new table of the same name is not silence. Method: drop and create it; it is in no publication."""
    monkeypatch.setattr(postgres_cdc_stream, "_LOOK_SECONDS", 0.0)
    world = new()
    start = world.begin()
    world.sql(f"DROP TABLE {world.table}")
    world.sql(f"CREATE TABLE {world.table} (id int PRIMARY KEY, name text, amount numeric(12,2), note text)")
    insert(world, 1)
    with pytest.raises(SourceError, match="does not have table"):
        world.next(start)


# Tables that cannot be read


@pytest.mark.parametrize(
    ("shape", "change", "message"),
    [
        ("id int", "", "REPLICA IDENTITY DEFAULT, without a primary key.*REPLICA IDENTITY FULL"),
        ("id int PRIMARY KEY", "REPLICA IDENTITY NOTHING", "REPLICA IDENTITY NOTHING"),
        ("id int PRIMARY KEY DEFERRABLE", "", "without a primary key"),
        ("id int PRIMARY KEY", "SET UNLOGGED", "UNLOGGED"),
        ("id int PRIMARY KEY", "RENAME TO elsewhere", "there is no table"),
    ],
)
def test_a_table_whose_changes_would_not_be_told_is_refused(new: New, shape: str, change: str, message: str) -> None:
    """Goal: publishing never breaks the user's own updates. Method: refuse before anything is created."""
    world = new(shape)
    if change:
        world.sql(f"ALTER TABLE {world.table} {change}")
    with pytest.raises(SourceError, match=message):
        world.begin()
    assert world.sql("SELECT 1 FROM pg_publication WHERE pubname = %s", world.slot) == []


def test_a_view_is_refused(new: New) -> None:
    world = new()
    world.sql(f"CREATE VIEW {world.table}_view AS SELECT * FROM {world.table}")
    world.table = f"{world.table}_view"
    world.life()
    with pytest.raises(SourceError, match="is a view, not a table"):
        world.begin()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("FOR TABLE {table} WITH (publish = 'insert, update')", "leaves out delete, truncate"),
        ("", "does not have table"),
        ("FOR TABLE {table} WHERE (id > 5)", "row filter"),
        ("FOR TABLE {table} (id, name)", "does not publish column 'amount'"),
    ],
)
def test_a_publication_that_tells_less_is_refused(new: New, definition: str, message: str) -> None:
    world = new()
    world.sql(f"CREATE PUBLICATION {world.slot} {definition.format(table=world.table)}")
    with pytest.raises(SourceError, match=message):
        world.begin()


def test_generated_columns_and_the_whole_row_as_identity_do_not_go_together(new: New) -> None:
    world = new("id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED")
    world.sql(f"ALTER TABLE {world.table} REPLICA IDENTITY FULL")
    if int(world.sql("SHOW server_version_num")[0][0]) >= 180000:
        with pytest.raises(SourceError, match="generated columns and REPLICA IDENTITY FULL"):
            world.begin()
    else:
        world.begin()
        world.sql(f"INSERT INTO {world.table} VALUES (1)")
        world.sql(f"UPDATE {world.table} SET id = 2")
        assert ids(world.changes(world.begun)) == [1, 2]


def test_a_server_without_a_logical_log_is_refused() -> None:
    with running(wal_level="replica") as server:
        spec = sources.postgres_cdc(server.url, "orders")
        assert spec.control is not None
        with pytest.raises(SourceError, match="wal_level of the server is replica: set it to logical"):
            spec.control.check({"lsn": "0/0"})
        spec.control.close()


def test_a_role_that_may_not_publish_is_told_what_to_ask_for(new: New) -> None:
    world = new()
    world.sql(f"CREATE ROLE {world.schema} LOGIN REPLICATION")
    world.sql(f"GRANT USAGE ON SCHEMA {world.schema} TO {world.schema}")
    world.sql(f"GRANT SELECT ON {world.table} TO {world.schema}")
    world.url = world.url.replace("postgres@", f"{world.schema}@")
    world.life()
    typed = []
    for ask in (lambda: world.control.can_read(None), world.begin):
        with pytest.raises(SourceError, match=r"Somebody who may must type: (CREATE PUBLICATION .*)") as refused:
            ask()
        typed.append(str(refused.value).partition("must type: ")[2])
    assert typed[0] == typed[1]
    world.sql(f"ALTER TABLE {world.table} OWNER TO {world.schema}")
    with pytest.raises(SourceError, match="only a role that may create in the database can create it"):
        world.control.can_read(None)
    world.sql(f"ALTER TABLE {world.table} OWNER TO postgres")
    world.sql(typed[0])
    world.sql(f"REVOKE SELECT ON {world.table} FROM {world.schema}")
    with pytest.raises(SourceError, match="permission denied for table"):
        world.control.can_read(None)
    world.sql(f"GRANT SELECT ON {world.table} TO {world.schema}")
    world.control.can_read(None)
    insert(world, 1)
    start = world.begin()
    insert(world, 2)
    assert ids(world.changes(start)) == [1, 2]
    world.control.acknowledge(start)


# The table changes


def test_a_new_column_stops_the_pipeline_and_is_there_after_a_restart(new: New) -> None:
    world = new("id int PRIMARY KEY")
    start = world.begin()
    world.sql(f"INSERT INTO {world.table} VALUES (1)")
    position = world.next(start)
    world.sql(f"ALTER TABLE {world.table} ADD COLUMN extra text DEFAULT 'new'")
    world.sql(f"INSERT INTO {world.table} VALUES (2)")
    with pytest.raises(SourceError, match=r"column 'extra' was added to table .* start the pipeline again"):
        world.changes(position)
    world.life()
    assert [row["after"] for row in world.changes(start)] == [{"id": 1, "extra": None}, {"id": 2, "extra": "new"}]


def test_a_new_column_is_null_in_a_snapshot_from_before(new: New) -> None:
    world = new("id int PRIMARY KEY")
    world.sql(f"INSERT INTO {world.table} VALUES (1)")
    start = world.begin()
    world.sql(f"ALTER TABLE {world.table} ADD COLUMN extra text, ALTER COLUMN id TYPE bigint")
    world.life()
    assert [row["after"] for row in world.changes(start)] == [{"id": 1, "extra": None}]


def test_a_dropped_column_stops_the_pipeline_until_a_restart(new: New) -> None:
    world = new()
    start = world.begin()
    insert(world, 1)
    position = world.next(start)
    assert world.reader is not None
    world.sql(f"ALTER TABLE {world.table} DROP COLUMN note")
    insert(world, 2)
    with pytest.raises(SourceError, match="column 'note' was dropped from table"):
        world.changes(position)
    world.life()
    assert ids(world.changes(position)) == [2]
    assert ids(world.changes(start)) == [1, 2], "what was written with the column is read without it"


def test_a_column_that_was_widened_is_read_on_after_a_restart(new: New) -> None:
    world = new("id int PRIMARY KEY, price numeric(6,2), at date")
    start = world.begin()
    world.sql(f"INSERT INTO {world.table} VALUES (1, 1.5, '2024-01-01')")
    position = world.next(start)
    world.sql(f"ALTER TABLE {world.table} ALTER COLUMN id TYPE bigint, ALTER COLUMN price TYPE numeric(12,4)")
    world.sql(f"INSERT INTO {world.table} VALUES (5000000000, 2.25)")
    with pytest.raises(SourceError, match=r"column 'id' of table .* is int64 in the log and read as int32"):
        world.changes(position)
    world.life()
    assert ids(world.changes(start)) == [1, 5000000000]
    world.sql(f"ALTER TABLE {world.table} ALTER COLUMN at TYPE int USING 7")
    world.life()
    with pytest.raises(SourceError, match=r"column 'at' of table .* is date32.* read as int32.*as_text"):
        world.changes(start)
    world.life(as_text=("at",))
    assert [row["after"]["at"] for row in world.changes(start)] == ["2024-01-01", None]


@pytest.mark.parametrize(
    "changes",
    [
        ["RENAME COLUMN note TO comment"],
        ["RENAME COLUMN name TO title"],
        ["RENAME COLUMN name TO title", "ADD COLUMN name text"],
        ["DROP COLUMN amount", "RENAME COLUMN note TO comment"],
        ["RENAME COLUMN name TO title", "ALTER COLUMN title TYPE varchar(9)"],
    ],
)
def test_rows_from_before_a_column_was_renamed_are_not_read_with_null(new: New, changes: list[str]) -> None:
    world = new()
    start = world.begin()
    insert(world, 1)
    position = world.next(start)
    for change in changes:
        world.sql(f"ALTER TABLE {world.table} {change}")
    insert(world, 2)
    world.life()
    with pytest.raises(SourceError, match=r"may have had another name then"):
        world.changes(start)
    assert ids(world.changes(position)) == [2]


def test_a_column_that_was_dropped_and_one_that_was_added_are_two(new: New) -> None:
    world = new()
    start = world.begin()
    insert(world, 1)
    world.sql(f"ALTER TABLE {world.table} DROP COLUMN note, ADD COLUMN number int")
    insert(world, 2)
    world.life()
    assert [row["after"]["number"] for row in world.changes(start)] == [None, None]


def test_a_snapshot_from_before_a_column_was_renamed_is_not_read_with_null(new: New) -> None:
    world = new()
    insert(world, 1)
    start = world.begin()
    world.sql(f"ALTER TABLE {world.table} RENAME COLUMN name TO title")
    world.life()
    with pytest.raises(SourceError, match=r"column 'title' of table .* was 'name' when the snapshot was taken"):
        world.changes(start)


def test_a_table_that_was_renamed_stops_the_pipeline(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_cdc_stream, "_LOOK_SECONDS", 3600.0)
    world = new()
    start = world.begin()
    insert(world, 1)
    position = world.next(start)
    world.sql(f"ALTER TABLE {world.table} RENAME TO elsewhere")
    world.sql(f"INSERT INTO {world.schema}.elsewhere VALUES (2)")
    with pytest.raises(SourceError, match=r"was renamed to .*elsewhere"):
        world.next(position)
    world.life()
    with pytest.raises(SourceError, match="there is no table"):
        world.control.check(start)


def test_changes_under_another_name_are_not_passed_over(new: New) -> None:
    """Goal: a table that has its name again is not "no changes". Method: write while it is called otherwise."""
    world = new()
    start = world.begin()
    world.sql(f"ALTER TABLE {world.table} RENAME TO elsewhere")
    world.sql(f"INSERT INTO {world.schema}.elsewhere VALUES (1)")
    world.sql(f"ALTER TABLE {world.schema}.elsewhere RENAME TO rows")
    insert(world, 2)
    with pytest.raises(SourceError, match=r"was renamed to .*elsewhere"):
        world.next(start)


def test_a_table_that_was_made_again_is_another_one_in_a_publication_of_all(new: New) -> None:
    """Goal: nobody takes the rows of two tables for one. Method: what is published does not change by that."""
    world = new()
    world.sql(f"CREATE PUBLICATION {world.slot} FOR ALL TABLES")
    try:
        start = world.begin()
        insert(world, 1)
        world.sql(f"CREATE TABLE {world.schema}.again (LIKE {world.table} INCLUDING ALL)")
        world.sql(f"DROP TABLE {world.table}")
        world.sql(f"ALTER TABLE {world.schema}.again RENAME TO rows")
        with pytest.raises(SourceError, match="was dropped and made again"):
            world.next(start)
        world.life()
        with pytest.raises(SourceError, match="was dropped and made again"):
            world.control.check(start)
    finally:
        world.sql(f"DROP PUBLICATION {world.slot}")


# The server goes away


@pytest.mark.parametrize("epochs", [4, *long(16)])
def test_a_server_that_crashes_is_waited_for(epochs: int, new: New, server: Server) -> None:
    """Goal: a restart of the server costs nothing but time. Method: crash it between all calls and within them."""
    world, replica = new(), Replica()
    draw = random.Random(7)
    position = world.begin()
    ranges = []
    for number in range(epochs):
        for _ in range(draw.randrange(1, 30)):
            world.sql(f"INSERT INTO {world.table} VALUES (%s, 'x') ON CONFLICT (id) DO UPDATE SET name = 'y'", number)
        world.sql(f"INSERT INTO {world.table} SELECT id FROM generate_series(1000, 9000) id ON CONFLICT DO NOTHING")
        world.sql(f"DELETE FROM {world.table} WHERE id >= 1000")
        where = ("before", "between", "while", "never")[number % 4]
        if where == "before":
            crash(server, world)
        end = world.next(position, 1_000_000 if where == "while" else draw.choice((1, 1000)))
        if where == "between":
            crash(server, world)
        rows = []
        for part in world.reader.partitions(dict(position), dict(end)):
            part.value.__dict__["file"] = None if where == "while" else part.value.file
            for batch in world.reader.read(part):
                rows += batch.to_pylist()
                if where == "while" and server.is_running and len(rows) == batch.num_rows:
                    crash(server, world)
        assert where != "while" or len(rows) > 16_000, "there was more to come when the server crashed"
        replica.apply(rows)
        ranges.append((position, end, rows))
        position = end
        kept = ranges[len(ranges) // 2 :]
        patiently(lambda: world.control.acknowledge(kept[0][0]), 10.0)  # noqa: B023
    replica.apply(world.changes(position))
    assert replica.rows.keys() == {row[0] for row in world.sql(f"SELECT id FROM {world.table}")}
    for first, last, rows in kept:
        assert world.read(first, last) == rows


def crash(server: Server, world: World) -> None:
    """Crash the server and start it after a while."""
    world.database.close()
    server.stop("immediate")
    threading.Timer(1.0, server.start).start()
    while True:
        time.sleep(0.1)
        try:
            world.connect()
            return
        except Exception:
            continue


def test_a_server_that_stays_away_is_an_error(new: New, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_cdc_stream, "PATIENCE_SECONDS", 0.5)
    world = new()
    start = world.begin()
    insert(world, 1)
    end = world.next(start)
    parts = world.reader.partitions(dict(start), dict(end))
    server.stop("immediate")
    try:
        with pytest.raises(SourceUnavailable, match=r"PostgreSQL at 127\.0\.0\.1"):
            world.next(end)
        assert [batch.num_rows for batch in world.reader.read(parts[0])] == [1], "what was received is read"
        parts[0].value.__dict__["file"] = None
        with pytest.raises(SourceUnavailable):
            list(world.reader.read(parts[0]))
        with pytest.raises(SourceUnavailable):
            world.control.head()
    finally:
        server.start()
        world.connect()
    assert world.control.head()
    assert world.read(start, end)[0]["after"]["id"] == 1


def test_a_server_that_shuts_down_does_not_wait_for_us(
    new: New, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody's maintenance hangs on a pipeline. Method: stop the server while changes are asked for."""
    monkeypatch.setattr(postgres_cdc_stream, "PATIENCE_SECONDS", 0.0)
    world = new()
    position = dict(world.begin())
    insert(world, 1)
    world.reader.latestOffset(position, ReadMaxRows(1))
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    patience = time.monotonic() + 20
    try:
        while stopping.is_alive() and time.monotonic() < patience:
            with contextlib.suppress(SourceUnavailable):
                position = world.reader.latestOffset(position, ReadMaxRows(1))
        assert not stopping.is_alive()
    finally:
        if stopping.is_alive():
            server.kill()
            stopping.join()
        server.start()
        world.connect()


def test_a_password_is_in_no_message(new: New) -> None:
    world = new()
    spec = sources.postgres_cdc("postgresql://postgres:hunter2222@127.0.0.1:1/postgres", world.table)
    assert spec.control is not None
    with pytest.raises(SourceUnavailable) as refused:
        spec.control.head()
    assert "hunter2222" not in str(refused.value)
    assert refused.value.__cause__ is None
