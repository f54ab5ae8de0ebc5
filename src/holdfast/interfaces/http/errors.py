"""Every answer that says no: one body for all of them, and nothing of our insides in it."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    Fenced,
    HoldfastError,
    InvalidRequest,
    NoValidCheckpoint,
    TransientStoreError,
)
from holdfast.interfaces.control import ControlError
from holdfast.secrets import scrub

_log = logging.getLogger(__name__)
_RETRY_SECONDS = "1"
_STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (CheckpointNotFound, 404),
    (TransientStoreError, 503),
    (InvalidRequest, 400),
    (CorruptCheckpoint, 409),
    (NoValidCheckpoint, 409),
    (Fenced, 409),
)
_REASONS = {400: "BadRequest", 404: "NotFound", 405: "MethodNotAllowed"}


class ErrorBody(BaseModel):
    """What every error answers with."""

    message: str
    """For people: what is wrong, and the way out."""
    error_code: str
    """For programs: stays the same when the message changes."""
    details: Any = None


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": description}
    for status, description in (
        (400, "The request is wrong, or cannot be carried out in the state the pipeline is in."),
        (401, "There is no token, or a wrong one."),
        (403, "The token is for reading only, or the request comes from a page of another site."),
        (404, "There is no such pipeline, checkpoint or savepoint."),
        (409, "What is stored is damaged, or another writer owns it."),
        (413, "The request is too large."),
        (414, "The path is too long."),
        (429, "Too many requests."),
        (503, "Not now: try again."),
    )
}
"""For OpenAPI: what any endpoint may answer."""


def error_response(status: int, error_code: str, message: str, details: Any = None) -> JSONResponse:
    """Return an error; credentials that found their way into the message are taken out."""
    body = {"message": scrub(message), "error_code": error_code, "details": details}
    headers = {"Retry-After": _RETRY_SECONDS} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status, headers)


def handle_errors(app: FastAPI) -> None:
    """Have an app answer every error with the one body."""
    app.add_exception_handler(ControlError, _control)
    app.add_exception_handler(HoldfastError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _of_starlette)


async def _control(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ControlError)
    return error_response(error.status, error.error_code, str(error), error.details)


async def _ours(request: Request, error: Exception) -> JSONResponse:
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 409)
    return error_response(status, type(error).__name__, str(error))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Say which parameter is wrong and why, without repeating what was sent."""
    assert isinstance(error, RequestValidationError)
    found = [{"where": [str(part) for part in each["loc"]], "problem": each["msg"]} for each in error.errors()]
    message = "; ".join(f"{'.'.join(each['where'])}: {each['problem']}" for each in found)
    return error_response(400, "InvalidRequest", message, found)


async def _of_starlette(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = "there is nothing under this path; /docs lists what there is"
    elif error.status_code == 405:
        message = "this path does not take that method; /docs lists what there is"
    else:
        message = str(error.detail)
    answer = error_response(error.status_code, _REASONS.get(error.status_code, "HttpError"), message)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


class LastResort:
    """The outermost layer: a fault of ours is logged, and answered without telling anything of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            _log.error("fault in the HTTP API: %s", scrub(f"{type(error).__name__}: {error}"), exc_info=True)
            if scope["type"] != "http" or begun:
                return
            answer = error_response(500, "InternalError", "a fault in holdfast; its log says more")
            await answer(scope, receive, send)
