"""A proxy in front of an S3 server that fails as networks and services do: over real HTTP, on loopback."""

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_DENIED = b"<?xml version='1.0'?><Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
_BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>reduce your rate</Message></Error>"
_HANG_SECONDS = 30.0


class FaultProxy:
    """Passes requests on, or lets them meet the fault that `fault(method, path)` names.

    `503` and `403` are answers; `hang` never answers; `cut` breaks off in the middle of the answer; `refuse` closes
    the connection before the request is passed on. None passes the request on.
    """

    def __init__(self, endpoint: str) -> None:
        self.fault: Callable[[str, str], str | None] = lambda method, path: None
        self.requests: list[tuple[str, str, int]] = []
        """Method, path and bytes of the body of what was asked."""
        parts = urlsplit(endpoint)
        self.target = (parts.hostname or "", parts.port or 80)
        self.released = threading.Event()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @contextlib.contextmanager
    def running(self) -> Iterator["FaultProxy"]:
        """Serve meanwhile."""
        self._thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()

    def always(self, fault: str | None) -> None:
        """Let every request meet the same fault, or none."""
        self.fault = lambda method, path: fault

    def first(self, count: int, fault: str) -> None:
        """Let the next requests meet a fault, and no others."""
        left = iter(range(count))
        lock = threading.Lock()

        def choose(method: str, path: str) -> str | None:
            with lock:
                return fault if next(left, None) is not None else None

        self.fault = choose


class _Handler(BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _forward(self) -> None:
        with contextlib.suppress(OSError):  # Whoever asked did not wait for the answer.
            self._meet_fault()

    def _meet_fault(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.owner.requests.append((self.command, self.path, len(body)))
        match self.owner.fault(self.command, self.path):
            case None:
                self._answer(*self._asked(body))
            case "503":
                self._answer(503, {"Content-Type": "application/xml"}, _BUSY)
            case "403":
                self._answer(403, {"Content-Type": "application/xml"}, _DENIED)
            case "cut":
                status, headers, answer = self._asked(body)
                self._answer(status, headers, answer, cut=True)
            case "refuse":
                self.close_connection = True
            case "hang":
                self.owner.released.wait(_HANG_SECONDS)
                self.close_connection = True

    def _asked(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.owner.target, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        length = headers.get("Content-Length") or headers.get("content-length") or str(len(body))
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(body) + cut))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward
