"""Rows of a Delta source: every type, every partition, older and newer columns, changes; and what is refused."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.delta_tables import Reading, Table, numbered, ordered, position, reading
from connectors.targets import BY_NAME, NOON, RICH_ROWS, RICH_SCHEMA, Writer, orders
from holdfast.connectors.delta.rows import partition_value
from holdfast.errors import SourceError

CHANGES = ("_change_type", "_commit_version", "_commit_timestamp")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def whole(read: Reading) -> list[dict[str, Any]]:
    return read.everything(read.begin())


# --- types


def test_rows_of_every_type_come_as_they_are(table: Table, tmp_path: Path) -> None:
    table.append(pa.Table.from_pylist(RICH_ROWS, schema=RICH_SCHEMA))
    for starting in ("snapshot", 0):
        read = reading(table, tmp_path, starting=starting)
        assert whole(read) == table.rows()
        expected = to_arrow_schema(read.reader._schema, timezone="UTC")
        assert all(batch.schema.equals(expected) for batch in read.batches(position(0), position(1)))
        assert expected.field("at").type == pa.timestamp("us", "UTC")
        assert expected.field("local").type == pa.timestamp("us")


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("who", pa.struct([("name", pa.string()), ("at", pa.list_(pa.timestamp("us", "UTC")))])),
        (
            "lines",
            pa.list_(pa.struct([("price", pa.decimal128(10, 2)), ("tags", pa.map_(pa.string(), pa.date32()))])),
        ),
    ]
)


def test_nested_rows_come_as_they_are_in_many_batches(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: batches of two rows, so that they are slices of what Parquet gives."""
    monkeypatch.setattr("holdfast.connectors.delta.rows._BATCH_ROWS", 2)
    rows = [
        {
            "id": number,
            "who": None
            if number % 3 == 0
            else {"name": f"n{number}", "at": [datetime(2026, 1, number + 1, tzinfo=UTC)]},
            "lines": [{"price": Decimal("1.50"), "tags": [("a", date(2026, 1, 1))]}] * (number % 4) or None,
        }
        for number in range(9)
    ]
    table.append(pa.Table.from_pylist(rows, schema=NESTED))
    read = reading(table, tmp_path, starting=0)
    start = read.begin()
    assert [batch.num_rows for batch in read.batches(start, position(1))] == [2, 2, 2, 2, 1]
    assert read.everything(start) == ordered(rows)


def test_a_file_is_read_in_batches_of_bounded_size(table: Table, tmp_path: Path) -> None:
    wide = pa.table({"id": pa.array(range(100), pa.int64()), "text": ["x" * 1_000_000] * 100})
    wide = wide.set_column(1, "text", pa.array([f"{n}" + "x" * 1_000_000 for n in range(100)]))
    table.append(wide)
    read = reading(table, tmp_path, starting=0)
    start = read.begin()
    assert max(batch.nbytes for batch in read.batches(start, position(1))) < 64 * 1024 * 1024


# --- files that other writers wrote


def add_file(table: Table, rows: pa.Table, name: str = "by-hand.parquet", **options: Any) -> int:
    """Add a file that was written in some other way."""
    pq.write_table(rows, table.path / name, **options)
    size = (table.path / name).stat().st_size
    return table.commit(
        {"add": {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}}
    )


