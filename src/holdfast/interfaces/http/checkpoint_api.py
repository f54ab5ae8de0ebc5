"""The checkpoint API: what the published client calls, under `/v0/pipelines/{name}` and without a prefix.

Nothing here waits for a checkpoint: a request is answered with its number, and its end is asked for. What clients ask
for again and again comes out of memory, so it is answered on the event loop: a thread for it would cost more than it.
"""

from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import TypeAdapter

from holdfast.core.status import (
    BootstrapPolicy,
    CheckpointDelayed,
    CheckpointMetadata,
    CheckpointResponse,
    CheckpointStatus,
    CheckpointSyncResponse,
    CheckpointSyncStatus,
    PermanentSuspendError,
    RemoteCheckpoint,
    RuntimeStatus,
    SuspendError,
)
from holdfast.interfaces.control import ControlError, PipelineControl, Synchronisation
from holdfast.interfaces.http.catalogue import checkpoint_metadata
from holdfast.interfaces.http.errors import ERRORS
from holdfast.interfaces.http.finding import Pipeline, Service

router = APIRouter(responses=ERRORS)
_SUSPEND_ERROR: TypeAdapter[SuspendError | None] = TypeAdapter(SuspendError | None)
_PERMANENT: TypeAdapter[tuple[PermanentSuspendError, ...]] = TypeAdapter(tuple[PermanentSuspendError, ...])

Incarnation = Annotated[
    UUID | None, Query(description="The `incarnation_uuid` that came with the number; refused if it is another.")
]


class Initial(StrEnum):
    """What a pipeline is to be once it has started."""

    RUNNING = "running"
    PAUSED = "paused"
    STANDBY = "standby"

    @property
    def status(self) -> RuntimeStatus:
        """The same as a status."""
        return RuntimeStatus(self.value.capitalize())


@router.post("/checkpoint", tags=["checkpoints"])
def request_checkpoint(pipeline: Pipeline) -> CheckpointResponse:
    """Ask for a checkpoint. It is satisfied by a snapshot that begins after this; `checkpoint_status` tells when."""
    incarnation = pipeline.incarnation_uuid
    return CheckpointResponse(checkpoint_sequence_number=pipeline.request_checkpoint(), incarnation_uuid=incarnation)


@router.get("/checkpoint_status", tags=["checkpoints"])
async def checkpoint_status(pipeline: Pipeline, incarnation_uuid: Incarnation = None) -> CheckpointStatus:
    """Return how the requests ended: a request is done when `success` is its number or a higher one."""
    _check_incarnation(pipeline, incarnation_uuid)
    return pipeline.checkpoint_status()


@router.get("/checkpoints", tags=["checkpoints"])
def checkpoints(service: Service) -> list[CheckpointMetadata]:
    """Return the checkpoints that can be restored, oldest first."""
    return checkpoint_metadata(service)


@router.post("/checkpoint/sync", status_code=202, tags=["checkpoints"])
def request_sync(pipeline: Pipeline) -> CheckpointSyncResponse:
    """Have the newest checkpoint copied to the bucket; `sync_status` tells how that ended."""
    sync = _sync(pipeline, "CheckpointPushError")
    if not pipeline.service.restorable():
        raise ControlError(400, "400", "there is no checkpoint yet that could be copied")
    return CheckpointSyncResponse(checkpoint_uuid=sync.request(), incarnation_uuid=pipeline.incarnation_uuid)


@router.get("/checkpoint/sync_status", tags=["checkpoints"])
def sync_status(pipeline: Pipeline, incarnation_uuid: Incarnation = None) -> CheckpointSyncStatus:
    """Return how copies ended, and which are still being made."""
    _check_incarnation(pipeline, incarnation_uuid)
    return CheckpointSyncStatus() if pipeline.sync is None else pipeline.sync.status()


@router.get("/checkpoints/remote", tags=["checkpoints"])
def remote_checkpoints(pipeline: Pipeline) -> list[RemoteCheckpoint]:
    """Return the copies in the bucket, oldest first."""
    return list(_sync(pipeline, "CheckpointFetchError").remote())


