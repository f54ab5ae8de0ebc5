"""Copies of a store in a bucket, for a person who asks: push, pull, status."""

import os
from dataclasses import dataclass
from uuid import UUID

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.manifest import DEFAULT_VNODE_COUNT, CheckpointManifest
from holdfast.engine.events import Event
from holdfast.engine.sync.link import look_only, open_link
from holdfast.engine.sync.notes import FAILURE, PUSH
from holdfast.engine.sync.push import newest_settled
from holdfast.engine.sync.settings import SyncSettings
from holdfast.engine.sync.standing import Standing
from holdfast.errors import InvalidRequest, StoreConfigurationError
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import read_pipeline_file
from holdfast.interfaces.reports import Record
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store
from holdfast.stores.verification import ByteProgress


@dataclass(frozen=True)
class SyncTarget:
    """A store, and the bucket that its pipeline or a person named."""

    store: str
    pipeline: str
    settings: SyncSettings


def sync_target(place: str, bucket: str | None) -> SyncTarget:
    """Return what a person means: a pipeline file with a section `sync`, or a store and a bucket."""
    if os.path.isfile(place):
        file = read_pipeline_file(place)
        settings = file.settings.get("sync")
        if bucket is not None:
            settings = SyncSettings(bucket)
        if settings is None:
            raise InvalidRequest(f"{place} has no section 'sync': name a bucket with --bucket")
        return SyncTarget(file.store, file.name, settings)
    if bucket is None:
        raise InvalidRequest(f"{place} is no pipeline file: name a bucket with --bucket")
    return SyncTarget(place, os.path.basename(os.path.normpath(place)), SyncSettings(bucket))


class _Unobserved:
    def on_event(self, event: Event) -> None:
        """Nobody watches: the answer says it all."""


@dataclass(frozen=True)
class CopyReceipt(Record):
    """A checkpoint is on the other side; `objects` and `bytes` are what had to be moved for that."""

    store: str
    bucket: str
    checkpoint_id: int
    epoch: int
    uuid: UUID | None
    objects: int
    bytes: int
    seconds: float
    followed_by: int = 0
    """Later decisions that came with it."""
    skipped: tuple[tuple[int, str], ...] = ()
    """Damaged checkpoints of the bucket that were passed over."""


@dataclass(frozen=True)
class CopyState(Record):
    """One checkpoint on one side."""

    checkpoint_id: int
    epoch: int
    uuid: UUID | None
    age_seconds: float


@dataclass(frozen=True)
class SyncReport(Record):
    """How a store and its bucket stand to each other."""

    store: str
    bucket: str
    standing: str
    """`first`, `ours`, `behind` or `replaced`: see docs/sync.md."""
    owner: str | None
    local: CopyState | None
    """The newest checkpoint here whose sinks all show it."""
    remote: CopyState | None
    """The newest whole checkpoint in the bucket."""
    remote_checkpoints: int
    recorded_after: int
    """Decisions in the bucket after its newest whole checkpoint: a take-over replays them."""
    last_push_ms: int | None
    last_failure: str | None
    last_failure_ms: int | None

    @property
    def in_order(self) -> bool:
        """Whether another machine could go on from the bucket, and nothing failed since the last copy."""
        return self.remote is not None and self.last_failure is None and self.standing != Standing.REPLACED


class Push:
    """A copy of the newest checkpoint, about to be made."""

    def __init__(self, target: SyncTarget, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._store = open_service(target.store, write=True).store
        self._link = open_link(target.settings, self._store, target.pipeline, _Unobserved(), clock)
        found = newest_settled(self._store)
        if found is None:
            raise InvalidRequest(f"there is no checkpoint in {self._store.describe()} to copy")
        self._manifest = found

    def bytes_to_move(self) -> int:
        """Return how many bytes of state are missing there."""
        return self._link.pusher.bytes_to_push(self._manifest)

    def run(self, on_bytes: ByteProgress) -> CopyReceipt:
        """Copy it, and let go of what the bucket need not keep."""
        copied = self._link.pusher.push(self._manifest, on_bytes)
        self._link.notes.pushed(copied, self._clock.now_ms())
        self._link.retention.prune()
        return CopyReceipt(
            self._store.describe(),
            str(self._link.bucket),
            copied.checkpoint_id,
            copied.epoch,
            copied.uuid,
            copied.objects,
            copied.bytes,
            copied.seconds,
        )


def pull(target: SyncTarget, wanted: UUID | None, on_bytes: ByteProgress, clock: Clock = SYSTEM_CLOCK) -> CopyReceipt:
    """Bring a checkpoint of the bucket into the store, the newest unless one is named; a store is made if need be."""
    store = open_store(target.store, retain=None, vnode_count=_vnode_count(target))
    link = open_link(target.settings, store, target.pipeline, _Unobserved(), clock)
    pulled = link.follow(wanted, on_bytes)
    if pulled is None:
        raise InvalidRequest(f"there is no whole checkpoint in {link.bucket}")
    return CopyReceipt(
        store.describe(),
        str(link.bucket),
        pulled.checkpoint_id,
        pulled.epoch,
        pulled.uuid,
        pulled.objects,
        pulled.bytes,
        pulled.seconds,
        pulled.followed_by,
        pulled.skipped,
    )


def status(target: SyncTarget, clock: Clock = SYSTEM_CLOCK) -> SyncReport:
    """Look at both sides; nothing is written."""
    store = open_service(target.store).store
    link = look_only(target.settings, store, target.pipeline, _Unobserved(), clock)
    ownership, notes = link.lock.read(), link.notes.read()
    manifests = link.catalogue.look()
    whole = [manifest for manifest in manifests if manifest.epoch > 0 and link.catalogue.is_whole(manifest)]
    newest = whole[-1] if whole else None
    failure = notes.get(FAILURE) or {}
    return SyncReport(
        store=store.describe(),
        bucket=str(link.bucket),
        standing=link.standing(ownership).value,
        owner=None if ownership.owner is None else str(ownership.owner),
        local=_state(newest_settled(store), clock),
        remote=_state(newest, clock),
        remote_checkpoints=len(whole),
        recorded_after=sum(1 for m in manifests if newest is not None and m.checkpoint_id > newest.checkpoint_id),
        last_push_ms=(notes.get(PUSH) or {}).get("at_ms"),
        last_failure=failure.get("error"),
        last_failure_ms=failure.get("at_ms"),
    )


def _state(manifest: CheckpointManifest | None, clock: Clock) -> CopyState | None:
    if manifest is None:
        return None
    age = (clock.now_ms() - manifest.timestamp_ms) / 1000
    return CopyState(manifest.checkpoint_id, manifest.epoch, manifest.uuid, age)


def _vnode_count(target: SyncTarget) -> int:
    """Return what the pipeline of an existing store has; a new store takes what it is given."""
    try:
        found: DurableCheckpointStore = open_service(target.store).store
    except StoreConfigurationError:
        return DEFAULT_VNODE_COUNT
    return found.vnode_count()
