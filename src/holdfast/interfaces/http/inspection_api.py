"""Our own API under `/api/v1`: everything a store and its history tell, and what may be done to it.

Answers are the records of `holdfast.interfaces.reports`, in the form of `documents`.
"""

import json
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from holdfast.errors import CorruptCheckpoint
from holdfast.interfaces.http.documents import document
from holdfast.interfaces.http.errors import ERRORS
from holdfast.interfaces.http.finding import (
    REFERENCE,
    Before,
    CheckpointReference,
    Directory,
    Entry,
    Last,
    Pipeline,
    PipelineName,
    Service,
    Shown,
    declare_name,
)
from holdfast.interfaces.http.streaming import EventStreams
from holdfast.interfaces.http.verifications import Verifications

listing = APIRouter(prefix="/api/v1", responses=ERRORS, tags=["stores"])
router = APIRouter(
    prefix="/api/v1/pipelines/{name}", responses=ERRORS, tags=["stores"], dependencies=[Depends(declare_name)]
)

Reference = Annotated[str, Field(pattern=REFERENCE)]
SavepointName = Annotated[str, Path(pattern=REFERENCE, description="The name of a savepoint.")]


class VerificationRequest(BaseModel):
    """What to verify: ids, `latest` or names of savepoints; all checkpoints when nothing is named."""

    model_config = ConfigDict(extra="forbid")

    checkpoints: list[Reference] = Field(default=[], max_length=1000)


class SavepointRequest(BaseModel):
    """Which checkpoint gets which name; it is read in full first unless `verify` is false."""

    model_config = ConfigDict(extra="forbid")

    name: Reference
    checkpoint: Reference = "latest"
    verify: bool = True


def verifications_of(request: Request) -> Verifications:
    """Return the verifications of this server."""
    verifications: Verifications = request.app.state.verifications
    return verifications


Jobs = Annotated[Verifications, Depends(verifications_of)]


@listing.get("/pipelines")
def names(directory: Directory) -> list[dict[str, Any]]:
    """Return every name: of pipelines, and of stores that are only looked at."""
    entries = [directory.find(name) for name in directory.names()]
    return [{"name": entry.name, "pipeline": entry.control is not None} for entry in entries]


@router.get("/checkpoints")
def checkpoints(service: Service, shown: Shown, last: Last = None, before: Before = None) -> dict[str, Any]:
    """Return one line for every checkpoint, damaged ones included, oldest first; `total` counts all of them."""
    return shown(service.listing(last, before))


@router.get("/checkpoints/{reference}")
def checkpoint(service: Service, shown: Shown, reference: CheckpointReference) -> dict[str, Any]:
    """Return everything that a checkpoint's manifest and indexes say."""
    return shown(service.report(reference))


@router.get("/checkpoints/{reference}/manifest")
def manifest(service: Service, reference: CheckpointReference) -> dict[str, Any]:
    """Return a manifest; the file itself has its 64-bit hashes as numbers."""
    text = service.manifest_text(reference)
    try:
        found = json.loads(text)
    except ValueError:
        raise CorruptCheckpoint(f"the manifest of checkpoint {reference} is not JSON") from None
    exact: dict[str, Any] = document(found)
    return exact


@router.get("/checkpoints/{reference}/state_files")
def state_files(service: Service, reference: CheckpointReference) -> dict[str, Any]:
    """Return the state files of a checkpoint, each with its size, its digest and the sidecar it stands in."""
    found = service.state_files(reference)
    return {"checkpoint_id": found.checkpoint_id, "files": document(found.entries)}


@router.get("/differences")
def differences(
    service: Service,
    shown: Shown,
    before: Annotated[str, Query(pattern=REFERENCE)],
    after: Annotated[str, Query(pattern=REFERENCE)] = "latest",
) -> dict[str, Any]:
    """Return what changed from one checkpoint to another."""
    return shown(service.compare(before, after))


@router.get("/history")
def history(service: Service, shown: Shown, last: Last = 100) -> dict[str, Any]:
    """Return the epochs that history knows, oldest first: also those whose checkpoints were pruned."""
    return shown(service.history(last))


