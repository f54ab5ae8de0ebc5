"""What mysql_cdc does when table, log or server are not as they should be: go on exactly, or stop and say why."""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pymysql
import pytest

from connectors.mariadb_server import MYSQLD, PASSWORD, Server, running
from connectors.mysql_cdc_world import Replica, World
from connectors.postgres_server import Way
from holdfast import sources
from holdfast.connectors.mysql_cdc.gtid import parse_gtids
from holdfast.connectors.mysql_cdc.position import Place, Position
from holdfast.core.sources import SourceContext
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable
from holdfast.stores.materials import DirectoryMaterials

PLAIN = "id INT PRIMARY KEY, name VARCHAR(50), amount DECIMAL(12,2)"
MakeWorld = Callable[..., World]
mariadb_only = pytest.mark.skipif(MYSQLD is not None, reason="MySQL has no such thing, or encrypts it")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Return a server that a test may kill, or whose log it may take away."""
    with running() as started:
        yield started


@pytest.fixture
def make_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeWorld]:
    with contextlib.ExitStack() as stack:

        def make(definition: str = PLAIN, *, on: Server | None = None, **settings: Any) -> World:
            server = on or request.getfixturevalue("server")
            return stack.enter_context(contextlib.closing(World(server, tmp_path, definition, **settings)))

        yield make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


def row(id: int, name: str = "x") -> str:
    return f"INSERT INTO {{t}} VALUES ({id}, '{name}', 1)"


def ids(changes: list[dict[str, Any]]) -> list[int]:
    return [change["after"]["id"] for change in changes]


# The table changes


def test_an_added_column_stops_the_pipeline_and_is_read_by_its_next_life(world: World) -> None:
    start = world.begin()
    world.sql(row(1))
    assert world.reader
    world.sql("ALTER TABLE {t} ADD COLUMN more INT", "INSERT INTO {t} VALUES (2, 'y', 1, 5)")
    end = world.next(start)
    with pytest.raises(SourceError, match=r"column 'more' was added to table shop.t.*: start the pipeline again"):
        world.read(start, end)
    world.life()
    assert [change["after"]["more"] for change in world.read(start, end)] == [None, 5]


def test_a_dropped_column_stops_the_pipeline_and_is_left_out_by_its_next_life(world: World) -> None:
    start = world.begin()
    world.sql(row(1))
    assert world.reader
    world.sql("ALTER TABLE {t} DROP COLUMN name", "INSERT INTO {t} VALUES (2, 1)")
    end = world.next(start)
    with pytest.raises(
        SourceError, match=r"column 'name' was dropped .* start the pipeline again to go on without it"
    ):
        world.read(start, end)
    world.life()
    assert [list(change["after"]) for change in world.read(start, end)] == [["id", "amount"]] * 2


def test_a_renamed_column_is_never_read_as_null(world: World) -> None:
    start = world.begin()
    world.sql(row(1), "ALTER TABLE {t} CHANGE name title VARCHAR(50)", row(2))
    end = world.next(start)
    with pytest.raises(SourceError, match=r"had a column 'name' and has 'title' now: .* start over with --fresh"):
        world.read(start, end)


def test_a_column_that_is_renamed_while_it_is_read_was_not_added(world: World) -> None:
    start = world.begin()
    assert world.reader
    world.sql("ALTER TABLE {t} CHANGE name title VARCHAR(50)", row(2))
    with pytest.raises(SourceError, match=r"had a column 'name' and has 'title' now: .* start over with --fresh"):
        world.changes(start)


def test_columns_that_the_snapshot_has_not_are_null_only_if_they_are_new(make_world: MakeWorld) -> None:
    world = make_world()
    world.sql(row(1))
    start = world.begin()
    world.sql("ALTER TABLE {t} ADD note INT, MODIFY id BIGINT")
    world.life()
    assert world.changes(start)[0]["after"] == {"id": 1, "name": "x", "amount": Decimal("1.00"), "note": None}
    world.sql("ALTER TABLE {t} CHANGE name title VARCHAR(50)")
    world.life()
    with pytest.raises(SourceError, match="has a column 'name' and 'title' is read: if it was renamed"):
        world.changes(start)


def test_a_column_that_was_left_out_of_the_snapshot_is_not_null_in_it(make_world: MakeWorld) -> None:
    world = make_world(columns=["id", "name"])
    world.sql(row(1))
    start = world.begin()
    world.life(columns=["id", "name", "amount"])
    with pytest.raises(SourceError, match="column 'amount' was left out of the snapshot: start over with --fresh"):
        world.changes(start)


def test_a_double_is_not_rounded_to_the_float_that_the_column_was(make_world: MakeWorld) -> None:
    world = make_world("id INT PRIMARY KEY, f FLOAT")
    start = world.begin()
    assert world.reader
    world.sql("ALTER TABLE {t} MODIFY f DOUBLE", "INSERT INTO {t} VALUES (1, 16777217), (2, 1e300)")
    with pytest.raises(
        SourceError, match=r"column 'f' .* is double in the log and read as float: .* start the pipeline"
    ):
        world.changes(start)
    world.life()
    assert [change["after"]["f"] for change in world.changes(start)] == [16777217, 1e300]


def test_a_column_of_another_type_is_refused_and_a_wider_one_is_read(world: World) -> None:
    start = world.begin()
    world.sql(row(1), "ALTER TABLE {t} MODIFY id BIGINT", row(1 << 40))
    assert ids(world.changes(start)) == [1, 1 << 40]
    world.sql("UPDATE {t} SET name = NULL", "ALTER TABLE {t} MODIFY name INT", "INSERT INTO {t} VALUES (3, 7, 1)")
    with pytest.raises(SourceError, match=r"column 'name' .* is integer in the log and read as string"):
        world.changes(start)


def test_a_number_that_does_not_fit_is_refused(world: World) -> None:
    start = world.begin()
    world.sql(row(1))
    assert world.reader
    world.sql("ALTER TABLE {t} MODIFY id BIGINT", row(1 << 40))
    with pytest.raises(SourceError, match="column 'id' has a value that does not fit int32"):
        world.read(start, world.next(start))


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE {t}",
        "DROP TABLE IF EXISTS nothing, `shop`.`{t}`",
        "RENAME TABLE {t} TO {t}_old",
        "ALTER TABLE {t} RENAME TO {t}_old",
    ],
)
def test_a_table_that_is_dropped_or_renamed_stops_the_pipeline(world: World, statement: str) -> None:
    start = world.begin()
    world.sql("CREATE TABLE {t}_copy LIKE {t}")
    assert world.reader
    world.sql(statement, "CREATE TABLE {t} LIKE {t}_copy", row(1))
    with pytest.raises(SourceError, match=r"mysql-bin\.\d+:\d+ .* was dropped, renamed or had partitions moved"):
        world.changes(start)


def test_rows_that_go_with_a_partition_stop_the_pipeline(make_world: MakeWorld) -> None:
    world = make_world("id INT PRIMARY KEY")
    world.sql(
        "ALTER TABLE {t} PARTITION BY RANGE (id) "
        "(PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (99))"
    )
    start = world.begin()
    world.sql("INSERT INTO {t} VALUES (1), (11)", "ALTER TABLE {t} TRUNCATE PARTITION a")
    with pytest.raises(SourceError, match="partitions moved"):
        world.changes(start)


def test_a_harmless_alter_changes_nothing(world: World) -> None:
    start = world.begin()
    world.sql(row(1), "ALTER TABLE {t} ADD INDEX (name)", "ALTER TABLE {t} COMMENT 'rename to nothing'", row(2))
    world.sql("CREATE TEMPORARY TABLE {t} (id INT)", "INSERT INTO {t} VALUES (9)", "DROP TEMPORARY TABLE {t}")
    assert ids(world.changes(start)) == [1, 2]


def test_views_and_missing_tables_are_refused(world: World) -> None:
    world.sql("CREATE VIEW {t}_view AS SELECT * FROM {t}")
    for table, said in ((f"{world.table}_view", "is a view"), ("nothing", "there is no table shop.nothing")):
        control = sources.mysql_cdc(world.url, table).control
        assert control is not None
        control.bind(SourceContext("orders", "shop", world.materials))
        with pytest.raises(SourceError, match=said):
            control.begin()
        control.close()


# What is in the log


def test_a_statement_in_the_log_is_refused(world: World) -> None:
    start = world.begin()
    world.sql("SET SESSION binlog_format = 'STATEMENT'", row(1))
    with pytest.raises(
        SourceError, match=r"a statement that names shop.t.* was logged as text: binlog_format must be ROW"
    ):
        world.changes(start)


def test_rows_logged_in_part_are_refused(world: World) -> None:
    start = world.begin()
    world.sql(row(1), "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET name = 'y'")
    with pytest.raises(SourceError, match="were logged in part: binlog_row_image must be FULL"):
        world.changes(start)


def test_rows_logged_without_names_are_refused(world: World) -> None:
    start = world.begin()
    assert world.reader
    world.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        world.sql(row(1))
        with pytest.raises(SourceError, match="without their columns' names"):
            world.read(start, world.next(start))
        world.life()
        with pytest.raises(
            SourceError, match="binlog_row_metadata = 'MINIMAL', mysql_cdc needs 'FULL': set it with SET GLOBAL"
        ):
            world.control.check(start)
    finally:
        world.sql("SET GLOBAL binlog_row_metadata = 'FULL'")


def test_compressed_events_are_read(world: World) -> None:
    start = world.begin()
    if MYSQLD:
        world.sql("SET SESSION binlog_transaction_compression = ON", row(1), "UPDATE {t} SET name = REPEAT('y', 50)")
    else:
        world.sql("SET GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = ON")
        try:
            world.sql(
                row(1),
                "UPDATE {t} SET name = REPEAT('y', 50)",
                "DELETE FROM {t}",
                "TRUNCATE TABLE {t}",
                row(1, "y" * 50),
            )
        finally:
            world.sql("SET GLOBAL log_bin_compress = OFF")
    changes = world.changes(start)
    assert changes[0]["after"]["name"] == "x"
    assert changes[-1]["after"]["name"] == "y" * 50
    assert len(changes) == (2 if MYSQLD else 5)


def test_xa_transactions_of_the_table_are_refused_and_others_ignored(world: World) -> None:
    world.sql("CREATE TABLE {t}_other (id INT PRIMARY KEY)")
    start = world.begin()
    world.sql(
        "XA START 'a'", "INSERT INTO {t}_other VALUES (1)", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'", row(1)
    )
    assert ids(world.changes(start)) == [1]
    start = world.next(start)
    world.sql("XA START 'b'", row(2), "XA END 'b'", "XA PREPARE 'b'", "XA ROLLBACK 'b'")
    with pytest.raises(SourceError, match="are in an XA transaction"):
        world.changes(start)


def test_rows_that_were_rolled_back_are_not_read(world: World) -> None:
    start = world.begin()
    world.sql("START TRANSACTION", row(1), "SAVEPOINT a", row(2), "ROLLBACK TO a", row(3), "COMMIT")
    world.sql("START TRANSACTION", row(4), "ROLLBACK")
    assert ids(world.changes(start)) == [1, 3]


def test_checksums_may_be_switched_off_and_on(world: World) -> None:
    start = world.begin()
    world.sql(row(1), "SET GLOBAL binlog_checksum = NONE")
    try:
        world.sql(row(2))
        middle = world.next(start)
        assert ids(world.read(start, middle)) == [1, 2]
    finally:
        world.sql("SET GLOBAL binlog_checksum = CRC32")
    world.sql(row(3))
    assert ids(world.changes(start)) == [1, 2, 3]


@contextlib.contextmanager
def falsified(server: Server, said: bytes, heard: bytes) -> Iterator[int]:
    """Yield a port that leads to the server, and on which what the server says is heard as something else."""
    listener = socket.create_server(("127.0.0.1", 0))
    sockets = [listener]

    def pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data.replace(said, heard))
            sink.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, onward = listener.accept()[0], socket.create_connection(("127.0.0.1", server.port))
                sockets.extend((client, onward))
                for pair in ((client, onward), (onward, client)):
                    threading.Thread(target=pass_on, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        for open_socket in sockets:
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()


@mariadb_only
def test_a_byte_that_was_changed_on_the_way_is_noticed(world: World) -> None:
    start = world.begin()
    world.sql(row(1, "a byte of this"))
    with falsified(world.server, b"a byte of this", b"a bite of this") as port:
        world.url = world.url.replace(str(world.server.port), str(port))
        world.life()
        with pytest.raises(SourceError, match=r"the event at mysql-bin\.\d+:\d+ of the binary log is damaged"):
            world.changes(start)
        world.close()


@mariadb_only
def test_a_table_with_rows_of_the_past_is_refused(world: World) -> None:
    start = world.begin()
    world.next(start)
    world.sql("ALTER TABLE {t} ADD SYSTEM VERSIONING", row(1))
    with pytest.raises(SourceError, match="start over with --fresh"):
        world.changes(start)
    with pytest.raises(SourceError, match="is system-versioned"):
        world.control.check(start)


@pytest.mark.parametrize(
    "rule", [f"ON {verb} {what}" for verb in ("DELETE", "UPDATE") for what in ("CASCADE", "SET NULL")]
)
def test_a_table_whose_rows_change_with_those_of_another_is_refused(world: World, rule: str) -> None:
    """Goal: no change is missed. Reason: the engine follows such keys by itself, and logs nothing of it."""
    world.sql("CREATE TABLE {t}_o (id INT PRIMARY KEY)")
    world.sql("ALTER TABLE {t} ADD o INT, ADD FOREIGN KEY (o) REFERENCES {t}_o (id) ON DELETE RESTRICT")
    start = world.begin()
    world.sql(f"ALTER TABLE {{t}} ADD p INT, ADD CONSTRAINT {{t}}_p FOREIGN KEY (p) REFERENCES {{t}}_o (id) {rule}")
    with pytest.raises(SourceError, match=r"foreign key `.*_p` of table .* do not log such changes"):
        world.control.check(start)
    world.life(on_cascade="ignore")
    world.control.check(start)


def test_a_truncation_by_a_client_with_another_character_set_is_not_passed_over(make_world: MakeWorld) -> None:
    world = make_world(table="tä")
    start = world.begin()
    with world.server.connect(charset="latin1") as connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE TABLE tä")
    with pytest.raises(SourceError, match="a character set other than UTF-8"):
        world.changes(start)


def test_what_a_function_writes_by_a_statement_is_not_passed_over(world: World) -> None:
    body = "BEGIN INSERT INTO {t} VALUES (9, '', 1); RETURN 1; END"
    world.sql(f"CREATE FUNCTION {{t}}_f() RETURNS INT DETERMINISTIC {body}")
    start = world.begin()
    world.sql("SET SESSION binlog_format = STATEMENT", "SELECT {t}_f()")
    with pytest.raises(SourceError, match="runs functions that write"):
        world.changes(start)


# The log is gone


def purge(world: World) -> str:
    """Leave the server nothing but its newest log file; return its name."""
    name = world.sql("SHOW BINARY LOGS")[-1][0]
    while world.sql(f"PURGE BINARY LOGS TO '{name}'", "SHOW BINARY LOGS")[0][0] != name:
        time.sleep(0.05)  # The server needs a file until all of its transactions are in the tables for good.
    return str(name)


def test_a_purged_log_stops_the_pipeline_with_the_numbers(own_server: Server, make_world: MakeWorld) -> None:
    world = make_world(on=own_server)
    start = world.begin()
    world.sql(row(1), "FLUSH BINARY LOGS", row(2))
    name = purge(world)
    numbers = (
        f"{start['binlog_file']}:{start['binlog_position']} .* comes next, and server 1 .* has {name}:4 to {name}:"
    )
    for look in (lambda: world.control.check(start), lambda: world.next(start)):
        with pytest.raises(SourceHistoryLost, match=numbers):
            look()


def test_a_pipeline_may_go_on_without_what_was_purged(
    own_server: Server, make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(on=own_server, on_history_lost="continue")
    start = world.begin()
    world.sql(row(1), "FLUSH BINARY LOGS", row(2))
    middle = world.next(start)
    world.sql("FLUSH BINARY LOGS", row(3))
    purge(world)
    world.life()
    with caplog.at_level(logging.ERROR):
        world.control.check(start)
        changes, end = world.read_all(start)
    assert ids(changes) == [3]
    assert "GOING ON" in caplog.text
    assert world.read(start, middle) == []
    world.sql(row(4))
    assert ids(world.changes(end)) == [4]


def test_a_position_of_another_server_is_not_looked_for_by_its_place(world: World) -> None:
    start = dict(world.begin())
    world.sql(row(1))
    elsewhere = {key: value for key, value in {**start, "server_id": "99"}.items() if key != "gtid_set"}
    with pytest.raises(SourceHistoryLost, match="of the binary log of server 99 comes next, and server 1 "):
        world.control.check(elsewhere)


def test_a_log_that_was_reset_is_not_taken_for_the_one_before(own_server: Server, make_world: MakeWorld) -> None:
    world = make_world(on=own_server)
    start = world.begin()
    world.sql(*(row(id) for id in range(5)))
    end = world.next(start)
    world.sql("RESET MASTER", *(row(id) for id in range(100, 140)))
    world.life()
    with pytest.raises(SourceHistoryLost):
        world.control.check(end)
    with pytest.raises(SourceHistoryLost):
        world.next(end)


def test_a_log_that_lost_its_end_is_noticed(own_server: Server, make_world: MakeWorld) -> None:
    """Goal: a range that was recorded is read exactly or not at all. Method: the server forgets what was in it."""
    world = make_world(on=own_server)
    start = world.begin()
    world.sql(row(1))
    middle = world.next(start)
    world.sql(row(2), row(3))
    end = world.next(middle)
    world.sql("RESET MASTER", "TRUNCATE TABLE {t}", row(9))
    with pytest.raises(SourceHistoryLost):
        world.read(middle, end)


def test_a_range_is_read_to_its_end_or_not_at_all(world: World) -> None:
    """Goal: rows that were there when the range was chosen are not left out. Method: a range longer than the log."""
    start = world.begin()
    world.sql(row(1))
    end = Position.from_offsets(world.next(start))
    assert end.gtids is not None
    beyond = (
        f"0-1-{end.gtids.count_since(parse_gtids('')) + 5}"
        if not MYSQLD
        else f"{str(end.gtids).split(':')[0]}:1-999999"
    )
    later = replace(end, gtids=parse_gtids(beyond), place=Place(end.place.file, end.place.offset + 1000))
    with pytest.raises(SourceHistoryLost, match=rf"ends at {end.place} .* before {later.place} .* it lost its end"):
        world.read(start, later.offsets())


@mariadb_only
@pytest.mark.parametrize("most_rows", [1, None])
def test_a_server_that_writes_in_the_domain_of_another_with_smaller_numbers_is_read(
    own_server: Server, make_world: MakeWorld, most_rows: int | None
) -> None:
    """Goal: no row is passed over. Method: two servers that replicate each other, without domains of their own."""
    world = make_world(on=own_server)
    world.sql("SET GLOBAL gtid_strict_mode = OFF", *(row(id) for id in range(5)))
    start = world.read_all(world.begin())[1]
    other = ("SET SESSION server_id = 2", "SET SESSION gtid_seq_no = 3")
    world.sql(*other, row(10), row(11))
    changes, end = world.read_all(start, most_rows)
    assert ids(changes) == [10, 11]
    world.sql(row(12))
    world.sql(*other, row(13))
    world.life()
    world.control.check(end)
    assert ids(world.read_all(end, most_rows)[0]) == [12, 13]


def test_a_log_that_is_reset_while_it_is_read_is_noticed_at_once(own_server: Server, make_world: MakeWorld) -> None:
    world = make_world(on=own_server)
    start = world.begin()
    world.sql("FLUSH BINARY LOGS", *(row(id) for id in range(5)))
    end = world.read_all(start)[1]
    world.sql("RESET MASTER", row(9))
    assert world.next(end) == end
    with pytest.raises(SourceHistoryLost, match="comes next, and server 1 "):
        world.next(end)


def test_a_file_that_had_nothing_for_the_table_may_be_removed(own_server: Server, make_world: MakeWorld) -> None:
    """Goal: a table at rest outlives the server's log. Method: less than `idle_bytes`, in a file that is purged."""
    world = make_world(on=own_server)
    start = world.begin()
    world.sql("CREATE TABLE {t}_other (id INT)", "INSERT INTO {t}_other VALUES (1)", "FLUSH BINARY LOGS")
    moved = world.next(start)
    assert world.read(start, moved) == []
    purge(world)
    world.life()
    world.control.check(moved)
    world.sql(row(1))
    assert ids(world.changes(moved)) == [1]


