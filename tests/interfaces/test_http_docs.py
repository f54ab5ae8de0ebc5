"""docs/http_api.md: every endpoint is there, nothing else is, and what it shows to type works."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security, Tokens
from interfaces.http_client import Served, served
from test_docs import blocks

DOCS = Path(__file__).parents[2] / "docs" / "http_api.md"
PAGE = DOCS.read_text()
TOKEN = "operator-" + "o" * 24
PREFIXES = {
    "Endpoints of a pipeline": ("", "/v0/pipelines/{name}"),
    "Endpoints of a server": ("",),
    "Stores and their history": ("/api/v1/pipelines/{name}",),
}
ROW = re.compile(r"^\| (?P<method>GET|POST|DELETE) \| `(?P<path>[^`]+)` \| (?P<status>\d+) \| .+ \|$", re.MULTILINE)


def documented() -> dict[tuple[str, str], int]:
    found = {("GET", "/api/v1/pipelines"): 200}
    assert "`/api/v1/pipelines` lists" in PAGE
    for title, prefixes in PREFIXES.items():
        section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
        for row in ROW.finditer(section):
            found |= {(row["method"], prefix + row["path"]): int(row["status"]) for prefix in prefixes}
    return found


class Nobody:
    """A directory without anything in it."""

    def names(self) -> list[str]:
        return []


def offered() -> dict[tuple[str, str], int]:
    paths = create_app(Nobody()).openapi()["paths"]  # type: ignore[arg-type]
    return {
        (method.upper(), path): min(int(status) for status in operation["responses"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    }


def test_every_endpoint_is_documented_with_its_answer_and_nothing_else() -> None:
    assert documented() == offered()


def test_every_operation_says_what_it_does() -> None:
    paths = create_app(Nobody()).openapi()["paths"]  # type: ignore[arg-type]
    assert [
        path for path, operations in paths.items() for each in operations.values() if not each.get("description")
    ] == []


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", security=Security(Tokens(TOKEN))) as shop:
        shop.pipeline.feed_and_wait(6)
        yield shop


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("jq"), reason="curl and jq are not installed")
@pytest.mark.parametrize("block", list(blocks(DOCS, "sh")), ids=lambda block: f"line {block.line}")
def test_what_the_page_shows_to_type_works(shop: Served, block: object) -> None:
    environment = {**os.environ, "HOLDFAST": shop.server.url, "TOKEN": TOKEN}
    # `head` ends a stream that has no end of its own: whatever writes into it is told by a signal.
    script = f"set -eu\n{block.text}"  # type: ignore[attr-defined]
    ran = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
