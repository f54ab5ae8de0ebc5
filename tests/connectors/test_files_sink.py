"""What the files sink promises beyond the contract: plain readers, formats, a ledger that can be rebuilt."""

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from connectors.targets import (
    BY_NAME,
    RICH_ROWS,
    RICH_SCHEMA,
    SCHEMA,
    TIMELINE,
    SparkRows,
    Target,
    Writer,
    ledger,
    orders,
    range_digest,
    rich_frame,
)
from holdfast import sinks
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, RewindOutcome, SinkContext, Token
from holdfast.errors import ForeignTimeline, PipelineDefinitionError, SinkError

PARQUET, JSON, CSV = BY_NAME["files-parquet"], BY_NAME["files-json"], BY_NAME["files-csv"]
FLAT_SCHEMA = pa.schema([field for field in RICH_SCHEMA if field.name not in ("w", "tags", "counts", "data")])
FLAT_ROWS = [{name: row[name] for name in FLAT_SCHEMA.names} for row in RICH_ROWS]
JSON_ROWS = [
    {
        "id": 1,
        "at": "2024-01-31T12:00:00.123456Z",
        "local": "2024-01-31T12:00:00.123456",
        "day": "2024-01-31",
        "price": Decimal("1234567890123.4500"),
        "w": {"start": "2024-01-31T12:00:00.123456Z", "end": "2024-01-31T12:01:00.123456Z"},
        "tags": ["a", None, ""],
        "counts": {"x": 1},
        "data": "AP8=",
        "flag": True,
        "ratio": Decimal("0.1"),
        "tiny": -7,
        "text": 'say "ä, b"\nnext',
    },
    RICH_ROWS[1],
    RICH_ROWS[2],
]


def folders(directory: Path) -> list[str]:
    return sorted(name for name in os.listdir(directory / "target") if not name.startswith((".", "_")))


# --- readers


