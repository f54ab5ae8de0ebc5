"""Puts the HTTP API together, the same for a pipeline's own process and for the manager."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI
from fastapi_offline import FastAPIOffline

from holdfast.interfaces.control import PipelineDirectory
from holdfast.interfaces.http import checkpoint_api, dashboard, inspection_api, metrics_api, pipelines_api
from holdfast.interfaces.http.catalogue import Catalogue
from holdfast.interfaces.http.errors import LastResort, handle_errors
from holdfast.interfaces.http.finding import declare_name
from holdfast.interfaces.http.gate import Gate
from holdfast.interfaces.http.security import Security
from holdfast.interfaces.http.streaming import EventStreams
from holdfast.interfaces.http.verifications import Verifications

_ABOUT = """Checkpoints you can trust for pipelines on Spark.

Everything about checkpoints is under `/v0/pipelines/{name}`, in the process of a pipeline also without that prefix.
What a store and its history tell is under `/api/v1`. Every error has the same body."""


def create_app(directory: PipelineDirectory, security: Security | None = None) -> FastAPI:
    """Return the API on the pipelines of a directory."""
    security = security or Security()
    # FastAPI's own /docs loads its scripts from another host, which there may be no way to.
    app = FastAPIOffline(
        title="Holdfast",
        version="1",
        description=_ABOUT,
        lifespan=_lifespan,
        redoc_url=None,
        static_url="/dashboard/api_docs",
        favicon_url=dashboard.path_of("favicon.svg"),
    )
    app.state.directory = directory
    app.state.verifications = Verifications()
    app.state.readings = metrics_api.Readings()
    app.state.catalogue = Catalogue()
    app.state.streams = EventStreams(security.event_streams)
    # Routes are tried one after the other: those that are polled come first.
    app.include_router(checkpoint_api.router, prefix="/v0/pipelines/{name}", dependencies=[Depends(declare_name)])
    app.include_router(checkpoint_api.router)
    app.include_router(pipelines_api.router)
    app.include_router(metrics_api.router)
    app.include_router(inspection_api.listing)
    app.include_router(inspection_api.router)
    app.include_router(dashboard.router())
    handle_errors(app)
    app.add_middleware(Gate, security=security)
    app.add_middleware(LastResort)
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    app.state.verifications.close()
