"""Whether a query starts with the state of a checkpoint: asked of Spark before the fence, by one batch without data.

Spark finds out at the first batch of a query whether its state fits it: by then we would own the store, and sinks may
have been rewound. So where they may not fit, a copy of the checkpoint goes into a folder of its own, beside the
working directories, and the query runs there once: over streams without rows, into nothing, at the watermark and
time of the last batch, so that no window closes and no timer fires.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.clock import Clock, new_uuid
from holdfast.core import canonical_json
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sidecar import StateFile
from holdfast.engine.events import Observer, step
from holdfast.engine.work_places import LOCK, HeldFolder, WorkRoot, generations
from holdfast.errors import PipelineError
from holdfast.spark.empty_streams import without_sources
from holdfast.spark.failures import spark_message
from holdfast.spark.moved_lines import MovedLines
from holdfast.spark.workdir import check_parts, restore
from holdfast.stores.store import DurableCheckpointStore

_PREFIX = "trial-"
_NOT_THE_QUERY = ("sinks", "tables")
"""Of an identity: what changes the rows of epochs to come, and neither the query nor its state."""
_WRAPPED = "terminated with exception: "


class Trial:
    """Trials of one run's query."""

    def __init__(
        self, root: WorkRoot, store: DurableCheckpointStore, spark: SparkSession, observer: Observer, clock: Clock
    ) -> None:
        self._root, self._store, self._spark = root, store, spark
        self._observer, self._clock = observer, clock

    def ask(
        self,
        chosen: CheckpointManifest | None,
        identity: Mapping[str, Any],
        frame: DataFrame,
        output_mode: str,
        moved: MovedLines,
    ) -> None:
        """Refuse a query that does not start with the state of the chosen checkpoint. Nothing of it is left behind.

        A pipeline that is what it was, on the same Spark, pays nothing.
        """
        if chosen is None or not identity["stateful"] or not may_not_fit(chosen.identity, identity):
            return
        if files := self._state_files(chosen):
            with step(self._observer, self._clock, chosen.epoch, "recovery.try_state"), self._scratch() as folder:
                self._restore(chosen, files, folder, moved)
                self._run(chosen, frame, output_mode, folder)

    def _state_files(self, chosen: CheckpointManifest) -> list[StateFile]:
        return [f for f in self._store.state_reader.catalog(chosen).files if f.path.startswith("state/")]

    def _restore(self, chosen: CheckpointManifest, files: list[StateFile], folder: str, moved: MovedLines) -> None:
        """Put the state there, and the batch after the checkpoint: what the last one read once more, so no rows."""
        assert chosen.sidecar is not None
        reader, last = self._store.state_reader, chosen.epoch - 1
        parts = moved.parts(reader.progress(chosen.sidecar).parts)
        check_parts(parts, last)
        # Under the id of ours, Spark would end the query that may be running in this very process.
        parts["metadata"] = json.dumps({"id": str(new_uuid())}).encode()
        directory = restore(folder, parts, files, reader, generations(self._root.path))
        done = directory.offsets(last)
        directory.add_closing_batch(last, done.watermark_ms, int(done.metadata["batchTimestampMs"]))

    def _run(self, chosen: CheckpointManifest, frame: DataFrame, output_mode: str, folder: str) -> None:
        emptied = without_sources(frame, self._spark).writeStream.format("noop").outputMode(output_mode)
        try:
            query = emptied.option("checkpointLocation", folder).trigger(once=True).start()
            try:
                query.awaitTermination()
            finally:
                query.stop()
        except PySparkException as error:
            raise _refusal(chosen, error) from error

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[str]:
        """Lend a place for a folder. Afterwards it is gone, and so is what had to be made above it."""
        made = list(_missing(self._root.path))
        held = HeldFolder(os.path.join(self._root.path, f"{_PREFIX}{new_uuid()}"), self._clock)
        held.take()
        try:
            yield held.path
        finally:
            held.release()
            held.remove_if_free()
            for path in made:
                with contextlib.suppress(OSError):  # Somebody uses it by now.
                    os.rmdir(path)

    def remove_leftovers(self) -> None:
        """Remove what trials left whose processes died."""
        with contextlib.suppress(FileNotFoundError):
            found = {name.removesuffix(LOCK) for name in os.listdir(self._root.path) if name.startswith(_PREFIX)}
            for name in found:
                HeldFolder(os.path.join(self._root.path, name)).remove_if_free()


def _refusal(chosen: CheckpointManifest, error: PySparkException) -> PipelineError:
    why = spark_message(error).split(_WRAPPED)[-1].rstrip(".")
    return PipelineError(
        f"the query does not start with the state of checkpoint {chosen.checkpoint_id} (epoch {chosen.epoch}): "
        f"{why}. Undo the change, or start over with --fresh"
    )


def may_not_fit(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> bool:
    """Whether the query or the version of Spark is not known to be what it was when the state was written."""
    return old is None or _query_of(old) != _query_of(new)


def _query_of(identity: Mapping[str, Any]) -> bytes:
    return canonical_json.compact({key: value for key, value in identity.items() if key not in _NOT_THE_QUERY})


def _missing(path: str) -> Iterator[str]:
    """Yield the folders that are not there, the deepest first."""
    while not os.path.lexists(path):
        yield path
        path = os.path.dirname(path)
