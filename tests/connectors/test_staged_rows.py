"""Staged rows that a person takes elsewhere: every sink gives them back with the types they came with."""

import datetime
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.targets import (
    BY_NAME,
    HOLLOW_ROW,
    NULL_ROW,
    RICH_ROWS,
    RICH_SCHEMA,
    Row,
    SparkRows,
    Target,
    Writer,
    bound,
    orders,
    rich_frame,
)
from holdfast import sinks
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.console import ConsoleSink
from holdfast.connectors.row_formats import FORMATS
from holdfast.core.contracts import Sink, Token
from holdfast.errors import SinkError

CSV_CANNOT = ("w", "tags", "counts", "data")
KINDS = ["delta-append", "delta-merge", "files-parquet", "files-json", "files-csv", "sqlite-append", "foreach-batch"]


def schema_for(target: Target) -> pa.Schema:
    return pa.schema([f for f in RICH_SCHEMA if target.name != "files-csv" or f.name not in CSV_CANNOT])


def expected_from(target: Target) -> list[Row]:
    """SQLite has a column per field of a struct: one whose fields are all NULL cannot be told from none."""
    hollow = {**HOLLOW_ROW, "w": None} if target.name.startswith("sqlite") else HOLLOW_ROW
    return [{name: row[name] for name in schema_for(target).names} for row in [RICH_ROWS[0], NULL_ROW, hollow]]


def read_back(target: Target, directory: Path, token: Token, schema: pa.Schema) -> tuple[pa.Schema, list[Row]]:
    table = bound(target, directory, schema).staged(token)
    rows = table.to_pylist(maps_as_pydicts="strict")
    return table.schema, sorted(rows, key=lambda row: (row["id"] is None, row["id"]))


@pytest.mark.parametrize("name", KINDS)
def test_values_of_every_type_come_back(tmp_path: Path, name: str) -> None:
    target = BY_NAME[name]
    schema = schema_for(target)
    rows = [{name: row[name] for name in schema.names} for row in RICH_ROWS]
    token = Writer(target, tmp_path, schema=schema).prepare(1, rows)
    found = read_back(target, tmp_path, token, schema)
    assert found == (plain_schema(schema), expected_from(target))


@pytest.mark.parametrize("name", KINDS)
def test_what_spark_staged_comes_back_as_well(spark: Any, tmp_path: Path, name: str) -> None:
    target = BY_NAME[name]
    schema = schema_for(target)
    writer = Writer(target, tmp_path, schema=schema)
    prepared = writer.sink.prepare(SparkRows(rich_frame(spark, schema).repartition(2)), writer.ref(1))
    token = Token(1, 1, 0, 0, prepared.rows, "r", prepared.payload)
    found = read_back(target, tmp_path, token, schema)
    assert found == (plain_schema(schema), expected_from(target))


PARTITIONS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["ä/ö %=?#", None]),
    (pa.int32(), [-7, None]),
    (pa.date32(), [datetime.date(2024, 1, 31), None]),
    (pa.bool_(), [True, False, None]),
]


@pytest.mark.parametrize(("type_", "values"), PARTITIONS, ids=str)
def test_partition_columns_which_no_file_holds_come_back_typed(
    tmp_path: Path, type_: pa.DataType, values: list[Any]
) -> None:
    target = _delta_by("part")
    schema = pa.schema([("id", pa.int64()), ("part", type_), ("amount", pa.float64())])
    rows = [{"id": index, "part": value, "amount": 0.5} for index, value in enumerate(values * 2)]
    token = Writer(target, tmp_path, schema=schema).prepare(1, rows)
    assert read_back(target, tmp_path, token, schema) == (schema, rows)


def test_partitions_that_spark_wrote_come_back_typed(spark: Any, tmp_path: Path) -> None:
    target = _delta_by("day", "flag")
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("flag", pa.bool_())])
    writer = Writer(target, tmp_path, schema=schema)
    frame = spark.range(4).selectExpr("id", "date_add(DATE'2024-01-30', cast(id AS int)) day", "id = 2 flag")
    prepared = writer.sink.prepare(SparkRows(frame), writer.ref(1))
    found = read_back(target, tmp_path, Token(1, 1, 0, 0, 4, "r", prepared.payload), schema)
    first = datetime.date(2024, 1, 30)
    days = [first + datetime.timedelta(days=number) for number in range(4)]
    assert found == (schema, [{"id": id, "day": day, "flag": id == 2} for id, day in enumerate(days)])


def _delta_by(*columns: str) -> Target:
    make: Callable[[Path], Sink] = lambda path: sinks.delta(str(path / "target"), partition_by=columns)  # noqa: E731
    return Target("delta", make, lambda path: [], "")


def test_delta_files_are_found_without_the_tables_log(tmp_path: Path) -> None:
    target = BY_NAME["delta-append"]
    token = Writer(target, tmp_path).prepare(1, orders(1))
    (tmp_path / "target" / "_delta_log").rename(tmp_path / "lost")
    assert bound(target, tmp_path).staged(token).to_pylist() == orders(1)


