"""A Delta source whose table forgot something, or is another one; and one on object storage."""

import logging
import shutil
import uuid
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest

from connectors.delta_tables import Table, numbered, position, reading
from holdfast.connectors.delta import reader as delta_reader
from holdfast.errors import SourceHistoryLost, SourceUnavailable


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of five versions, 0 to 4, with one row each."""
    return filled(Table(tmp_path / "table"))


def filled(table: Table) -> Table:
    for number in range(5):
        table.append(numbered(number))
    return table


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["id"] for row in rows)


# --- the log was cleaned up


def test_versions_that_are_gone_from_the_log_stop_the_pipeline_with_the_numbers(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=1)
    start = read.begin()
    table.clean_up(3)
    lost = r"version 1 of the Delta table at .* is gone from its log, the first one there is 3"
    with pytest.raises(SourceHistoryLost, match=lost):
        read.latest(start)
    with pytest.raises(SourceHistoryLost, match=lost):
        read.control.check(start)
    with pytest.raises(SourceHistoryLost, match=lost):
        reading(table, tmp_path, starting=1).begin()
    with pytest.raises(SourceHistoryLost, match=lost):
        read.reader.partitions(start, position(4))
    read.control.check(position(3))


def test_it_goes_on_without_them_if_that_was_chosen(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = reading(table, tmp_path, starting=1, on_history_lost="continue")
    start = read.begin()
    table.clean_up(3)
    with caplog.at_level(logging.WARNING):
        read.control.check(start)
        assert ids(read.everything(start)) == [3, 4]
    assert "version 1 of the Delta table" in caplog.text
    assert "the first one there is 3; going on without" in caplog.text


def test_a_snapshot_of_which_the_log_knows_no_more_stops_the_pipeline(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, max_files=2)
    start = read.begin()
    first = read.latest(start)
    assert first == position(4, snapshot=2)
    table.append(numbered(5))
    table.append(numbered(6))
    table.clean_up(5)
    again = reading(table, tmp_path, max_files=2)
    again.start(start)
    with pytest.raises(SourceHistoryLost, match=r"files of version 4 .* its log begins at 5"):
        again.latest(first)
    with pytest.raises(SourceHistoryLost, match="its log begins at 5"):
        again.control.check(first)
    going_on = reading(table, tmp_path, on_history_lost="continue")
    going_on.start(start)
    assert ids(going_on.everything(first)) == [5, 6]


def test_a_snapshot_outlives_a_clean_up_that_leaves_a_log_checkpoint_before_it(table: Table, tmp_path: Path) -> None:
    table.clean_up(4)
    table.append(numbered(5))
    read = reading(table, tmp_path)
    start = read.begin()
    table.append(numbered(6))
    assert ids(read.everything(start)) == [0, 1, 2, 3, 4, 5, 6]


def test_a_log_that_ends_in_a_log_checkpoint_is_no_loss(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting="latest")
    start = read.begin()
    table.clean_up(5)
    assert read.latest(start) == start


# --- files were vacuumed


def vacuum(table: Table) -> None:
    table.delta.optimize.compact()
    table.delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def test_a_vacuumed_file_stops_the_pipeline(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=2)
    start = read.begin()
    end = read.latest(start)
    vacuum(table)
    with pytest.raises(SourceHistoryLost, match=r"version 2 of the Delta table .* needs part-.*, which was vacuumed"):
        read.rows(start, end)
    with pytest.raises(
        SourceHistoryLost, match=r"3 of the next 3 .* were vacuumed, the first one is .* of version 2"
    ):
        read.control.check(start)
    read.control.check(position(5))


def test_it_goes_on_without_vacuumed_files_if_that_was_chosen(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = reading(table, tmp_path, starting=2, on_history_lost="continue")
    start = read.begin()
    vacuum(table)
    table.append(numbered(9))
    with caplog.at_level(logging.WARNING):
        read.control.check(start)
        assert ids(read.everything(start)) == [9]
    assert "3 of the next 4 files" in caplog.text
    assert "needs part-" in caplog.text


def test_only_what_comes_next_is_looked_for_at_a_start(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [file] = [action["add"]["path"] for action in table.actions(4) if "add" in action]
    (table.path / file).unlink()
    read = reading(table, tmp_path)
    with pytest.raises(SourceHistoryLost, match="1 of the next 3 files"):
        read.control.check(position(2))
    monkeypatch.setattr("holdfast.connectors.delta.source._LOOKED_AT", delta_reader.Limits(files=2))
    read.control.check(position(2))


# --- another table


def test_a_table_that_was_put_back_to_an_older_copy_is_noticed(table: Table, tmp_path: Path) -> None:
    shutil.copytree(table.path, tmp_path / "copy")
    for number in range(5, 9):
        table.append(numbered(number))
    read = reading(table, tmp_path, starting=0)
    start = read.begin()
    end = read.latest(start)
    assert end == position(9)
    shutil.rmtree(table.path)
    shutil.copytree(tmp_path / "copy", table.path)
    for ask in (read.control.check, read.latest):
        with pytest.raises(SourceHistoryLost, match="has never been at version 8, which was read before"):
            ask(end)
    again = reading(table, tmp_path)
    again.start(start)
    with pytest.raises(SourceHistoryLost, match="does not have what was to be read"):
        again.rows(position(3), end)


def test_a_table_that_was_replaced_is_noticed(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=0)
    start = read.begin()
    shutil.rmtree(table.path)
    for number in range(9):
        table.append(numbered(number))
    with pytest.raises(SourceHistoryLost, match="is not the one that was read before: it was replaced"):
        read.control.check(position(3))
    assert read.begin() == start


def test_a_range_that_is_read_in_another_way_now_is_refused(tmp_path: Path) -> None:
    """The version was read in parts, and is to be skipped now: which rows were read is not known any more."""
    table = Table(tmp_path / "table")
    table.append(numbered(0, 1).append_column("part", pa.array([0, 1])), partition_by=["part"])
    table.delta.update({"id": "id + 10"})
    read = reading(table, tmp_path, on_rewrite="read_added", max_files=1)
    read.start(position(1))
    assert read.latest(position(1)) == position(1, file=1)
    skipping = reading(table, tmp_path, on_rewrite="skip")
    skipping.start(position(1))
    with pytest.raises(SourceHistoryLost, match="or is read in another way now"):
        skipping.rows(position(1), position(1, file=1))


# --- object storage


@pytest.fixture
def bucket_table(s3_options: dict[str, str]) -> Table:
    return filled(BucketTable(Path(uuid.uuid4().hex), s3_options))


class BucketTable(Table):
    """A table on S3."""

    @property
    def uri(self) -> str:
        return f"s3://lake/{self.path}"

    def remove(self, key: str) -> None:
        assert self.options is not None
        client = boto3.client(
            "s3",
            endpoint_url=self.options["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        client.delete_object(Bucket="lake", Key=f"{self.path}/{key}")


def test_a_table_on_object_storage_is_read_the_same_way(bucket_table: BucketTable, tmp_path: Path) -> None:
    parts = pa.array(["a b", "100%/ü=?", None])
    other = BucketTable(Path(uuid.uuid4().hex), bucket_table.options)
    for number in range(3):
        rows = numbered(*range(3 * number, 3 * number + 3)).append_column("part", parts)
        other.append(rows, partition_by=["part"])
    for starting in ("snapshot", 0):
        read = reading(other, tmp_path, starting=starting, max_files=2)
        start = read.begin()
        assert read.everything(start) == other.rows()
        read.control.check(start)
        assert read.control.head() == position(3)


def test_history_that_is_gone_from_object_storage_is_noticed(bucket_table: BucketTable, tmp_path: Path) -> None:
    read = reading(bucket_table, tmp_path, starting=1)
    start = read.begin()
    end = read.latest(start)
    [group] = read.reader.partitions(position(3), position(4))
    assert isinstance(group, delta_reader.FileGroup)
    file = group.files[0].path
    bucket_table.remove(file)
    with pytest.raises(SourceHistoryLost, match=f"version 3 of the Delta table at .* needs {file}"):
        read.rows(start, end)
    with pytest.raises(SourceHistoryLost, match="1 of the next 4 files"):
        read.control.check(start)
    bucket_table.delta.create_checkpoint()
    for version in range(2):
        bucket_table.remove(f"_delta_log/{version:020d}.json")
    with pytest.raises(SourceHistoryLost, match="the first one there is 2"):
        read.control.check(start)


def test_object_storage_is_not_asked_all_the_time(
    bucket_table: BucketTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = reading(bucket_table, tmp_path, starting="latest")
    start = read.begin()
    assert read.latest(start) == start
    bucket_table.append(numbered(5))
    assert read.latest(start) == start
    monkeypatch.setattr(delta_reader, "_PAUSE_SECONDS", 0.0)
    assert read.latest(start) == position(6)


def test_storage_that_does_not_answer_is_told_apart(bucket_table: BucketTable, tmp_path: Path) -> None:
    given = {**(bucket_table.options or {}), "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0"}
    silent = BucketTable(bucket_table.path, given)
    with pytest.raises(SourceUnavailable, match=r"the Delta table at s3://lake/.*: reading the table"):
        reading(silent, tmp_path).begin()
