"""Passes calls on to the process that can answer them, and its answers back, as they are."""

import re
from collections.abc import AsyncIterator, Callable

import httpx
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from holdfast.interfaces.control import ControlError
from holdfast.interfaces.http import checkpoint_api
from holdfast.interfaces.manager.asking import QUICK_SECONDS, SLOW_SECONDS
from holdfast.interfaces.manager.managed import ManagedPipeline

OWN = frozenset(
    {"start", "stop", "restart", "pause", "resume", "activate", "approve", "dismiss_error", "clear"}
    | {"logs", "process", "verifications"}
)
"""What the manager does itself; everything else about a pipeline that has a process is for the process.

Verifications read everything: that need not be the pipeline's work, and may go on when it has ended.
"""
_SLOW = frozenset({"checkpoint", "checkpoint/sync", "suspend"})
_STREAMS = frozenset({"events"})
_PATH = re.compile(r"/(?:v0|api/v1)/pipelines/(?P<name>[^/]+)/(?P<call>.+)")
_WITHOUT_NAME = frozenset(route.path for route in checkpoint_api.router.routes if isinstance(route, APIRoute))
# What is said between two neighbours and not to those behind them; the rest is set anew by whoever sends.
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "upgrade"}
    | {"transfer-encoding"}
)
# Host and origin belong together and were compared at our own door; the process has another name.
_NOT_REQUESTED = _HOP_BY_HOP | {"host", "origin", "referer", "authorization", "content-length"}
_NOT_ANSWERED = _HOP_BY_HOP | {"date", "server"}

FindPipeline = Callable[[str | None], ManagedPipeline | None]
"""Finds a pipeline by name, or the only one; None when there is none, or it has no process that listens."""


class ForwardRoute(BaseRoute):
    """A route that matches what is for a process that listens. Others, behind it, answer for those that do not."""

    def __init__(self, find: FindPipeline) -> None:
        self._find = find
        self._client: httpx.AsyncClient | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a call of a pipeline that can take it."""
        name, call = _called(scope["path"]) if scope["type"] == "http" else (None, "")
        if not call or call.partition("/")[0] in OWN or (pipeline := self._find(name)) is None:
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self, "path_params": {"pipeline": pipeline, "call": call}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on."""
        request = Request(scope, receive)
        response = await self._forward(request, scope["path_params"]["pipeline"], scope["path_params"]["call"])
        await response(scope, receive, send)

    async def _forward(self, request: Request, pipeline: ManagedPipeline, call: str) -> Response:
        standing = pipeline.supervisor.standing
        if standing.address is None:  # It ended since we looked.
            raise ControlError.unreachable(pipeline.name, f"{request.method} {call}", "its process has ended")
        self._client = self._client or httpx.AsyncClient(trust_env=False)
        headers = [(name, value) for name, value in request.headers.items() if name not in _NOT_REQUESTED]
        outgoing = self._client.build_request(
            request.method,
            f"http://{standing.address}{request.url.path}",
            params=request.url.query or None,
            headers=[*headers, ("authorization", f"Bearer {standing.token}")],
            content=await request.body(),
            timeout=_patience(call),
        )
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            raise ControlError.unreachable(pipeline.name, f"{request.method} {call}", type(error).__name__) from error
        kept = {name: value for name, value in answer.headers.items() if name not in _NOT_ANSWERED}
        return StreamingResponse(_body(answer), answer.status_code, headers=kept)

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()


def _called(path: str) -> tuple[str | None, str]:
    """Return which pipeline a path names and what it asks of it; no name means the only one."""
    if (found := _PATH.fullmatch(path)) is not None:
        return found["name"], found["call"]
    return None, path.strip("/") if path in _WITHOUT_NAME else ""


def _patience(call: str) -> httpx.Timeout:
    seconds = SLOW_SECONDS if call in _SLOW else QUICK_SECONDS
    return httpx.Timeout(seconds, read=None if call in _STREAMS else seconds)


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
