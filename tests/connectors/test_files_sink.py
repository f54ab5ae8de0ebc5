"""What the files sink promises beyond the contract: plain readers, formats, a ledger that can be rebuilt."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
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
    bound,
    contents,
    ledger,
    orders,
    range_digest,
    rich_frame,
    with_only_columns,
    without_form,
)
from holdfast import sinks
from holdfast.core.contracts import (
    CommitOutcome,
    LedgerState,
    OnForeign,
    Owner,
    RewindOutcome,
    SinkContext,
    Token,
)
from holdfast.core.forms import FORM
from holdfast.errors import Fenced, ForeignTimeline, PipelineDefinitionError, RetryableSinkError, SinkError

PARQUET, JSON, CSV = BY_NAME["files-parquet"], BY_NAME["files-json"], BY_NAME["files-csv"]
FLAT_SCHEMA = pa.schema([field for field in RICH_SCHEMA if field.name not in ("w", "tags", "counts", "data")])
FLAT_ROWS = [{name: row[name] for name in FLAT_SCHEMA.names} for row in RICH_ROWS]
NEW_KEYS = {"nonce", "rewound_in", "rewound_to"}
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


def test_a_ledger_of_an_earlier_version_is_read_and_gets_what_it_lacks(tmp_path: Path) -> None:
    old = Writer(PARQUET, tmp_path)
    old.write(1, orders(1))
    old.write(2, orders(2))
    path = tmp_path / "target" / "_holdfast" / "ledger.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in NEW_KEYS}
    path.write_text(json.dumps(kept))
    heir = Writer(PARQUET, tmp_path, 2, nonce="0a0b0c0d")
    assert heir.opened == LedgerState(TIMELINE, 2, 2, range_digest(2), "0a0b0c0d")
    assert heir.rewind(1) is RewindOutcome.DONE
    assert ledger(PARQUET, tmp_path) == LedgerState(TIMELINE, 2, 1, range_digest(1), "0a0b0c0d", 2, 1)
    assert set(json.loads(path.read_text())) == {*kept, *NEW_KEYS}


def test_a_rewind_of_a_folder_that_is_not_ahead_is_noted_and_removes_nothing(tmp_path: Path) -> None:
    Writer(PARQUET, tmp_path).write(1, orders(1))
    heir = Writer(PARQUET, tmp_path, 2)
    stale = heir.prepare(2, orders(2))
    for epoch in (1, 4):
        assert heir.sink.rewind(epoch) is RewindOutcome.DONE
        found = heir.sink.ledger()
        assert found == LedgerState(TIMELINE, 2, 1, range_digest(1), "", 2, epoch)
        assert found.gives_up(TIMELINE, 1, 5)
    with pytest.raises(SinkError, match="before the target was rewound"):
        heir.sink.commit(stale)
    assert Writer(PARQUET, tmp_path, 3).opened == replace(found, generation=3)
    (tmp_path / "target" / "holdfast_epoch=1").rename(tmp_path / "elsewhere")
    missed = ledger(PARQUET, tmp_path)
    assert missed is not None
    assert missed.epoch == 0


# --- asking first


@pytest.mark.parametrize("on_foreign", [OnForeign.REWIND, OnForeign.ADOPT, OnForeign.APPEND])
def test_what_a_claim_would_come_to_is_told_without_making_anything(tmp_path: Path, on_foreign: OnForeign) -> None:
    sink, owner = bound(PARQUET, tmp_path), Owner("shop", TIMELINE, 1, "0a0b0c0d")
    assert sink.can_claim(owner) == LedgerState(TIMELINE, 1, 0, None, "0a0b0c0d")
    assert sink.can_rewind(0) is RewindOutcome.DONE
    assert contents(tmp_path) == {}
    Writer(PARQUET, tmp_path, nonce="0a0b0c0d").write(3, orders(1))
    heir = Owner("shop", TIMELINE, 2, "00000001")
    stranger = Owner("shop", TIMELINE.__class__(int=7), 1, "00000002")
    before = contents(tmp_path)
    assert sink.can_claim(heir) == LedgerState(TIMELINE, 2, 3, range_digest(3), "00000001")
    found = sink.can_claim(stranger, on_foreign=on_foreign, adopt_epoch=5)
    assert sink.can_rewind(0) is RewindOutcome.DONE
    assert contents(tmp_path) == before
    assert bound(PARQUET, tmp_path).open(stranger, on_foreign=on_foreign, adopt_epoch=5) == found


def test_a_claim_that_would_be_refused_is_refused_without_changing_anything(tmp_path: Path) -> None:
    Writer(PARQUET, tmp_path, 2, nonce="0a0b0c0d").write(1, orders(1))
    sink, before = bound(PARQUET, tmp_path), contents(tmp_path)
    refusals: list[tuple[type[Exception], Owner]] = [
        (Fenced, Owner("shop", TIMELINE, 1, "0a0b0c0d")),
        (Fenced, Owner("shop", TIMELINE, 2, "00000001")),
        (ForeignTimeline, Owner("shop", TIMELINE.__class__(int=7), 9)),
    ]
    for error, owner in refusals:
        with pytest.raises(error) as asked:
            sink.can_claim(owner)
        with pytest.raises(error) as opened:
            bound(PARQUET, tmp_path).open(owner)
        assert str(asked.value) == str(opened.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["target", "target/old.parquet", "target/_holdfast", "target/.holdfast-staging"])
def test_a_place_that_cannot_be_used_is_told_before_the_claim(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    before = contents(tmp_path)
    with pytest.raises((SinkError, RetryableSinkError), match=r"not ours|Not a directory"):
        bound(PARQUET, tmp_path).can_claim(Owner("shop", TIMELINE, 1))
    assert contents(tmp_path) == before
    with pytest.raises((SinkError, RetryableSinkError)):
        bound(PARQUET, tmp_path).open(Owner("shop", TIMELINE, 1))


# --- rows are what they were prepared as

NARROW = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")])
WIDE = pa.schema([pa.field("more", pa.string()), *SCHEMA])


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize("today", [NARROW, WIDE], ids=["column dropped", "column added"])
def test_an_epoch_has_the_columns_and_the_format_it_was_prepared_with(
    tmp_path: Path, kind: str, today: pa.Schema
) -> None:
    target = BY_NAME[f"files-{kind}"]
    token = Writer(target, tmp_path).prepare(1, orders(1, 2))
    other = JSON if kind == "parquet" else PARQUET
    reader = bound(other, tmp_path, today)
    found = reader.staged(token)
    assert found.schema.equals(SCHEMA)
    assert found.to_pylist() == orders(1, 2)
    assert Writer(other, tmp_path, 2, schema=today).commit(token) is CommitOutcome.DONE
    assert target.read(tmp_path) == orders(1, 2)


@pytest.mark.parametrize("older", [without_form, with_only_columns])
def test_a_token_from_before_there_were_forms_is_shown_as_the_sink_is_today(tmp_path: Path, older: Any) -> None:
    token = older(Writer(JSON, tmp_path).prepare(1, orders(1)))
    heir = Writer(JSON, tmp_path, 2)
    assert heir.sink.staged(token).to_pylist() == orders(1)
    assert heir.commit(token) is CommitOutcome.DONE
    assert JSON.read(tmp_path) == orders(1)


def test_a_format_of_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    writer = Writer(PARQUET, tmp_path)
    token = writer.prepare(1, orders(1))
    form = {**token.payload[FORM], "format": "orc"}
    strange = replace(token, payload={**token.payload, FORM: form})
    with pytest.raises(SinkError, match="prepared as 'orc'"):
        Writer(PARQUET, tmp_path, 2).commit(strange)
    with pytest.raises(SinkError, match="prepared as 'orc'"):
        writer.sink.staged(strange)


# --- a power loss


class LossyDisk:
    """What of real folders is left when the power goes: names and bytes as they were when they were last flushed."""

    def __init__(self) -> None:
        self._folders: dict[int, dict[str, int]] = {}
        self._files: dict[int, bytes] = {}
        self._flush = os.fsync

    def fsync(self, descriptor: int) -> None:
        """Flush a file or the names in a folder, and remember what is durable of it from now on."""
        self._flush(descriptor)
        path, number = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_ino
        self._folders.pop(number, None)
        self._files.pop(number, None)
        if os.path.isdir(path):
            self._folders[number] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._files[number] = Path(path).read_bytes()

    def survives(self, folder: Path, copy: Path) -> None:
        """Write what is left of a folder into another one."""
        for path, data in self._below(folder.stat().st_ino, copy):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def _below(self, number: int, path: Path) -> Iterator[tuple[Path, bytes]]:
        if number in self._files:
            yield path, self._files[number]
        for name, child in self._folders.get(number, {}).items():
            yield from self._below(child, path / name)


@pytest.fixture
def lossy_disk(monkeypatch: pytest.MonkeyPatch) -> LossyDisk:
    disk = LossyDisk()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


def test_an_epoch_that_was_committed_is_there_after_a_power_loss(tmp_path: Path, lossy_disk: LossyDisk) -> None:
    writer = Writer(PARQUET, tmp_path)
    for epoch in (1, 2):
        writer.write(epoch, orders(epoch))
        after = tmp_path / f"after {epoch}"
        lossy_disk.survives(tmp_path / "target", after / "target")
        assert ledger(PARQUET, after) == LedgerState(TIMELINE, 1, epoch, range_digest(epoch))
        assert PARQUET.read(after) == orders(*range(1, epoch + 1))


def test_epochs_that_were_taken_back_do_not_return_after_a_power_loss(tmp_path: Path, lossy_disk: LossyDisk) -> None:
    writer = Writer(PARQUET, tmp_path)
    for epoch in (1, 2):
        writer.write(epoch, orders(epoch))
    assert writer.rewind(1) is RewindOutcome.DONE
    lossy_disk.survives(tmp_path / "target", tmp_path / "after" / "target")
    assert ledger(PARQUET, tmp_path / "after") == LedgerState(TIMELINE, 1, 1, range_digest(1), "", 1, 1)
    assert PARQUET.read(tmp_path / "after") == orders(1)


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
