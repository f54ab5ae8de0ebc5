"""How each kind of reference table is read: which version, which rows, which types, and what is said if it cannot be.

The database servers' own are in test_table_servers.py.
"""

import datetime
import os
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from holdfast import tables
from holdfast.connectors.tables import files as table_files
from holdfast.connectors.tables.rows import readable_schema, write_rows
from holdfast.core.tables import TableSpec, TableVersion
from holdfast.errors import PipelineDefinitionError, SourceError, SourceHistoryLost, SourceUnavailable


def rows_in(directory: Path) -> list[dict[str, Any]]:
    return pq.read_table(directory / "rows.parquet").to_pylist()  # type: ignore[no-any-return]


def fetched(spec: TableSpec, directory: Path, version: TableVersion | None = None) -> TableVersion:
    directory.mkdir()
    return spec.fetch(version, str(directory))


# --- files


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


def test_files_are_copied_as_they_are_with_their_folders(tmp_path: Path) -> None:
    (tmp_path / "in" / "k=1").mkdir(parents=True)
    for name in ("a.csv", "k=1/b.csv", "_SUCCESS", ".hidden"):
        (tmp_path / "in" / name).write_text(name)
    assert fetched(tables.files(str(tmp_path / "in"), format="csv"), tmp_path / "out") == TableVersion()
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"a.csv", "k=1/b.csv"}
    assert (tmp_path / "out" / "k=1" / "b.csv").read_text() == "k=1/b.csv"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("in/a.csv", {"a.csv"}), ("in/*.csv", {"a.csv", "b.csv"}), ("in/**/*.json", {"c.json", "deep/d.json"})],
)
def test_a_file_and_a_pattern_name_files_too(path: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("a.csv", "b.csv", "c.json", "deep/d.json"):
        (tmp_path / "in" / name).write_text(name)
    fetched(tables.files(str(tmp_path / path), format="csv"), tmp_path / "out")
    assert {str(f.relative_to(tmp_path / "out")) for f in (tmp_path / "out").rglob("*") if f.is_file()} == expected


def test_files_that_are_not_there_may_come(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="there are no files at"):
        fetched(tables.files(str(tmp_path / "nothing")), tmp_path / "out")


def test_a_file_that_changes_while_it_is_copied_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no half-written table. Method: somebody else writes once, then all the time, while we copy."""
    path = tmp_path / "t.csv"
    path.write_text("first")
    copyfile, writes = table_files.shutil.copyfile, [1]

    def copy_while_written(source: str, target: str) -> None:
        copyfile(source, target)
        if writes:
            writes.pop()
            path.write_text("second, and longer")

    monkeypatch.setattr(table_files.shutil, "copyfile", copy_while_written)
    fetched(tables.files(str(path), format="csv"), tmp_path / "out")
    assert (tmp_path / "out" / "t.csv").read_text() == "second, and longer"
    writes.extend([1] * 10)
    with pytest.raises(SourceUnavailable, match="change while they are read"):
        fetched(tables.files(str(path), format="csv"), tmp_path / "again")


def test_a_file_that_goes_before_it_is_looked_at_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path / "in", {"a.csv": "1\n", "b.csv": "2\n"})
    stat = os.stat

    def too_late(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        (tmp_path / "in" / "b.csv").unlink(missing_ok=True)
        return stat(path, *arguments, **options)

    monkeypatch.setattr("holdfast.connectors.tables.files.os.stat", too_late)
    fetched(tables.files(str(tmp_path / "in"), format="csv", schema="id long"), tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["a.csv"]


def test_a_link_to_nowhere_keeps_the_version_in_use(tmp_path: Path) -> None:
    write(tmp_path / "in", {"a.csv": "1\n"})
    (tmp_path / "in" / "b.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceUnavailable):
        fetched(tables.files(str(tmp_path / "in"), format="csv", schema="id long"), tmp_path / "out")


def test_folders_behind_links_belong_to_the_table(tmp_path: Path) -> None:
    write(tmp_path, {"in/region=eu/a.csv": "1\n", "elsewhere/b.csv": "2\n"})
    (tmp_path / "in" / "region=us").symlink_to(tmp_path / "elsewhere")
    spec = tables.files(str(tmp_path / "in"), format="csv", schema="id long")
    fetched(spec, tmp_path / "out")
    assert (tmp_path / "out" / "region=us" / "b.csv").read_text() == "2\n"
    (tmp_path / "in" / "region=us" / "again").symlink_to(tmp_path / "in")
    with pytest.raises(SourceUnavailable, match="is a link to a folder that it is in"):
        fetched(spec, tmp_path / "more")


def test_a_folder_that_cannot_be_listed_is_no_empty_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(tmp_path / "in", {"a.csv": "1\n", "closed/b.csv": "2\n"})
    scandir = os.scandir

    def closed(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("holdfast.connectors.tables.files.os.scandir", closed)
    with pytest.raises(SourceUnavailable, match="Permission denied"):
        fetched(tables.files(str(tmp_path / "in"), format="csv", schema="id long"), tmp_path / "out")


def test_files_have_no_earlier_versions(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x")
    with pytest.raises(SourceHistoryLost):
        fetched(tables.files(str(tmp_path / "t.csv")), tmp_path / "out", TableVersion({"sha256": "00"}))


@pytest.mark.parametrize(
    ("path", "format", "message"),
    [("t.txt", "text", "unknown file format 'text'"), ("s3://bucket/t", "csv", "not on a local disk")],
)
def test_files_that_cannot_be_a_table_are_refused(path: str, format: Any, message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        tables.files(path, format=format)


# --- Delta


@pytest.fixture
def delta(tmp_path: Path) -> str:
    path = str(tmp_path / "delta")
    write_deltalake(path, pa.table({"id": [1, 2], "label": ["a", "b"], "k": ["x", "y"]}), partition_by=["k"])
    write_deltalake(path, pa.table({"id": [3], "label": ["c"], "k": ["x"]}), mode="overwrite")
    return path


def test_a_delta_table_has_numbered_versions_and_each_can_be_read(delta: str, tmp_path: Path) -> None:
    spec = tables.delta(delta)
    newest = spec.newest()
    assert newest is not None
    assert newest.offsets == {"version": "1"}
    assert fetched(spec, tmp_path / "one") == newest
    assert rows_in(tmp_path / "one") == [{"id": 3, "label": "c", "k": "x"}]
    first = TableVersion({"version": "0"}, newest.notes)
    assert fetched(spec, tmp_path / "zero", first) == first
    assert sorted(row["label"] for row in rows_in(tmp_path / "zero")) == ["a", "b"]


def test_a_delta_version_without_its_files_is_gone(delta: str, tmp_path: Path) -> None:
    spec = tables.delta(delta)
    DeltaTable(delta).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceHistoryLost, match=r"it is at version \d+ now"):
        fetched(spec, tmp_path / "zero", TableVersion({"version": "0"}))


def test_a_full_disk_is_no_lost_delta_version(delta: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.connectors.tables.delta.write_rows", full)
    with pytest.raises(SourceUnavailable, match=r"cannot copy the Delta table at .*No space left"):
        fetched(tables.delta(delta), tmp_path / "out")


def test_a_storage_that_was_silent_for_a_moment_is_no_lost_delta_version(
    delta: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody is advised to give up an epoch for that. The text is what `deltalake` hears from its storage."""
    said = "External error: Object Store error: Generic S3 error: Error after 10 retries in 3.2s, source: HTTP error"

    def silent(*_: Any) -> Any:
        raise DeltaError(said)

    monkeypatch.setattr(DeltaTable, "scan", silent)
    with pytest.raises(SourceUnavailable, match="after 10 retries"):
        fetched(tables.delta(delta), tmp_path / "out")


def test_a_delta_version_that_never_was_is_gone(delta: str, tmp_path: Path) -> None:
    with pytest.raises(SourceHistoryLost):
        fetched(tables.delta(delta), tmp_path / "out", TableVersion({"version": "77"}))


def test_a_delta_table_that_is_not_there_may_come(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="no Delta table at"):
        tables.delta(str(tmp_path / "nothing")).newest()


def test_another_delta_table_in_the_same_place_has_other_versions(tmp_path: Path) -> None:
    found = []
    for name in ("one", "other"):
        write_deltalake(str(tmp_path / name), pa.table({"id": [1]}))
        found.append(tables.delta(str(tmp_path / name)).newest())
    assert found[0] != found[1]


# --- SQLite


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE p (id INTEGER, label TEXT, price REAL, raw BLOB, mixed, absent)")
        connection.executemany(
            "INSERT INTO p VALUES (?, ?, ?, ?, ?, ?)",
            [(1, "a", 1.5, b"\x00\x01", 7, None), (2, None, 2, None, "seven", None)],
        )
    connection.close()
    return path


def test_a_sqlite_column_is_what_all_its_values_are(database: str, tmp_path: Path) -> None:
    fetched(tables.sqlite(database, query="SELECT * FROM p;"), tmp_path / "out")
    assert rows_in(tmp_path / "out") == [
        {"id": 1, "label": "a", "price": 1.5, "raw": b"\x00\x01", "mixed": "7", "absent": None},
        {"id": 2, "label": None, "price": 2.0, "raw": None, "mixed": "seven", "absent": None},
    ]


def test_a_query_may_end_with_a_comment(database: str, tmp_path: Path) -> None:
    fetched(tables.sqlite(database, query="SELECT id FROM p -- all of them"), tmp_path / "out")
    assert rows_in(tmp_path / "out") == [{"id": 1}, {"id": 2}]


def test_a_query_without_rows_has_its_columns(database: str, tmp_path: Path) -> None:
    fetched(tables.sqlite(database, query="SELECT id, label FROM p WHERE id > 9"), tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / "rows.parquet").names == ["id", "label"]


@pytest.mark.parametrize(
    ("path", "query", "kind"),
    [("missing.db", "SELECT 1 x", SourceUnavailable), ("shop.db", "SELECT * FROM nowhere", SourceError)],
)
def test_what_sqlite_refuses_is_told(
    path: str, query: str, kind: type[Exception], database: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as caught:
        fetched(tables.sqlite(str(tmp_path / path), query=query), tmp_path / "out")
    assert type(caught.value) is kind
    assert not (tmp_path / "missing.db").exists()


def test_a_query_cannot_write(database: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        fetched(tables.sqlite(database, query="DELETE FROM p RETURNING id"), tmp_path / "out")


# --- rows


def test_types_that_spark_does_not_know_become_the_nearest_it_does(tmp_path: Path) -> None:
    columns = {
        "u8": pa.array([255], pa.uint8()),
        "u64": pa.array([2**64 - 1], pa.uint64()),
        "none": pa.nulls(1),
        "time": pa.array([datetime.time(1, 2, 3)], pa.time64("us")),
        "date": pa.array([datetime.date(2024, 1, 2)], pa.date64()),
        "wide": pa.array([Decimal("1.5")], pa.decimal256(40, 1)),
        "ns": pa.array([datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC)], pa.timestamp("ns", "Europe/Berlin")),
        "opaque": pa.ExtensionArray.from_storage(
            pa.opaque(pa.string(), "numeric", "PostgreSQL"), pa.array(["1.50"], pa.string())
        ),
        "nested": pa.array([["a"]], pa.list_(pa.string())),
    }
    table = pa.table(columns)
    write_rows(table.schema, table.to_batches(), str(tmp_path))
    [row] = rows_in(tmp_path)
    assert row == {
        "u8": 255,
        "u64": Decimal(2**64 - 1),
        "none": None,
        "time": "01:02:03.000000",
        "date": datetime.date(2024, 1, 2),
        "wide": "1.5",
        "ns": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
        "opaque": "1.50",
        "nested": ["a"],
    }


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([("a", pa.duration("s"))]), "cast it in the query"),
        (pa.schema([("a", pa.int64()), ("a", pa.int64())]), "two columns named a"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused(schema: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        readable_schema(schema)


# --- identity


def test_relative_paths_are_the_same_table_wherever_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for relative, absolute in [
        (tables.delta("t"), tables.delta(str(tmp_path / "t"))),
        (tables.files("t"), tables.files(str(tmp_path / "t"))),
        (tables.sqlite("t", query="SELECT 1"), tables.sqlite(str(tmp_path / "t"), query=" SELECT\n 1;")),
    ]:
        assert relative.identity() == absolute.identity()


@pytest.mark.parametrize(
    "spec",
    [
        tables.postgres("postgresql://shop:hunter22@db:5433/shop", query="SELECT 1"),
        tables.mysql("mysql://shop:hunter22@db:3307/shop", query="SELECT 1"),
    ],
)
def test_an_identity_names_the_database_and_no_secret(spec: TableSpec) -> None:
    identity = str(spec.identity())
    assert "db:" in identity
    assert "hunter22" not in identity


@pytest.mark.parametrize("url", ["shop.db", "mysql:///shop", "mysql://u:hunter22@host/shop?nonsense=1"])
def test_a_url_that_cannot_be_mysqls_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(PipelineDefinitionError, match="the mysql table") as caught:
        tables.mysql(url, query="SELECT 1")
    assert "hunter22" not in str(caught.value)


def test_copying_a_delta_table_is_a_setting_and_not_another_table(delta: str) -> None:
    assert tables.delta(delta, copy=True).copied
    assert not tables.delta(delta).copied
    assert tables.delta(delta, copy=True).identity() == tables.delta(delta).identity()
    assert os.path.isabs(str(tables.delta(delta).identity()["path"]))