def test_rows_of_the_database_are_found_without_the_database(tmp_path: Path) -> None:
    target = BY_NAME["sqlite-append"]
    token = Writer(target, tmp_path).prepare(1, orders(1))
    (tmp_path / "target" / "app.db").write_bytes(b"no database any more")
    assert bound(target, tmp_path).staged(token).to_pylist() == orders(1)


def test_memory_gives_rows_to_its_own_process_only(tmp_path: Path) -> None:
    memory = sinks.memory()
    writer = Writer(Target("memory", lambda _: memory, lambda _: [], ""), tmp_path)
    token = writer.prepare(1, orders(1, 2))
    assert memory.staged(token).to_pylist() == orders(1, 2)
    with pytest.raises(SinkError, match="2 rows are staged, expected 3"):
        memory.staged(replace(token, rows=3))
    writer.commit(token)
    for sink in (memory, sinks.memory()):
        with pytest.raises(SinkError, match="gone"):
            sink.staged(token)


def test_a_console_has_none_to_give(tmp_path: Path) -> None:
    token = Writer(Target("console", lambda _: ConsoleSink(), lambda _: [], ""), tmp_path).prepare(1, orders(1))
    with pytest.raises(SinkError, match="keeps no rows"):
        ConsoleSink().staged(token)


def test_rows_that_make_no_sense_are_left_where_they_are(tmp_path: Path) -> None:
    """Spark writes no digest into a token, so damage may show only when the rows are read."""
    target = BY_NAME["files-json"]
    token = Writer(target, tmp_path).prepare(1, orders(1))
    (path,) = tmp_path.glob(target.staged)
    path.write_bytes(path.read_bytes().replace(b"1.5", b'"x"'))
    for file in token.payload["files"]:
        file["sha256"] = None
    with pytest.raises(SinkError, match=r"cannot be read back \(.*\); they are in .*holdfast-staging"):
        bound(target, tmp_path).staged(token)


def test_a_damaged_page_is_noticed_where_the_token_has_no_digest(tmp_path: Path) -> None:
    target = BY_NAME["files-parquet"]
    token = Writer(target, tmp_path).prepare(1, orders(*range(1000)))
    (path,) = tmp_path.glob(target.staged)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    for file in token.payload["files"]:
        file["sha256"] = None
    with pytest.raises(SinkError, match="CRC"):
        bound(target, tmp_path).staged(token)


# --- formats

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INSTANTS = st.datetimes(timezones=st.just(UTC))
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.decimal128(20, 4): st.decimals(-(10**15), 10**15, places=4),
    pa.timestamp("us", "UTC"): INSTANTS,
    pa.timestamp("us"): st.datetimes(),
    pa.date32(): st.dates(),
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=8),
    pa.list_(pa.decimal128(9, 2)): st.lists(st.decimals(-999, 999, places=2), max_size=3),
    pa.map_(pa.int32(), pa.timestamp("us", "UTC")): st.dictionaries(st.integers(-9, 9), INSTANTS, max_size=3).map(
        lambda found: list(found.items())
    ),
    pa.map_(pa.bool_(), pa.string()): st.dictionaries(st.booleans(), TEXT).map(lambda found: list(found.items())),
}
FLAT = [type_ for type_ in COLUMNS if not pa.types.is_nested(type_) and not pa.types.is_binary(type_)]


@given(data=st.data())
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_what_a_format_writes_it_reads(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    types = data.draw(st.lists(st.sampled_from(FLAT if kind == "csv" else list(COLUMNS)), min_size=1, max_size=4))
    schema = pa.schema([(f'c{number}, "ä"', type_) for number, type_ in enumerate(types)])
    count = data.draw(st.integers(0, 4))
    columns = [data.draw(st.lists(st.none() | COLUMNS[t], min_size=count, max_size=count)) for t in types]
    table = pa.table([pa.array(column, t) for column, t in zip(columns, types, strict=True)], schema=schema)
    path = tmp_path_factory.getbasetemp() / f"rows.{kind}"
    FORMATS[kind].write(table, str(path))
    assert FORMATS[kind].count(str(path)) == count
    found = FORMATS[kind].read(str(path), schema)
    assert found.schema == schema
    assert _comparable(found) == _comparable(table)


def _comparable(table: pa.Table) -> list[Any]:
    return [
        "NaN" if isinstance(value, float) and math.isnan(value) else value
        for column in table.columns
        for value in column.to_pylist()
    ]


def test_long_texts_in_csv_are_counted_and_read(tmp_path: Path) -> None:
    table = pa.table({"text": ["x" * 3_000_000, 'a "b"\n' * 100_000, ""]})
    path = str(tmp_path / "rows.csv")
    FORMATS["csv"].write(table, path)
    assert FORMATS["csv"].count(path) == 3
    assert FORMATS["csv"].read(path, table.schema) == table


def test_json_keeps_every_digit_of_a_decimal_in_a_list(tmp_path: Path) -> None:
    type_ = pa.list_(pa.decimal128(38, 10))
    table = pa.table({"prices": pa.array([[Decimal("1234567890123456789012345678.0123456789")]], type_)})
    path = str(tmp_path / "rows.json")
    FORMATS["json"].write(table, path)
    assert FORMATS["json"].read(path, table.schema) == table