def test_pandas_and_pyarrow_see_rows_and_their_epoch(tmp_path: Path) -> None:
    writer = Writer(PARQUET, tmp_path)
    writer.write(1, orders(1))
    writer.write(4, orders(2, 3))
    writer.prepare(5, orders(99))
    frame = pd.read_parquet(tmp_path / "target").sort_values("id")
    assert frame["id"].tolist() == [1, 2, 3]
    assert frame["holdfast_epoch"].astype(int).tolist() == [1, 4, 4]
    table = ds.dataset(tmp_path / "target", format="parquet", partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_spark_sees_rows_and_their_epoch_and_nothing_staged(spark: Any, tmp_path: Path, kind: str) -> None:
    writer = Writer(BY_NAME[f"files-{kind}"], tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    writer.prepare(3, orders(99))
    reader = spark.read.schema("id long, name string, amount double, holdfast_epoch int").option("header", "true")
    found = sorted(map(tuple, reader.format(kind).load(str(tmp_path / "target")).collect()))
    assert found == [(1, "anna", 1.5, 1), (2, "anna", 2.5, 2)]


def test_readers_never_see_a_part_of_an_epoch_while_epochs_are_taken_back(tmp_path: Path) -> None:
    writer = Writer(PARQUET, tmp_path)
    for epoch in range(1, 6):
        writer.write(epoch, orders(epoch))
    rename, states = os.rename, []

    def watched(source: str, target: str) -> None:
        rename(source, target)
        states.append(folders(tmp_path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", watched)
        assert writer.rewind(2) is RewindOutcome.DONE
    shown = [[f"holdfast_epoch={epoch}" for epoch in range(1, last + 1)] for last in (5, 4, 3, 2)]
    assert states == shown


# --- formats


def test_parquet_keeps_every_type(tmp_path: Path) -> None:
    Writer(PARQUET, tmp_path, schema=RICH_SCHEMA).write(1, RICH_ROWS)
    table = ds.dataset(tmp_path / "target", format="parquet", partitioning="hive").to_table()
    found = table.select(RICH_SCHEMA.names).to_pylist(maps_as_pydicts="strict")
    assert found == RICH_ROWS


def test_json_spells_every_type(tmp_path: Path) -> None:
    Writer(JSON, tmp_path, schema=RICH_SCHEMA).write(1, RICH_ROWS)
    (path,) = (tmp_path / "target").glob("holdfast_epoch=1/part-*")
    lines = path.read_text().splitlines()
    assert [json.loads(line, parse_float=Decimal) for line in lines] == JSON_ROWS
    assert '"price":1234567890123.4500' in lines[0]


def test_csv_tells_null_from_empty_text(tmp_path: Path) -> None:
    Writer(CSV, tmp_path, schema=FLAT_SCHEMA).write(1, FLAT_ROWS)
    (path,) = (tmp_path / "target").glob("holdfast_epoch=1/part-*")
    header, rest = path.read_text().split("\n", 1)
    assert header == '"id","at","local","day","price","flag","ratio","tiny","text"'
    assert rest.startswith('1,"2024-01-31T12:00:00.123456Z","2024-01-31T12:00:00.123456","2024-01-31",')
    assert 'true,0.1,-7,"say ""ä, b""\nnext"\n2,,,,,,,,\n3,,,,,,,,""\n' in rest


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_spark_writes_large_epochs_that_read_like_small_ones(spark: Any, tmp_path: Path, kind: str) -> None:
    target = BY_NAME[f"files-{kind}"]
    schema, rows = (FLAT_SCHEMA, FLAT_ROWS) if kind == "csv" else (RICH_SCHEMA, RICH_ROWS)
    frame = rich_frame(spark, schema).repartition(2)
    large = Writer(target, tmp_path / "large", schema=schema)
    prepared = large.sink.prepare(SparkRows(frame), large.ref(1))
    assert folders(tmp_path / "large") == []
    assert large.commit(Token(1, 1, 0, 0, prepared.rows, "r", prepared.payload)) is CommitOutcome.DONE
    Writer(target, tmp_path / "small", schema=schema).write(1, rows)
    read = [read_by(spark, kind, tmp_path / size, frame.schema) for size in ("large", "small")]
    assert read[0] == read[1]
    assert len(read[0]) == 3
    assert [path for path in (tmp_path / "large").rglob("*") if path.name.endswith(".crc")] == []


def read_by(spark: Any, kind: str, directory: Path, schema: Any) -> list[Any]:
    options = {"header": "true", "multiLine": str(kind == "csv"), "escape": '"'}
    reader = spark.read.schema(schema).options(**options).format(kind)
    return sorted(reader.load(f"{directory}/target/holdfast_epoch=1").collect(), key=lambda row: row["id"])


# --- the ledger


def test_a_lost_ledger_is_read_from_the_epochs_themselves(tmp_path: Path) -> None:
    writer = Writer(PARQUET, tmp_path, 3)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    (tmp_path / "target" / "_holdfast" / "ledger.json").unlink()
    assert ledger(PARQUET, tmp_path) == LedgerState(TIMELINE, 3, 2, range_digest(2))
    heir = Writer(PARQUET, tmp_path, 4)
    heir.write(3, orders(3))
    assert heir.rewind(1) is RewindOutcome.DONE
    assert folders(tmp_path) == ["holdfast_epoch=1"]


def test_a_removed_epoch_is_missed_even_though_the_ledger_was_written_later(tmp_path: Path) -> None:
    writer = Writer(PARQUET, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    heir = Writer(PARQUET, tmp_path, 2)
    (tmp_path / "target" / "holdfast_epoch=2").rename(tmp_path / "elsewhere")
    found = heir.sink.ledger()
    assert found is not None
    assert found.epoch == 1


def test_a_damaged_ledger_is_said_so(tmp_path: Path) -> None:
    Writer(PARQUET, tmp_path).write(1, orders(1))
    (tmp_path / "target" / "_holdfast" / "ledger.json").write_text("{")
    with pytest.raises(SinkError, match="damaged"):
        ledger(PARQUET, tmp_path)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old.parquet").touch()
    with pytest.raises(SinkError, match="not ours"):
        Writer(PARQUET, tmp_path)


def test_a_folder_has_one_sink(tmp_path: Path) -> None:
    Writer(PARQUET, tmp_path).write(1, orders(1))
    with pytest.raises(SinkError, match="belongs to sink 'out'"):
        Writer(PARQUET, tmp_path, pipeline="other")
    with pytest.raises(ForeignTimeline):
        Writer(PARQUET, tmp_path, pipeline="other", timeline=TIMELINE.__class__(int=7))


def test_epochs_of_an_earlier_timeline_keep_their_folders(tmp_path: Path) -> None:
    old = Writer(PARQUET, tmp_path)
    old.write(1, orders(1))
    old.write(5, orders(2))
    other = TIMELINE.__class__(int=7)
    new = Writer(PARQUET, tmp_path, timeline=other, on_foreign=OnForeign.APPEND)
    new.write(2, orders(3))
    assert folders(tmp_path) == ["holdfast_epoch=1", "holdfast_epoch=5", "holdfast_epoch=7"]
    assert Writer(PARQUET, tmp_path, 2, timeline=other).opened == LedgerState(other, 2, 2, range_digest(2))


def test_staged_rows_with_a_strange_file_are_refused(tmp_path: Path) -> None:
    writer = Writer(PARQUET, tmp_path)
    token = writer.prepare(1, orders(1))
    (staged,) = (tmp_path / "target" / ".holdfast-staging").iterdir()
    (staged / "part-00001.parquet").write_bytes((staged / "part-00000.parquet").read_bytes())
    with pytest.raises(SinkError, match="does not belong"):
        writer.commit(token)


# --- what is refused


@pytest.mark.parametrize("url", ["s3://bucket/out", "gs://bucket/out", "abfss://c@a.dfs.core.windows.net/out"])
def test_object_storage_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(PipelineDefinitionError, match="use the delta sink there") as caught:
        sinks.files(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["w", "tags", "counts", "data"])
def test_csv_refuses_what_it_cannot_hold(tmp_path: Path, name: str) -> None:
    schema = pa.schema([SCHEMA.field("id"), RICH_SCHEMA.field(name)])
    with pytest.raises(PipelineDefinitionError, match=f"column '{name}' .* CSV cannot hold"):
        Writer(CSV, tmp_path, schema=schema)


def test_an_unknown_format_and_updates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineDefinitionError, match="csv, json, parquet"):
        sinks.files("out", format="xml")  # type: ignore[arg-type]
    with pytest.raises(PipelineDefinitionError, match="only appends"):
        sinks.files("out").bind(SinkContext("out", "shop", SCHEMA, "update", str(tmp_path)))


def test_a_file_url_is_a_local_path(tmp_path: Path) -> None:
    target = Target("files", lambda path: sinks.files(f"file://{path}/target"), PARQUET.read, "")
    Writer(target, tmp_path).write(1, orders(1))
    assert PARQUET.read(tmp_path) == orders(1)
