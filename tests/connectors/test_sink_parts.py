"""The parts that sinks share: the ledger's decisions, names of staged rows, statistics, packages on first use."""

import datetime
import json
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.targets import OTHER_TIMELINE, RICH_ROWS, RICH_SCHEMA, TIMELINE
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.delta.stats import stats_json
from holdfast.connectors.delta.writing import AddedFile, pack_files, unpack_files
from holdfast.connectors.json_text import json_text
from holdfast.connectors.json_values import json_texts
from holdfast.connectors.ledger import LedgerRecord, claim, must_commit
from holdfast.connectors.parquet_files import parquet_bytes
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import EpochRef, OnForeign, Owner, Token
from holdfast.errors import Fenced, ForeignTimeline, SinkError

OWNER = Owner("shop", TIMELINE, 3)
RECORD = LedgerRecord(TIMELINE, 3, epoch=4, range_digest="r4", rewinds=1)
TOKEN = Token(5, 3, 0, 4, 10, "r5", {"rewinds": 1})


# --- the ledger's decisions


def test_a_token_that_follows_the_record_is_committed() -> None:
    assert must_commit(RECORD, OWNER, TOKEN)
    assert RECORD.after(TOKEN) == replace(RECORD, epoch=5, range_digest="r5")


def test_a_token_the_record_stands_at_is_done_when_its_range_is_the_same_or_vouched_for() -> None:
    assert not must_commit(RECORD.after(TOKEN), OWNER, TOKEN)
    assert not must_commit(replace(RECORD, epoch=5, range_digest=None), OWNER, TOKEN)
    with pytest.raises(SinkError, match="another source range"):
        must_commit(replace(RECORD, epoch=5, range_digest="other"), OWNER, TOKEN)


@pytest.mark.parametrize(
    "record",
    [None, replace(RECORD, generation=4), replace(RECORD, generation=2), replace(RECORD, timeline=OTHER_TIMELINE)],
)
def test_a_target_that_is_not_ours_fences(record: LedgerRecord | None) -> None:
    with pytest.raises(Fenced):
        must_commit(record, OWNER, TOKEN)


@pytest.mark.parametrize("token", [replace(TOKEN, previous=3), replace(TOKEN, payload={}), replace(TOKEN, epoch=3)])
def test_a_token_that_does_not_follow_is_refused(token: Token) -> None:
    with pytest.raises(SinkError):
        must_commit(RECORD, OWNER, token)


@given(st.integers(0, 8))
def test_a_rewind_never_moves_forward_and_always_makes_tokens_stale(to_epoch: int) -> None:
    moved = RECORD.rewound(to_epoch, "r")
    assert moved.epoch == min(to_epoch, RECORD.epoch)
    with pytest.raises(SinkError):
        must_commit(moved, OWNER, replace(TOKEN, previous=moved.epoch, epoch=9))


def test_claims() -> None:
    assert claim(None, None, OWNER, OnForeign.REFUSE, 7).record == LedgerRecord(TIMELINE, 3)
    assert claim(replace(RECORD, generation=2), None, OWNER, OnForeign.ADOPT, 7).record == RECORD
    with pytest.raises(Fenced):
        claim(replace(RECORD, generation=4), None, OWNER, OnForeign.REWIND, 0)
    other = replace(RECORD, timeline=OTHER_TIMELINE, generation=99)
    for found, others in ((other, None), (None, OTHER_TIMELINE)):
        with pytest.raises(ForeignTimeline, match=str(OTHER_TIMELINE)):
            claim(found, others, OWNER, OnForeign.REFUSE, 7)
        adopted = claim(found, others, OWNER, OnForeign.ADOPT, 7)
        assert (adopted.record.epoch, adopted.takes_over) == (7, OTHER_TIMELINE)
        assert claim(found, others, OWNER, OnForeign.APPEND, 7).record == LedgerRecord(TIMELINE, 3)
    assert claim(None, TIMELINE, OWNER, OnForeign.REFUSE, 7).takes_over is None


def test_a_record_survives_json() -> None:
    text = json.dumps({**RECORD.to_json_value(), "more": 1})
    assert LedgerRecord.from_json_value(json.loads(text)) == RECORD


# --- names

NUMBERS = st.integers(0, 10**9)


@given(st.text(min_size=1), NUMBERS, NUMBERS, NUMBERS)
def test_names_of_staged_rows_can_be_read_back(sink: str, epoch: int, generation: int, attempt: int) -> None:
    staged = StagedName.of(sink, EpochRef(TIMELINE, generation, epoch, attempt))
    assert StagedName.parse(str(staged)) == staged
    assert "/" not in str(staged)


def test_sinks_whose_names_begin_alike_are_told_apart() -> None:
    short, long = (StagedName.of(name, EpochRef(TIMELINE, 1, 1, 0)) for name in ("a", "a-b"))
    assert not short.precedes(replace(long, attempt=1))
    assert StagedName.parse("a-b") is None


# --- statistics


