"""Whether a process stays as small as it is (`make soak-memory`): what it holds over 100,000 epochs, without Spark.

Every epoch leaves what Spark leaves: state files of four partitions, of which old ones go, and a log of files. It is
captured, sealed and pruned as in a run. Shown are the blocks of memory that Python has given out, the size of the
process, and the files on the disk.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from file_source_side import Pipeline, SparkLog
from measuring import machine_facts

from holdfast.core.completeness import OperatorStores
from holdfast.spark.plan_facts import PlanFacts

RESULTS = Path(__file__).resolve().parent / "results" / "memory.json"
PARTITIONS, KEPT, SNAPSHOT_EVERY = 4, 20, 10
FACTS = PlanFacts(stores={"0": OperatorStores(PARTITIONS)}, log_directories=("0",))


class SparkState:
    """Writes the state of an operator: a change file for each partition and batch, now and then a snapshot."""

    def __init__(self, root: Path) -> None:
        self._stores = [root / "state/0" / str(number) for number in range(PARTITIONS)]
        for store in self._stores:
            store.mkdir(parents=True)
        for name in ("state/0/_metadata/metadata", "state/0/0/_metadata/schema"):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text("x")

    def batch(self, number: int) -> None:
        """Write a version and let old ones go."""
        version = number + 1
        kind = "snapshot" if version % SNAPSHOT_EVERY == 0 else "delta"
        for place, store in enumerate(self._stores):
            (store / f"{version}.{kind}").write_bytes(os.urandom(200) + bytes([place]))
            for old in ("snapshot", "delta"):
                (store / f"{version - KEPT}.{old}").unlink(missing_ok=True)


def measured(place: Path, epoch: int) -> dict[str, Any]:
    """Return what there is after an epoch."""
    gc.collect()
    files = sum(path.is_file() for path in place.rglob("*"))
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    mib = round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    return {"epoch": epoch, "blocks": sys.getallocatedblocks(), "mib": mib, "files": files}


def main() -> None:
    """Run until the epochs are done or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to stop in any case")
    parser.add_argument("--directory", type=Path, default=None, help="where to work: best in memory")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=options.directory, prefix="soak-"))
    facts, found = machine_facts(str(place)), list[dict[str, Any]]()
    try:
        log = SparkLog(place / "work", 1)
        state, pipeline = SparkState(place / "work"), Pipeline(place, FACTS)
        began = time.monotonic()
        for batch in range(options.epochs):
            log.batch(batch)
            state.batch(batch)
            pipeline.epoch(batch)
            if batch > KEPT:
                (place / "work/offsets" / str(batch - KEPT)).unlink()
            if (batch + 1) % max(1, options.epochs // 20) == 0:
                found.append(measured(place, batch + 1))
                print(json.dumps(found[-1]), flush=True)
                options.output.write_text(json.dumps({"machine": facts, "samples": found}, indent=2) + "\n")
            if time.monotonic() - began > options.seconds:
                break
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
