"""From what a start decided to a working directory of its own."""

import contextlib
import os
import shutil
from collections.abc import Iterator

from pyspark.sql import SparkSession

from holdfast.clock import Clock
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.records import FoundRange, progress_of
from holdfast.engine.startup import Start
from holdfast.engine.work_places import HeldFolder, WorkRoot, check_writable, generations, remove_generations
from holdfast.errors import CorruptCheckpoint
from holdfast.spark.event_time import EventTime
from holdfast.spark.lines import OffsetLines
from holdfast.spark.moved_lines import MovedLines
from holdfast.spark.source_log import COMPACT_INTERVAL
from holdfast.spark.workdir import WorkingDirectory, check_parts, restore
from holdfast.stores.store import DurableCheckpointStore

_QUERY_ID = "metadata"


class Restoring:
    """The working directories below one root, a number each: what earlier generations left, and our own."""

    def __init__(self, root: WorkRoot, store: DurableCheckpointStore, spark: SparkSession, clock: Clock) -> None:
        self._root, self._store, self._spark, self._clock = root, store, spark, clock
        self._own: HeldFolder | None = None

    def check_writable(self) -> None:
        """Refuse a place where no directory of ours can be made, before anybody is fenced off."""
        check_writable(self._root)

    def check_lines(self, chosen: CheckpointManifest | None, moved: MovedLines) -> None:
        """Refuse a checkpoint whose offsets cannot be those of the query, before anybody is fenced off."""
        progress = None if chosen is None or moved.same else progress_of(self._store, chosen)
        if progress is not None:
            moved.parts(progress.parts)

    def recorded_ranges(self, epoch: int, lines: OffsetLines) -> list[FoundRange]:
        """Return the ranges of an epoch that earlier generations recorded, the newest first."""
        batch = epoch - 1
        old = (WorkingDirectory(path, lines) for path in self._old())
        return [FoundRange(d.recorded_parts(batch), d.recorded_digest(batch)) for d in old if d.recorded(batch)]

    def _old(self) -> list[str]:
        """Return what is left of earlier generations, newest first."""
        return [*generations(self._root.path), *self._shared()]

    def _shared(self) -> Iterator[str]:
        """Yield what older versions left where all pipelines were: ours has the query id of our checkpoints.

        They are never removed: it cannot be told whether a process of such a version is using one.
        """
        found = generations(self._root.shared) if self._root.shared else []
        ours = self._query_id() if found else None
        for path in found:
            with contextlib.suppress(OSError), open(os.path.join(path, _QUERY_ID), "rb") as file:
                if ours is not None and file.read() == ours:
                    yield path

    def _query_id(self) -> bytes | None:
        for manifest in reversed(list(self._store.manifests())):
            with contextlib.suppress(CorruptCheckpoint):
                if manifest.sidecar is not None:
                    return self._store.state_reader.progress(manifest.sidecar).parts.get(_QUERY_ID)
        return None

    def restore(self, start: Start, lines: OffsetLines, moved: MovedLines) -> tuple[WorkingDirectory, EventTime]:
        """Build the directory of our generation from the checkpoint that was chosen; empty on a fresh start.

        Returns it, and where event time stands.
        """
        target = os.path.join(self._root.path, str(start.owner.generation))
        old = [path for path in self._old() if path != target]
        self._own = HeldFolder(target, self._clock)
        self._own.take()
        shutil.rmtree(target, ignore_errors=True)  # Left by a pipeline whose store is gone: this generation is new.
        if start.chosen is None:
            os.makedirs(target)
            return WorkingDirectory(target, lines), EventTime()
        assert start.chosen.sidecar is not None
        reader = self._store.state_reader
        parts = moved.parts(reader.progress(start.chosen.sidecar).parts)
        check_parts(parts, start.epoch - 1)
        files = moved.files(reader.catalog(start.chosen).files)
        setting, default = COMPACT_INTERVAL
        interval = int(self._spark.conf.get(setting) or default)
        directory = restore(target, parts, files, reader, old, lines, interval)
        return directory, EventTime.sealed(parts, start.epoch - 1)

    def remove_old(self, start: Start) -> None:
        """Remove what earlier generations left, unless a process of theirs still lives."""
        remove_generations(self._root.path, before=start.owner.generation)

    def close(self) -> None:
        """Let our own directory go."""
        if self._own is not None:
            self._own.release()