def test_times_of_old_spark_versions_are_read(table: Table, tmp_path: Path) -> None:
    """Spark's oldest form (INT96) has no zone and reaches far beyond nanoseconds."""
    at = pa.array([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    table.append(pa.table({"at": at}))
    version = add_file(table, pa.table({"at": at}), use_deprecated_int96_timestamps=True)
    read = reading(table, tmp_path, starting=version)
    assert [row["at"] for row in whole(read)] == at.to_pylist()


@pytest.mark.parametrize(
    "stored", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_text_may_be_stored_in_any_form(table: Table, tmp_path: Path, stored: pa.DataType) -> None:
    table.append(pa.table({"text": ["a"]}))
    version = add_file(table, pa.table({"text": pa.array(["b", None], pa.string()).cast(stored)}))
    assert whole(reading(table, tmp_path, starting=version)) == ordered([{"text": "b"}, {"text": None}])


def test_columns_of_a_converted_file_may_have_another_case(table: Table, tmp_path: Path) -> None:
    """Delta knows no case. Taken for columns that the file does not have, they would be NULL."""
    table.append(numbered(1, Name="a"))
    add_file(table, pa.table({"ID": [2], "name": ["b"]}))
    assert whole(reading(table, tmp_path, starting=0)) == [{"id": 1, "Name": "a"}, {"id": 2, "Name": "b"}]


def test_times_that_are_finer_than_delta_has_them_are_refused_by_name(table: Table, tmp_path: Path) -> None:
    table.append(pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))}))
    version = add_file(table, pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))}))
    with pytest.raises(SourceError, match=r"a value in by-hand.parquet of version 1 cannot be read: .* lose data"):
        whole(reading(table, tmp_path, starting=version))


def test_bytes_as_partitions_are_refused(table: Table, tmp_path: Path) -> None:
    """`deltalake` spells them as escapes and Spark as text: what is read would be either right or wrong."""
    table.append(pa.table({"id": [1], "part": [b"\x00\xff"]}), partition_by=["part"])
    with pytest.raises(SourceError, match="partition column has type binary"):
        whole(reading(table, tmp_path, starting=0))


def test_a_damaged_file_is_named(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1))
    [file] = table.path.glob("*.parquet")
    file.write_bytes(b"PAR1" + bytes(file.stat().st_size - 4))
    with pytest.raises(SourceError, match=rf"{file.name} of version 0 is damaged"):
        whole(reading(table, tmp_path, starting=0))


@pytest.mark.parametrize("text", ["no JSON", '{"add": {"path": "a"}}'])
def test_a_damaged_log_entry_is_named(table: Table, tmp_path: Path, text: str) -> None:
    table.append(numbered(1))
    read = reading(table, tmp_path, starting="latest")
    start = read.begin()
    read.latest(start)
    table.entry(1).write_text(text)
    with pytest.raises(SourceError, match=r"the log entry of version 1 at .* is damaged"):
        read.latest(start)


# --- partitions

PARTITIONED = pa.table(
    {
        "id": pa.array(range(4), pa.int64()),
        "text": ["a b", "100%/ü=?", "", None],
        "day": [date(2026, 1, 31), None, None, None],
        "at": pa.array([NOON, None, None, None], pa.timestamp("us", "UTC")),
        "local": pa.array([NOON.replace(tzinfo=None), None, None, None], pa.timestamp("us")),
        "price": pa.array([Decimal("1.50"), None, None, None], pa.decimal128(10, 2)),
        "flag": [True, False, None, None],
        "ratio": [0.1, None, None, None],
        "small": pa.array([7, None, None, None], pa.int16()),
    }
)


@pytest.mark.parametrize("starting", ["snapshot", 0])
def test_partition_columns_are_filled_in_from_the_log(table: Table, tmp_path: Path, starting: str | int) -> None:
    table.append(PARTITIONED, partition_by=PARTITIONED.column_names[1:])
    found = whole(reading(table, tmp_path, starting=starting))
    assert found == table.rows()
    assert found[0] == PARTITIONED.to_pylist()[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31 12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31 12:00:00.000001", datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)),
        ("2026-01-31T12:00:00.000001Z", datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31T12:00:00-02:00", datetime(2026, 1, 31, 14, tzinfo=UTC)),
        ("", None),
        (None, None),
    ],
)
def test_times_in_partitions_are_utc_unless_they_say_otherwise(text: str | None, expected: datetime | None) -> None:
    assert partition_value(text, pa.timestamp("us", "UTC")).as_py() == expected


# --- columns come and go


