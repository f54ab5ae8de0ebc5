"""From what a start decided to a working directory of its own."""

import contextlib
import os
import shutil

from pyspark.sql import SparkSession

from holdfast.engine.startup import Start
from holdfast.spark.source_log import COMPACT_INTERVAL
from holdfast.spark.workdir import WorkingDirectory, check_parts, remove_directories, restore
from holdfast.stores.store import DurableCheckpointStore


class Restoring:
    """The working directories below one root, a number each: what earlier generations left, and our own."""

    def __init__(self, root: str, store: DurableCheckpointStore, spark: SparkSession) -> None:
        self._root, self._store, self._spark = root, store, spark
        self._old = _numbered(root)

    def recorded_range(self, epoch: int, inputs: tuple[str, ...]) -> dict[str, bytes] | None:
        """Return the range of an epoch that an earlier generation recorded; None when none did."""
        for path in self._old:
            parts = WorkingDirectory(path, inputs).recorded_parts(epoch - 1)
            if parts is not None:
                return parts
        return None

    def restore(self, start: Start, inputs: tuple[str, ...]) -> WorkingDirectory:
        """Build the directory of our generation from the checkpoint that was chosen; empty on a fresh start."""
        target = os.path.join(self._root, str(start.owner.generation))
        shutil.rmtree(target, ignore_errors=True)  # Left by a pipeline whose store is gone: this generation is new.
        os.makedirs(self._root, exist_ok=True)
        if start.chosen is None:
            os.makedirs(target)
            return WorkingDirectory(target, inputs)
        assert start.chosen.sidecar is not None
        reader = self._store.state_reader
        parts = dict(reader.progress(start.chosen.sidecar).parts)
        check_parts(parts, start.epoch - 1)
        files = reader.catalog(start.chosen).files
        setting, default = COMPACT_INTERVAL
        interval = int(self._spark.conf.get(setting) or default)
        return restore(target, parts, files, reader, self._old, inputs, interval)

    def remove_old(self, start: Start) -> None:
        """Remove what earlier generations left."""
        remove_directories(self._root, before=start.owner.generation)


def _numbered(root: str) -> list[str]:
    """Return the directories below `root` that have a number for a name, newest first."""
    with contextlib.suppress(FileNotFoundError):
        numbers = sorted((int(name) for name in os.listdir(root) if name.isdigit()), reverse=True)
        return [os.path.join(root, str(number)) for number in numbers]
    return []
