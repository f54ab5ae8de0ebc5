"""Reference tables on real servers: queries on PostgreSQL and MariaDB, a Delta table on S3."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from connectors import mariadb_server
from connectors.mariadb_server import PASSWORD
from holdfast import tables
from holdfast.core.tables import TableVersion
from holdfast.errors import SourceError, SourceUnavailable


def rows_of(spec: Any, directory: Path) -> list[dict[str, Any]]:
    directory.mkdir()
    assert spec.fetch(None, str(directory)) == TableVersion()
    return pq.read_table(directory / "rows.parquet").to_pylist()  # type: ignore[no-any-return]


# --- PostgreSQL

POSTGRES_TYPES = """
SELECT 1::int2 AS i2, 2::int4 AS i4, 3::int8 AS i8, 1.5::float8 AS f8, 'x'::varchar(3) AS v, true AS b,
  DATE '2024-01-02' AS d, TIMESTAMPTZ '2024-01-02 03:04:05+01' AS tz, TIMESTAMP '2024-01-02 03:04:05' AS ts,
  1.50::numeric(9,2) AS n, '\\x0001'::bytea AS raw, ARRAY[1, 2] AS many, '{"a": 1}'::jsonb AS j,
  TIME '01:02:03' AS t, NULL::text AS absent"""


def test_postgres_types_become_sparks(postgres_url: str, tmp_path: Path) -> None:
    [row] = rows_of(tables.postgres(postgres_url, query=POSTGRES_TYPES), tmp_path / "out")
    assert row == {
        "i2": 1,
        "i4": 2,
        "i8": 3,
        "f8": 1.5,
        "v": "x",
        "b": True,
        "d": datetime.date(2024, 1, 2),
        "tz": datetime.datetime(2024, 1, 2, 2, 4, 5, tzinfo=datetime.UTC),
        "ts": datetime.datetime.fromisoformat("2024-01-02 03:04:05"),
        "n": "1.50",
        "raw": b"\x00\x01",
        "many": [1, 2],
        "j": '{"a": 1}',
        "t": "01:02:03.000000",
        "absent": None,
    }


@pytest.mark.parametrize(
    "value",
    [
        "'infinity'::timestamp",
        "'-infinity'::timestamptz",
        "'infinity'::date",
        "ARRAY['-infinity'::date]",
        "'24:00'::time",
        "12.5::money",
        "4294967295::oid",
        "ARRAY[1::money]",
        "'10.0.0.1'::inet",
        "B'101'",
        "'[1,5)'::int4range",
        "point(1, 2)",
        "timetz '12:00+02'",
    ],
)
def test_a_value_that_the_driver_would_distort_is_refused(value: str, postgres_url: str, tmp_path: Path) -> None:
    query = f"SELECT x FROM (VALUES (NULL), ({value})) AS v (x)"
    with pytest.raises(SourceError, match=r"column 'x' .*cast it"):
        rows_of(tables.postgres(postgres_url, query=query), tmp_path / "out")
    as_text = f"SELECT x::text FROM ({query}) AS q"
    assert len(rows_of(tables.postgres(postgres_url, query=as_text), tmp_path / "text")) == 2


def test_many_rows_of_postgres_come_in_pieces(postgres_url: str, tmp_path: Path) -> None:
    query = "SELECT i, repeat('x', 100) AS pad FROM generate_series(1, 300000) AS i"
    (tmp_path / "out").mkdir()
    tables.postgres(postgres_url, query=query).fetch(None, str(tmp_path / "out"))
    assert pq.ParquetFile(tmp_path / "out" / "rows.parquet").metadata.num_rows == 300_000
    assert pq.ParquetFile(tmp_path / "out" / "rows.parquet").num_row_groups > 1


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("SELECT * FROM nowhere", SourceError),
        ("CREATE TABLE t AS SELECT 1 AS x", SourceError),
        ("SELECT pg_sleep(5)", SourceUnavailable),
    ],
)
def test_what_postgres_refuses_is_told(query: str, kind: type[Exception], postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="PostgreSQL: ") as caught:
        rows_of(tables.postgres(postgres_url, query=query, statement_seconds=0.2), tmp_path / "out")
    assert type(caught.value) is kind


def test_an_enum_of_postgres_is_text(postgres_url: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('well', 'grün')")
    query = "SELECT 'grün'::mood AS x"
    assert rows_of(tables.postgres(postgres_url, query=query), tmp_path / "out") == [{"x": "grün"}]


def test_the_first_and_last_times_of_postgres_are_no_infinite_ones(postgres_url: str, tmp_path: Path) -> None:
    query = (
        "SELECT DATE '4714-11-24 BC' AS d, DATE '5874897-12-31' AS e, TIMESTAMP '4714-11-24 BC' AS t, NULL::date AS n"
    )
    (tmp_path / "out").mkdir()
    tables.postgres(postgres_url, query=query).fetch(None, str(tmp_path / "out"))
    assert pq.ParquetFile(tmp_path / "out" / "rows.parquet").metadata.num_rows == 1


# --- MariaDB


@pytest.fixture(scope="module")
def mariadb() -> Iterator[mariadb_server.Server]:
    with mariadb_server.running() as server:
        server.run(
            "SET time_zone = '+00:00'",
            """CREATE TABLE types (
              t1 TINYINT, u1 TINYINT UNSIGNED, i4 INT, u4 INT UNSIGNED, i8 BIGINT, u8 BIGINT UNSIGNED,
              d DOUBLE, n DECIMAL(9,2), wide DECIMAL(60,9), y YEAR, da DATE, ti TIME(3),
              dt DATETIME(6), ts TIMESTAMP NULL, v VARCHAR(10), raw VARBINARY(4), bits BIT(9), choice ENUM('a','b'),
              j JSON, big LONGTEXT)""",
            """INSERT INTO types VALUES (-1, 255, -2, 4000000000, -3, 18446744073709551615, 1.25, -12.30, 0,
              2024, '2024-01-02', '-10:20:30.5', '2024-01-02 03:04:05.678901', '2024-01-02 03:04:05', 'grün', x'0001',
              b'100000001', 'b', '{"a": 1}', 'text')""",
            "INSERT INTO types (t1) VALUES (NULL)",
        )
        yield server


def test_a_float_that_mysql_would_round_is_refused(mariadb: mariadb_server.Server, tmp_path: Path) -> None:
    mariadb.run("CREATE TABLE floats (f FLOAT)", "INSERT INTO floats VALUES (16777217)")
    with pytest.raises(SourceError, match=r"column 'f' is a FLOAT.*write f \+ 0e0"):
        rows_of(tables.mysql(mariadb.url, query="SELECT f FROM floats"), tmp_path / "out")
    [row] = rows_of(tables.mysql(mariadb.url, query="SELECT f + 0e0 AS f FROM floats"), tmp_path / "exact")
    assert row == {"f": 16_777_216.0}


def test_mysql_types_become_sparks(mariadb: mariadb_server.Server, tmp_path: Path) -> None:
    one, empty = rows_of(tables.mysql(mariadb.url, query="SELECT * FROM types"), tmp_path / "out")
    assert set(empty.values()) == {None}
    assert one == {
        "t1": -1,
        "u1": 255,
        "i4": -2,
        "u4": 4_000_000_000,
        "i8": -3,
        "u8": Decimal(2**64 - 1),
        "d": 1.25,
        "n": Decimal("-12.30"),
        "wide": "0.000000000",
        "y": 2024,
        "da": datetime.date(2024, 1, 2),
        "ti": "-10:20:30.500",
        "dt": datetime.datetime.fromisoformat("2024-01-02 03:04:05.678901"),
        "ts": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "v": "grün",
        "raw": b"\x00\x01",
        "bits": b"\x01\x01",
        "choice": "b",
        "j": '{"a": 1}',
        "big": "text",
    }


def test_many_rows_of_mysql_come_in_pieces(mariadb: mariadb_server.Server, tmp_path: Path) -> None:
    query = "SELECT seq, REPEAT('x', 100) AS pad FROM seq_1_to_120000"
    assert len(rows_of(tables.mysql(mariadb.url, query=query), tmp_path / "out")) == 120_000
    assert pq.ParquetFile(tmp_path / "out" / "rows.parquet").num_row_groups == 3


def test_a_limit_that_the_server_has_for_every_query_leaves_no_rows_out(
    mariadb: mariadb_server.Server, tmp_path: Path
) -> None:
    mariadb.run("SET GLOBAL sql_select_limit = 1")
    try:
        assert len(rows_of(tables.mysql(mariadb.url, query="SELECT 1 UNION ALL SELECT 2"), tmp_path / "out")) == 2
    finally:
        mariadb.run("SET GLOBAL sql_select_limit = DEFAULT")


@pytest.mark.parametrize(
    ("query", "kind", "message"),
    [
        ("SELECT * FROM nowhere", SourceError, "nowhere"),
        ("SELECT SLEEP(5) AS x", SourceUnavailable, "Lost connection"),
        ("DELETE FROM types", SourceError, "denied|READ ONLY"),
    ],
)
def test_what_mysql_refuses_is_told(
    query: str, kind: type[Exception], message: str, mariadb: mariadb_server.Server, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        rows_of(tables.mysql(mariadb.url, query=query, statement_seconds=0.5), tmp_path / "out")
    assert type(caught.value) is kind
    assert PASSWORD not in str(caught.value)


def test_a_mysql_that_is_not_there_may_come(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"MySQL 127\.0\.0\.1:1: "):
        rows_of(tables.mysql("mysql://shop:hunter22@127.0.0.1:1/shop", query="SELECT 1"), tmp_path / "out")


# --- S3


def test_a_delta_table_on_s3_is_read_like_one_on_a_disk(s3_options: dict[str, str], tmp_path: Path) -> None:
    path = "s3://lake/reference"
    write_deltalake(path, pa.table({"id": [1]}), storage_options=s3_options)
    write_deltalake(path, pa.table({"id": [2]}), mode="overwrite", storage_options=s3_options)
    spec = tables.delta(path, storage_options=s3_options)
    newest = spec.newest()
    assert newest is not None
    for number, expected in (("0", 1), ("1", 2)):
        (tmp_path / number).mkdir()
        spec.fetch(TableVersion({"version": number}, newest.notes), str(tmp_path / number))
        assert pq.read_table(tmp_path / number / "rows.parquet").to_pylist() == [{"id": expected}]
    assert s3_options["AWS_SECRET_ACCESS_KEY"] not in str(spec.identity())
