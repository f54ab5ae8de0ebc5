"""The pipeline of this process, as the faces see it: from before Spark starts until after the last epoch."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from holdfast.clock import SYSTEM_CLOCK, Clock, new_uuid, utc_from_ms
from holdfast.core.status import (
    BootstrapPolicy,
    CheckpointActivity,
    CheckpointStatus,
    DeploymentStatus,
    PermanentSuspendError,
    RuntimeStatus,
)
from holdfast.engine.events import Event, SourceProgress, Stopped
from holdfast.engine.requests import CheckpointRequests, RequestOutcome
from holdfast.interfaces.control import (
    ControlError,
    DirectoryEntry,
    PipelineDescription,
    RunningPipeline,
    StandingBy,
    Synchronisation,
)
from holdfast.interfaces.event_hub import EventHub
from holdfast.interfaces.metrics import Metrics
from holdfast.interfaces.progress import RunProgress
from holdfast.interfaces.redaction import Redact, redacted
from holdfast.interfaces.service import CheckpointService
from holdfast.interfaces.statistics import pipeline_statistics
from holdfast.secrets import scrub
from holdfast.stores.store import DurableCheckpointStore


class LocalPipeline:
    """The one pipeline of this process, and the observer that follows it. See `control.PipelineControl`.

    It exists before the pipeline runs: `opened` brings the store, `started` the running pipeline. `stop` is told that
    the pipeline is to end, and whether at once; it does not wait for that. `redact` takes secrets out of texts.
    """

    def __init__(
        self,
        name: str,
        requests: CheckpointRequests,
        stop: Callable[[bool], None],
        *,
        config: Mapping[str, Any] | None = None,
        redact: Redact = scrub,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._name, self._requests, self._stop = name, requests, stop
        self._config, self._redact, self._clock = dict(config or {}), redact, clock
        self._id, self._created = new_uuid(clock), self._now()
        self.events = EventHub(redact)
        self.sync: Synchronisation | None = None
        self._progress, self._metrics = RunProgress(clock=clock), Metrics(name, clock=clock)
        self._sources: dict[str, SourceProgress] = {}
        self._lock = threading.Lock()
        self._store: DurableCheckpointStore | None = None
        self._running: RunningPipeline | None = None
        self._standby: StandingBy | None = None
        self._stopping = False
        self._ended: Stopped | None = None
        self._status = DeploymentStatus.INITIALIZING
        self._since = self._created

    # The pipeline's side

    def opened(self, store: DurableCheckpointStore) -> None:
        """Take the store, before the pipeline starts: it may be looked at before recovery is done."""
        self._store, self._metrics = store, Metrics(self._name, store=store, clock=self._clock)

    def started(self, running: RunningPipeline) -> None:
        """Take the running pipeline."""
        self._standby, self._running, self.sync = None, running, running.sync

    def standing_by(self, standby: StandingBy) -> None:
        """Take a standby, which comes before the running pipeline and may never become one."""
        self._standby = standby
        self._metrics.begin_late()

    def on_event(self, event: Event) -> None:
        """Follow what happens, and pass it on."""
        self._progress.on_event(event)
        self._metrics.on_event(event)
        match event:
            case SourceProgress():
                with self._lock:
                    self._sources[event.source] = event
            case Stopped():
                self._ended = event
        self.events.on_event(event)

    # Looking

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._name

    @property
    def incarnation_uuid(self) -> UUID:
        """Identifies this process."""
        return self._requests.incarnation_uuid

    @property
    def service(self) -> CheckpointService:
        """Questions and actions on the store."""
        if self._store is None:
            raise ControlError.initializing()
        return CheckpointService(self._store, self._clock)

    def describe(self) -> PipelineDescription:
        """Return the facts of the pipeline object."""
        status, since = self._deployment()
        alive = status not in (DeploymentStatus.STOPPING, DeploymentStatus.STOPPED)
        return PipelineDescription(
            name=self._name,
            id=self._id,
            status=status,
            status_since=since,
            desired_status=self._desired(),
            created_at=self._created,
            runtime_status=RuntimeStatus(status) if alive else None,
            runtime_status_details=self._standby_details(),
            incarnation_uuid=self.incarnation_uuid,
            error=self._error(),
            runtime_config=self._config,
        )

    def _deployment(self) -> tuple[DeploymentStatus, datetime]:
        """Return the status and since when; nobody tells us of changes, so each is dated when it is first seen."""
        with self._lock:
            if (status := self._status_now()) is not self._status:
                self._status, self._since = status, self._now()
            return self._status, self._since

    def _status_now(self) -> DeploymentStatus:
        if self._ended is not None:
            return DeploymentStatus.STOPPED
        if self._stopping:
            return DeploymentStatus.STOPPING
        if self._standby is not None and self._standby.waiting:
            return DeploymentStatus.STANDBY
        if self._running is None:
            return DeploymentStatus.REPLAYING if self._requests.replaying else DeploymentStatus.INITIALIZING
        return DeploymentStatus.PAUSED if self._running.paused else DeploymentStatus.RUNNING

    def _desired(self) -> DeploymentStatus:
        if self._stopping or self._ended is not None:
            return DeploymentStatus.STOPPED
        if self._standby is not None and self._standby.waiting and not self._standby.activating:
            return DeploymentStatus.STANDBY
        paused = self._running is not None and self._running.paused
        return DeploymentStatus.PAUSED if paused else DeploymentStatus.RUNNING

    def _standby_details(self) -> dict[str, Any] | None:
        if self._standby is None or not self._standby.waiting:
            return None
        details: dict[str, Any] = redacted(self._standby.details(), self._redact)
        return details

    def _error(self) -> dict[str, Any] | None:
        if self._ended is None or self._ended.error is None:
            return None
        message = self._redact(self._ended.error)
        return {"message": message, "error_code": self._ended.kind or "RuntimeError", "details": None}

    def stats(self) -> dict[str, Any]:
        """Return the numbers of `GET stats`."""
        newest = None if self._running is None else self._running.newest
        with self._lock:
            sources = dict(self._sources)
        status, _ = self._deployment()
        numbers = pipeline_statistics(status, self._progress.snapshot(), newest, sources)
        started = int(self._created.timestamp())
        numbers["global_metrics"] |= {
            "incarnation_uuid": str(self.incarnation_uuid),
            "start_time": started,
            "initial_start_time": started,
        }
        shown: dict[str, Any] = redacted(numbers, self._redact)
        return shown

    def metrics(self) -> bytes:
        """Return all metrics in the text form of Prometheus."""
        return self._metrics.render()

    # Checkpoints

    def request_checkpoint(self) -> int:
        """Ask for a checkpoint and return its sequence number."""
        return self._requests.request()

    def checkpoint_status(self) -> CheckpointStatus:
        """Return how the requests ended."""
        status = self._requests.status()
        if status.failure is None:
            return status
        error = self._redact(status.failure.error)
        return status.model_copy(update={"failure": status.failure.model_copy(update={"error": error})})

    def checkpoint_outcomes(self) -> Sequence[RequestOutcome]:
        """Return the last requests one by one, oldest first."""
        outcomes = self._requests.outcomes()
        return [replace(each, error=None if each.error is None else self._redact(each.error)) for each in outcomes]

    def checkpoint_activity(self) -> CheckpointActivity:
        """Return what checkpointing is doing now."""
        return self._requests.activity()

    def permanent_checkpoint_errors(self) -> Sequence[PermanentSuspendError]:
        """Return why no request can ever succeed."""
        return self._requests.permanent

    # Life

    def start(
        self,
        initial: RuntimeStatus,
        *,
        bootstrap_policy: BootstrapPolicy | None = None,
        dismiss_error: bool = True,
    ) -> None:
        """Want the pipeline running or paused: it runs already."""
        if initial is RuntimeStatus.RUNNING:
            self.resume()
        elif initial is RuntimeStatus.PAUSED:
            self.pause()
        else:
            self._refuse(f"start as {initial.value}", "it runs already")

    def pause(self) -> None:
        """Hold before the next epoch."""
        self._alive("pause").pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._alive("resume").resume()

    def _alive(self, action: str) -> RunningPipeline:
        if self._stopping or self._ended is not None:
            self._refuse(action, "it does not come back in this process")
        if self._running is None:
            raise ControlError.initializing()
        return self._running

    def stop(self, *, force: bool) -> None:
        """Have the pipeline end: after the running epoch, or at once."""
        self._stop(force)
        self._stopping = True

    def activate(self, initial: RuntimeStatus) -> None:
        """Have a standby take over."""
        if self._standby is None or not self._standby.waiting:
            self._refuse("activate", "only a pipeline in standby can be activated")
        self._standby.request_activation(paused=initial is RuntimeStatus.PAUSED)

    def approve(self) -> None:
        """Refuse: what has to be approved stops a pipeline before it runs."""
        self._refuse("approve", "nothing waits for approval; 'holdfast approve' is for a start that was refused")

    def dismiss_error(self) -> None:
        """Do nothing: a process whose pipeline failed ends."""

    def clear(self) -> None:
        """Refuse: what is in use is not cleared."""
        raise ControlError(
            400, "InvalidStorageStatusTransition", f"pipeline '{self._name}' uses its storage: stop it first"
        )

    def _refuse(self, action: str, why: str) -> NoReturn:
        raise ControlError.invalid_transition(action, self._deployment()[0].value, why)

    def _now(self) -> datetime:
        return utc_from_ms(self._clock.now_ms())


class OnePipeline:
    """The directory of a process that runs one pipeline; paths without a name mean it."""

    def __init__(self, pipeline: LocalPipeline) -> None:
        self._entry = DirectoryEntry(pipeline.name, pipeline)

    def names(self) -> Sequence[str]:
        """Return its name."""
        return [self._entry.name]

    def find(self, name: str) -> DirectoryEntry:
        """Return it, if that is its name."""
        if name != self._entry.name:
            raise ControlError.unknown_pipeline(name)
        return self._entry

    def only(self) -> DirectoryEntry:
        """Return it."""
        return self._entry
