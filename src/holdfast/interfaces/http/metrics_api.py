"""Metrics for Prometheus: of one pipeline, and of everything there is in one text."""

import threading
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from holdfast.interfaces.control import ControlError, DirectoryEntry
from holdfast.interfaces.http.errors import ERRORS
from holdfast.interfaces.http.finding import Directory, Entry, PipelineName
from holdfast.interfaces.metrics import StoreMetrics, merged

router = APIRouter(responses=ERRORS, tags=["pipelines"])
Format = Literal["prometheus"]


class Readings:
    """The metrics of every name. Those of a store are remembered for a while, so they are kept from call to call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stores: dict[str, StoreMetrics] = {}

    def of(self, entry: DirectoryEntry) -> bytes:
        """Return the metrics of a pipeline that runs, or of the store of one that does not."""
        if entry.control is not None:
            try:
                return entry.control.metrics()
            except ControlError:
                """It does not run, or does not answer: its store does."""
        with self._lock:
            known = self._stores.setdefault(entry.name, StoreMetrics(entry.name, lambda: entry.service.store))
        return known.render()


async def readings_of(request: Request) -> Readings:
    """Return what the app remembers."""
    readings: Readings = request.app.state.readings
    return readings


Remembered = Annotated[Readings, Depends(readings_of)]


@router.get("/metrics", response_class=Response)
def all_metrics(directory: Directory, readings: Remembered, format: Format = "prometheus") -> Response:
    """Return the metrics of every pipeline and store there is, in the text form of Prometheus."""
    return _plain(merged(readings.of(directory.find(name)) for name in directory.names()))


@router.get("/v0/pipelines/{name}/metrics", response_class=Response)
def metrics(name: PipelineName, entry: Entry, readings: Remembered, format: Format = "prometheus") -> Response:
    """Return all metrics of one pipeline, or of its store while it does not run."""
    return _plain(readings.of(entry))


def _plain(text: bytes) -> Response:
    # The client takes only exactly this for text: no charset behind it.
    return Response(text, headers={"content-type": "text/plain"})
