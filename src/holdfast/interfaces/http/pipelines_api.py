"""The pipelines themselves, and what a client asks a server before anything else."""

from enum import StrEnum
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from holdfast.core.status import CheckpointMetadata
from holdfast.errors import HoldfastError
from holdfast.interfaces.control import ControlError, DirectoryEntry
from holdfast.interfaces.http.catalogue import Catalogue, checkpoint_metadata, pipeline_object
from holdfast.interfaces.http.errors import ERRORS
from holdfast.interfaces.http.finding import Directory, Entry, PipelineName

router = APIRouter(responses=ERRORS, tags=["pipelines"])

CLIENT_VERSION = "0.369.0"
"""The version of the published client that this API is tested with: another one only warns."""


class Selector(StrEnum):
    """How much of a pipeline to return."""

    ALL = "all"
    STATUS = "status"


async def catalogue_of(request: Request) -> Catalogue:
    """Return what the app remembers."""
    known: Catalogue = request.app.state.catalogue
    return known


Known = Annotated[Catalogue, Depends(catalogue_of)]


@router.get("/v0/config")
async def config() -> dict[str, Any]:
    """Return what the published client reads first: that every checkpoint operation is there, and which version."""
    return {
        "edition": "Enterprise",
        "version": CLIENT_VERSION,
        "revision": version("holdfast"),
        "runtime_revision": version("holdfast"),
        "telemetry": "",
        "changelog_url": "",
        "license_validity": None,
    }


@router.get("/v0/cluster_healthz")
async def cluster_health() -> dict[str, bool]:
    """Answer that the server itself is well."""
    return {"all_healthy": True}


@router.get("/healthz")
async def health() -> dict[str, str]:
    """Answer that the server itself is well; needs no token. Whether a pipeline can recover is another question."""
    return {"status": "healthy"}


@router.get("/v0/pipelines")
def pipelines(directory: Directory, known: Known, selector: Selector = Selector.STATUS) -> list[dict[str, Any]]:
    """Return all pipelines."""
    entries = [directory.find(name) for name in directory.names()]
    return [_pipeline(entry, known, selector) for entry in entries if entry.control is not None]


@router.get("/v0/pipelines/{name}")
def pipeline(name: PipelineName, entry: Entry, known: Known, selector: Selector = Selector.ALL) -> dict[str, Any]:
    """Return a pipeline: its status, its error, its checkpoints; `selector=status` is for asking often."""
    return _pipeline(entry, known, selector)


def _pipeline(entry: DirectoryEntry, known: Catalogue, selector: Selector) -> dict[str, Any]:
    return pipeline_object(entry.pipeline.describe(), _checkpoints(entry, known, selector))


def _checkpoints(entry: DirectoryEntry, known: Catalogue, selector: Selector) -> list[CheckpointMetadata] | None:
    """Return the checkpoints; None when the store cannot be looked at, which must not hide the status."""
    try:
        service = entry.service
        return checkpoint_metadata(service) if selector is Selector.ALL else known.of(entry.name, service)
    except (ControlError, HoldfastError):
        return None
