"""A pipeline without Spark behind the real HTTP server, and a client to ask it."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engine.worlds import PARTITIONS
from holdfast import open_store
from holdfast.engine.events import Observer
from holdfast.interfaces.http.addresses import Address, listen
from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security
from holdfast.interfaces.http.server import HttpServer
from holdfast.interfaces.local import LocalPipeline, OnePipeline
from holdfast.secrets import scrub
from interfaces.engine_pipeline import EnginePipeline

ANY_PORT = Address("127.0.0.1", 0)
PATIENCE = 120.0


@dataclass
class Served:
    """A pipeline and where it answers."""

    pipeline: EnginePipeline
    local: LocalPipeline
    server: HttpServer
    client: httpx.Client

    def get(self, path: str, **options: Any) -> Any:
        """Return the JSON of an answer that says yes."""
        answer = self.client.get(path, **options)
        assert answer.is_success, answer.text
        return answer.json()

    def post(self, path: str, **options: Any) -> Any:
        answer = self.client.post(path, **options)
        assert answer.is_success, answer.text
        return answer.json()

    def checkpoint(self, prefix: str = "") -> int:
        """Ask for a checkpoint as the client does, and wait until it is done; return its number."""
        asked = self.post(f"{prefix}/checkpoint")
        number, incarnation = asked["checkpoint_sequence_number"], asked["incarnation_uuid"]
        until(lambda: self._done(prefix, number, incarnation))
        return int(number)

    def _done(self, prefix: str, number: int, incarnation: str) -> bool:
        status = self.get(f"{prefix}/checkpoint_status", params={"incarnation_uuid": incarnation})
        failed = status["failure"] is not None and status["failure"]["sequence_number"] >= number
        return failed or (status["success"] is not None and status["success"] >= number)


def until(question: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Ask again and again until the answer is yes, and return it."""
    pause = threading.Event()
    for _ in range(round(seconds / 0.01)):
        if answer := question():
            return answer
        pause.wait(0.01)
    raise AssertionError("it never came")


@contextlib.contextmanager
def served(
    path: Path,
    *observers: Observer,
    security: Security | None = None,
    start: bool = True,
    redact: Callable[[str], str] = scrub,
) -> Iterator[Served]:
    """Serve a pipeline on a store at `path`."""
    pipeline = EnginePipeline(open_store(path, retain=None, vnode_count=PARTITIONS), *observers)
    stopping = threading.Thread(target=pipeline.stop, daemon=True)

    def stop(force: bool) -> None:
        if not stopping.is_alive():
            stopping.start()

    local = LocalPipeline(pipeline.name, pipeline.requests, stop, redact=redact)
    pipeline.watch(local)
    server = HttpServer(create_app(OnePipeline(local), security or Security()), listen(ANY_PORT))
    with server, httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE) as client:
        if start:
            local.opened(pipeline.store)
            pipeline.start()
            local.started(pipeline)
        try:
            yield Served(pipeline, local, server, client)
        finally:
            if start:
                pipeline.stop()
