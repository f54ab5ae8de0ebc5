"""What every face drives: a pipeline that can be asked and told things, wherever it runs.

`PipelineControl` is the one seam between HTTP and pipelines. In the process of a pipeline it is a
`local.LocalPipeline`; the manager has one for each of its children. A `PipelineDirectory` finds them by name. What
cannot be done now raises `ControlError`, which says how the API answers; errors of `holdfast.errors` pass through.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.status import (
    BootstrapPolicy,
    CheckpointActivity,
    CheckpointStatus,
    CheckpointSyncStatus,
    DeploymentStatus,
    PermanentSuspendError,
    RemoteCheckpoint,
    RuntimeStatus,
)
from holdfast.engine.requests import RequestOutcome
from holdfast.interfaces.event_hub import EventHub
from holdfast.interfaces.service import CheckpointService


class ControlError(Exception):
    """A pipeline does not do what it was told; `status`, `error_code` and `details` are the answer over HTTP.

    Statuses that clients retry by themselves (429, 502, 503, 504) are only for what passes without anybody's help.
    """

    def __init__(self, status: int, error_code: str, message: str, details: Any = None) -> None:
        self.status, self.error_code, self.details = status, error_code, details
        super().__init__(message)

    @classmethod
    def unknown_pipeline(cls, name: str) -> "ControlError":
        """Say that there is no pipeline of that name."""
        return cls(404, "UnknownPipelineName", f"there is no pipeline '{name}' here", {"pipeline_name": name})

    @classmethod
    def not_deployed(cls, name: str, status: str, desired_status: str) -> "ControlError":
        """Say that the pipeline has no process that could be asked."""
        details = {"pipeline_name": name, "status": status, "desired_status": desired_status}
        return cls(503, "PipelineInteractionNotDeployed", f"pipeline '{name}' is not running ({status})", details)

    @classmethod
    def unreachable(cls, name: str, request: str, error: str) -> "ControlError":
        """Say that the pipeline's process does not answer."""
        details = {"pipeline_name": name, "request": request, "error": error}
        return cls(503, "PipelineInteractionUnreachable", f"pipeline '{name}' does not answer: {error}", details)

    @classmethod
    def initializing(cls) -> "ControlError":
        """Say that the pipeline is starting, and cannot answer yet."""
        return cls(503, "Initializing", "the pipeline is starting: try again in a moment")

    @classmethod
    def other_incarnation(cls, requested: UUID, expected: UUID) -> "ControlError":
        """Say that a question is about a process that is gone: its numbers mean nothing here."""
        details = {"requested": str(requested), "expected": str(expected)}
        message = f"the pipeline was started again since: asked for {requested}, this is {expected}"
        return cls(400, "IncarnationUuidMismatch", message, details)

    @classmethod
    def invalid_transition(cls, action: str, status: str, why: str) -> "ControlError":
        """Say that the pipeline is not in a state from which this can be done."""
        return cls(400, "InvalidTransition", f"cannot {action} a pipeline that is {status}: {why}", [action, status])


@dataclass(frozen=True)
class PipelineDescription:
    """The facts of a pipeline seen from outside: what the pipeline object of the API is made of."""

    name: str
    id: UUID
    """Stays the same as long as the pipeline is known here under its name."""
    status: DeploymentStatus
    status_since: datetime
    desired_status: DeploymentStatus
    created_at: datetime
    runtime_status: RuntimeStatus | None = None
    """What the process says of itself; None without a process."""
    runtime_status_details: Mapping[str, Any] | None = None
    incarnation_uuid: UUID | None = None
    """Of the process; None without one."""
    error: Mapping[str, Any] | None = None
    """Why the pipeline ended, when it failed, as an error body (message, error_code, details); until dismissed."""
    storage_status: str = "InUse"
    """`Cleared`, `InUse` or `Clearing`."""
    runtime_config: Mapping[str, Any] = field(default_factory=dict)
    program_code: str = ""
    """The pipeline file as far as it may be shown."""


class Synchronisation(Protocol):
    """Copies of checkpoints in a bucket, as far as the faces ask: `engine.sync.service.SyncService`."""

    def request(self) -> UUID:
        """Ask for a copy of the newest checkpoint and return which that is; comes back at once."""
        ...

    def status(self) -> CheckpointSyncStatus:
        """Return how the copies asked for ended."""
        ...

    def remote(self) -> Sequence[RemoteCheckpoint]:
        """Return the copies that are there, oldest first."""
        ...


