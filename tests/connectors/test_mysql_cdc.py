"""mysql_cdc against a real MariaDB: its control and its reader, driven as the engine and Spark drive them."""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.mariadb_server import MYSQLD, PASSWORD, Server, running
from connectors.mysql_cdc_world import Offsets, Replica, World
from holdfast.connectors.mysql_cdc import position as positions
from holdfast.connectors.mysql_cdc.batches import MOST_ROWS
from holdfast.connectors.mysql_cdc.settings import CdcSettings
from holdfast.connectors.mysql_cdc.snapshot import FOLDER
from holdfast.core.sources import Lag, SourceContext
from holdfast.errors import SourceError, SourceHistoryLost
from holdfast.stores.materials import DirectoryMaterials

PLAIN = "id INT PRIMARY KEY, name VARCHAR(50), amount DECIMAL(12,2)"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as started:
        yield started


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(server: Server, tmp_path: Path) -> Iterator[MakeWorld]:
    """Return what makes a world on the common server, or on another."""
    with contextlib.ExitStack() as stack:

        def make(definition: str = PLAIN, *, on: Server = server, **settings: Any) -> World:
            return stack.enter_context(contextlib.closing(World(on, tmp_path, definition, **settings)))

        yield make


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


def row(id: int, name: str = "x") -> str:
    return f"INSERT INTO {{t}} VALUES ({id}, '{name}', 1)"


def ops(changes: list[dict[str, Any]]) -> list[str]:
    return [change["op"] for change in changes]


def table_now(world: World, key: str = "id") -> dict[Any, dict[str, Any]]:
    """Return the table as a snapshot of another pipeline has it."""
    with contextlib.closing(world.beside()) as other:
        start = other.begin()
        rows = other.read(start, other.next(start)) if "snapshot" in start else []
    return {found["after"][key]: found["after"] for found in rows}


# Rows and changes


def test_rows_of_the_table_come_first_then_every_change(world: World) -> None:
    world.sql(row(1), row(2))
    start = world.begin()
    world.sql(
        row(3), "UPDATE {t} SET id = 9 WHERE id = 1", "DELETE FROM {t} WHERE id = 2", "TRUNCATE TABLE {t}", row(5)
    )
    changes = world.changes(start)
    assert ops(changes) == ["snapshot", "snapshot", "insert", "update", "delete", "truncate", "insert"]
    update, delete, truncate = changes[3:6]
    assert (update["before"]["id"], update["after"]["id"]) == (1, 9)
    assert (delete["before"]["id"], delete["after"]) == (2, None)
    assert (truncate["before"], truncate["after"]) == (None, None)
    assert all(change["unchanged"] == [] for change in changes)


def test_positions_and_numbers_order_all_rows(world: World) -> None:
    world.sql(row(1), row(2))
    start = world.begin()
    world.sql("START TRANSACTION", row(3), row(4), row(5), "COMMIT", row(6), "FLUSH BINARY LOGS", row(7))
    changes = world.changes(start)
    assert [change["after"]["id"] for change in changes] == [1, 2, 3, 4, 5, 6, 7]
    order = [(change["position"], change["seq"]) for change in changes]
    assert order == sorted(order)
    assert len(set(order)) == len(order)
    transactions = [change["transaction"] for change in changes]
    assert len(set(transactions[2:5])) == 1
    assert len(set(transactions[2:])) == 3
    assert abs(changes[-1]["committed_at"].timestamp() - time.time()) < 60


def test_without_a_snapshot_only_changes_are_read(make_world: MakeWorld) -> None:
    world = make_world(PLAIN, snapshot=False)
    world.sql(row(1))
    start = world.begin()
    assert "snapshot" not in start
    world.sql(row(2))
    assert [change["after"]["id"] for change in world.changes(start)] == [2]


def test_an_empty_table_begins_with_the_log(world: World) -> None:
    start = world.begin()
    assert "snapshot" not in start
    assert world.next(start) == start
    world.sql(row(1))
    assert ops(world.changes(start)) == ["insert"]


