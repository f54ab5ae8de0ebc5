"""Before every request: how many, how large, from where, and by whom."""

from collections import OrderedDict

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.interfaces.control import ControlError
from holdfast.interfaces.http.errors import error_response
from holdfast.interfaces.http.security import Role, Security, may, same_site

_OPEN = frozenset({"/", "/healthz", "/docs", "/openapi.json"})
_PAGE = "/dashboard/"
"""For everybody: they say nothing about a pipeline."""
_CLIENTS_KEPT = 1024
_LONGEST_TARGET = 8 * 1024


class RateLimit:
    """So many requests a second of one client, in the long run; twice as many at once."""

    def __init__(self, per_second: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._rate, self._most, self._clock = per_second, per_second * 2, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Count a request; whether it is within the limit."""
        now = self._clock.monotonic()
        left, since = self._left.pop(client, (self._most, now))
        left = min(self._most, left + (now - since) * self._rate)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        if len(self._left) > _CLIENTS_KEPT:
            self._left.popitem(last=False)
        return allowed


class Gate:
    """Lets a request through to the app, or answers it with what is wrong."""

    def __init__(self, app: ASGIApp, security: Security) -> None:
        self._app, self._security = app, security
        self._rate = RateLimit(security.requests_per_second)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            receive = await self._with_whole_body(scope, receive)
        except ControlError as refusal:
            answer = error_response(refusal.status, refusal.error_code, str(refusal), refusal.details)
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host, method = headers.get("host"), scope["method"]
        if len(scope["raw_path"]) + len(scope["query_string"]) > _LONGEST_TARGET:
            raise ControlError(414, "UriTooLong", f"a path has at most {_LONGEST_TARGET} bytes")
        if not self._rate.allows((scope.get("client") or ("",))[0]):
            raise ControlError(429, "TooManyRequests", "too many requests: slow down")
        if not self._security.host_allowed(host):
            raise ControlError(
                403, "UnknownHost", "the host name of this request is not ours: use an address, or allow the name"
            )
        if scope["path"] in _OPEN or scope["path"].startswith(_PAGE):
            return
        role = self._security.tokens.role(headers.get("authorization"))
        if role is Role.NOBODY:
            raise ControlError(401, "InvalidApiKey", "a token is needed: send 'Authorization: Bearer TOKEN'")
        if not may(role, method):
            raise ControlError(403, "ReadOnlyToken", "this token is for looking only")
        if not may(Role.READER, method) and not same_site(headers.get("origin"), host):
            raise ControlError(403, "OtherOrigin", "a page of another site may not change anything here")

    async def _with_whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body, which is small or refused; return what hands it on."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._security.longest_body:
            raise self._too_large()
        if not length and "transfer-encoding" not in headers:
            return receive
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._security.longest_body:
                raise self._too_large()
        return _handing_on(body, receive)

    def _too_large(self) -> ControlError:
        longest = self._security.longest_body
        return ControlError(413, "RequestTooLarge", f"a request has at most {longest} bytes", {"longest": longest})


def _handing_on(body: bytes, receive: Receive) -> Receive:
    handed = False

    async def hand_on() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return hand_on
