"""What sources keep in Spark's directory beside the offsets: logs of files, and files that are no log."""

from pathlib import Path

import pytest

from holdfast.spark import source_log
from holdfast.spark.source_log import (
    add_log_entries,
    compact_as_expected,
    log_position,
    needed_log_files,
    new_log_entries,
)

KAFKA = b'\x00v1\n{"orders":{"0":5,"1":0}}'
"""As Spark writes it, the byte before the version included."""
KAFKA_BATCH_ID = b'\x00v1\n{"batchId":{"0":5}}'
"""A topic that is named like a field of the file source's log."""
RATE = b"v1\n1789000000000"


def entry(batch: int) -> bytes:
    return b'{"path":"file:///in/%d.json","timestamp":1,"batchId":%d}' % (batch, batch)


@pytest.mark.parametrize("beginning", [KAFKA, KAFKA_BATCH_ID, RATE], ids=["kafka", "topic batchId", "rate"])
def test_where_a_source_began_is_recorded_and_put_back_as_it_was(tmp_path: Path, beginning: bytes) -> None:
    """Goal: a replay of the first epoch begins where it did. Method: record, put back elsewhere, compare."""
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "sources" / "0").mkdir(parents=True)
    (old / "sources" / "0" / "0").write_bytes(beginning)
    assert needed_log_files(str(old)) == ["sources/0/0"]
    parts = new_log_entries(str(old), {})
    add_log_entries(str(new), parts, {})
    compact_as_expected(str(new), 1)
    assert [path.name for path in (new / "sources" / "0").iterdir()] == ["0"]
    assert (new / "sources" / "0" / "0").read_bytes() == beginning
    assert new_log_entries(str(new), log_position(str(new))) == {}


def test_of_a_compacted_log_only_the_new_entries_are_recorded(tmp_path: Path) -> None:
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)
    (log / "1.compact").write_bytes(b"\n".join([b"v1", entry(0), entry(1)]))
    assert new_log_entries(str(tmp_path), {"0": 0}) == {"sources/0/1.compact": b"v1\n" + entry(1)}


@pytest.mark.parametrize(
    ("compacted", "default", "interval"),
    [([], 5, 5), ([3], 5, 4), ([9], 5, 10), ([11], 5, 6), ([12], 5, 13), ([9, 16], 5, 7)],
)
def test_how_often_spark_compacts_is_told_by_what_it_compacted(
    compacted: list[int], default: int, interval: int
) -> None:
    """Spark takes the first divisor from its default on, where that is less than half."""
    assert source_log._guessed_interval(compacted, default) == interval
