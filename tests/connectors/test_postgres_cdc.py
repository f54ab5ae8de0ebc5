"""The postgres_cdc source against a real server: what it reads is the table, whatever happens in between."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from connectors.postgres_cdc_world import Offsets, Replica, World, worlds
from connectors.postgres_server import Server, running
from holdfast import sources
from holdfast.connectors.postgres_cdc import snapshot as postgres_cdc_snapshot
from holdfast.connectors.postgres_cdc import spool as postgres_cdc_spool
from holdfast.connectors.postgres_cdc.control import PostgresCdcControl
from holdfast.connectors.postgres_cdc.positions import parse_lsn
from holdfast.connectors.postgres_cdc.settings import CdcSettings
from holdfast.core.sources import SourceContext
from holdfast.errors import PipelineDefinitionError
from holdfast.stores.materials import DirectoryMaterials
from holdfast.testing import ManualClock

New = Callable[..., World]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def new(server: Server, tmp_path: Path) -> Iterator[New]:
    with worlds(server.url, tmp_path) as new:
        yield new


# The table


KINDS = {"insert": 6, "update": 6, "note": 2, "key": 3, "delete": 3, "many": 1, "truncate": 0.1}


class Traffic:
    """Random transactions on the table of a world: rows with large values, changed keys, rollbacks, truncates."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._random = world, random.Random(seed)

    def transaction(self) -> None:
        with self._world.database.transaction(force_rollback=self._random.random() < 0.1):
            for _ in range(self._random.choice((1, 1, 2, 5, 20))):
                self._statement()

    def _statement(self) -> None:
        table, draw = self._world.table, self._random
        id, other = draw.randrange(200), draw.randrange(200)
        note = draw.choice((None, "", f"short {id}", f"{draw.getrandbits(64):x}" * 600))
        match draw.choices(list(KINDS), list(KINDS.values()))[0]:
            case "insert":
                insert = f"INSERT INTO {table} VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
                self._world.sql(insert, id, f"name {id}", draw.randrange(10_000) / 100, note)
            case "update":
                self._world.sql(f"UPDATE {table} SET amount = amount + 1, name = %s WHERE id = %s", f"n{other}", id)
            case "note":
                self._world.sql(f"UPDATE {table} SET note = %s WHERE id = %s", note, id)
            case "key":
                taken = f"EXISTS (SELECT 1 FROM {table} WHERE id = %s)"
                self._world.sql(f"UPDATE {table} SET id = %s WHERE id = %s AND NOT {taken}", other, id, other)
            case "delete":
                self._world.sql(f"DELETE FROM {table} WHERE id = %s", id)
            case "many":
                self._world.sql(f"UPDATE {table} SET amount = amount * 2 %% 100000 WHERE id %% 7 = %s", id % 7)
            case "truncate":
                self._world.sql(f"TRUNCATE {table}")


def table_of(world: World) -> dict[int, dict[str, Any]]:
    names = ("id", "name", "amount", "note")
    return {row[0]: dict(zip(names, row, strict=True)) for row in world.sql(f"SELECT * FROM {world.table}")}


@pytest.mark.parametrize(("seed", "identity"), [(1, "DEFAULT"), (2, "FULL"), (3, "DEFAULT")])
def test_the_replica_is_the_table_and_every_range_reads_the_same_again(new: New, seed: int, identity: str) -> None:
    """Goal: nothing is lost, repeated or out of order. Method: a replica, over random changes, limits, new lives.

    On the way ranges are acknowledged, and what is kept is read again.
    """
    world, draw = new(), random.Random(seed)
    world.sql(f"ALTER TABLE {world.table} REPLICA IDENTITY {identity}")
    traffic, replica = Traffic(world, seed), Replica()
    for _ in range(30):
        traffic.transaction()
    position = world.begin()
    read: list[tuple[Offsets, Offsets, list[dict[str, Any]]]] = []
    for _ in range(120):
        for _ in range(draw.randrange(8)):
            traffic.transaction()
        end = world.next(position, draw.choice((1, 3, 10, 50, 1000)))
        if end != position:
            rows = world.read(position, end)
            replica.apply(rows)
            read.append((position, end, rows))
            position = end
        match draw.choices(("again", "life", "acknowledge", "go on"), (2, 1, 1, 6))[0]:
            case "again" if read:
                first, last, before = draw.choice(read)
                assert world.read(first, last) == before
            case "life":
                world.life()
                world.control.check(position)
            case "acknowledge" if len(read) > 10:
                read = read[draw.randrange(10) :]
                world.control.acknowledge(read[0][0])
    rows, position = world.read_all(position, 20)
    replica.apply(rows)
    assert replica.rows == table_of(world)
    for first, last, before in read:
        assert world.read(first, last) == before
    assert world.read(read[0][0], read[-1][1]) == [row for _, _, rows in read for row in rows if row]


