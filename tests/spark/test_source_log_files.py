"""A log that Spark compacts now and then: what a restart needs of it, what an epoch added, and how it is put back."""

from pathlib import Path

import pytest

from holdfast.spark.source_log import (
    add_log_entries,
    compact_as_expected,
    log_position,
    needed_log_files,
    new_log_entries,
)


def entry(batch: int) -> bytes:
    return b'{"path":"file:///in/%d.json","timestamp":1,"batchId":%d}' % (batch, batch)


def text(*batches: int) -> bytes:
    return b"\n".join([b"v1", *map(entry, batches)])


def write(root: Path, files: dict[str, bytes], source: str = "0") -> str:
    """Write the files of one source's log."""
    log = root / "sources" / source
    log.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (log / name).write_bytes(data)
    return str(root)


def files(root: Path, source: str = "0") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "sources" / source).iterdir()}


@pytest.fixture
def compacted(tmp_path: Path) -> str:
    """Return where Spark compacted every third batch, and has not removed what it does not need any more."""
    names = {"0": text(0), "1": text(1), "2.compact": text(0, 1, 2), "3": text(3), "4": text(4)}
    return write(tmp_path, {**names, "5.compact": text(0, 1, 2, 3, 4, 5), "5": text(5), "6": text(6), ".6.crc": b"?"})


def test_a_restart_needs_the_newest_compact_file_and_what_follows_it(compacted: str) -> None:
    assert needed_log_files(compacted) == ["sources/0/5.compact", "sources/0/6"]
    assert log_position(compacted) == {"0": 6}


def test_a_log_that_was_never_compacted_is_needed_wholly(tmp_path: Path) -> None:
    root = write(tmp_path, {str(number): text(number) for number in (2, 0, 1)})
    assert needed_log_files(root) == ["sources/0/0", "sources/0/1", "sources/0/2"]


def test_an_epoch_added_what_came_behind_the_one_before_up_to_its_own_end(tmp_path: Path) -> None:
    root = write(tmp_path, {str(number): text(number) for number in range(5)})
    write(tmp_path, {"0": text(0)}, source="1")
    assert new_log_entries(root, {"0": 1, "1": 0}, {"0": 3}) == {"sources/0/2": text(2), "sources/0/3": text(3)}
    assert new_log_entries(root, {"0": 3, "1": 0}) == {"sources/0/4": text(4)}
    assert new_log_entries(root, {"0": 4}) == {"sources/1/0": text(0)}


def test_what_is_there_already_is_not_put_back_again(tmp_path: Path) -> None:
    root = write(tmp_path, {"0": b"as it was", "1": b"as it was"})
    add_log_entries(root, {"sources/0/1": text(1), "sources/0/2": text(2)}, {"0": 1})
    assert files(tmp_path) == {"0": b"as it was", "1": b"as it was", "2": text(2)}


def test_a_compact_file_gets_the_entries_before_it_back_and_none_of_another_source(tmp_path: Path) -> None:
    root = write(tmp_path, {"0": text(0), "1": text(1)})
    write(tmp_path, {"0": text(7)}, source="1")
    add_log_entries(root, {"sources/0/2.compact": text(2), "sources/0/3": text(3)}, {"0": 1})
    assert files(tmp_path) == {"0": text(0), "1": text(1), "2.compact": text(0, 1, 2), "3": text(3)}


# What Spark looks for when it starts


def test_the_batch_that_spark_will_look_for_compacted_is_compacted(tmp_path: Path) -> None:
    root = write(tmp_path, {str(number): text(number) for number in range(5)})
    compact_as_expected(root, 3)
    names = {"0": text(0), "1": text(1), "2.compact": text(0, 1, 2), "3": text(3), "4": text(4)}
    assert files(tmp_path) == names
    compact_as_expected(root, 3)
    assert files(tmp_path) == names


@pytest.mark.parametrize(("interval", "newest"), [(10, 8), (2, 0)])
def test_nothing_is_compacted_before_it_is_time(tmp_path: Path, interval: int, newest: int) -> None:
    root = write(tmp_path, {str(number): text(number) for number in range(newest + 1)})
    before = files(tmp_path)
    compact_as_expected(root, interval)
    assert files(tmp_path) == before


def test_the_first_batch_is_compacted_when_every_one_is(tmp_path: Path) -> None:
    root = write(tmp_path, {"0": text(0)})
    compact_as_expected(root, 1)
    assert files(tmp_path) == {"0.compact": text(0)}


def test_how_often_is_told_by_the_two_newest_compact_files(tmp_path: Path) -> None:
    logs = {"3.compact": text(*range(4)), "5.compact": text(*range(6)), "6": text(6), "7": text(7)}
    compact_as_expected(write(tmp_path, logs), 10)
    assert files(tmp_path)["7.compact"] == text(*range(8))


def test_how_often_is_told_by_the_only_compact_file_that_is_left(tmp_path: Path) -> None:
    logs = {"2.compact": text(0, 1, 2), **{str(number): text(number) for number in (3, 4, 5)}}
    compact_as_expected(write(tmp_path, logs), 10)
    assert files(tmp_path)["5.compact"] == text(0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(("compacted", "default", "due"), [(11, 4, 15), (11, 5, 17), (10, 4, 21), (3, 4, 7)])
def test_of_a_later_compact_file_spark_guesses_the_smallest_interval_that_fits(
    tmp_path: Path, compacted: int, default: int, due: int
) -> None:
    """Goal: what Spark 4.3 derives from one file. Method: 12 batches in fours or sixes, 11 at once, 4 in fours."""
    logs = {str(number): text(number) for number in range(compacted + 1, due + 1)}
    root = write(tmp_path, {f"{compacted}.compact": text(*range(compacted + 1)), **logs})
    compact_as_expected(root, default)
    assert files(tmp_path)[f"{due}.compact"] == text(*range(due + 1))
