"""Writes down what a verification found that somebody asked for, so that the verdict on a store knows of it."""

from collections.abc import Iterable, Iterator

from holdfast.clock import Clock
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.events import CheckpointVerified
from holdfast.engine.history import HistoryObserver
from holdfast.errors import CorruptCheckpoint
from holdfast.interfaces.reports import Verification
from holdfast.stores.store import DurableCheckpointStore


def remember(store: DurableCheckpointStore, found: Iterable[Verification], clock: Clock) -> None:
    """Add to the store's history what was found. Storage that takes nothing costs the memory, not the answer."""
    notes = HistoryObserver(store.history, clock)
    for verification in found:
        for event in _events(store, verification):
            notes.on_event(event)
    notes.close()


def _events(store: DurableCheckpointStore, verification: Verification) -> Iterator[CheckpointVerified]:
    for verdict in verification.verdicts:
        if verdict.outcome == "start":
            continue
        manifest = _manifest(store, verdict.checkpoint_id)
        yield CheckpointVerified(
            checkpoint_id=verdict.checkpoint_id,
            epoch=manifest.epoch if manifest else None,
            sealed_ms=manifest.timestamp_ms if manifest else None,
            problems=verdict.problems,
            bytes=verification.bytes_read,
            seconds=verification.elapsed_seconds,
        )


def _manifest(store: DurableCheckpointStore, checkpoint_id: int) -> CheckpointManifest | None:
    try:
        return store.load_by_id(checkpoint_id)
    except CorruptCheckpoint:
        return None
