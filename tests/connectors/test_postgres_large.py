"""Large epochs of the PostgreSQL sink: Spark's tasks copy their partitions, and none of them twice."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.postgres_target import PostgresPlace, postgres, read_postgres, schema_of, sql, wait_until
from connectors.targets import (
    BY_NAME,
    RICH_ROWS,
    RICH_SCHEMA,
    SCHEMA,
    Row,
    SparkRows,
    Target,
    Writer,
    bound,
    orders,
    rich_frame,
)
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.postgres import session as postgres_session
from holdfast.connectors.postgres.address import Address
from holdfast.connectors.postgres.columns import Wire
from holdfast.connectors.postgres.copying import PartitionCopy
from holdfast.connectors.postgres.session import Session
from holdfast.connectors.postgres.staging import create_parts
from holdfast.core.contracts import CommitOutcome, Token
from holdfast.errors import RetryableSinkError, SinkError

pytestmark = pytest.mark.usefixtures("postgres_url")

APPEND, UPSERT = BY_NAME["postgres-append"], BY_NAME["postgres-upsert"]


# --- one task


@pytest.fixture
def copy(postgres_url: str, tmp_path: Path) -> PartitionCopy:
    """Return what a task is given, for a staging table that is there."""
    schema = schema_of(tmp_path)
    sql(f"CREATE SCHEMA {schema}")
    sql(f"CREATE TABLE {schema}.staged (id bigint, name text, amount float8 CHECK (amount < 1000))")
    with Session(Address(postgres_url), 10).transaction() as connection:
        create_parts(connection, schema)
    wires = [Wire(field.name, field.type) for field in SCHEMA]
    return PartitionCopy(Address(postgres_url), 10, schema, "staged", SCHEMA, wires)


def batches(*ids: int) -> Iterator[pa.RecordBatch]:
    for id in ids:
        yield pa.RecordBatch.from_pylist(orders(id), schema=SCHEMA)


def copied(tmp_path: Path) -> list[int]:
    return [id for (id,) in sql(f"SELECT id FROM {schema_of(tmp_path)}.staged ORDER BY id")]


def test_a_task_that_runs_again_copies_nothing(copy: PartitionCopy, tmp_path: Path) -> None:
    for part, ids in ((0, (1, 2)), (1, (3,)), (0, (1, 2)), (2, ()), (1, (3,))):
        copy.run(part, batches(*ids))
    assert copied(tmp_path) == [1, 2, 3]


def test_a_task_that_failed_is_copied_by_its_next_run(copy: PartitionCopy, tmp_path: Path) -> None:
    def dies_on_the_way() -> Iterator[pa.RecordBatch]:
        yield from batches(1, 2)
        raise EOFError("the executor is gone")

    with pytest.raises(SinkError):
        copy.run(0, dies_on_the_way())
    assert copied(tmp_path) == []
    copy.run(0, batches(1, 2))
    assert copied(tmp_path) == [1, 2]


@pytest.mark.parametrize("first_ends_well", [True, False])
def test_two_runs_of_a_task_at_once_copy_its_rows_once(
    copy: PartitionCopy, tmp_path: Path, first_ends_well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speculation: the second run waits for the first, longer than for any other lock."""
    monkeypatch.setattr(postgres_session, "_LOCK_SECONDS", 0.05)
    go_on = threading.Event()

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from batches(1)
        assert go_on.wait(10)
        yield from batches(2 if first_ends_well else 2000)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(copy.run, 0, slowly())
        wait_until("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'COPY%FROM STDIN%' AND pid <> pg_backend_pid()")
        second = pool.submit(copy.run, 0, batches(1, 2))
        wait_until(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND now() > query_start + interval '0.2 s'"
        )
        go_on.set()
        if first_ends_well:
            first.result()
        else:
            with pytest.raises(SinkError, match="check constraint"):
                first.result()
        second.result()
    assert copied(tmp_path) == [1, 2]


# --- with Spark