def test_what_a_server_does_to_every_query_does_nothing_to_the_snapshot(
    own_server: Server, make_world: MakeWorld
) -> None:
    world = make_world("id INT PRIMARY KEY, c CHAR(9)", on=own_server)
    world.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    world.sql("SET GLOBAL sql_select_limit = 1", "SET GLOBAL sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
    assert [change["after"]["c"] for change in world.changes(world.begin())] == ["a", "b", "c"]


@mariadb_only
def test_a_snapshot_that_cannot_be_kept_stops_without_receiving_the_rest_of_the_table(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world("id INT PRIMARY KEY, text VARCHAR(1000)", max_rows=10)
    world.sql("INSERT INTO {t} SELECT seq, REPEAT('x', 1000) FROM seq_1_to_40000")
    monkeypatch.setattr(DirectoryMaterials, "put_file", Mock(side_effect=OSError("no space")))
    before = sent_by(world)
    with pytest.raises(OSError, match="no space"):
        world.begin()
    assert sent_by(world) - before < 20_000_000


def sent_by(world: World) -> int:
    return int(world.sql("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")[0][1])


# The server


def test_a_server_that_is_killed_and_comes_back_loses_nothing(own_server: Server, make_world: MakeWorld) -> None:
    """Goal: the same rows, over a kill between and within epochs. Method: read with the server down in the middle."""
    world = make_world(on=own_server)
    start = world.begin()
    world.sql(*("START TRANSACTION", *(row(id) for id in range(3000)), "COMMIT", row(3000)))
    end = world.next(start)
    expected = world.read(start, end)
    own_server.kill()
    back = threading.Thread(target=lambda: (time.sleep(1.5), own_server.start()))
    back.start()
    assert world.read(start, end) == expected
    back.join()
    world.sql(row(5000))
    assert ids(world.changes(end)) == [5000]


@mariadb_only
def test_a_connection_that_is_cut_while_rows_come_is_made_again(own_server: Server, make_world: MakeWorld) -> None:
    world = make_world(on=own_server)
    start = world.begin()
    for first in range(0, 60000, 5000):
        world.sql(f"INSERT INTO {{t}} SELECT seq, REPEAT('x', 50), 1 FROM seq_{first}_to_{first + 4999}")
    end = world.next(start)
    [part] = world.reader.partitions(dict(start), dict(end))
    batches = world.reader.read(part)
    rows = next(batches).num_rows
    for id, *_ in own_server.run("SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"):
        own_server.run(f"KILL {id}")
    own_server.kill()
    own_server.start()
    rows += sum(batch.num_rows for batch in batches)
    assert rows == 60000


@mariadb_only
def test_rows_of_a_transaction_whose_reading_was_cut_off_come_once(world: World) -> None:
    """Goal: each row once. Method: the connection breaks within a transaction, after rows of it were read."""
    start = world.begin()
    rows = (row(id, "here it breaks" if id == 1500 else "x" * 30) for id in range(2000))
    world.sql("START TRANSACTION", *rows, "COMMIT")
    way = Way("127.0.0.1", world.server.port)
    world.url = world.url.replace(str(world.server.port), str(way.port))
    world.life()
    end = world.next(start)
    way.cut_at = ("server", b"here it breaks")
    assert ids(world.read(start, end)) == list(range(2000))
    assert way.cut_at is None
    world.close()
    way.close()


def test_a_server_that_stays_away_is_told_of_in_one_line(own_server: Server, make_world: MakeWorld) -> None:
    world = make_world(on=own_server)
    start = world.begin()
    own_server.stop()
    for ask in (world.control.head, lambda: world.control.check(start)):
        with pytest.raises(SourceUnavailable, match=r"^127\.0\.0\.1:\d+: Can't connect") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert PASSWORD not in str(caught.value)


@mariadb_only
def test_a_transaction_that_the_server_did_not_write_to_its_end_never_happened(
    own_server: Server, make_world: MakeWorld
) -> None:
    """Goal: what was not committed is not read. Method: kill the server while it writes large transactions."""
    world = make_world(on=own_server)
    start, replica = world.begin(), Replica()

    def write(first: int) -> None:
        with contextlib.suppress(pymysql.MySQLError):
            world.sql(f"INSERT INTO {{t}} SELECT seq, REPEAT('x', 50), 1 FROM seq_{first}_to_{first + 199_999}")

    for number in range(3):
        writer = threading.Thread(target=write, args=(number * 200_000,))
        writer.start()
        time.sleep(0.35 + number / 5)
        own_server.kill()
        writer.join()
        own_server.start()
        changes, start = world.read_all(start)
        replica.apply(changes)
    world.sql(row(-1))
    replica.apply(world.changes(start))
    assert set(replica.rows) == {id for (id,) in world.sql("SELECT id FROM {t}")}


@mariadb_only
def test_a_replica_takes_over(own_server: Server, make_world: MakeWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: positions hold on a server whose log files are others. Method: read on from a promoted replica."""
    with running(server_id=2) as second:
        second.run("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        own_server.run("CREATE USER rep@'%' IDENTIFIED BY 'rep'", "GRANT REPLICATION SLAVE ON *.* TO rep@'%'")
        world = make_world(on=own_server)
        world.sql(row(1))
        start = world.begin()
        world.sql(*(row(id) for id in range(2, 50)))
        middle = world.next(start, 20)
        end = world.next(middle, 10)
        expected = world.read(middle, end)
        [[position]] = own_server.run("SELECT @@gtid_binlog_pos")
        second.run(
            "SET GLOBAL gtid_strict_mode = OFF",
            "DROP DATABASE shop",
            "DROP USER cdc@'%'",
            "RESET MASTER",
            f"CHANGE MASTER TO master_host='127.0.0.1', master_port={own_server.port}, master_user='rep', "
            "master_password='rep', master_use_gtid=slave_pos",
            "START SLAVE",
        )
        deadline = time.monotonic() + 60
        while second.run("SELECT @@gtid_slave_pos") != [(position,)] and time.monotonic() < deadline:
            time.sleep(0.05)
        own_server.stop()
        second.run("STOP SLAVE", "FLUSH BINARY LOGS", row(100).replace("{t}", world.table))
        world.server, world.url = second, second.url
        world.life()
        with caplog.at_level(logging.WARNING):
            world.control.check(middle)
            again = world.read(middle, end)
        assert "by its GTIDs" in caplog.text
        plain = [[{**change, "position": ""} for change in changes] for changes in (again, expected)]
        assert plain[0] == plain[1]
        assert ids(world.changes(end)) == [*range(max(ids(expected)) + 1, 50), 100]
