"""The server: a thread of its own with its own event loop, beside the pipeline and ended with it."""

import socket
import threading
from types import TracebackType

import uvicorn
from fastapi import FastAPI

from holdfast.errors import HoldfastError
from holdfast.interfaces.http.addresses import Address, address_of

_GOODBYE_SECONDS = 2
_CONNECTIONS = 256
_LONGEST_HEAD = 16 * 1024


class _Server(uvicorn.Server):
    """Says when it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start up, and say so."""
        await super().startup(sockets)
        self.ready.set()


class HttpServer:
    """Serves an app on a socket that listens, from `start` to `stop`; also as a context."""

    def __init__(self, app: FastAPI, listening: socket.socket) -> None:
        self._socket = listening
        self.address: Address = address_of(listening)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            http="h11",
            loop="asyncio",
            limit_concurrency=_CONNECTIONS,
            h11_max_incomplete_event_size=_LONGEST_HEAD,
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._serve, name="holdfast-http", daemon=True)
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://{self.address}"

    def start(self) -> None:
        """Begin to answer; returns when it does."""
        self._thread.start()
        self._server.ready.wait()
        if not self._server.started:
            raise HoldfastError(f"the HTTP API does not start: {self._failure}")

    def stop(self) -> None:
        """Finish what is being answered, break streams off, and end."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except BaseException as failure:  # Nobody above us on this thread could hear of it.
            self._failure = failure
        finally:
            self._server.ready.set()

    def __enter__(self) -> "HttpServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()
