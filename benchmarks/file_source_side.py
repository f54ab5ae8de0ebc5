"""One side of `file_source.py`: a log of files as Spark writes it, captured and sealed by the code on the path.

Files themselves are not needed: whoever captures a log reads names. Prints a line of JSON for each window of epochs.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast import CheckpointManifest, open_store
from holdfast.clock import SystemClock
from holdfast.core.contracts import Owner
from holdfast.core.progress import ProgressRecord
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.fencing import take_over
from holdfast.spark.plan_facts import PlanFacts
from holdfast.spark.workdir import WorkingDirectory

LINES: Any
NO_EVENT_TIME: Any
try:
    from holdfast.spark.event_time import EventTime
    from holdfast.spark.lines import OffsetLines
except ImportError:  # The code on the path may be of a version before.
    LINES, NO_EVENT_TIME = ("orders",), 0
else:
    LINES, NO_EVENT_TIME = OffsetLines(("orders",), ("0",)), EventTime()

INTERVAL = 10
FACTS = PlanFacts(log_directories=("0",))


class SparkLog:
    """Writes the log of a file source: a file for each batch, every tenth time one that repeats all before it."""

    def __init__(self, root: Path, per_epoch: int) -> None:
        self._root, self._per_epoch, self._files = root, per_epoch, 0
        for folder in ("sources/0", "offsets"):
            (root / folder).mkdir(parents=True)
        (root / "metadata").write_text('{"id":"x"}')

    def batch(self, number: int) -> None:
        """Log the files of a batch, and what it reads."""
        log = self._root / "sources/0"
        entries = "".join(f"\n{entry}" for entry in self._entries(number))
        if number % INTERVAL < INTERVAL - 1:
            (log / str(number)).write_text(f"v1{entries}")
        else:
            self._compact(log, number, entries)
        (self._root / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{number}}}')

    def _entries(self, number: int) -> Iterator[str]:
        for _ in range(self._per_epoch):
            path = f"file:///data/incoming/2026/11/19/part-{self._files:08d}-c000.json"
            yield f'{{"path":"{path}","timestamp":{1_700_000_000_000 + self._files},"batchId":{number}}}'
            self._files += 1

    def _compact(self, log: Path, number: int, entries: str) -> None:
        """Spark writes a new file; the old one is renamed here and gets what is new, which leaves the same bytes."""
        target = log / f"{number}.compact"
        if number < INTERVAL:
            target.write_text("v1")
        else:
            (log / f"{number - INTERVAL}.compact").rename(target)
        with target.open("a") as file:
            for before in range(number - INTERVAL + 1, number):
                file.write((log / str(before)).read_text()[2:])
                (log / str(before)).unlink()
            file.write(entries)


class Pipeline:
    """Captures and seals as a run does."""

    def __init__(self, base: Path, facts: PlanFacts = FACTS) -> None:
        self._facts = facts
        self.directory = WorkingDirectory(str(base / "work"), LINES)
        self._store = open_store(base / "store", retain=None)
        clock = SystemClock()
        fence = take_over(self._store, clock=clock).fence
        assert fence.timeline is not None
        self._owner = Owner("orders", fence.timeline, 1)
        self._writer = CheckpointWriter(self._store, self._owner, fence, clock, inline_threshold=4096)

    def epoch(self, batch: int) -> dict[str, float]:
        """Return what an epoch's capture and seal took, and how many bytes it sealed."""
        start = time.perf_counter()
        self.directory.range_digest(batch)
        self.directory.files_read(batch)
        capture = self.directory.capture(batch, NO_EVENT_TIME, self._facts)
        captured = time.perf_counter()
        record = ProgressRecord(self._owner.timeline, self._writer.next_id, batch + 1, 1, parts=capture.parts)
        draft = CheckpointManifest.new(self._writer.next_id, batch + 1)
        sealed = self._writer.seal(draft, record.to_bytes(), capture.operators)
        ended = time.perf_counter()
        self.directory.captured()
        if batch % 50 == 0:
            self._store.prune(2)
        return {"capture": captured - start, "seal": ended - captured, "bytes": sealed.new_bytes}


def main(place: str, per_epoch: int, sizes: list[int], every: bool) -> None:
    """Measure the ten epochs up to each size. Those between are captured too if what is captured then matters."""
    base = Path(place)
    shutil.rmtree(base, ignore_errors=True)
    log = SparkLog(base / "work", per_epoch)
    pipeline = Pipeline(base)
    done = 0
    for size in sizes:
        end = size // per_epoch
        measured: list[dict[str, Any]] = []
        for batch in range(done, end):
            log.batch(batch)
            if batch >= end - INTERVAL:
                measured.append(pipeline.epoch(batch))
            elif every:
                pipeline.epoch(batch)
            else:
                pipeline.directory.captured()
        done = end
        print(json.dumps({"files": size, "epochs": measured}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [int(size) for size in sys.argv[3].split(",")], sys.argv[4] == "every")