def stats(values: list[Any], type_: pa.DataType) -> tuple[Any, Any, Any]:
    schema = pa.schema([("x", type_)])
    metadata = pq.read_metadata(pa.BufferReader(parquet_bytes(pa.table({"x": values}, schema=schema))))
    found = json.loads(stats_json(metadata, schema))
    return tuple(found[key].get("x") for key in ("minValues", "maxValues", "nullCount"))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([3, None, 1], pa.int64(), (1, 3, 1)),
        ([None, None], pa.int64(), (None, None, 2)),
        (["b", "a"], pa.string(), ("a", "b", 0)),
        (["x" * 40], pa.string(), ("x" * 32, "x" * 32 + "\U0010ffff", 0)),
        ([1.5, float("inf")], pa.float64(), (None, None, 0)),
        ([Decimal("1.25"), Decimal("3.00")], pa.decimal128(10, 2), (1.25, 3, 0)),
        ([Decimal("12345678901234567890.1234567891")], pa.decimal128(38, 10), (None, None, 0)),
        ([datetime.date(2024, 1, 2)], pa.date32(), ("2024-01-02", "2024-01-02", 0)),
        (
            [datetime.datetime(2024, 1, 2, 3, 4, 5, 6789, tzinfo=datetime.UTC).replace(tzinfo=None)],
            pa.timestamp("us"),
            ("2024-01-02T03:04:05.006", "2024-01-02T03:04:05.007", 0),
        ),
        (
            [datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)],
            pa.timestamp("us", "UTC"),
            ("2024-01-02T00:00:00.000Z", "2024-01-02T00:00:00.000Z", 0),
        ),
        ([True, False], pa.bool_(), (None, None, 0)),
        ([b"a"], pa.binary(), (None, None, 0)),
        ([[1, 2]], pa.list_(pa.int64()), (None, None, None)),
    ],
)
def test_bounds_are_what_a_reader_may_trust(values: list[Any], type_: pa.DataType, expected: Any) -> None:
    assert stats(values, type_) == expected


def test_statistics_of_nested_columns_nest_and_lists_do_not_shift_them() -> None:
    schema = plain_schema(RICH_SCHEMA)
    table = pa.Table.from_pylist(RICH_ROWS, schema=schema)
    found = json.loads(stats_json(pq.read_metadata(pa.BufferReader(parquet_bytes(table))), schema))
    assert found["minValues"]["w"] == {"start": "2024-01-31T12:00:00.123Z", "end": "2024-01-31T12:01:00.123Z"}
    assert (found["minValues"]["tiny"], found["nullCount"]["text"]) == (-7, 1)
    assert "tags" not in found["nullCount"]


def test_a_long_list_of_files_is_packed() -> None:
    stats_text = json.dumps({"numRecords": 1, "minValues": {"id": 1}})
    files = [AddedFile(f"part-{index}.parquet", index, {"day": "2024-01-01"}, stats_text) for index in range(2000)]
    packed = pack_files(files)
    assert unpack_files(packed) == files
    assert len(json.dumps(packed)) < 60_000
    assert unpack_files(pack_files(files[:3])) == files[:3]
    assert isinstance(pack_files(files[:3]), list)


# --- text


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner), max_leaves=5)
)
def test_json_text_reads_back(value: Any) -> None:
    assert json.loads(json_text(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(Decimal("1.50"), "1.50"), (Decimal("1E+3"), "1000"), (float("nan"), '"NaN"'), (float("-inf"), '"-Infinity"')],
)
def test_numbers_that_json_does_not_know(value: Any, text: str) -> None:
    assert json_text(value) == text


def test_columns_become_json_and_null_stays_null() -> None:
    floats = pa.array([None, {"f": 0.1, "t": 'a"'}], pa.struct([("f", pa.float32()), ("t", pa.string())]))
    assert json_texts(floats).to_pylist() == [None, r'{"f":0.1,"t":"a\""}']
    broken = pa.array([[b"\xff"], None]).cast(pa.list_(pa.binary()))
    raw = pa.Array.from_buffers(pa.list_(pa.string()), 2, broken.buffers()[:2], children=[_unchecked(broken.values)])
    assert json_texts(raw).to_pylist() == ['["\ufffd"]', None]


def _unchecked(values: pa.Array) -> pa.Array:
    """Return bytes as text that nobody looked at, as Spark hands it over."""
    return pa.Array.from_buffers(pa.string(), len(values), values.buffers())


# --- packages on first use


def test_a_missing_package_names_its_extra() -> None:
    """Goal: one line says what to install, before anything is started. Method: a Python that has none of them."""
    extras = {
        "sinks.delta('x')": "delta",
        "sinks.sqlite('x', table='t')": "sqlite",
        "sinks.postgres('postgresql://x', table='t')": "postgres",
        "sinks.kafka('x:1', topic='t')": "kafka",
        "sources.kafka('x:1', topics='t')": "kafka",
        "sources.postgres_cdc('postgresql://x/d', 't')": "postgres-cdc",
        "sources.mysql_cdc('mysql://me@x/d', 't')": "mysql-cdc",
        "sources.delta('x')": "delta",
        "tables.postgres('postgresql://x', query='SELECT 1')": "postgres",
        "tables.mysql('mysql://me@x/d', query='SELECT 1')": "mysql-cdc",
        "tables.delta('x')": "delta",
    }
    modules = ("pyspark", "pyarrow", "deltalake", "adbc_driver_sqlite", "adbc_driver_postgresql")
    blocked = [*modules, "confluent_kafka", "psycopg", "pymysql", "numpy"]
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({blocked}))\n"
        "from holdfast import sinks, sources, tables\nfrom holdfast.errors import MissingExtra\n"
        f"for make in {list(extras)}:\n"
        "    try: eval(make)\n    except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for make, said in zip(extras, done.stdout.splitlines(), strict=True):
        assert f" needs the '{extras[make]}' extra: pip install 'holdfast[{extras[make]}]' (" in said, make


def test_timelines_are_uuids_whatever_their_version() -> None:
    assert StagedName.of("s", EpochRef(UUID(int=1), 1, 1, 0)).timeline == "0" * 11 + "1"
