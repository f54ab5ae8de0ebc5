"""The reference tables of a run: which versions an epoch has, and what the selects of sinks make of them."""

import contextlib
import os
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.clock import Clock, new_token
from holdfast.core.contracts import Owner
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Materials
from holdfast.engine.coordinator import RecordedEpoch
from holdfast.engine.tables import ReferenceTables, TableImage, TableUse
from holdfast.engine.work_places import LOCK, HeldFolder
from holdfast.errors import CorruptCheckpoint
from holdfast.spark.definition import Definition
from holdfast.spark.selects import EpochRows, Selects, selected_schemas
from holdfast.stores.store import DurableCheckpointStore

_SCRATCH = "tables-"


class EpochTables:
    """The reference tables of a run, and what the selects of sinks make of them."""

    def __init__(self, definition: Definition, materials: Materials, work_root: str, clock: Clock) -> None:
        self._definition, self._work_root = definition, work_root
        self._scratch = HeldFolder(os.path.join(work_root, f"{_SCRATCH}{new_token()}"), clock)
        uses = {table.name: TableUse(table.spec, table.refresh_seconds) for table in definition.tables.values()}
        self._reference = ReferenceTables(uses, materials, self._scratch.path, clock)
        self._selects = Selects(definition)
        self._images: Mapping[str, TableImage] = {}

    def bind(
        self, store: DurableCheckpointStore, schemas: Mapping[str, StructType], spark: SparkSession
    ) -> dict[str, StructType]:
        """Return the columns of every sink's rows: those of its view, or what its select makes of them."""
        images: Mapping[str, TableImage] = {}
        if self._definition.tables:
            self._scratch.take()
            images = self._reference.look(_newest_positions(store))
        self._selects.schemas = selected_schemas(self._definition, schemas, images, spark)
        of_views = {name: schemas[sink.output] for name, sink in self._definition.sinks.items()}
        return {**of_views, **self._selects.schemas}

    def ask(self, chosen: CheckpointManifest | None, replays: Iterable[RecordedEpoch]) -> None:
        """Refuse a start whose replays need a version that is gone. Changes nothing."""
        self._reference.ask(chosen.table_offsets if chosen else {}, replays)

    def taken_over(self, owner: Owner, chosen: CheckpointManifest | None) -> None:
        """Go on from a checkpoint in a store that is ours. Scratch files of those who are gone go too."""
        self._reference.taken_over(owner, chosen.table_offsets if chosen else {})
        for name in os.listdir(self._work_root) if os.path.isdir(self._work_root) else ():
            path = os.path.join(self._work_root, name)
            if name.startswith(_SCRATCH) and not name.endswith(LOCK) and path != self._scratch.path:
                HeldFolder(path).remove_if_free()

    def query_starts(self) -> None:
        """Hear that a query starts, in a session of its own."""
        self._selects.forget()

    def begin(self, epoch: int, recorded: RecordedEpoch | None) -> None:
        """Pick the versions that an epoch is joined with."""
        self._images = self._reference.for_epoch(epoch, recorded)

    def selected(self, rows: Mapping[str, EpochRows]) -> dict[str, EpochRows]:
        """Return what each sink gets of the rows of its view."""
        return self._selects.apply(rows, self._images)

    def positions(self, epoch: int) -> dict[str, ConnectorCheckpoint]:
        """Return the versions that the epoch was joined with."""
        return {name: image.pin.to_checkpoint(epoch) for name, image in self._images.items()}

    @property
    def path(self) -> str | None:
        """Where copies are, below the store; None when no table is copied."""
        return self._reference.path

    def release(self) -> None:
        """Let the rows of an epoch go."""
        self._selects.release()

    def remove_unneeded(self, store: DurableCheckpointStore) -> None:
        """Remove copies that no checkpoint needs any more."""
        self._reference.remove_unneeded(store)

    def close(self) -> None:
        """Let everything go."""
        with contextlib.suppress(Exception):  # The session may be gone, and its cache with it.
            self._selects.forget()
        self._reference.close()
        if self._definition.tables:
            self._scratch.release()
            self._scratch.remove_if_free()


def _newest_positions(store: DurableCheckpointStore) -> Mapping[str, ConnectorCheckpoint]:
    """Return the versions that the newest readable checkpoint was joined with."""
    try:
        newest = store.load_latest()
    except CorruptCheckpoint:
        newest = next(reversed(list(store.manifests())), None)
    return newest.table_offsets if newest is not None else {}
