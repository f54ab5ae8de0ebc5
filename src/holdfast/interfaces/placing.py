"""Under which id an imported checkpoint comes into a store, and what it says there of what it left behind."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.clock import Clock, new_uuid
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import CheckpointManifest, ParentRef
from holdfast.core.names import sidecar_name
from holdfast.errors import InvalidRequest
from holdfast.interfaces import carried_replays
from holdfast.stores.store import DurableCheckpointStore


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that is about to be imported, and what to mention about it."""

    source: str
    manifest: CheckpointManifest
    state: memoryview | None
    notes: tuple[str, ...] = ()
    foreign: bool = False
    files: Mapping[str, memoryview] = field(default_factory=dict)
    """What it needs beside it."""
    replays: tuple[carried_replays.CarriedReplay, ...] = ()


def placed(
    candidate: Candidate, store: DurableCheckpointStore, newest: int, force: bool, clock: Clock
) -> tuple[CheckpointManifest, Iterable[carried_replays.CarriedReplay], list[str]]:
    """Return the manifest and its replays under the ids they get: their own in an empty store, else the next."""
    manifest, replays, notes = candidate.manifest, candidate.replays, list[str]()
    if newest > 0:
        residents = list(store.manifests())
        # Sidecars alone are those of an import that was cut off.
        begun = not residents and not store.list_ids() and store.medium.read_pointer() is None
        if not begun and (not residents or residents[-1].timeline != manifest.timeline):
            _refuse_other_timeline(candidate, store, residents, force)
            notes.append("the store goes on with another timeline from here: sinks that know the old one will refuse")
        manifest, replays = _renumbered(candidate, newest + 1, residents, len(store.list_ids()), clock)
        if candidate.manifest.identifier != manifest.identifier:
            notes.append(f"its name '{candidate.manifest.identifier}' is taken in this store, so it was left out")
    if candidate.foreign:
        manifest = manifest.model_copy(update={"timeline": new_uuid(clock)})
    return manifest.stamped(), replays, notes


def _refuse_other_timeline(
    candidate: Candidate, store: DurableCheckpointStore, residents: Sequence[CheckpointManifest], force: bool
) -> None:
    if force:
        return
    theirs = candidate.manifest.timeline
    ours = residents[-1].timeline if residents else None
    raise InvalidRequest(
        f"{candidate.source} belongs to {f'timeline {theirs}' if theirs else 'no timeline'}, {store.describe()} to "
        f"{f'timeline {ours}' if ours else 'none that is known'}: import it into an empty store, "
        "or give --force to take it all the same"
    )


def _renumbered(
    candidate: Candidate, first_id: int, residents: Sequence[CheckpointManifest], ids: int, clock: Clock
) -> tuple[CheckpointManifest, tuple[carried_replays.CarriedReplay, ...]]:
    """Return copies that can stand above everything in a store that has seen other writers: its replays first."""
    manifest, id = candidate.manifest, first_id + len(candidate.replays)
    generation = _next_generation(manifest, residents, ids)
    # What this store gave up before stays given up; the archive's own list is about another store's ids.
    abandons = sorted({id for resident in residents for id in resident.abandons})
    replays = carried_replays.renumbered(candidate.replays, first_id, generation, abandons, clock)
    taken = any(resident.identifier == manifest.identifier for resident in residents)
    own = CheckpointDependencies(batches=(), state_files=(sidecar_name(id),))
    update = {
        "checkpoint_id": id,
        "kind": "checkpoint",
        "uuid": new_uuid(clock),
        "generation": generation,
        "began": [],
        "parent": ParentRef(id=manifest.checkpoint_id, manifest_checksum=manifest.manifest_checksum or ""),
        "abandons": [*abandons, *range(first_id, id)],
        "identifier": None if taken else manifest.identifier,
        "recovery": carried_replays.recovery_with(manifest, replays),
        "dependencies": own if manifest.sidecar else manifest.dependencies,
    }
    return manifest.model_copy(update=update, deep=True), tuple(replays.values())


def _next_generation(manifest: CheckpointManifest, residents: Sequence[CheckpointManifest], ids: int) -> int:
    """Return a generation above every one this store has seen; a damaged manifest may hide one each."""
    highest = max((resident.generation or 0 for resident in residents), default=0)
    return max(manifest.generation or 0, highest + ids - len(residents) + 1)