class StandingBy(Protocol):
    """What `Pipeline.stand_by` returns, as far as it is driven from here: `engine.sync.standby.Standby`."""

    paused: bool

    @property
    def waiting(self) -> bool:
        """Whether it neither took over nor ended."""
        ...

    @property
    def activating(self) -> bool:
        """Whether it was told to take over, and has not done so yet."""
        ...

    def details(self) -> dict[str, Any]:
        """Return what it could go on from, and under `reason` what was wrong last, if anything was."""
        ...

    def wait(self) -> bool:
        """Follow until it ends; True: activated."""
        ...

    def request_activation(self, *, paused: bool = False) -> None:
        """Have it take over; comes back at once."""
        ...

    def stop(self) -> None:
        """End without taking over."""
        ...


class RunningPipeline(Protocol):
    """What `Pipeline.start` returns, as far as it is driven from here."""

    @property
    def sync(self) -> Synchronisation | None:
        """Copies in a bucket; None when the pipeline has none."""
        ...

    @property
    def newest(self) -> CheckpointManifest:
        """The newest checkpoint, or the fence of the start."""
        ...

    @property
    def paused(self) -> bool:
        """Whether epochs are held."""
        ...

    def pause(self) -> None:
        """Hold before the next epoch."""
        ...

    def resume(self) -> None:
        """Go on after a pause."""
        ...


class PipelineControl(Protocol):
    """A pipeline. Every method may be called from any thread; none waits for an epoch.

    What changes the pipeline's state says what is wanted and comes back; `describe` tells how far it has come.
    """

    @property
    def name(self) -> str:
        """The pipeline's name."""
        ...

    @property
    def incarnation_uuid(self) -> UUID:
        """Identifies the process: sequence numbers and outcomes are of it alone."""
        ...

    @property
    def service(self) -> CheckpointService:
        """Questions and actions on the pipeline's store."""
        ...

    @property
    def sync(self) -> Synchronisation | None:
        """Copies in a bucket; None when the pipeline has none configured."""
        ...

    @property
    def events(self) -> EventHub:
        """What happens, as it happens."""
        ...

    def describe(self) -> PipelineDescription:
        """Return the facts of the pipeline object."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return the numbers of `GET stats`, without what is said of checkpoints."""
        ...

    def metrics(self) -> bytes:
        """Return all metrics in the text form of Prometheus."""
        ...

    # checkpoints

    def request_checkpoint(self) -> int:
        """Ask for a checkpoint and return its sequence number."""
        ...

    def checkpoint_status(self) -> CheckpointStatus:
        """Return how the requests ended."""
        ...

    def checkpoint_outcomes(self) -> Sequence[RequestOutcome]:
        """Return the last requests one by one, oldest first."""
        ...

    def checkpoint_activity(self) -> CheckpointActivity:
        """Return what checkpointing is doing now."""
        ...

    def permanent_checkpoint_errors(self) -> Sequence[PermanentSuspendError]:
        """Return why no request can ever succeed; empty when they can."""
        ...

    # life

    def start(
        self,
        initial: RuntimeStatus,
        *,
        bootstrap_policy: BootstrapPolicy | None = None,
        dismiss_error: bool = True,
    ) -> None:
        """Want the pipeline running, paused or in standby. Without a policy that of the pipeline file holds."""
        ...

    def pause(self) -> None:
        """Hold before the next epoch."""
        ...

    def resume(self) -> None:
        """Go on after a pause."""
        ...

    def stop(self, *, force: bool) -> None:
        """Finish the running epoch and end; with `force` end at once, which recovery makes up for."""
        ...

    def activate(self, initial: RuntimeStatus) -> None:
        """Leave standby: take over."""
        ...

    def approve(self) -> None:
        """Accept that the pipeline changed, and go on."""
        ...

    def dismiss_error(self) -> None:
        """Forget why the pipeline ended."""
        ...

    def clear(self) -> None:
        """Remove every checkpoint and all state of a stopped pipeline."""
        ...


@dataclass(frozen=True)
class DirectoryEntry:
    """What is known under a name: a pipeline, or only a store. One of the two is there."""

    name: str
    control: PipelineControl | None = None
    store: CheckpointService | None = None

    @property
    def service(self) -> CheckpointService:
        """Questions and actions on the store."""
        if self.store is not None:
            return self.store
        return self.pipeline.service

    @property
    def pipeline(self) -> PipelineControl:
        """The pipeline; `ControlError` when only a store is known."""
        if self.control is None:
            raise ControlError(
                400, "NoPipeline", f"'{self.name}' is a store without a pipeline: it can be looked at, not run"
            )
        return self.control


class PipelineDirectory(Protocol):
    """Finds pipelines and stores by name."""

    def names(self) -> Sequence[str]:
        """Return every name, sorted."""
        ...

    def find(self, name: str) -> DirectoryEntry:
        """Return what has this name; `ControlError.unknown_pipeline` when nothing has."""
        ...

    def only(self) -> DirectoryEntry:
        """Return the one that paths without a name mean; `ControlError` when that is not clear."""
        ...
