"""The page as files: who gets them, with which headers, and that they come with the package. Needs no browser."""

import http.client
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from holdfast.interfaces.http.security import Security, Tokens
from interfaces.http_client import Served, served

SOURCES = Path(__file__).parents[2] / "src" / "holdfast" / "interfaces" / "dashboard"
TOKEN = "operator-" + "o" * 24


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", security=Security(Tokens(TOKEN))) as shop:
        yield shop


def assets(document: str) -> list[str]:
    return re.findall(r'(?:href|src)="(/dashboard/[^"]+)"', document)


def test_the_page_is_open_and_everything_it_would_show_is_not(shop: Served) -> None:
    page = shop.client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert len(assets(page.text)) >= 5
    for path in assets(page.text):
        assert shop.client.get(path).status_code == 200, path
    assert shop.client.get("/api/v1/pipelines").status_code == 401
    assert shop.client.get("/v0/pipelines/shop").status_code == 401


def test_nothing_from_elsewhere_may_run_in_it_or_frame_it(shop: Served) -> None:
    for path in ["/", *assets(shop.client.get("/").text)]:
        headers = shop.client.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_assets_are_kept_for_ever_and_the_page_is_asked_for_anew(shop: Served) -> None:
    page = shop.client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    again = shop.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-security-policy" in again.headers
    style = next(path for path in assets(page.text) if path.endswith(".css"))
    assert "immutable" in shop.client.get(style).headers["cache-control"]
    other_version = re.sub(r"/dashboard/[0-9a-f]+/", "/dashboard/0000000000000000/", style)
    assert shop.client.get(other_version).status_code == 404


@pytest.mark.parametrize(
    "name", ["../app.py", "%2e%2e/app.py", "scripts", "index.html", "", "scripts/../favicon.svg"]
)
def test_nothing_but_the_files_of_the_page_is_served(shop: Served, name: str) -> None:
    version = assets(shop.client.get("/").text)[0].split("/")[2]
    # A client that does not tidy the path up before it sends it.
    connection = http.client.HTTPConnection(shop.server.address.host, shop.server.address.port, timeout=30)
    connection.request("GET", f"/dashboard/{version}/{name}")
    assert connection.getresponse().status == 404
    connection.close()


def test_scripts_are_modules_of_the_page_and_import_nothing_else(shop: Served) -> None:
    document = shop.client.get("/").text
    prefix = assets(document)[0].rpartition("/")[0]
    scripts = {path.name: path.read_text() for path in (SOURCES / "scripts").glob("*.js")}
    assert "main.js" in scripts
    for name, text in scripts.items():
        served_as = shop.client.get(f"{prefix}/scripts/{name}")
        assert served_as.headers["content-type"] == "text/javascript; charset=utf-8"
        for imported in re.findall(r'from "([^"]+)"', text):
            assert imported.removeprefix("./") in scripts, (name, imported)
        assert "innerHTML" not in text, name
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert len(text.splitlines()) <= 320, name


def test_the_package_brings_the_page(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(SOURCES.parents[3])).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    here = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*") if path.is_file()}
    assert {f"holdfast/interfaces/dashboard/{name}" for name in here} <= names