def test_a_part_of_the_columns_can_be_read(make_world: MakeWorld) -> None:
    world = make_world(PLAIN, columns=["amount", "id"])
    world.sql(row(1))
    start = world.begin()
    world.sql(row(2), "ALTER TABLE {t} ADD COLUMN more INT FIRST", "INSERT INTO {t} (id, more) VALUES (3, 3)")
    assert [list(change["after"]) for change in world.changes(start)] == [["amount", "id"]] * 3


def random_statements(rng: random.Random, ids: set[int]) -> list[str]:
    """Return a transaction's statements; `ids` are the keys that are there, and stay true."""
    statements = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        some = rng.choice(sorted(ids)) if ids else None
        if kind < 0.5 or some is None:
            new = rng.sample([id for id in range(1, 400) if id not in ids], rng.randint(1, 5))
            ids.update(new)
            values = ", ".join(
                f"({id}, REPEAT('{rng.choice('aäß€😀')}', {rng.randint(0, 40)}), {rng.random()})" for id in new
            )
            statements.append(f"INSERT INTO {{t}} VALUES {values}")
        elif kind < 0.75:
            statements.append(
                f"UPDATE {{t}} SET name = '{rng.random()}', amount = NULL WHERE id <= {some} AND id % 3 = 1"
            )
        elif kind < 0.85:
            target = rng.choice([id for id in range(1, 500) if id not in ids])
            ids.remove(some)
            ids.add(target)
            statements.append(f"UPDATE {{t}} SET id = {target} WHERE id = {some}")
        else:
            gone = {id for id in ids if some <= id <= some + 20}
            ids -= gone
            statements.append(f"DELETE FROM {{t}} WHERE id BETWEEN {some} AND {some + 20}")
    return statements


def write_much(world: World, rng: random.Random, transactions: int) -> None:
    """Change the table and others at random; now and then roll back, truncate, or begin a new log file."""
    ids: set[int] = {int(found[0]) for found in world.sql("SELECT id FROM {t}")}
    with world.server.connect(charset="utf8mb4") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS noise (id INT PRIMARY KEY AUTO_INCREMENT, text VARCHAR(500))")
        for _ in range(transactions):
            kept = set(ids)
            connection.begin()
            for statement in random_statements(rng, ids):
                cursor.execute(statement.replace("{t}", world.table))
                if rng.random() < 0.3:
                    cursor.execute("INSERT INTO noise (text) VALUES (REPEAT('n', 300))")
            if rng.random() < 0.1:
                ids = kept
                connection.rollback()
            connection.commit()
            if rng.random() < 0.02:
                cursor.execute(rng.choice(["FLUSH BINARY LOGS", f"TRUNCATE `{world.table}`"]))
                ids = {int(found[0]) for found in world.sql("SELECT id FROM {t}")}


def test_the_replica_equals_the_table_over_random_epochs_that_can_be_read_again(world: World) -> None:
    """Goal: nothing lost, repeated or reordered. Method: rebuild the table; read ranges again in another life."""
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    write_much(world, rng, 20)
    position, replica = world.begin(), Replica()
    ranges: list[tuple[Offsets, Offsets, list[dict[str, Any]]]] = []
    for _ in range(6):
        write_much(world, rng, 60)
        for _ in range(rng.randint(1, 8)):
            end = world.next(position, rng.choice([1, 7, 50, 1000, None]))
            changes = world.read(position, end)
            replica.apply(changes)
            ranges.append((position, end, changes))
            position = end
        if rng.random() < 0.5:
            world.life()
    rest, _ = world.read_all(position)
    replica.apply(rest)
    assert replica.rows == table_now(world), f"seed {seed}"
    world.life()
    for start, end, changes in rng.sample(ranges, 10):
        assert world.read(start, end) == changes, f"seed {seed}"
    seen = [{change["transaction"] for change in changes if change["transaction"]} for _, _, changes in ranges]
    assert not any(one & other for one, other in itertools.combinations(seen, 2)), f"seed {seed}"