@router.get("/recoveries")
def recoveries(service: Service, shown: Shown, last: Last = 100) -> dict[str, Any]:
    """Return the starts that history knows, oldest first: what each found, did, and how its run ended."""
    return shown(service.recoveries(last))


@router.get("/recoveries/{reference}")
def recovery(service: Service, shown: Shown, reference: CheckpointReference) -> dict[str, Any]:
    """Return the start that sealed the fence of this id, or the `latest`."""
    return shown(service.recovery(reference))


@router.get("/sinks")
def sinks(service: Service, shown: Shown) -> dict[str, Any]:
    """Return where every sink stands, as the newest checkpoint records it."""
    report = service.report("latest")
    return shown({"checkpoint_id": report.checkpoint_id, "epoch": report.epoch, "sinks": report.sinks})


@router.get("/health")
def health(service: Service, shown: Shown) -> dict[str, Any]:
    """Return whether a start would recover now: to which epoch, how old, verified when, and in what time."""
    return shown(service.health())


@router.get("/savepoints")
def savepoints(service: Service, shown: Shown) -> dict[str, Any]:
    """Return the checkpoints that have a name."""
    return shown(service.savepoints())


@router.post("/savepoints", status_code=201)
def create_savepoint(service: Service, shown: Shown, wanted: SavepointRequest) -> dict[str, Any]:
    """Name a checkpoint, which keeps it from being pruned."""
    return shown(service.create_savepoint(wanted.name, wanted.checkpoint, verify=wanted.verify))


@router.delete("/savepoints/{savepoint}")
def release_savepoint(service: Service, shown: Shown, savepoint: SavepointName) -> dict[str, Any]:
    """Take a name away: the checkpoint becomes an ordinary one."""
    return shown(service.release_savepoint(savepoint))


@router.get("/verifications")
def verifications(name: PipelineName, entry: Entry, jobs: Jobs) -> list[dict[str, Any]]:
    """Return the verifications that were asked for, oldest first."""
    return [job.to_json_value() for job in jobs.of(entry.name)]


@router.post("/verifications", status_code=202)
def verify(
    name: PipelineName, entry: Entry, service: Service, jobs: Jobs, wanted: VerificationRequest | None = None
) -> dict[str, Any]:
    """Have checkpoints read in full; comes back at once with the id to ask for."""
    references = wanted.checkpoints if wanted else []
    return jobs.begin(entry.name, service, references).to_json_value()


@router.get("/verifications/{id}")
def verification(name: PipelineName, id: UUID, entry: Entry, jobs: Jobs) -> dict[str, Any]:
    """Return how a verification stands, and its verdicts when it is done."""
    return jobs.find(entry.name, id).to_json_value()


@router.delete("/verifications/{id}", status_code=202)
def cancel_verification(name: PipelineName, id: UUID, entry: Entry, jobs: Jobs) -> dict[str, Any]:
    """Break a verification off."""
    job = jobs.find(entry.name, id)
    job.cancelled.set()
    return job.to_json_value()


@router.get("/verification_history")
def verification_history(service: Service, shown: Shown, last: Last = 1000) -> dict[str, Any]:
    """Return what reading checkpoints in full found, oldest first: in the background, or because somebody asked."""
    return shown(service.verifications(last))


@router.get("/checkpoint_requests", tags=["checkpoints"])
def checkpoint_requests(pipeline: Pipeline) -> list[dict[str, Any]]:
    """Return how the last requests for a checkpoint ended, oldest first; those that shared a snapshot together."""
    return [
        {
            "first": outcome.first,
            "last": outcome.last,
            "requested_at": outcome.requested_at,
            "finished_at": outcome.finished_at,
            "checkpoint_id": outcome.checkpoint_id,
            "error": outcome.error,
        }
        for outcome in pipeline.checkpoint_outcomes()
    ]


@router.get("/events", tags=["pipelines"], response_class=StreamingResponse)
async def events(pipeline: Pipeline, request: Request, steps: bool = False) -> StreamingResponse:
    """Stream what happens from now on as Server-Sent Events; with `steps` also every step of every epoch.

    A client that falls a thousand events behind gets `Lost` and is let go.
    """
    streams: EventStreams = request.app.state.streams
    return streams.open(pipeline.events, steps=steps)
