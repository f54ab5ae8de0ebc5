"""From a path to the pipeline it means, and the parts of paths that are checked before anything else."""

import contextlib
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from holdfast.interfaces.control import ControlError, DirectoryEntry, PipelineControl, PipelineDirectory
from holdfast.interfaces.http.documents import document
from holdfast.interfaces.redaction import Redact, redacted
from holdfast.interfaces.service import CheckpointService
from holdfast.secrets import scrub

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
REFERENCE = r"^[A-Za-z0-9_.-]{1,63}$"

PipelineName = Annotated[str, Path(pattern=NAME, description="The name of a pipeline, or of a store.")]
CheckpointReference = Annotated[
    str, Path(pattern=REFERENCE, description="An id, `latest`, or the name of a savepoint.")
]
Before = Annotated[int | None, Query(ge=1, description="Only those with ids below this one.")]
Last = Annotated[int | None, Query(ge=1, le=10_000, description="Only the newest so many.")]


async def directory_of(request: Request) -> PipelineDirectory:
    """Return the directory that the app was made for."""
    directory: PipelineDirectory = request.app.state.directory
    return directory


async def entry_of(request: Request) -> DirectoryEntry:
    """Return what the path names; a path without a name means the only one there is."""
    directory, name = await directory_of(request), request.path_params.get("name")
    return directory.only() if name is None else directory.find(name)


async def pipeline_of(request: Request) -> PipelineControl:
    """Return the pipeline that the path means."""
    return (await entry_of(request)).pipeline


def service_of(entry: Annotated[DirectoryEntry, Depends(entry_of)]) -> CheckpointService:
    """Return the store that the path means; not on the event loop, because it may have to be opened first."""
    return entry.service


async def shown_of(entry: Annotated[DirectoryEntry, Depends(entry_of)]) -> Callable[[Any], dict[str, Any]]:
    """Return what makes a record fit to be shown: exact numbers, and no secrets that the pipeline knows of."""
    redact: Redact = scrub
    if entry.control is not None:
        with contextlib.suppress(ControlError):  # Without a process there is no pipeline that knows secrets.
            redact = entry.control.events.redact

    def shown(record: Any) -> dict[str, Any]:
        found: dict[str, Any] = redacted(document(record), redact)
        return found

    return shown


async def declare_name(name: PipelineName) -> None:
    """Check the name in a path; for routers that stand below one."""


Directory = Annotated[PipelineDirectory, Depends(directory_of)]
Entry = Annotated[DirectoryEntry, Depends(entry_of)]
Pipeline = Annotated[PipelineControl, Depends(pipeline_of)]
Service = Annotated[CheckpointService, Depends(service_of)]
Shown = Annotated[Callable[[Any], dict[str, Any]], Depends(shown_of)]