def test_a_transaction_is_never_split(world: World) -> None:
    start = world.begin()
    world.sql("START TRANSACTION", *(row(id) for id in range(10)), "COMMIT", row(100), row(101))
    epochs = []
    while (end := world.next(start, 3)) != start:
        epochs.append([change["after"]["id"] for change in world.read(start, end)])
        start = end
    assert epochs == [list(range(10)), [100, 101]]


def test_a_transaction_larger_than_a_batch_comes_whole_and_in_order(world: World) -> None:
    start = world.begin()
    numbers = (
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT i, 'x', i FROM n"
    )
    world.sql(
        "SET @@cte_max_recursion_depth = 20000" if MYSQLD else "SET @@max_recursive_iterations = 20000",
        "START TRANSACTION",
        f"INSERT INTO {{t}} {numbers}",
        "UPDATE {t} SET amount = 0 WHERE id > 7000",
        "COMMIT",
    )
    end = world.next(start)
    table = world.table_of(start, end)
    assert table["seq"].to_pylist() == list(range(13000))
    assert max(len(batch) for batch in table.to_batches()) <= 2 * MOST_ROWS
    assert [change["after"]["id"] for change in table.slice(10000).to_pylist()] == list(range(7001, 10001))


def test_a_place_that_no_server_can_be_asked_for_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: reading goes on after a transaction of 4 GB. Method: everything is beyond the farthest place."""
    monkeypatch.setattr(positions, "FARTHEST", 0)
    start = world.begin()
    world.sql(row(1), row(2), row(3))
    changes, end = world.read_all(start, 1)
    assert [change["after"]["id"] for change in changes] == [1, 2, 3]
    world.life()
    world.control.check(end)
    with pytest.raises(SourceHistoryLost):
        world.control.check({**end, "binlog_position": str(int(end["binlog_position"]) - 1)})
    world.sql(row(4))
    assert ops(world.changes(end)) == ["insert"]


def test_other_tables_change_nothing_until_much_of_the_log_went_by(make_world: MakeWorld) -> None:
    world = make_world(PLAIN, idle_bytes=200_000)
    world.sql("CREATE TABLE {t}_other (text LONGTEXT)", "CREATE DATABASE IF NOT EXISTS elsewhere")
    start = world.begin()
    world.sql("INSERT INTO {t}_other VALUES (REPEAT('x', 90000))", "CREATE TABLE elsewhere.{t} (id INT)")
    world.sql("INSERT INTO elsewhere.{t} VALUES (1)")
    assert world.next(start) == start
    world.sql("INSERT INTO {t}_other VALUES (REPEAT('x', 90000))")
    assert world.next(start) == start
    world.sql("INSERT INTO {t}_other VALUES (REPEAT('x', 90000))")
    moved = world.next(start)
    assert moved != start
    assert world.read(start, moved) == []
    world.sql(row(1))
    assert ops(world.changes(moved)) == ["insert"]
    assert ops(world.read(start, world.next(start))) == ["insert"]


def test_an_availablenow_run_ends_where_the_log_ended_when_it_began(world: World) -> None:
    start = world.begin()
    world.sql(*(row(id) for id in range(5)))
    world.reader.prepareForTriggerAvailableNow()
    world.sql(*(row(id) for id in range(5, 9)))
    changes, end = world.read_all(start, 2)
    assert [change["after"]["id"] for change in changes] == [0, 1, 2, 3, 4]
    world.life()
    assert len(world.changes(end)) == 4


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE {t}",
        "truncate `shop`.`{t}`",
        "/* all of it */ TRUNCATE -- really\n {t}",
        "TRUNCATE {t} /*!40000 */",
    ],
)
def test_truncation_is_recognised_however_it_is_written(world: World, statement: str) -> None:
    start = world.begin()
    world.sql(statement)
    assert ops(world.changes(start)) == ["truncate"]


def test_tables_of_an_engine_without_transactions_are_read_too(make_world: MakeWorld) -> None:
    world = make_world()
    world.sql("ALTER TABLE {t} ENGINE = MyISAM", row(1))
    start = world.begin()
    world.sql(row(2), "UPDATE {t} SET name = 'y'", "DELETE FROM {t} WHERE id = 1")
    changes = world.changes(start)
    assert ops(changes) == ["snapshot", "insert", "update", "update", "delete"]


def test_a_snapshot_fits_the_log_while_others_write(world: World, tmp_path: Path) -> None:
    """Goal: snapshot and changes meet without gap or overlap. Method: writers never stop while they are taken."""
    write_much(world, random.Random(1), 5)
    done = threading.Event()

    def write() -> None:
        rng = random.Random(2)
        while not done.is_set():
            write_much(world, rng, 5)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        starts = []
        for number in range(5):
            world.directory = tmp_path / str(number)
            world.life()
            starts.append((world.directory, world.begin()))
    finally:
        done.set()
        writer.join()
    expected = table_now(world)
    for directory, start in starts:
        world.directory, world.begun = directory, start
        world.life()
        replica = Replica()
        replica.apply(world.changes(start))
        assert replica.rows == expected


# The snapshot


def test_a_row_that_comes_while_a_snapshot_is_read_is_a_change_and_not_in_it(world: World, server: Server) -> None:
    """Goal: the snapshot is of one moment. Method: keep its query waiting, write, and let it go on."""
    world.sql(row(1))
    waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%'"
    begin = threading.Thread(target=world.begin)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {world.table} WRITE")
        begin.start()
        while not server.run(waiting):
            time.sleep(0.01)
        cursor.execute(row(2).replace("{t}", world.table))
        cursor.execute("UNLOCK TABLES")
    begin.join()
    replica = Replica()
    replica.apply(world.changes(world.begun))
    assert set(replica.rows) == {1, 2}


class FailingMaterials(DirectoryMaterials):
    """Materials whose n-th write is the last thing that happens."""

    def __init__(self, place: str, writes: int) -> None:
        super().__init__(place)
        object.__setattr__(self, "left", itertools.repeat(None, writes))

    def put_file(self, name: str, path: str) -> None:
        self._count()
        super().put_file(name, path)

    def put(self, name: str, data: bytes) -> None:
        self._count()
        super().put(name, data)

    def below(self, prefix: str) -> "FailingMaterials":
        below = FailingMaterials(super().below(prefix).place, 0)
        object.__setattr__(below, "left", self.left)  # type: ignore[attr-defined]
        return below

    def _count(self) -> None:
        if next(self.left, "none left") == "none left":  # type: ignore[attr-defined]
            raise KeyboardInterrupt


@pytest.mark.parametrize("writes", range(5))
def test_a_snapshot_that_broke_off_is_taken_anew(make_world: MakeWorld, writes: int) -> None:
    """Goal: never half of one, nor parts of two. Method: stop at every write, change the table, begin again."""
    world = make_world(max_rows=5)
    world.sql(*(row(id) for id in range(12)))
    failing = FailingMaterials(world.materials.place, writes)
    world.control.bind(SourceContext("orders", "shop", failing))
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(KeyboardInterrupt)) if writes < 4 else None
        world.begin()
    world.sql("DELETE FROM {t} WHERE id < 6", row(50))
    world.life()
    start = world.begin()
    assert world.begin() == start
    names = world.materials.names(f"{FOLDER}/")
    assert len({name.split("/")[1] for name in names}) == 1
    replica = Replica()
    replica.apply(world.changes(start))
    assert replica.rows == table_now(world)


def test_a_snapshot_of_which_a_part_is_gone_is_taken_anew(make_world: MakeWorld) -> None:
    world = make_world(max_rows=5)
    world.sql(*(row(id) for id in range(12)))
    start = world.begin()
    attempt = start["snapshot"].partition("@")[2]
    world.materials.remove(f"{FOLDER}/{attempt}/000001.parquet")
    world.life()
    again = world.begin()
    assert again["snapshot"] != start["snapshot"]
    assert len(world.changes(again)) == 12


def test_a_snapshot_is_read_in_epochs_and_goes_on_after_a_restart(make_world: MakeWorld) -> None:
    world = make_world(max_rows=5)
    world.sql(*(row(id) for id in range(12)))
    start = world.begin()
    assert start["snapshot"].startswith("0/3@")
    world.sql(row(99))
    first = world.next(start, 5)
    assert first["snapshot"].startswith("1/3@")
    world.life()
    world.control.check(first)
    rest, end = world.read_all(first, 5)
    assert ops(world.read(start, first)) == ["snapshot"] * 5
    assert ops(rest) == ["snapshot"] * 7 + ["insert"]
    assert "snapshot" not in end


def test_the_snapshot_is_removed_once_no_checkpoint_reads_it(make_world: MakeWorld) -> None:
    world = make_world(max_rows=5)
    world.sql(*(row(id) for id in range(12)))
    start = world.begin()
    middle = world.next(start, 5)
    world.control.acknowledge(middle)
    assert world.read(start, middle)
    _, end = world.read_all(middle, 5)
    world.control.acknowledge(end)
    assert world.materials.names(f"{FOLDER}/") == []
    for position in (start, middle):
        with pytest.raises(SourceHistoryLost, match=r"chunk \d of 3 of snapshot .* comes next, and it is not below"):
            world.control.check(position)
    world.control.check(end)


# Beside the epochs


def test_the_head_and_the_lag_are_told_in_transactions(world: World) -> None:
    start = world.begin()
    world.sql(row(1), row(2), row(3))
    head = world.control.head()
    assert world.control.lag(start, head) == Lag(3, "transactions")
    assert world.control.lag(head, start) == Lag(0, "transactions")
    assert world.control.lag(world.next(start), head).amount == 0


def test_the_numbers_under_which_the_log_is_read_can_be_chosen(make_world: MakeWorld) -> None:
    world = make_world(server_id=4000)
    settings = CdcSettings.of_options(world.spec.options)
    assert [settings.new_replica_id(number) for number in (0, 1)] == [4000, 4001]
    world.life(server_id=None)
    own = {CdcSettings.of_options(world.spec.options).new_replica_id() for _ in range(50)}
    assert len(own) == 50
    assert all(1 << 31 <= number < 1 << 32 for number in own)


def test_two_pipelines_read_one_table_beside_each_other(world: World) -> None:
    """Goal: nobody is cut off by another's number. Method: both read at once, again and again."""
    start = world.begin()
    world.sql(*(row(id) for id in range(50)))
    counts: list[int] = []

    def read() -> None:
        with contextlib.closing(world.beside()) as other:
            other.begun = start
            counts.extend(len(other.changes(start)) for _ in range(5))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert counts == [50] * 15


