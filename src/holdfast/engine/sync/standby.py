"""A machine that follows a pipeline from its bucket, and takes over when it is told to."""

import contextlib
import threading
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clock import Clock
from holdfast.engine.events import Observer, SyncFailed
from holdfast.engine.sync.link import SyncLink
from holdfast.errors import CheckpointStoreError, Fenced, NoValidCheckpoint, PipelineError
from holdfast.secrets import scrub
from holdfast.stores.store import DurableCheckpointStore

STANDBY, ACTIVATED, STOPPED = "standby", "activated", "stopped"


@dataclass(frozen=True)
class StandbyStatus:
    """Where a standby is: what it could go on from now, and what was wrong with its last look."""

    state: str = STANDBY
    """`standby`, `activated` or `stopped`."""
    checkpoint_id: int | None = None
    epoch: int | None = None
    pulled_at_ms: int | None = None
    error: str | None = None


class Standby:
    """Follows a bucket until somebody activates it. Without a link the store is shared: there is nothing to follow.

    One thread waits; any other may activate or stop it.
    """

    def __init__(
        self,
        store: DurableCheckpointStore,
        link: SyncLink | None,
        observer: Observer,
        clock: Clock,
        *,
        retain: int | None = None,
    ) -> None:
        self._store, self._link, self._observer, self._clock, self._retain = store, link, observer, clock, retain
        self._following = threading.Lock()
        self._wake = threading.Event()
        self._wanted = False
        self._status = StandbyStatus()
        self._failure: Exception | None = None
        self.paused = False
        """Whether the pipeline is to hold before its first epoch."""

    @property
    def status(self) -> StandbyStatus:
        """Where it is."""
        return self._status

    @property
    def waiting(self) -> bool:
        """Whether it neither took over nor ended."""
        return self._status.state == STANDBY

    @property
    def activating(self) -> bool:
        """Whether it was told to take over, and has not done so yet."""
        return self._wanted

    def details(self) -> dict[str, Any]:
        """Return what it could go on from, and under `reason` what was wrong last, if anything was."""
        status = self._status
        reason = {} if status.error is None else {"reason": status.error}
        known = {"checkpoint_id": status.checkpoint_id, "epoch": status.epoch, "pulled_at_ms": status.pulled_at_ms}
        return {**reason, **{key: value for key, value in known.items() if value is not None}}

    def wait(self) -> bool:
        """Follow until it ends; True: activated, so start. Raises `Fenced` for a store that cannot follow."""
        while self._status.state == STANDBY:
            self._step()
            if self._status.state == STANDBY:
                self._wake.wait(None if self._link is None else self._link.settings.pull_seconds)
                self._wake.clear()
        if self._failure is not None:
            raise self._failure
        return self._status.state == ACTIVATED

    def _step(self) -> None:
        wanted = self._wanted
        try:
            if wanted:
                self.activate(paused=self.paused)
            else:
                self._follow()
        except Fenced as error:
            self._end(STOPPED, error)
        except CheckpointStoreError as error:
            self._report("activate" if wanted else "pull", error)
        finally:
            self._wanted &= not wanted

    def _report(self, action: str, error: Exception) -> None:
        text = scrub(str(error))
        self._status = replace(self._status, error=text)
        pause = self._link.settings.pull_seconds if self._link and action == "pull" else None
        self._observer.on_event(SyncFailed(action, text, pause))
        if self._link is not None:
            with contextlib.suppress(CheckpointStoreError):
                self._link.notes.failed(action, text, self._clock.now_ms())

    def _follow(self) -> None:
        if self._link is None:
            return
        with self._following:
            if self._status.state != STANDBY:
                return
            pulled = self._link.follow()
            if pulled is None:
                return
            if self._status.error is not None:
                self._link.notes.succeeded()
            self._status = StandbyStatus(STANDBY, pulled.checkpoint_id, pulled.epoch, self._clock.now_ms())
            if pulled.objects and self._retain is not None:
                self._store.prune(self._retain)

    def request_activation(self, *, paused: bool = False) -> None:
        """Have whoever waits activate; comes back at once. What fails is in `status`, and the standby stays one."""
        self.paused, self._wanted = paused, True
        self._wake.set()

    def activate(self, *, paused: bool = False) -> None:
        """Bring everything here once more, verify it, and let `wait` return. What fails leaves a standby."""
        if self._status.state == STOPPED:
            raise PipelineError("the standby was stopped: start it again")
        self._follow()
        if self._link is not None and self._store.recover_latest_validated().chosen_id is None:
            raise NoValidCheckpoint(
                f"there is nothing to go on from in {self._link.bucket} yet: the standby stays what it is"
            )
        self.paused = paused
        self._end(ACTIVATED, None)

    def stop(self) -> None:
        """End without taking over."""
        self._end(STOPPED, None)

    def _end(self, state: str, failure: Exception | None) -> None:
        with self._following:
            if self._status.state == STANDBY:
                self._failure = failure
                self._status = replace(self._status, state=state, error=None if failure is None else str(failure))
        self._wake.set()
