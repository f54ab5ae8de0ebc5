"""What is captured of a working directory holds everything a start needs, or nothing is captured. Needs no JVM."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.growth import grown, sizes
from holdfast.core.completeness import OperatorStores, problems
from holdfast.errors import PipelineError
from holdfast.spark import state_files, workdir
from holdfast.spark.event_time import EventTime
from holdfast.spark.lines import OffsetLines
from holdfast.spark.plan_facts import PlanFacts
from holdfast.spark.workdir import WorkingDirectory, restore

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":%d}\n{"orders":{"0":7}}'
LINES = OffsetLines(("orders", "kafka"), ("0", "1"))
FACTS = PlanFacts(stores={"0": OperatorStores(2), "1": OperatorStores(1)}, log_directories=("0", "1"))


def write(root: Path, name: str, text: str = "x") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def entry(batch: int) -> str:
    return "v1\n" + json.dumps({"path": f"/in/{batch}", "batchId": batch})


def run_batch(root: Path, batch: int) -> None:
    """Leave what Spark leaves: three partitions of two operators, a log of files and where Kafka began."""
    write(root, "metadata", '{"id":"x"}')
    write(root, f"offsets/{batch}", OFFSETS % batch)
    write(root, f"sources/0/{batch}", entry(batch))
    write(root, "sources/1/0", '\0v1\n{"orders":{"0":0}}')
    for operator, partition in ((0, 0), (0, 1), (1, 0)):
        write(root, f"state/{operator}/{partition}/{batch + 1}.delta", f"{operator} {partition} {batch}")
        write(root, f"state/{operator}/_metadata/metadata")
    for operator in (0, 1):
        write(root, f"state/{operator}/0/_metadata/schema")


def compact(root: Path, batch: int) -> None:
    """Leave a log file that repeats all entries so far, and what came before it no more."""
    entries = [entry(number).split("\n")[1] for number in range(batch + 1)]
    for path in (root / "sources/0").iterdir():
        path.unlink()
    write(root, f"sources/0/{batch}.compact", "\n".join(["v1", *entries]))


@pytest.fixture
def directory(tmp_path: Path) -> WorkingDirectory:
    """Return a directory in which two batches ran and one was captured."""
    directory = WorkingDirectory(str(tmp_path / "work"), LINES)
    run_batch(tmp_path / "work", 0)
    directory.capture(0, EventTime(), FACTS)
    directory.captured()
    run_batch(tmp_path / "work", 1)
    return directory


def test_all_that_is_needed_is_captured(directory: WorkingDirectory) -> None:
    capture = directory.capture(1, EventTime(), FACTS)
    paths = [file.path for files in capture.operators.values() for file in files]
    assert problems(2, capture.parts, paths) == []
    assert len(paths) == 3 * 2 + 4 + 2 + 1


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("state/0/1", "state/0/1 is missing"),
        ("state/1", "state/1/_metadata is missing"),
        ("state", "state/0/0 is missing"),
        ("state/0/1/2.delta", "no state file for version 2"),
        ("state/0/1/1.delta", "no state file for version 1"),
        ("state/0/_metadata", "state/0/_metadata is missing"),
        ("state/1/0/_metadata/schema", "state/1/0/_metadata/schema is missing"),
        ("metadata", "metadata is missing"),
        ("offsets/0", "offsets/0 is missing"),
        ("sources/0/0", "sources/0 has no entry 0, of 0 to 1"),
        ("sources/0/1", "sources/0 has no entry 1"),
        ("sources/0", "sources/0 has no entry 0"),
        ("sources/1/0", "sources/1/0 is missing"),
    ],
)
def test_what_is_not_there_is_not_sealed_as_if_it_had_never_been(
    lost: str, told: str, directory: WorkingDirectory
) -> None:
    path = Path(directory.path) / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(PipelineError, match=f"epoch 2 is not sealed.*{told}"):
        directory.capture(1, EventTime(), FACTS)


def test_what_goes_away_between_listing_and_reading_is_missed(
    directory: WorkingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = state_files.operator_files

    def listed_too_early(*args: Any) -> dict[str, list[str]]:
        found = real(*args)
        (Path(directory.path) / "state/0/1/2.delta").unlink()
        return found

    monkeypatch.setattr(workdir, "operator_files", listed_too_early)
    with pytest.raises(PipelineError, match=r"epoch 2 is not sealed.*state/0/1/2\.delta"):
        directory.capture(1, EventTime(), FACTS)


def test_what_a_start_brought_back_is_missed_too(directory: WorkingDirectory, tmp_path: Path) -> None:
    """Goal: a schema that no plan names is known from the checkpoint. Method: restore, lose it, run a batch."""
    capture = directory.capture(1, EventTime(), FACTS)
    files = [file for found in capture.operators.values() for file in found]
    again = restore(str(tmp_path / "again"), capture.parts, files, _Captured(), (), LINES)  # type: ignore[arg-type]
    root = Path(again.path)
    for batch in (2, 3):
        run_batch(root, batch)
    for name in ("state/1/0/_metadata/schema", "sources/1/0"):
        (root / name).rename(root / "away")
        with pytest.raises(PipelineError, match=f"{name} is missing"):
            again.capture(3, EventTime(), FACTS)
        (root / "away").rename(root / name)
    again.capture(3, EventTime(), FACTS)


def test_what_left_the_disk_is_forgotten(tmp_path: Path) -> None:
    """Goal: months of epochs take no more memory than a day. Method: as Spark does, write snapshots, remove old."""
    root = tmp_path / "work"
    directory = WorkingDirectory(str(root), LINES)
    held = []
    for batch in range(60):
        run_batch(root, batch)
        for store in ("0/0", "0/1", "1/0"):
            (root / "state" / store / f"{batch + 1}.delta").rename(root / "state" / store / f"{batch + 1}.snapshot")
            (root / "state" / store / f"{batch - 1}.snapshot").unlink(missing_ok=True)
        (root / "offsets" / str(batch - 2)).unlink(missing_ok=True)
        if batch % 10 == 9:
            compact(root, batch)
        directory.capture(batch, EventTime(), FACTS)
        directory.captured()
        held.append(sizes(directory))
    on_disk = sum(path.is_file() for path in root.rglob("*"))
    assert grown(held[29], held[59], by=15) == {}
    assert all(size <= on_disk for size in held[59].values())


class _Captured:
    """Gives back what was captured, as a store does what was sealed."""

    def stream(self, file: Any) -> list[bytes]:
        return [bytes(file.open())]


def test_a_range_starts_where_the_batch_before_ended(directory: WorkingDirectory, tmp_path: Path) -> None:
    """Which range it was is told by both ends: two epochs may end alike and begin elsewhere."""
    ends = [tuple((OFFSETS % batch).splitlines()[2:]) for batch in (0, 1)]
    assert directory.range(0) == ((), ends[0])
    assert directory.range(1) == (ends[0], ends[1])
    (tmp_path / "work/offsets/0").unlink()
    assert directory.range(1) == ((), ends[1]), "Spark removed it: what it was is not known here"


@pytest.mark.parametrize(("count", "said"), [(3, "a; b; c. "), (4, "a; b; c (and 1 more). ")])
def test_what_is_missing_is_named_as_far_as_it_can_be_read(count: int, said: str) -> None:
    assert said in str(workdir._incomplete("/work", 0, list("abcd"[:count])))
