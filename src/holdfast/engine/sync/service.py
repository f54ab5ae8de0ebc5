"""Copies of a running pipeline's checkpoints: on request and at intervals, beside the epochs."""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from holdfast.clock import Clock
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.status import CheckpointSyncFailure, CheckpointSyncStatus, RemoteCheckpoint
from holdfast.engine.events import (
    CheckpointTaken,
    EpochCommitted,
    Event,
    Observer,
    SyncFailed,
    SyncPushed,
)
from holdfast.engine.startup import StartOptions
from holdfast.engine.sync.copying import Vanished
from holdfast.engine.sync.journal import BucketWitness
from holdfast.engine.sync.link import SyncLink, open_link
from holdfast.engine.sync.push import Copied, newest_settled
from holdfast.engine.sync.schedule import PushSchedule
from holdfast.engine.sync.settings import SyncSettings
from holdfast.errors import CheckpointStoreError, Fenced, InvalidRequest
from holdfast.secrets import scrub
from holdfast.stores.store import DurableCheckpointStore

_PATIENCE_SECONDS = 10.0
_ATTEMPTS = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Request:
    manifest: CheckpointManifest
    hold: contextlib.ExitStack


def open_sync(
    settings: SyncSettings, store: DurableCheckpointStore, pipeline: str, observer: Observer, clock: Clock
) -> "SyncService":
    """Return the copies of a run that is about to start. Nothing is asked of the bucket yet."""
    return SyncService(open_link(settings, store, pipeline, observer, clock), observer, clock)