@router.get("/stats", tags=["pipelines"])
async def stats(pipeline: Pipeline) -> dict[str, Any]:
    """Return what the pipeline counts, what checkpointing is doing, and why it cannot if it cannot."""
    permanent, activity = tuple(pipeline.permanent_checkpoint_errors()), pipeline.checkpoint_activity()
    suspend_error = SuspendError("Permanent", permanent) if permanent else None
    if suspend_error is None and isinstance(activity, CheckpointDelayed):
        suspend_error = SuspendError("Temporary", activity.reasons)
    return {
        **pipeline.stats(),
        "suspend_error": _SUSPEND_ERROR.dump_python(suspend_error, mode="json"),
        "checkpoint_activity": activity.model_dump(mode="json"),
        "permanent_checkpoint_errors": _PERMANENT.dump_python(permanent, mode="json") or None,
    }


@router.post("/start", status_code=202, tags=["life"])
def start(
    pipeline: Pipeline,
    initial: Initial = Initial.RUNNING,
    bootstrap_policy: BootstrapPolicy | None = None,
    silent_bootstrap: bool = False,
    concurrent_bootstrap: bool = False,
    dismiss_error: bool = True,
) -> str:
    """Want the pipeline started; its status tells how far it is."""
    if silent_bootstrap or concurrent_bootstrap:
        raise ControlError(400, "UnsupportedParameter", "silent_bootstrap and concurrent_bootstrap do not exist here")
    pipeline.start(initial.status, bootstrap_policy=bootstrap_policy, dismiss_error=dismiss_error)
    return f"pipeline '{pipeline.name}' is starting"


@router.post("/stop", status_code=202, tags=["life"])
def stop(pipeline: Pipeline, force: bool = False) -> str:
    """Finish the running epoch and end; with `force` end at once, which the next start recovers from."""
    pipeline.stop(force=force)
    return f"pipeline '{pipeline.name}' is stopping"


@router.post("/pause", status_code=202, tags=["life"])
def pause(pipeline: Pipeline) -> str:
    """Hold before the next epoch. Checkpoints can still be asked for."""
    pipeline.pause()
    return f"pipeline '{pipeline.name}' holds before its next epoch"


@router.post("/resume", status_code=202, tags=["life"])
def resume(pipeline: Pipeline) -> str:
    """Go on after a pause."""
    pipeline.resume()
    return f"pipeline '{pipeline.name}' goes on"


@router.post("/activate", status_code=202, tags=["life"])
def activate(pipeline: Pipeline, initial: Initial = Initial.RUNNING) -> str:
    """Leave standby and take over."""
    pipeline.activate(initial.status)
    return f"pipeline '{pipeline.name}' takes over"


@router.post("/approve", tags=["life"])
def approve(pipeline: Pipeline, silent_bootstrap: bool = False, concurrent_bootstrap: bool = False) -> str:
    """Accept that the pipeline changed, and go on."""
    if silent_bootstrap or concurrent_bootstrap:
        raise ControlError(400, "UnsupportedParameter", "silent_bootstrap and concurrent_bootstrap do not exist here")
    pipeline.approve()
    return f"the change of pipeline '{pipeline.name}' is approved"


@router.post("/dismiss_error", tags=["life"])
def dismiss_error(pipeline: Pipeline) -> str:
    """Forget why the pipeline failed, so that it can be started again."""
    pipeline.dismiss_error()
    return f"pipeline '{pipeline.name}' has no error to look at any more"


@router.post("/clear", status_code=202, tags=["life"])
def clear(pipeline: Pipeline) -> str:
    """Remove every checkpoint and all state of a stopped pipeline; its targets keep what they show."""
    pipeline.clear()
    return f"the storage of pipeline '{pipeline.name}' is being cleared"


def _check_incarnation(pipeline: PipelineControl, asked_for: UUID | None) -> None:
    if asked_for is not None and asked_for != pipeline.incarnation_uuid:
        raise ControlError.other_incarnation(asked_for, pipeline.incarnation_uuid)


def _sync(pipeline: PipelineControl, error_code: str) -> Synchronisation:
    if pipeline.sync is None:
        raise ControlError(400, error_code, f"pipeline '{pipeline.name}' has no bucket: add 'sync:' to its file")
    return pipeline.sync
