"""The log of a file source is captured by what is new in it, and made again from that. Needs no JVM."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.completeness import problems
from holdfast.core.sidecar import CapturedFile
from holdfast.errors import PipelineError
from holdfast.spark.event_time import EventTime
from holdfast.spark.lines import OffsetLines
from holdfast.spark.log_capture import LogCapture
from holdfast.spark.log_segments import LOG, segments_below
from holdfast.spark.plan_facts import PlanFacts
from holdfast.spark.source_log import is_log, needed_log_files
from holdfast.spark.workdir import SOURCES_OPERATOR, Capture, WorkingDirectory, restore

FACTS = PlanFacts(log_directories=("0",))
LINES = OffsetLines(("orders",), ("0",))
Key = tuple[str, int]


class Spark:
    """Writes a working directory as Spark does: a log file for each batch, every so often one that repeats all."""

    def __init__(self, root: Path, *, interval: int = 10, files: int = 3) -> None:
        self.root, self.interval, self.files = root, interval, files
        self.entries: list[str] = []
        root.mkdir(parents=True)
        self._write("metadata", '{"id":"x"}')

    def run(self, batch: int) -> None:
        """Log the files of a batch, then its range. Old files go, as they do in time."""
        new = [self._entry(batch, number) for number in range(self.files)]
        compacts = batch % self.interval == self.interval - 1
        self.entries += new
        self._write(
            f"sources/0/{batch}" + (".compact" if compacts else ""),
            "\n".join(["v1", *(self.entries if compacts else new)]),
        )
        self._write(f"offsets/{batch}", f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{batch}}}')
        if compacts:
            for path in (self.root / "sources/0").iterdir():
                if path.name != f"{batch}.compact":
                    path.unlink()

    def _entry(self, batch: int, number: int) -> str:
        return f'{{"path":"file:///in/{batch} \\u00e4 {number}.json","timestamp":{batch},"batchId":{batch}}}'

    def _write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)


class Sealed:
    """Stands for a store: remembers what was captured, and how much of it was new."""

    def __init__(self) -> None:
        self.new_bytes: list[int] = []
        self._held: dict[Key, bytes] = {}

    def seal(self, directory: WorkingDirectory, batch: int) -> Capture:
        """Capture a batch and keep its bytes."""
        directory.range_digest(batch)
        directory.files_read(batch)
        capture = directory.capture(batch, EventTime(), FACTS)
        files = {_key(file): file for found in capture.operators.values() for file in found}
        self.new_bytes.append(sum(file.size for key, file in files.items() if key not in self._held))
        self._held = {key: self._held.get(key) or bytes(file.open()) for key, file in files.items()}
        directory.captured()
        return capture

    def stream(self, file: Any) -> list[bytes]:
        """Give back what was sealed."""
        return [self._held[_key(file)]]


def _key(file: CapturedFile) -> Key:
    return file.sha256, file.size


def log_of(root: Path) -> tuple[list[str], list[str]]:
    """Return the files of the log that Spark starts with, and their entries."""
    names = needed_log_files(str(root))
    return names, [line for name in names for line in (root / name).read_text().split("\n")[1:]]


def is_found_by_spark(root: Path, default_interval: int) -> bool:
    """Return whether the compact file is there that Spark will look for: it guesses how often there is one."""
    numbers = {path.name: int(path.name.removesuffix(".compact")) for path in (root / "sources/0").iterdir()}
    [newest], compacted = [max(numbers.values())], sorted(n for name, n in numbers.items() if "compact" in name)
    interval = default_interval
    if len(compacted) > 1:
        interval = compacted[-1] - compacted[-2]
    elif compacted:
        batches = compacted[0] + 1
        divisors = (n for n in range(default_interval, batches // 2 + 1) if batches % n == 0)
        some = default_interval < batches // 2
        interval = batches if batches <= default_interval or not some else next(divisors, batches)
    due = (newest + 1) // interval * interval - 1
    return due < 0 or f"{due}.compact" in numbers


def files_in(capture: Capture) -> Sequence[Any]:
    return [file for found in capture.operators.values() for file in found]


@pytest.mark.parametrize("interval", [1, 2, 3, 10])
@pytest.mark.parametrize("restored_interval", [1, 4, 10])
def test_the_log_of_any_checkpoint_is_whole_and_compacted_as_spark_expects(
    interval: int, restored_interval: int, tmp_path: Path
) -> None:
    """Goal: no entry is lost, doubled or moved. Method: restore after each batch, compare with what was written."""
    spark, store = Spark(tmp_path / "work", interval=interval), Sealed()
    directory = WorkingDirectory(str(spark.root), LINES)
    for batch in range(34):
        spark.run(batch)
        capture = store.seal(directory, batch)
        [part] = [text for name, text in capture.parts.items() if name.startswith("sources/0/")]
        assert part.decode().split("\n")[1:] == spark.entries[-3:]
        again = tmp_path / "again" / str(batch)
        restore(str(again), capture.parts, files_in(capture), store, (), LINES, restored_interval)  # type: ignore[arg-type]
        names, entries = log_of(again)
        assert entries == spark.entries
        compacted = [int(name.rsplit("/", 1)[1].removesuffix(".compact")) for name in names if "compact" in name]
        assert compacted == [due for due in [(batch + 1) // restored_interval * restored_interval - 1] if due >= 0]
        assert is_found_by_spark(again, restored_interval)
        assert problems(batch + 1, capture.parts, [file.path for file in files_in(capture)]) == []


@pytest.mark.parametrize("files", [1, 40])
def test_an_epoch_seals_what_it_read_and_little_more(files: int, tmp_path: Path) -> None:
    """Goal: the thousandth epoch costs what the tenth does. Method: count new bytes and the files that hold them."""
    spark, store = Spark(tmp_path / "work", files=files), Sealed()
    directory = WorkingDirectory(str(spark.root), LINES)
    for batch in range(1000):
        spark.run(batch)
        capture = store.seal(directory, batch)
        assert len(capture.operators[SOURCES_OPERATOR]) <= 25
    one = len(spark.entries[-1]) * files
    assert sum(store.new_bytes) / 1000 < 8 * one
    assert sum(store.new_bytes[-250:]) / 250 < 10 * one
    assert {segment.path for segment in segments_below(str(spark.root))} == {
        file.path for file in capture.operators[SOURCES_OPERATOR]
    }
    assert len(list((spark.root / LOG / "0").iterdir())) == len(capture.operators[SOURCES_OPERATOR])


def test_of_a_compact_file_only_the_end_is_read(tmp_path: Path) -> None:
    """Goal: no epoch takes as long as all before it. Method: what is before the end cannot be read at all."""
    spark, store = Spark(tmp_path / "work", files=2000), Sealed()
    directory = WorkingDirectory(str(spark.root), LINES)
    for batch in range(9):
        spark.run(batch)
        store.seal(directory, batch)
    spark.run(9)
    path = spark.root / "sources/0/9.compact"
    old, new = "\n".join(spark.entries[:-2000]), "\n".join(spark.entries[-2000:])
    path.write_text(f"v1\n{'x' * len(old.encode())}\n{new}")
    capture = store.seal(directory, 9)
    assert capture.parts["sources/0/9.compact"] == f"v1\n{new}".encode()
    again = tmp_path / "again"
    restore(str(again), capture.parts, files_in(capture), store, (), LINES)  # type: ignore[arg-type]
    assert log_of(again)[1] == spark.entries


def of_before(spark: Spark) -> Iterator[CapturedFile]:
    """Return what versions before captured: the newest compact file and what follows, as they are."""
    directory = WorkingDirectory(str(spark.root))
    for name in needed_log_files(str(spark.root)):
        yield directory._captured(name)


@pytest.mark.parametrize(("interval", "restored_interval"), [(10, 10), (3, 10), (10, 4)])
@pytest.mark.parametrize("batches", [2, 3, 10, 17, 27])
def test_a_log_that_a_version_before_sealed_goes_on_without_being_sealed_again(
    interval: int, restored_interval: int, batches: int, tmp_path: Path
) -> None:
    """Goal: nothing has to be migrated. Method: restore what a version before captured, go on, restore again."""
    spark = Spark(tmp_path / "before", interval=interval)
    for batch in range(batches):
        spark.run(batch)
    before = list(of_before(spark))
    store = Sealed()
    store._held = {_key(file): bytes(file.open()) for file in before}
    offsets = f"offsets/{batches - 1}"
    parts = {offsets: (spark.root / offsets).read_bytes(), "root": b"", "metadata": b"x"}
    directory = restore(
        str(tmp_path / "work"),
        parts,
        before,  # type: ignore[arg-type]
        store,  # type: ignore[arg-type]
        (),
        LINES,
        restored_interval,
    )
    assert log_of(tmp_path / "work")[1] == spark.entries
    assert is_found_by_spark(tmp_path / "work", restored_interval)
    spark.root = tmp_path / "work"
    for batch in range(batches, batches + 15):
        spark.run(batch)
        capture = store.seal(directory, batch)
    assert max(store.new_bytes) < 10_000
    again = tmp_path / "again"
    restore(str(again), capture.parts, files_in(capture), store, (), LINES)  # type: ignore[arg-type]
    assert log_of(again)[1] == spark.entries


def test_a_capture_that_was_not_sealed_is_made_again(tmp_path: Path) -> None:
    """Goal: a storage error between capture and seal leaves nothing behind. Method: capture each batch twice."""
    spark, store = Spark(tmp_path / "work"), Sealed()
    directory = WorkingDirectory(str(spark.root), LINES)
    for batch in range(20):
        spark.run(batch)
        first = [file.path for file in directory.capture(batch, EventTime(), FACTS).operators[SOURCES_OPERATOR]]
        capture = store.seal(directory, batch)
        assert [file.path for file in capture.operators[SOURCES_OPERATOR]] == first
    assert len(list((spark.root / LOG / "0").iterdir())) == len(first)


def test_a_segment_that_went_away_is_missed(tmp_path: Path) -> None:
    spark, store = Spark(tmp_path / "work"), Sealed()
    directory = WorkingDirectory(str(spark.root), LINES)
    for batch in range(3):
        spark.run(batch)
        store.seal(directory, batch)
    spark.run(3)
    (spark.root / LOG / "0" / "1-1").unlink()
    with pytest.raises(PipelineError, match=r"epoch 4 is not sealed.*log/0/1-1"):
        directory.capture(3, EventTime(), FACTS)


def test_a_directory_that_was_linked_from_an_older_one_leaves_that_as_it_was(tmp_path: Path) -> None:
    """Goal: what two directories share is never written. Method: restore with links, go on, compare the old one."""
    spark, store = Spark(tmp_path / "old"), Sealed()
    directory = WorkingDirectory(str(spark.root), LINES)
    for batch in range(6):
        spark.run(batch)
        capture = store.seal(directory, batch)
    before = {path: path.read_bytes() for path in spark.root.rglob("*") if path.is_file()}
    new = tmp_path / "new"
    again = restore(str(new), capture.parts, files_in(capture), store, [str(spark.root)], LINES)  # type: ignore[arg-type]
    assert any(path.stat().st_nlink > 1 for path in new.rglob("*-*"))
    spark.root = new
    for batch in range(6, 14):
        spark.run(batch)
        store.seal(again, batch)
    assert {path: path.read_bytes() for path in before} == before
    assert is_log((new / "sources/0/13").read_bytes())


def test_a_file_that_is_no_log_hides_none_of_the_logs_after_it(tmp_path: Path) -> None:
    """Kafka writes once where it began, under the number of the first batch."""
    for name, text in (
        ("sources/0/0", '\0v1\n{"orders":{"0":0}}'),
        ("sources/1/0", 'v1\n{"path":"/in/0","batchId":0}'),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    captured = LogCapture(str(tmp_path)).capture(0)
    assert "sources/0/0" in captured
    assert len(captured) == 2