def test_a_user_who_may_not_read_the_log_is_told_so(server: Server, world: World) -> None:
    server.run("CREATE USER IF NOT EXISTS poor@'%' IDENTIFIED BY 'poor-secret'", "GRANT SELECT ON shop.* TO poor@'%'")
    world.url = world.url.replace("cdc:", "poor:").replace(PASSWORD, "poor-secret")
    world.life()
    for ask in (lambda: world.control.can_read(None), world.begin):
        with pytest.raises(SourceError, match="Access denied") as caught:
            ask()
        assert "poor-secret" not in str(caught.value)


def test_a_user_who_may_only_see_the_table_is_told_so_before_a_start(server: Server, world: World) -> None:
    """Goal: what the copy of the rows would be refused is known when it is asked for. Method: no SELECT on them."""
    server.run(
        "CREATE USER IF NOT EXISTS blind@'%' IDENTIFIED BY 'blind'", "GRANT REPLICATION CLIENT ON *.* TO blind@'%'"
    )
    server.run(f"GRANT INSERT ON shop.{world.table} TO blind@'%'")
    world.url = world.url.replace("cdc:", "blind:").replace(PASSWORD, "blind")
    world.life()
    with pytest.raises(SourceError, match="SELECT command denied"):
        world.control.can_read(None)
    world.life(snapshot=False)
    world.control.can_read(None)
