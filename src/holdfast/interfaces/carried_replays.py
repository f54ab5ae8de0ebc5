"""Epochs that a checkpoint still has to replay, on their way in an archive.

A start that fell back says in its fence which epochs were decided after it, and which checkpoints still know what
they read and what was prepared of them. Each stands below `replays/<id>/`: the manifest as it was sealed, if it can
be read, and its progress record. The state of those checkpoints does not travel: nothing can be restored from them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clock import Clock, new_uuid
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import REPLAY, CheckpointManifest
from holdfast.core.names import sidecar_name
from holdfast.core.progress import ProgressRecord
from holdfast.engine.records import progress_of
from holdfast.engine.sequel import GIVEN_UP_AFTER, progress_without_manifest
from holdfast.engine.sync.copying import OtherCheckpoint, readable, seal_copy
from holdfast.errors import CorruptCheckpoint, DeserializationError
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.verification import parse_manifest

FOLDER = "replays/"
_MANIFEST, _PROGRESS = "manifest.json", "progress.bin"
NAMES = frozenset({_MANIFEST, _PROGRESS})


@dataclass(frozen=True)
class CarriedReplay:
    """What is still known of one checkpoint."""

    checkpoint_id: int
    manifest: CheckpointManifest | None
    progress: ProgressRecord | None


def gathered(store: DurableCheckpointStore, manifest: CheckpointManifest) -> tuple[CarriedReplay, ...]:
    """Return what a start from this checkpoint would look for, as far as it is there."""
    found = []
    for id in sorted(manifest.replays):
        sealed = readable(store, id)
        known = progress_of(store, sealed) if sealed else progress_without_manifest(store, id, manifest.timeline)
        if sealed is not None or known is not None:
            found.append(CarriedReplay(id, sealed, known))
    return tuple(found)


def members(replays: Iterable[CarriedReplay]) -> dict[str, bytes]:
    """Return the files of an archive."""
    files = {}
    for each in replays:
        if each.manifest is not None:
            files[f"{each.checkpoint_id}/{_MANIFEST}"] = each.manifest.to_json().encode()
        if each.progress is not None:
            files[f"{each.checkpoint_id}/{_PROGRESS}"] = each.progress.to_bytes()
    return files


def opened(source: str, files: Mapping[str, memoryview], manifest: CheckpointManifest) -> tuple[CarriedReplay, ...]:
    """Return what an archive holds, each compared with its checksum; refuse what the checkpoint does not name."""
    ids = sorted({int(name.partition("/")[0]) for name in files})
    if not manifest.replays.issuperset(ids):
        raise CorruptCheckpoint(f"{source} is damaged, nothing was imported: it has replays that nothing asks for")
    found = []
    for id in ids:
        document, record = files.get(f"{id}/{_MANIFEST}"), files.get(f"{id}/{_PROGRESS}")
        try:
            sealed = None if document is None else parse_manifest(bytes(document), id)
            progress = None if record is None else ProgressRecord.from_bytes(bytes(record))
        except (CorruptCheckpoint, DeserializationError) as error:
            raise CorruptCheckpoint(f"{source} is damaged, nothing was imported: replay {id}: {error}") from None
        found.append(CarriedReplay(id, sealed, progress))
    return tuple(found)


def missing(manifest: CheckpointManifest, replays: Iterable[CarriedReplay]) -> list[str]:
    """Return a line for each epoch that was decided and of which the archive does not say what it read."""
    there = {each.checkpoint_id for each in replays if each.progress is not None}
    entries = (manifest.recovery or {}).get(REPLAY, ())
    return [
        f"epoch {entry['epoch']} came after it, and what that read is lost: it may be read in other pieces"
        for entry in entries
        if entry["checkpoint_id"] not in there
    ]


def renumbered(
    replays: Iterable[CarriedReplay], first_id: int, generation: int | None, abandons: list[int], clock: Clock
) -> dict[int, CarriedReplay]:
    """Return each under the id that it gets, by its own."""
    placed = {}
    for id, each in enumerate(replays, first_id):
        update: dict[str, Any] = {"checkpoint_id": id, "uuid": new_uuid(clock), "generation": generation}
        update |= {
            "kind": "checkpoint",
            "began": [],
            "parent": None,
            "identifier": None,
            "recovery": None,
            "abandons": abandons,
        }
        if each.manifest is not None and each.manifest.sidecar is not None:
            update["dependencies"] = CheckpointDependencies(batches=(), state_files=(sidecar_name(id),))
        manifest = None if each.manifest is None else each.manifest.model_copy(update=update, deep=True).stamped()
        placed[each.checkpoint_id] = replace(each, checkpoint_id=id, manifest=manifest)
    return placed


def recovery_with(manifest: CheckpointManifest, placed: Mapping[int, CarriedReplay]) -> dict[str, Any] | None:
    """Return what an imported checkpoint says of what followed it; None when nothing did."""
    said = manifest.recovery or {}
    entries = [
        {**entry, "checkpoint_id": placed[entry["checkpoint_id"]].checkpoint_id}
        for entry in said.get(REPLAY, ())
        if entry["checkpoint_id"] in placed
    ]
    limit = {key: said[key] for key in (GIVEN_UP_AFTER,) if key in said}
    return {**({REPLAY: entries} if entries else {}), **limit} or None


def put_down(store: DurableCheckpointStore, replays: Iterable[CarriedReplay]) -> None:
    """Write them into a store, before whatever has to replay them is sealed there.

    Without their state they never hold, so no start goes on from one.
    """
    for each in replays:
        name = (each.manifest.sidecar if each.manifest else None) or sidecar_name(each.checkpoint_id)
        if each.progress is not None:
            data = each.progress.to_bytes()
            store.medium.put_sidecar(name, [data], len(data))
        if each.manifest is not None:
            try:
                seal_copy(store, each.manifest, pointed_to=False)
            except OtherCheckpoint:
                raise store.fenced(each.checkpoint_id) from None
