"""Copies a checkpoint into the bucket: what is missing there, verified, its manifest last."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from holdfast.clock import Clock
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.planning import merge_update
from holdfast.engine.sync.catalogue import Catalogue
from holdfast.engine.sync.copying import (
    Beginnings,
    OtherCheckpoint,
    Vanished,
    copy_sidecars,
    in_parallel,
    is_same,
    readable,
    seal_copy,
)
from holdfast.engine.sync.materials import BucketMaterials
from holdfast.engine.sync.owner import OwnerLock
from holdfast.engine.sync.sides import Side
from holdfast.errors import CorruptCheckpoint, InvalidRequest
from holdfast.stores.medium import VersionChanged
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.verification import ByteProgress


@dataclass(frozen=True)
class Copied:
    """What a copy moved: nothing when everything was there."""

    checkpoint_id: int
    epoch: int
    uuid: UUID | None
    objects: int
    bytes: int
    seconds: float


def newest_settled(store: DurableCheckpointStore) -> CheckpointManifest | None:
    """Return the newest checkpoint whose sinks all show it: one to go on from without what this machine staged."""
    for id in reversed(store.list_ids()):
        manifest = readable(store, id)
        if manifest is not None and manifest.epoch > 0 and is_settled(manifest) and store.glance_at(manifest).valid:
            return manifest
    return None


def is_settled(manifest: CheckpointManifest) -> bool:
    """Whether every sink is known to show an epoch."""
    return all(status == SinkCommitStatus.COMMITTED for status in manifest.sink_commit_statuses.values())


class Pusher:
    """Pushes from one store into one bucket; one push at a time."""

    def __init__(self, local: Side, bucket: Side, lock: OwnerLock, catalogue: Catalogue, clock: Clock) -> None:
        self._local, self._bucket, self._lock, self._clock = local, bucket, lock, clock
        self._catalogue = catalogue
        self._materials = BucketMaterials(bucket, clock)
        self._vouched: set[str] | None = None

    def bytes_to_push(self, manifest: CheckpointManifest) -> int:
        """Return how many bytes of sidecars are missing there."""
        return sum(self._missing(manifest, self._bucket.store.sidecars()).values())

    def push(self, manifest: CheckpointManifest, on_bytes: ByteProgress = lambda count: None) -> Copied:
        """Make the bucket hold a checkpoint. What was copied before a failure is there when it is tried again.

        `Fenced` or `InvalidRequest` when the bucket is not ours, before anything is written; `Vanished` when the
        checkpoint was pruned meanwhile.
        """
        began = self._clock.monotonic()

        def check() -> None:
            self._lock.check(manifest)

        check()
        there = self._bucket.store.sidecars()
        missing = self._missing(manifest, there)
        beginnings = Beginnings(self._bucket.store, missing.keys() & there.keys())
        copy_sidecars(self._local.store.medium, self._bucket.store.medium, missing, on_bytes, check)
        files, file_bytes = self._materials.send(self._local.materials, manifest, on_bytes, check)
        self._verify(manifest, missing, beginnings)
        check()
        created = self._seal(manifest)
        return Copied(
            manifest.checkpoint_id,
            manifest.epoch,
            manifest.uuid,
            len(missing) + files + created,
            sum(missing.values()) + file_bytes,
            self._clock.monotonic() - began,
        )

    def _missing(self, manifest: CheckpointManifest, there: Mapping[str, int]) -> dict[str, int]:
        """Return the sidecars that are not there, or are only begun, and their sizes."""
        if self._vouched is not None:
            self._vouched &= there.keys()
        missing = {}
        for name in manifest.needed_sidecars:
            size = self._local.store.medium.sidecar_size(name)
            if size is None:
                raise Vanished(f"checkpoint {manifest.checkpoint_id} was pruned before it was copied: {name} is gone")
            if there.get(name) != size:
                missing[name] = size
        return missing

    def _verify(self, manifest: CheckpointManifest, copied: Collection[str], beginnings: Beginnings) -> None:
        """Read back what no checkpoint in the bucket vouches for yet."""
        if self._vouched is None:
            whole = [m for m in self._catalogue.look() if self._catalogue.is_whole(m)]
            self._vouched = set(whole[-1].needed_sidecars) if whole else set()
        doubtful = (manifest.needed_sidecars - self._vouched) | set(copied)
        damage: dict[str, list[str]] = {}

        def job(name: str) -> Callable[[], None]:
            return lambda: damage.update({name: self._bucket.store.damage_in(manifest, {name})})

        in_parallel(job(name) for name in sorted(doubtful))
        damaged = {name: found for name, found in damage.items() if found}
        if damaged:
            beginnings.leave(damaged)
            self._refuse_damage(manifest, damaged)
        self._vouched |= doubtful

    def _refuse_damage(self, manifest: CheckpointManifest, damage: dict[str, list[str]]) -> None:
        """Raise, and say on which side it is."""
        own = self._local.store.damage_in(manifest, damage)
        theirs = [text for found in damage.values() for text in found]
        where, what = (self._local, own) if own else (self._bucket, theirs)
        raise CorruptCheckpoint(
            f"checkpoint {manifest.checkpoint_id} was not copied: it is damaged in {where}: {'; '.join(what[:3])}"
        )

    def _seal(self, manifest: CheckpointManifest) -> int:
        """Create the manifest there, or bring the one that is there up to date; return how many objects are new."""
        bucket = self._bucket.store
        there = readable(bucket, manifest.checkpoint_id)
        if there is not None and is_same(there, manifest):
            bucket.amend(manifest.checkpoint_id, lambda current: merge_update(current, manifest))
            return 0
        try:
            seal_copy(bucket, manifest)
        except OtherCheckpoint as error:
            overrule(self._bucket, self._lock, manifest, error)
        return 1


def overrule(bucket: Side, lock: OwnerLock, manifest: CheckpointManifest, other: OtherCheckpoint) -> None:
    """Put a manifest in place of a late one of a writer that was replaced; give way to one of a later writer."""
    ours, theirs = manifest.generation or 0, (other.found.generation or 0) if other.found else 0
    if theirs > ours:
        raise lock.fenced(lock.read().owner)
    if other.version is None or theirs == ours:
        raise InvalidRequest(
            f"{bucket} has another checkpoint {manifest.checkpoint_id} of the same generation: was this store "
            "restored from an older copy? Use another bucket or prefix"
        )
    try:
        bucket.store.medium.replace_manifest(manifest.checkpoint_id, manifest.to_json().encode(), other.version)
    except VersionChanged:
        raise lock.fenced(lock.read().owner) from None