def test_rows_from_before_a_column_was_added_have_null(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1, w={"x": 1}))
    table.append(numbered(2, w={"x": 1, "y": 2}, name="b"), schema_mode="merge")
    expected = ordered(
        [
            {"id": 1, "w": {"x": 1, "y": None}, "name": None},
            {"id": 2, "w": {"x": 1, "y": 2}, "name": "b"},
        ]
    )
    assert whole(reading(table, tmp_path, starting=0)) == expected
    assert whole(reading(table, tmp_path)) == expected


def test_a_column_that_appears_while_the_query_runs_asks_for_a_restart(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1))
    read = reading(table, tmp_path)
    start = read.begin()
    assert len(read.everything(start)) == 1
    table.append(numbered(2, name="b"), schema_mode="merge")
    with pytest.raises(SourceError, match="has a new column 'name' since version 1: start the pipeline again"):
        read.everything(start)
    read.start(start)
    assert read.everything(start) == ordered([{"id": 1, "name": None}, {"id": 2, "name": "b"}])


def test_a_column_that_disappears_while_the_query_runs_asks_for_a_restart(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1, name="a"))
    read = reading(table, tmp_path, starting="latest", on_rewrite="read_added")
    start = read.begin()
    read.latest(start)
    write_deltalake(table.uri, numbered(2), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SourceError, match="has no column 'name' any more since version 1: start the pipeline again"):
        read.everything(start)
    read.start(start)
    assert read.everything(start) == [{"id": 2}]


def change_type(table: Table) -> None:
    write_deltalake(table.uri, pa.table({"id": ["a"]}), mode="overwrite", schema_mode="overwrite")


def test_a_type_that_changes_while_the_query_runs_stops_it(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1))
    read = reading(table, tmp_path, starting="latest", on_rewrite="read_added")
    start = read.begin()
    read.latest(start)
    change_type(table)
    with pytest.raises(SourceError, match="column 'id' changed from long to string in version 1"):
        read.everything(start)


def test_rows_from_before_a_type_changed_are_refused(table: Table, tmp_path: Path) -> None:
    """Whether the metadata with the old type is among what is read (version 0) or not (version 1)."""
    table.append(numbered(1))
    table.append(numbered(2))
    change_type(table)
    read = reading(table, tmp_path, on_rewrite="read_added")
    read.start(position(0))
    with pytest.raises(SourceError, match="column 'id' changed from long to string since version 0"):
        read.everything(position(0))
    with pytest.raises(SourceError, match=r"column 'id' is int64 in .* of version 1, string in the table"):
        read.everything(position(1))
    assert read.everything(position(2)) == [{"id": "a"}]


def test_the_columns_of_the_plan_and_of_the_table_must_agree(table: Table, tmp_path: Path) -> None:
    """The table changes between the query's plan and its start."""
    table.append(numbered(1))
    read = reading(table, tmp_path)
    start = read.begin()
    table.append(numbered(2, name="b"), schema_mode="merge")
    with pytest.raises(SourceError, match="changed while the pipeline started: start it again"):
        read.latest(start)


# --- changes


@pytest.fixture
def changing(table: Table) -> Table:
    """Return a table that records changes, with every kind of change in it."""
    feed = {"delta.enableChangeDataFeed": "true"}
    rows = numbered(*range(8)).append_column("part", pa.array([n % 2 for n in range(8)]))
    table.append(rows, partition_by=["part"], configuration=feed)
    table.delta.update({"id": "id + 100"}, predicate="id = 3")
    table.delta.delete("id = 4")
    table.delta.delete("part = 1")
    merge = table.delta.merge(
        pa.table({"id": [0, 50], "part": [0, 1]}), "t.id = s.id", source_alias="s", target_alias="t"
    )
    merge.when_matched_update({"part": "7"}).when_not_matched_insert_all().execute()
    table.append(pa.table({"id": [60], "part": [1]}))
    table.delta.optimize.compact()
    write_deltalake(table.uri, pa.table({"id": [70], "part": [0]}), mode="overwrite")
    return table


