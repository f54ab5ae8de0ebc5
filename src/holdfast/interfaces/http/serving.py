"""Serving a pipeline of this process: from settings, or from a handle that Python code holds."""

import socket
import threading
from typing import Protocol

from holdfast.engine.events import Observer
from holdfast.engine.requests import CheckpointRequests
from holdfast.interfaces.control import ControlError, PipelineDirectory, RunningPipeline
from holdfast.interfaces.http.addresses import Address
from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.http.settings import HttpSettings
from holdfast.interfaces.local import LocalPipeline, OnePipeline
from holdfast.stores.store import DurableCheckpointStore


def serve_directory(directory: PipelineDirectory, settings: HttpSettings, listening: socket.socket) -> HttpServer:
    """Return a server of these pipelines on a socket, started."""
    server = HttpServer(create_app(directory, settings.security), listening)
    server.start()
    return server


class ServableHandle(RunningPipeline, Protocol):
    """What `Pipeline.start` returns, as far as it is served."""

    @property
    def name(self) -> str:
        """The pipeline's name."""
        ...

    @property
    def store(self) -> DurableCheckpointStore:
        """Where the checkpoints are."""
        ...

    @property
    def requests(self) -> CheckpointRequests:
        """Where checkpoints are asked for."""
        ...

    def stop(self) -> None:
        """Finish the running epoch and end."""
        ...

    def watch(self, observer: Observer) -> None:
        """Pass events on to one more observer."""
        ...


def serve(
    handle: ServableHandle,
    address: str | None = None,
    *,
    tokens: Tokens | None = None,
    insecure: bool = False,
) -> HttpServer:
    """Serve the HTTP API of a running pipeline, until `stop` of what is returned.

    Without an address it listens on 127.0.0.1:8080, or on a free port when that is taken; without tokens it takes
    those of the environment. The pipeline goes on when the server ends.
    """
    security = Security(Tokens.of_environment() if tokens is None else tokens)
    settings = HttpSettings(None if address is None else Address.parse(address), security, insecure)

    def stop(force: bool) -> None:
        if force:
            raise ControlError(400, "NotOurProcess", "stop it without force, or end the process it runs in")
        threading.Thread(target=handle.stop, name="holdfast-stop", daemon=True).start()

    local = LocalPipeline(handle.name, handle.requests, stop)
    local.opened(handle.store)
    local.started(handle)
    handle.watch(local)
    return serve_directory(OnePipeline(local), settings, settings.listen())