def test_position_and_seq_order_everything(new: New) -> None:
    world = new()
    traffic = Traffic(world, 4)
    for _ in range(20):
        traffic.transaction()
    start = world.begin()
    for _ in range(50):
        traffic.transaction()
    rows = world.changes(start)
    places = [(row["position"], row["seq"]) for row in rows]
    assert places == sorted(set(places))
    assert {row["op"] for row in rows if row["seq"] < 0} == {"snapshot"}
    assert {row["op"] for row in rows if row["seq"] >= 0} >= {"insert", "update", "delete"}


# Epochs


def fill(world: World, *transactions: int) -> None:
    """Insert rows, so many in each transaction."""
    ((first,),) = world.sql(f"SELECT coalesce(max(id), 0) FROM {world.table}")
    for count in transactions:
        ids = f"generate_series({first + 1}, {first + count})"
        world.sql(f"INSERT INTO {world.table} SELECT id, 'x' FROM {ids} id")
        first += count


def epochs(world: World, start: Offsets, most_rows: int) -> list[int]:
    """Return how many rows the epochs have; no transaction is in two of them."""
    sizes, seen = [], set()
    while (end := world.next(start, most_rows)) != start:
        rows = world.read(start, end)
        transactions = {row["transaction"] for row in rows}
        assert not transactions & seen
        seen |= transactions
        sizes.append(len(rows))
        start = end
    return sizes


def test_an_epoch_ends_with_the_transaction_that_fills_it(new: New) -> None:
    world = new()
    start = world.begin()
    fill(world, 3, 1, 1, 50, 2)
    assert epochs(world, start, 1) == [3, 1, 1, 50, 2]
    assert epochs(world, start, 4) == [4, 51, 2]
    assert epochs(world, start, 1000) == [57]