def replica(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Apply changes as a reader has to: by version, deleted rows before inserted ones."""
    rows: list[dict[str, Any]] = []
    order = {"delete": 0, "update_preimage": 0, "insert": 1, "update_postimage": 1}
    for change in sorted(changes, key=lambda c: (c["_commit_version"], order[c["_change_type"]])):
        row = {key: value for key, value in change.items() if key not in CHANGES}
        if order[change["_change_type"]]:
            rows.append(row)
        else:
            rows.remove(row)
    return ordered(rows)


@pytest.mark.parametrize("settings", [{}, {"max_files": 1}, {"max_versions": 2}, {"max_bytes": 1}], ids=str)
def test_changes_rebuild_the_table(changing: Table, tmp_path: Path, settings: dict[str, int]) -> None:
    read = reading(changing, tmp_path, starting=0, change_feed=True, **settings)
    start = read.begin()
    assert replica(read.everything(start)) == changing.rows()
    assert all("file" not in end for _, end in read.epochs(start)), "an epoch never ends within a version"


def test_changes_are_those_that_deltalake_reads(changing: Table, tmp_path: Path) -> None:
    read = reading(changing, tmp_path, starting=0, change_feed=True)
    theirs = pa.RecordBatchReader.from_stream(changing.delta.load_cdf(0)).read_all().to_pylist()
    ours = whole(read)
    assert [{k: row[k] for k in sorted(row) if k != "_commit_timestamp"} for row in ours] == ordered(
        [{k: row[k] for k in sorted(row) if k != "_commit_timestamp"} for row in theirs]
    )
    assert {row["_commit_timestamp"].tzinfo is not None for row in ours} == {True}


def test_a_snapshot_counts_as_inserted_and_may_be_divided(changing: Table, tmp_path: Path) -> None:
    changing.append(pa.table({"id": [80], "part": [1]}))
    version = changing.version
    read = reading(changing, tmp_path, change_feed=True, max_files=1)
    start = read.begin()
    changing.delta.delete("id = 70")
    found = read.everything(start)
    assert next(end for _, end in read.epochs(start)) == position(version, snapshot=1)
    assert replica(found) == changing.rows()
    assert {row["_change_type"] for row in found if row["_commit_version"] == version} == {"insert"}


def test_rows_that_were_rewritten_without_a_record_of_changes_are_refused(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1, 2))
    table.delta.delete("id = 1")
    read = reading(table, tmp_path, starting=0, change_feed=True)
    start = read.begin()
    with pytest.raises(SourceError, match=r"version 1 \(DELETE\) rewrote rows while the table did not record"):
        read.everything(start)


def test_files_that_are_removed_whole_need_no_record(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1))
    table.append(numbered(2))
    table.delta.delete("id = 1")
    read = reading(table, tmp_path, starting=0, change_feed=True)
    assert replica(whole(read)) == [{"id": 2}]


def test_epochs_that_a_sink_takes_back_are_deletes(tmp_path: Path) -> None:
    writer = Writer(BY_NAME["delta-append"], tmp_path)
    writer.write(1, orders(1, 2))
    writer.write(2, orders(3))
    writer.rewind(1)
    read = reading(Table(tmp_path / "target"), tmp_path, starting=0, change_feed=True)
    assert [row["id"] for row in replica(whole(read))] == [1, 2]


def test_a_column_of_the_feeds_own_name_is_refused(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1, _change_type="x"))
    read = reading(table, tmp_path, change_feed=True)
    with pytest.raises(SourceError, match="has a column '_change_type', which a change feed adds"):
        read.begin()


# --- what cannot be read


def metadata(table: Table, **configuration: str) -> dict[str, Any]:
    [action] = [action["metaData"] for action in table.actions(0) if "metaData" in action]
    return {"metaData": {**action, "configuration": configuration}}


def protocol(*features: str, version: int = 3) -> dict[str, Any]:
    return {
        "protocol": {
            "minReaderVersion": version,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    }


UNREADABLE = {
    "columnMapping": lambda table: (
        protocol("columnMapping"),
        metadata(table, **{"delta.columnMapping.mode": "name"}),
    ),
    "variantType": lambda table: (protocol("variantType"),),
    "somethingNew": lambda table: (protocol("somethingNew"),),
}


@pytest.mark.parametrize("feature", UNREADABLE)
def test_what_cannot_be_read_is_refused_by_name(table: Table, tmp_path: Path, feature: str) -> None:
    table.append(numbered(1))
    read = reading(table, tmp_path)
    start = read.begin()
    read.latest(start)
    table.commit(*UNREADABLE[feature](table))
    with pytest.raises(SourceError, match=rf"uses {feature}, which this source cannot read"):
        read.everything(start)
    with pytest.raises(SourceError, match=feature):
        reading(table, tmp_path).begin()


def test_rows_with_a_deletion_vector_are_refused(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1))
    table.commit(protocol("deletionVectors"))
    read = reading(table, tmp_path, starting=0)
    start = read.begin()
    assert len(read.everything(start)) == 1, "that a table may have some does no harm"
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    table.commit(
        {
            "add": {
                "path": "a.parquet",
                "partitionValues": {},
                "size": 1,
                "modificationTime": 1,
                "dataChange": True,
                "deletionVector": vector,
            }
        }
    )
    with pytest.raises(SourceError, match=r"version 2 uses deletionVectors \(a.parquet\)"):
        read.everything(start)


INLINE_VECTOR = "^Bg9^0rr910000000000iXQKl0rr91000315c8Xg0@@D7"
"""Rows 3 and 4, as a bitmap in the protocol's text form."""


def test_a_snapshot_with_a_deletion_vector_is_refused(table: Table, tmp_path: Path) -> None:
    table.append(numbered(*range(30)))
    [added] = [action["add"] for action in table.actions(0) if "add" in action]
    table.commit(protocol("deletionVectors"))
    vector = {"storageType": "i", "pathOrInlineDv": INLINE_VECTOR, "sizeInBytes": 36, "cardinality": 2}
    table.commit(
        {"remove": {"path": added["path"], "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**added, "deletionVector": vector}},
    )
    with pytest.raises(SourceError, match="version 2 uses deletionVectors"):
        reading(table, tmp_path).begin()


def test_a_version_that_makes_it_another_table_is_refused(table: Table, tmp_path: Path) -> None:
    table.append(numbered(1))
    read = reading(table, tmp_path, starting="latest")
    start = read.begin()
    read.latest(start)
    other = metadata(table)
    other["metaData"]["id"] = "another"
    table.commit(other)
    with pytest.raises(SourceError, match="it is another table since version 1: its id is another"):
        read.latest(start)


@pytest.mark.parametrize("path", ["s3://elsewhere/a.parquet", "/elsewhere/a.parquet", "file:/elsewhere/a.parquet"])
def test_files_of_another_table_are_refused(table: Table, tmp_path: Path, path: str) -> None:
    table.append(numbered(1))
    read = reading(table, tmp_path, starting="latest")
    start = read.begin()
    table.commit({"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}})
    with pytest.raises(SourceError, match=r"version 1 names a file outside of the table .*: a shallow clone"):
        read.everything(start)


def test_a_removed_file_of_unknown_partition_is_refused_by_a_change_feed(changing: Table, tmp_path: Path) -> None:
    read = reading(changing, tmp_path, starting="latest", change_feed=True)
    start = read.begin()
    changing.commit({"remove": {"path": "part=1/x.parquet", "dataChange": True, "deletionTimestamp": 1}})
    with pytest.raises(SourceError, match=r"does not say in which partition part=1/x.parquet is"):
        read.everything(start)
