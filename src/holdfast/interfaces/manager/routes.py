"""What the HTTP API of a manager has beyond that of a pipeline: logs, processes, and starting them anew."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from holdfast.core.contracts import OnForeign
from holdfast.core.status import BootstrapPolicy
from holdfast.interfaces.http.checkpoint_api import Initial
from holdfast.interfaces.http.errors import ERRORS
from holdfast.interfaces.http.finding import PipelineName
from holdfast.interfaces.manager.fleet import Fleet
from holdfast.interfaces.manager.logs import PipelineLog
from holdfast.interfaces.manager.managed import ManagedPipeline
from holdfast.interfaces.manager.memory import ErrorBody

_LOOK_SECONDS = 0.25

Lines = Annotated[int, Query(ge=0, le=100_000, description="At most so many lines of what was printed before.")]


class ProcessStanding(BaseModel):
    """The process of a pipeline, as the manager sees it."""

    name: str
    phase: str
    """Stopped, Provisioning, Up, Stopping, BackingOff or AwaitingApproval."""
    since: str
    desired: str
    pid: int | None
    crashes_in_a_row: int
    last_failure: ErrorBody | None
    """Why the process before this one ended, while it is being replaced."""
    error: ErrorBody | None
    """Why the pipeline failed for good; until it is dismissed."""
    approval: Any = None
    """What changed in the pipeline, while somebody has to approve it."""


def manager_router(fleet: Fleet) -> APIRouter:
    """Return the endpoints."""
    router = APIRouter(responses=ERRORS, tags=["manager"])

    @router.get("/api/v1/pipelines/{name}/logs", response_class=StreamingResponse)
    async def logs(name: PipelineName, lines: Lines = 1000, follow: bool = False) -> StreamingResponse:
        """Return what the processes of a pipeline printed, oldest first; with `follow` go on as more comes."""
        return _stream(fleet.pipeline(name), lines, follow=follow)

    @router.get("/v0/pipelines/{name}/logs", response_class=StreamingResponse)
    async def followed_logs(name: PipelineName) -> StreamingResponse:
        """Return what the processes of a pipeline printed, and go on as more comes."""
        return _stream(fleet.pipeline(name), 1000, follow=True)

    @router.get("/api/v1/pipelines/{name}/process")
    def process(name: PipelineName) -> ProcessStanding:
        """Return how the manager keeps a pipeline."""
        return _standing(fleet.pipeline(name))

    @router.post("/api/v1/pipelines/{name}/start", status_code=202)
    def start(
        name: PipelineName,
        initial: Initial = Initial.RUNNING,
        bootstrap_policy: BootstrapPolicy | None = None,
        sinks: OnForeign | None = None,
        dismiss_error: bool = True,
    ) -> str:
        """Want a pipeline running, paused or in standby.

        `sinks` says, for this start only, what becomes of targets that another timeline wrote to: after a clear, for
        example.
        """
        fleet.pipeline(name).start(
            initial.status,
            bootstrap_policy=bootstrap_policy,
            dismiss_error=dismiss_error,
            sinks=None if sinks in (None, OnForeign.REFUSE) else sinks.value,
        )
        return f"pipeline '{name}' is starting"

    @router.post("/v0/pipelines/{name}/restart", status_code=202)
    @router.post("/api/v1/pipelines/{name}/restart", status_code=202)
    def restart(name: PipelineName, force: bool = False) -> str:
        """Replace the process of a pipeline by a new one, after the running epoch or, with `force`, at once."""
        fleet.pipeline(name).restart(force=force)
        return f"pipeline '{name}' is starting again"

    return router


def _standing(pipeline: ManagedPipeline) -> ProcessStanding:
    standing, remembered = pipeline.supervisor.standing, pipeline.supervisor.remembered
    return ProcessStanding(
        name=pipeline.name,
        phase=standing.phase.value,
        since=standing.since.isoformat().replace("+00:00", "Z"),
        desired=remembered.desired.value,
        pid=standing.pid,
        crashes_in_a_row=standing.restarts,
        last_failure=standing.last_failure,
        error=remembered.error,
        approval=standing.approval,
    )


def _stream(pipeline: ManagedPipeline, lines: int, *, follow: bool) -> StreamingResponse:
    # The published client takes only exactly this for text: no charset behind it.
    headers = {"content-type": "text/plain", "x-content-type-options": "nosniff"}
    return StreamingResponse(_lines(pipeline.supervisor.log, lines, follow), headers=headers)


async def _lines(log: PipelineLog, lines: int, follow: bool) -> AsyncIterator[bytes]:
    earlier, follower = await anyio.to_thread.run_sync(log.follow, lines)
    try:
        for line in earlier:
            yield f"{line}\n".encode()
        while follow:  # Until the client goes, or the server, which breaks it off.
            if news := await anyio.to_thread.run_sync(follower.read):
                yield news
            else:
                await anyio.sleep(_LOOK_SECONDS)
    finally:
        follower.close()