def test_an_epoch_of_large_rows_ends_early(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.postgres_cdc.stream._EPOCH_BYTES", 10_000)
    world = new()
    start = world.begin()
    for id in range(4):
        world.sql(f"INSERT INTO {world.table} VALUES (%s, %s)", id, "x" * 6000)
    assert epochs(world, start, 1000) == [2, 2]


def test_without_a_change_the_position_stays(new: New) -> None:
    world, other = new(), new()
    start = world.begin()
    assert world.next(start) == start
    fill(other, 10)
    assert world.next(start) == start
    fill(world, 1)
    end = world.next(start)
    assert end != start
    assert world.next(end) == end


def test_asked_again_an_epoch_is_still_the_same(new: New) -> None:
    """Goal: an epoch that was told stays what it is. Method: ask again after more was written."""
    world = new()
    start = world.begin()
    fill(world, 1)
    end = world.next(start)
    fill(world, 1)
    assert world.next(start) == end
    assert len(world.read(start, end)) == 1
    assert epochs(world, end, 10) == [1]


def test_with_available_now_nothing_is_read_that_was_written_later(new: New) -> None:
    world = new()
    start = dict(world.begin())
    fill(world, 1, 2)
    reader = world.reader
    reader.prepareForTriggerAvailableNow()
    fill(world, 4)
    middle = reader.latestOffset(start, ReadMaxRows(1))
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert [len(world.read(*pair)) for pair in ((start, middle), (middle, end))] == [1, 2]
    reader.prepareForTriggerAvailableNow()
    assert len(world.read(end, reader.latestOffset(end, ReadAllAvailable()))) == 4


def test_a_running_stream_sees_what_is_written(new: New) -> None:
    """Goal: without an end in sight, changes arrive. Method: ask as Spark does, again and again."""
    world = new()
    start = position = dict(world.begin())
    for _ in range(5):
        fill(world, 2)
        while (end := world.reader.latestOffset(position, ReadMaxRows(100))) == position:
            pass
        assert len(world.read(position, end)) == 2
        position = end
    assert len(world.read(start, position)) == 10


def test_a_server_busy_with_other_tables_may_let_its_log_go(new: New) -> None:
    """Goal: a quiet table does not fill the server's disk. Method: write elsewhere; the position moves on."""
    world, other = new(idle_bytes=200_000), new()
    start = world.begin()
    fill(world, 1)
    position = world.next(start)
    fill(other, 1000)
    world.sql("CHECKPOINT")
    assert world.next(position) == position
    fill(other, 5000)
    assert world.next(position) == position, "a position that a crash could take back is not taken"
    world.sql("CHECKPOINT")
    fill(world, 1)
    first = world.next(position)
    assert len(world.read(position, first)) == 1
    fill(other, 5000)
    world.sql("CHECKPOINT")
    end = world.next(first)
    assert parse_lsn(end["lsn"]) - parse_lsn(first["lsn"]) > 200_000
    assert world.reader.partitions(dict(first), dict(end)) == [], "what is known to be empty is not read"
    world.life()
    assert world.read(first, end) == []
    fill(world, 1)
    assert len(world.read(first, world.next(end))) == 1
    world.control.acknowledge(end)
    assert world.slot_stands_at() == end["lsn"]


def test_a_publication_of_many_tables_gives_one(new: New) -> None:
    world, other = new(publication="everything"), new()
    world.sql("CREATE PUBLICATION everything FOR ALL TABLES")
    start = world.begin()
    fill(other, 5, 1)
    with world.database.transaction():
        fill(other, 1)
        fill(world, 2)
        fill(other, 1)
    fill(other, 3)
    world.sql(f"TRUNCATE {other.table}")
    world.sql(f"TRUNCATE {other.table}, {world.table}")
    assert [row["op"] for row in world.changes(start)] == ["insert", "insert", "truncate"]
    assert epochs(world, start, 1) == [2, 1]
    world.sql("DROP PUBLICATION everything")


def test_the_file_of_an_epoch_is_only_a_short_cut(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: an epoch is the same with and without the file. Method: one that is too large, cut off, or not there."""
    world = new()
    start = world.begin()
    fill(world, 3)
    end = world.next(start)
    (part,) = world.reader.partitions(dict(start), dict(end))
    whole = [batch.to_pylist() for batch in world.reader.read(part)]
    path = Path(part.value.file.path)
    path.write_bytes(path.read_bytes()[:-1])
    assert [batch.to_pylist() for batch in world.reader.read(part)] == whole
    path.unlink()
    assert [batch.to_pylist() for batch in world.reader.read(part)] == whole
    monkeypatch.setattr(postgres_cdc_spool, "_LARGEST", 100)
    world.life()
    assert world.next(start) == end
    (part,) = world.reader.partitions(dict(start), dict(end))
    assert part.value.file is None
    assert [batch.to_pylist() for batch in world.reader.read(part)] == whole


def test_a_large_epoch_is_read_in_several_parts(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: tasks share an epoch, and each can read its part alone. Method: small parts, with and without a file."""
    monkeypatch.setattr("holdfast.connectors.postgres_cdc.stream._PART_BYTES", 1000)
    world = new()
    start = world.begin()
    fill(world, *(7 for _ in range(40)))
    world.sql(f"ALTER TABLE {world.table} ALTER COLUMN amount TYPE numeric(14,2)")
    fill(world, *(7 for _ in range(40)))
    end = world.next(start)
    parts = world.reader.partitions(dict(start), dict(end))
    assert len(parts) > 10
    shared = [[row for batch in world.reader.read(part) for row in batch.to_pylist()] for part in parts]
    assert all(shared)
    world.life()
    assert world.read(start, end) == [row for rows in shared for row in rows]
    Path(parts[0].value.file.path).unlink(missing_ok=True)
    for part, rows in list(zip(parts, shared, strict=True))[::5]:
        assert [row for batch in world.reader.read(part) for row in batch.to_pylist()] == rows


def test_files_of_a_killed_reader_are_removed(new: New, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    world, other = new(), new()
    for each in (world, other):
        start = each.begin()
        fill(each, 1)
        each.next(start)
    folders = set(tmp_path.glob("holdfast-*"))
    assert len(folders) == 2
    world.life()
    world.next(world.begun)
    assert len(set(tmp_path.glob("holdfast-*")) - folders) == 1
    assert len(set(tmp_path.glob("holdfast-*")) & folders) == 1, "those of other tables stay"


def test_a_large_transaction_comes_in_small_batches(new: New) -> None:
    world = new()
    start = world.begin()
    fill(world, 30_000)
    end = world.next(start, 10)
    batches = [batch for part in world.reader.partitions(dict(start), dict(end)) for batch in world.reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 30_000
    assert max(batch.num_rows for batch in batches) == 5000


# Tables


def test_only_the_columns_that_were_named_are_read(new: New) -> None:
    world = new(columns=("name", "id"))
    world.sql(f"INSERT INTO {world.table} VALUES (1, 'a', 1, 'x')")
    start = world.begin()
    world.sql(f"INSERT INTO {world.table} VALUES (2, 'b', 2, 'y')")
    world.sql(f"ALTER TABLE {world.table} ADD COLUMN more int DEFAULT 3, DROP COLUMN note")
    world.sql(f"INSERT INTO {world.table} VALUES (3, 'c', 2, 4)")
    assert [row["after"] for row in world.changes(start)] == [
        {"name": "a", "id": 1},
        {"name": "b", "id": 2},
        {"name": "c", "id": 3},
    ]


def test_a_partitioned_table_is_one_table(new: New) -> None:
    world = new("id int PRIMARY KEY")
    world.sql(f"DROP TABLE {world.table}")
    world.sql(f"CREATE TABLE {world.table} (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)")
    for part in (0, 1):
        values = f"FOR VALUES FROM ({part * 100}) TO ({part * 100 + 100})"
        world.sql(f"CREATE TABLE {world.table}_{part} PARTITION OF {world.table} {values}")
    fill(world, 150)
    start = world.begin()
    world.sql(f"UPDATE {world.table} SET id = 199 WHERE id = 1")
    replica = Replica()
    replica.apply(world.changes(start))
    assert set(replica.rows) == {199, *range(2, 151)}


def test_rows_of_tables_that_inherit_are_not_ours(new: New) -> None:
    world = new()
    world.sql(f"CREATE TABLE {world.table}_child () INHERITS ({world.table})")
    world.sql(f"INSERT INTO {world.table}_child VALUES (1)")
    start = world.begin()
    world.sql(f"INSERT INTO {world.table}_child VALUES (2)")
    fill(world, 1)
    assert [row["op"] for row in world.changes(start)] == ["insert"]


# The snapshot


def test_a_snapshot_and_the_changes_beside_it_fit_together(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no change falls between snapshot and log. Method: write all the time while the snapshot is taken."""
    monkeypatch.setattr(postgres_cdc_snapshot, "_BATCH_ROWS", 50)
    monkeypatch.setattr(postgres_cdc_snapshot, "_CHUNK_BYTES", 5000)
    world = new()
    traffic = Traffic(world, 5)
    fill(world, 200)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            traffic.transaction()

    writer = threading.Thread(target=write)
    writer.start()
    start = world.begin()
    done.set()
    writer.join()
    replica = Replica()
    rows, _ = world.read_all(start, 100)
    replica.apply(rows)
    assert replica.rows == table_of(world)


def test_snapshot_epochs_are_chunks_that_can_be_read_again(new: New, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_cdc_snapshot, "_BATCH_ROWS", 10)
    monkeypatch.setattr(postgres_cdc_snapshot, "_CHUNK_BYTES", 1)
    world = new()
    fill(world, 35)
    start = world.begin()
    assert list(start) == ["lsn", "snapshot"]
    assert start["snapshot"] == "0"
    fill(world, 2)
    world.life()
    one = world.next(start, 1)
    assert one == {**start, "snapshot": "1"}
    three = world.next(one, 20)
    assert three == {**start, "snapshot": "3"}
    four = world.next(three)
    assert four == {"lsn": start["lsn"]}, "what is read after the snapshot has no more to say of it"
    rows = world.read(start, four)
    assert [row["seq"] for row in rows] == list(range(-35, 0))
    assert {parse_lsn(row["position"]) for row in rows} == {parse_lsn(start["lsn"])}
    assert {row["op"] for row in rows} == {"snapshot"}
    assert [row["after"]["id"] for row in rows] == list(range(1, 36))
    assert rows == world.read(start, one) + world.read(one, three) + world.read(three, four)
    world.control.acknowledge(three)
    assert world.read(three, four) == rows[30:]
    end = world.next(four)
    assert len(world.read(three, end)) == 7
    world.control.acknowledge(four)
    assert not list((world.directory / "materials").rglob("*.parquet"))
    assert world.changes(four) == world.read(four, end)


def test_an_empty_table_has_no_snapshot_to_read(new: New) -> None:
    world = new()
    start = world.begin()
    assert list(start) == ["lsn"]
    assert world.changes(start) == []


def test_without_a_snapshot_only_changes_are_read(new: New) -> None:
    world = new(snapshot=False)
    fill(world, 3)
    start = world.begin()
    assert world.begin() == start
    fill(world, 2)
    assert [row["op"] for row in world.changes(start)] == ["insert", "insert"]


# What others see


def test_identity_and_options_hide_the_password(server: Server) -> None:
    url = server.url.replace("postgres@", "postgres:hunter2222@")
    spec = sources.postgres_cdc(url, "public.orders", max_rows=7)
    assert "hunter2222" not in json.dumps(spec.identity()) + repr(spec.control) + json.dumps(dict(spec.metadata))
    assert "max_rows" not in json.dumps(spec.identity())
    options = spec.identity()["options"]
    assert isinstance(options, dict)
    assert options["slot"] == options["publication"] == "holdfast_public_orders"
    assert options["server"].startswith("127.0.0.1:")


def test_names_come_from_the_table() -> None:
    def slot(table: str) -> str:
        return sources.postgres_cdc("postgresql://h/d", table).metadata["slot"]

    assert slot("orders") == "holdfast_orders"
    assert slot("Orders") != slot("orders")
    assert slot('"a.b"') != slot("a.b")
    assert len(slot("x" * 63)) <= 54


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slot": "Mine"}, "is no name for a slot"),
        ({"slot": "x" * 55}, "is no name for a slot"),
        ({"publication": "x" * 64}, "longer than"),
        ({"max_rows": 0}, "max_rows"),
        ({"idle_bytes": 0}, "idle_bytes"),
        ({"on_history_lost": "ignore"}, "stop, continue"),
        ({"columns": ("id",), "as_text": ("name",)}, "as_text names 'name'"),
        ({"columns": ("id", "id")}, "names one twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        sources.postgres_cdc("postgresql://h/d", "orders", **settings)


class SlowClock(ManualClock):
    """Everything takes a second."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def test_the_slot_moves_when_it_is_acknowledged_but_not_all_the_time(new: New) -> None:
    """Goal: acknowledging is no burden for the server. Method: after a move of a second, ten of rest."""
    world, clock = new(), SlowClock()
    start = world.begin()
    settings = CdcSettings.of_options(world.spec.options)
    control = PostgresCdcControl(settings, snapshot=True, slot_is_named=False, clock=clock)
    control.bind(SourceContext("orders", "shop", DirectoryMaterials(str(world.directory / "materials"))))
    fill(world, 1)
    middle = world.next(start)
    fill(world, 1)
    end = world.next(middle)
    control.acknowledge(middle)
    assert world.slot_stands_at() == middle["lsn"]
    control.acknowledge(end)
    assert world.slot_stands_at() == middle["lsn"]
    clock.advance(10.0)
    control.acknowledge(end)
    assert world.slot_stands_at() == end["lsn"]
    clock.advance(60.0)
    control.acknowledge(middle)
    assert world.slot_stands_at() == end["lsn"], "it never moves back"
    control.close()


def test_head_and_lag_count_bytes_of_the_log(new: New) -> None:
    world = new()
    start = world.begin()
    fill(world, 100)
    head = world.control.head()
    lag = world.control.lag(start, head)
    assert lag.unit == "bytes"
    assert lag.amount == parse_lsn(head["lsn"]) - parse_lsn(start["lsn"]) > 1000
    assert world.control.lag(head, start).amount == 0