def frame(spark: Any, rows: int, partitions: int = 3) -> Any:
    return spark.range(0, rows, 1, partitions).selectExpr("id", "'anna' name", "id + 0.5D amount")


@pytest.mark.parametrize("target", [APPEND, UPSERT], ids=lambda target: target.name)
def test_spark_stages_large_epochs(spark: Any, tmp_path: Path, target: Target) -> None:
    writer = Writer(target, tmp_path)
    prepared = writer.sink.prepare(SparkRows(frame(spark, 5000)), writer.ref(1))
    assert read_postgres(tmp_path) == []
    assert sql(f"SELECT part FROM {schema_of(tmp_path)}._holdfast_parts ORDER BY part") == [(0,), (1,), (2,)]
    token = Token(1, 1, 0, 0, prepared.rows, "r", prepared.payload)
    assert bound(target, tmp_path).staged(token).num_rows == 5000
    assert writer.commit(token) is CommitOutcome.DONE
    assert sorted(read_postgres(tmp_path), key=lambda row: row["id"]) == orders(*range(5000))
    assert PostgresPlace().staged(tmp_path) == []
    assert sql(f"SELECT count(*) FROM {schema_of(tmp_path)}._holdfast_parts") == [(0,)]


def test_large_and_small_epochs_lie_alike(spark: Any, tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path, schema=RICH_SCHEMA)
    writer.write(1, RICH_ROWS)
    prepared = writer.sink.prepare(SparkRows(rich_frame(spark).repartition(2)), writer.ref(2))
    token = Token(2, 1, 0, 1, prepared.rows, "r", prepared.payload)
    found = bound(APPEND, tmp_path, RICH_SCHEMA).staged(token)
    assert found.schema == plain_schema(RICH_SCHEMA)
    rows: list[Row] = sorted(found.to_pylist(maps_as_pydicts="strict"), key=lambda row: row["id"])
    assert rows == RICH_ROWS
    writer.commit(token)
    table = f"{schema_of(tmp_path)}.orders"
    columns = ", ".join(f'"{name}"' for name in RICH_SCHEMA.names)
    halves = [f"SELECT {columns} FROM {table} WHERE _holdfast_epoch = {epoch}" for epoch in (1, 2)]
    assert sql(f"SELECT count(*) FROM ({' EXCEPT '.join(halves)}) x") == [(0,)]
    assert sql(f"SELECT count(*) FROM {table}") == [(6,)]


def test_what_tasks_meet_is_said_as_if_it_had_been_met_here(
    spark: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(f"CREATE SCHEMA {schema_of(tmp_path)}")
    sql(f"CREATE TABLE {schema_of(tmp_path)}.orders (id bigint, name text, amount float8 CHECK (amount < 50))")
    writer = Writer(Target("postgres", postgres(), read_postgres), tmp_path)
    with pytest.raises(SinkError, match='relation "orders" violates check constraint') as refused:
        writer.sink.prepare(SparkRows(frame(spark, 100)), writer.ref(1))
    assert not isinstance(refused.value, RetryableSinkError)
    sql(f"ALTER TABLE {schema_of(tmp_path)}.orders ALTER COLUMN name TYPE uuid USING NULL")
    writer = Writer(Target("postgres", postgres(), read_postgres), tmp_path, 2)
    with pytest.raises(SinkError, match="'anna' is none"):
        writer.sink.prepare(SparkRows(frame(spark, 10)), writer.ref(1))


def test_rows_that_share_a_key_across_tasks_are_refused(spark: Any, tmp_path: Path) -> None:
    writer = Writer(UPSERT, tmp_path)
    twice = frame(spark, 10).union(frame(spark, 1))
    with pytest.raises(SinkError, match="same key"):
        writer.sink.prepare(SparkRows(twice), writer.ref(1))
    heir = Writer(UPSERT, tmp_path, 2)
    heir.sink.abort(heir.ref(1))
    assert PostgresPlace().staged(tmp_path) == []
    assert sql(f"SELECT count(*) FROM {schema_of(tmp_path)}._holdfast_parts") == [(0,)]
