"""Serves the page: files that are the same for everybody, and that fetch everything they show from the API."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

_VERSION_MARK = b"{{version}}"
_FOR_EVER = "public, max-age=31536000, immutable"
_SHARED_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}


@dataclass(frozen=True)
class Page:
    """The page in memory. `version` stands in every path, so that an asset never changes under its name."""

    version: str
    document: bytes
    assets: dict[str, bytes]

    @classmethod
    def load(cls) -> "Page":
        """Read the files that were installed."""
        found = dict(sorted(_read(files("holdfast.interfaces") / "dashboard")))
        digest = hashlib.sha256(b"".join(name.encode() + data for name, data in found.items()))
        version = digest.hexdigest()[:16]
        document = found.pop("index.html").replace(_VERSION_MARK, version.encode())
        return cls(version, document, found)


def path_of(asset: str) -> str:
    """Return where an asset is served."""
    return f"/dashboard/{_page().version}/{asset}"


def router() -> APIRouter:
    """Return the routes of the page."""
    routes = APIRouter(include_in_schema=False)

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def document(request: Request) -> Response:
        """Return the page itself, which is looked at anew each time."""
        page = _page()
        tag = f'"{page.version}"'
        headers = {**_SHARED_HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(page.document, media_type="text/html; charset=utf-8", headers=headers)

    @routes.api_route("/dashboard/{version}/{name:path}", methods=["GET", "HEAD"])
    async def asset(version: str, name: str) -> Response:
        """Return a script, a style sheet or a picture of the page."""
        page = _page()
        if version != page.version or name not in page.assets:
            raise HTTPException(404)
        headers = {**_SHARED_HEADERS, "Cache-Control": _FOR_EVER}
        return Response(page.assets[name], media_type=_TYPES[_suffix(name)], headers=headers)

    return routes


@cache
def _page() -> Page:
    return Page.load()


def _read(folder: Traversable, below: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{below}{entry.name}/")
        elif _suffix(entry.name) in ("html", *_TYPES):
            yield f"{below}{entry.name}", entry.read_bytes()


def _suffix(name: str) -> str:
    return name.rpartition(".")[2]