class SyncService:
    """The copies of one run. One push at a time; whoever asks for what is being pushed shares its result.

    It is an observer: an epoch that was committed is something to copy.
    """

    def __init__(self, link: SyncLink, observer: Observer, clock: Clock) -> None:
        self._link, self._observer, self._clock = link, observer, clock
        self._schedule = PushSchedule(link.settings.push_seconds, clock)
        self._changed = threading.Condition()
        self._requests: dict[UUID, _Request] = {}
        self._something_new = True
        self._success: UUID | None = None
        self._failure: CheckpointSyncFailure | None = None
        self._periodic: UUID | None = None
        self._pushed: UUID | None = None
        self._held = contextlib.ExitStack()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._on_fenced: Callable[[Fenced], None] = lambda error: None
        self._witness: BucketWitness | None = None

    # start

    def begin(self, options: StartOptions) -> StartOptions:
        """Before recovery: find out where to go on from, and bring it here. See `SyncLink.go_on`."""
        options, ownership = self._link.go_on(options)
        if self._link.copied_id is not None:
            self._hold(self._link.copied_id)
        self._witness = BucketWitness(
            self._link.local.store,
            self._link.bucket,
            self._link.lock,
            ownership,
            every_seal=self._link.settings.standby,
            notes=self._link.notes,
            follow=self._link.puller.pull,
        )
        return options

    @property
    def witness(self) -> BucketWitness:
        """Who hears of take-overs and seals. Only after `begin`."""
        assert self._witness is not None
        return self._witness

    def started(self, on_fenced: Callable[[Fenced], None] = lambda error: None) -> None:
        """After recovery: copy from now on. `on_fenced` hears when the bucket turns out to be somebody else's."""
        if self._link.settings.wanted is not None:
            self._link.notes.honour(str(self._link.settings.wanted))
        self._on_fenced = on_fenced
        self._thread = threading.Thread(target=self._run, name="holdfast-sync", daemon=True)
        self._thread.start()

    def on_event(self, event: Event) -> None:
        """Hear that there is something new to copy."""
        if isinstance(event, EpochCommitted | CheckpointTaken):
            with self._changed:
                self._something_new = True
                self._changed.notify_all()

    # whoever asks

    def request(self) -> UUID:
        """Ask for a copy of the newest checkpoint and return which that is; comes back at once."""
        manifest = newest_settled(self._link.local.store)
        if manifest is None or manifest.uuid is None:
            raise InvalidRequest("there is no checkpoint to copy yet")
        with self._changed:
            if manifest.uuid not in self._requests:
                hold = contextlib.ExitStack()
                hold.enter_context(self._link.local.store.held(manifest.checkpoint_id))
                self._requests[manifest.uuid] = _Request(manifest, hold)
                self._changed.notify_all()
        return manifest.uuid

    def status(self) -> CheckpointSyncStatus:
        """Return how the copies asked for ended, which are still to come, and the last one made by itself."""
        with self._changed:
            return CheckpointSyncStatus(
                success=self._success,
                failure=self._failure,
                periodic=self._periodic,
                running=frozenset(self._requests),
            )

    def remote(self) -> list[RemoteCheckpoint]:
        """Return the whole checkpoints in the bucket, oldest first."""
        catalogue = self._link.catalogue
        whole = (m for m in catalogue.look() if m.epoch > 0 and catalogue.is_whole(m))
        return [RemoteCheckpoint(uuid=manifest.uuid) for manifest in whole if manifest.uuid is not None]

    def close(self) -> None:
        """Let a push that is under way finish, for a while."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)
            if self._thread.is_alive():
                _log.warning("a copy was under way and is given up: the next run goes on with it")

    # the worker

    def _run(self) -> None:
        while (manifest := self._next()) is not None:
            self._push(manifest)

    def _next(self) -> CheckpointManifest | None:
        """Wait for what is to be pushed next; None at the end."""
        while True:
            with self._changed:
                while not self._is_time():
                    self._changed.wait(self._seconds_to_wait())
                if self._closing:
                    return None
                for request in self._requests.values():
                    return request.manifest
                self._something_new = False
            try:
                manifest = newest_settled(self._link.local.store)
            except CheckpointStoreError as error:
                self._ended(None, error)
                continue
            if manifest is not None and manifest.uuid != self._pushed:
                return manifest
            with self._changed:
                self._schedule.succeeded()

    def _is_time(self) -> bool:
        periodic = self._something_new and self._schedule.seconds_left() == 0.0
        return self._closing or bool(self._requests) or periodic

    def _seconds_to_wait(self) -> float | None:
        return self._schedule.seconds_left() if self._something_new else None

    def _push(self, manifest: CheckpointManifest) -> None:
        periodic = manifest.uuid not in self._requests
        try:
            copied = self._copied(manifest)
        except Exception as error:  # Whatever it is, the pipeline goes on and the next attempt may succeed.
            self._ended(manifest.uuid, error)
            return
        self._hold(copied.checkpoint_id)
        with self._changed:
            self._pushed = copied.uuid
            if periodic:
                self._periodic = copied.uuid
            self._answer(manifest.uuid, None)
            self._schedule.succeeded()
            # What was committed a moment ago may not have been recorded as such yet: it comes next time.
            self._something_new |= self._link.local.store.newest_id() > copied.checkpoint_id
        self._observer.on_event(SyncPushed(str(copied.uuid), copied.bytes, copied.objects, copied.seconds))
        self._tidy(copied)

    def _copied(self, manifest: CheckpointManifest) -> Copied:
        """Push a checkpoint; one that was pruned meanwhile gives way to the newest, unless somebody asked for it."""
        for attempt in range(_ATTEMPTS):
            try:
                with self._link.local.store.held(manifest.checkpoint_id):
                    return self._link.pusher.push(manifest)
            except Vanished:
                newest = newest_settled(self._link.local.store)
                if manifest.uuid in self._requests or newest is None or attempt == _ATTEMPTS - 1:
                    raise
                manifest = newest
        raise AssertionError("unreachable")

    def _tidy(self, copied: Copied) -> None:
        try:
            self._link.notes.pushed(copied, self._clock.now_ms())
            self._link.retention.prune()
        except CheckpointStoreError as error:
            _log.warning("the checkpoint is copied, but tidying up failed: %s", error)

    def _ended(self, uuid: UUID | None, error: Exception) -> None:
        """Record a failure: who asked is told, and what is done by itself is tried again later."""
        text = scrub(str(error))
        with self._changed:
            pause = self._schedule.failed()
            self._something_new = True
            self._answer(uuid, text)
        self._observer.on_event(SyncFailed("push", text, pause))
        with contextlib.suppress(CheckpointStoreError):
            self._link.notes.failed("push", text, self._clock.now_ms())
        if isinstance(error, Fenced):
            self.witness.lost = error
            self._on_fenced(error)

    def _answer(self, uuid: UUID | None, error: str | None) -> None:
        """Move a request from running to success or failure, in one step. Hold the lock."""
        request = None if uuid is None else self._requests.pop(uuid, None)
        if request is None or uuid is None:
            return
        request.hold.close()
        if error is None:
            self._success = uuid
            if self._failure is not None and self._failure.uuid == uuid:
                self._failure = None
        else:
            self._failure = CheckpointSyncFailure(uuid=uuid, error=error)
            if self._success == uuid:
                self._success = None

    def _hold(self, checkpoint_id: int) -> None:
        """Keep the newest copied checkpoint here too: what it needs upstream is then not let go."""
        before, self._held = self._held, contextlib.ExitStack()
        self._held.enter_context(self._link.local.store.held(checkpoint_id))
        before.close()
