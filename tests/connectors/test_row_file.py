"""Rows of an epoch as a file for a person: durable, counted, never over another file."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.targets import RICH_ROWS, RICH_SCHEMA, SCHEMA, orders
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.row_file import check_columns, check_path, read_schema, write_row_file
from holdfast.errors import InvalidRequest

TABLE = pa.Table.from_pylist(orders(1, 2, 3), schema=SCHEMA)


def test_parquet_keeps_every_type(tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    write_row_file(pa.Table.from_pylist(RICH_ROWS, schema=RICH_SCHEMA), path)
    found = pq.read_table(path)
    assert found.to_pylist(maps_as_pydicts="strict") == RICH_ROWS
    assert found.schema == plain_schema(RICH_SCHEMA)


@pytest.mark.parametrize("ending", ["jsonl", "json", "JSONL"])
def test_json_has_a_line_per_row(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    write_row_file(TABLE, str(path))
    assert [json.loads(line) for line in path.read_text().splitlines()] == orders(1, 2, 3)


def test_csv_has_a_header(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_row_file(TABLE, str(path))
    assert path.read_text() == '"id","name","amount"\n1,"anna",1.5\n2,"anna",2.5\n3,"anna",3.5\n'


def test_what_is_told_about_a_file_was_read_from_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    told = write_row_file(TABLE, str(path))
    assert (told.path, told.rows, told.bytes, told.existed) == (str(path), 3, path.stat().st_size, False)
    assert told.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert os.listdir(tmp_path) == ["rows.csv"]


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_the_same_rows_again_leave_the_file_alone(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    first = write_row_file(TABLE, str(path))
    inode = path.stat().st_ino
    again = write_row_file(TABLE, str(path))
    assert (again.sha256, again.existed, path.stat().st_ino) == (first.sha256, True, inode)
    assert os.listdir(tmp_path) == [path.name]


@pytest.fixture(params=["with hard links", "without hard links"])
def _file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if request.param == "without hard links":
        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("_file_system")
def test_another_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("precious")
    with pytest.raises(InvalidRequest, match="exists and does not hold these rows"):
        write_row_file(TABLE, str(path))
    assert path.read_text() == "precious"
    path.unlink()
    assert not write_row_file(TABLE, str(path)).existed
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_a_link_to_nowhere_is_not_replaced_either(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError):
        write_row_file(TABLE, str(tmp_path / "rows.csv"))
    assert os.listdir(tmp_path) == ["rows.csv"]


def test_the_bytes_are_flushed_before_they_have_their_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def watched_fsync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")

    def watched_link(source: str, target: str) -> None:
        link(source, target)
        steps.append("name")
        temporary.append(source)

    temporary: list[str] = []
    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "link", watched_link)
    write_row_file(TABLE, str(tmp_path / "rows.csv"))
    named = steps.index("name")
    assert f"fsync {temporary[0]}" in steps[:named]
    assert f"fsync {tmp_path}" in steps[named:]


def test_a_file_that_was_there_is_flushed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote it may have died before."""
    path = tmp_path / "rows.csv"
    write_row_file(TABLE, str(path))
    inodes: set[int] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        inodes.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    write_row_file(TABLE, str(path))
    assert {path.stat().st_ino, tmp_path.stat().st_ino} <= inodes


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_row_file(TABLE, str(tmp_path / "rows.csv"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rows", "must be one of .parquet"),
        ("rows.xlsx", "must be one of"),
        ("none/rows.csv", "there is no directory"),
    ],
)
def test_paths_that_cannot_be_written_are_refused_at_once(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_path(str(tmp_path / name))


def test_columns_that_csv_cannot_hold_are_refused_before_anything_is_read() -> None:
    check_columns("rows.jsonl", RICH_SCHEMA)
    check_columns("rows.csv", SCHEMA)
    with pytest.raises(InvalidRequest, match=r"column 'w' .* CSV cannot hold; use .parquet or .jsonl"):
        check_columns("rows.csv", RICH_SCHEMA)


def test_a_schema_comes_back_from_its_bytes() -> None:
    assert read_schema(RICH_SCHEMA.serialize().to_pybytes()) == RICH_SCHEMA
