"""The HTTP API of a pipeline file's run: what it may show of the file, and how it ends the process."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from holdfast.clock import SYSTEM_CLOCK
from holdfast.engine.events import Observer
from holdfast.engine.requests import CheckpointRequests
from holdfast.interfaces.execution.signals import StopSignals, end_at_once
from holdfast.interfaces.http.serving import serve_directory
from holdfast.interfaces.http.settings import HttpListening, HttpSettings
from holdfast.interfaces.local import LocalPipeline, OnePipeline
from holdfast.interfaces.pipeline_file import PipelineFile
from holdfast.secrets import scrub

_ANSWER_SECONDS = 0.5


def local_pipeline(file: PipelineFile, requests: CheckpointRequests, signals: StopSignals) -> LocalPipeline:
    """Return the pipeline of a file for the API, which stops it as a signal would."""

    def stop(force: bool) -> None:
        if force:
            threading.Thread(target=_end_soon, name="holdfast-end", daemon=True).start()
        else:
            signals.stop()

    def redact(text: str) -> str:
        return file.environment.redact(scrub(text))

    model = file.guarantee.replace("-", "_")
    config = {"storage": True, "fault_tolerance": {"model": model, "checkpoint_interval_secs": None}}
    return LocalPipeline(file.name, requests, stop, config=config, redact=redact)


def _end_soon() -> None:
    """End the process once whoever asked has the answer."""
    SYSTEM_CLOCK.sleep(_ANSWER_SECONDS)
    end_at_once()


@contextlib.contextmanager
def served(
    local: LocalPipeline, settings: HttpSettings | None, listening: socket.socket | None, watcher: Observer
) -> Iterator[None]:
    """Serve the API meanwhile, and say where; without settings do nothing."""
    if settings is None or listening is None:
        yield
        return
    server = serve_directory(OnePipeline(local), settings, listening)
    try:
        watcher.on_event(HttpListening.at(server.address, settings))
        yield
    finally:
        server.stop()
