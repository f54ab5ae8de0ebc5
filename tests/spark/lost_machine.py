"""A pipeline whose checkpoints are in a bucket, on a machine that may be lost. Run by test_lost_machine.py.

python -m spark.lost_machine <directory of input and targets> <store> <broker> <topic> <moment, or never>

Nothing but the bucket, the input and the targets is left for the next machine: the directory it runs in is its disk.
"""

import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast import sinks, sources
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.session import local_session
from spark.killed_pipeline import KillAt, quick_start
from spark.orders import SCHEMA


class Database:
    """What a careful user hands to foreach_batch: rows and key in one transaction, and a way to ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as database:
            database.execute("CREATE TABLE IF NOT EXISTS found (id INTEGER, timeline TEXT, epoch INTEGER)")

    def write(self, table: Any, key: sinks.BatchKey) -> None:
        rows = [(id, str(key.timeline), key.epoch) for id in table["id"].to_pylist()]
        with self._open() as database:
            database.executemany("INSERT INTO found VALUES (?, ?, ?)", rows)

    def epoch(self, timeline: UUID) -> int | None:
        with self._open() as database:
            found = database.execute("SELECT max(epoch) FROM found WHERE timeline = ?", (str(timeline),)).fetchone()
        return None if found[0] is None else int(found[0])

    @contextlib.contextmanager
    def _open(self) -> Any:
        with contextlib.closing(sqlite3.connect(self._path)) as database, database:
            yield database


def main(base: Path, store: str, broker: str, topic: str, moment: str) -> None:
    database = Database(base / "found.db")
    session = local_session("lost", master="local[2]", conf=quick_start(Path("spark").absolute()))
    # The third epoch is larger, so that Spark's tasks write what waits.
    pipeline = Pipeline("shop", store=store, spark=session, collect_bytes=10_000)
    pipeline.source("orders", sources.files(str(base / "in"), schema=SCHEMA, max_files=1))
    pipeline.sink("topic", "orders", sinks.kafka(broker, topic=topic, key="id"))
    pipeline.sink("user", "orders", sinks.foreach_batch(database.write, last_committed=database.epoch))
    pipeline.run(once=True, observers=[] if moment == "never" else [KillAt(moment)])
    print("finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:6])
