"""`holdfast serve` as a process: what it prints, what it refuses, how it ends. No pipeline is started here."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from interfaces.chains import Chain
from interfaces.started import Started
from interfaces.test_cli_process import in_a_pipe
from interfaces.test_manager_http import PIPELINE, Manager

DOCS = Path(__file__).parents[2] / "docs"


class Served(Started):
    """A manager as a process."""

    def __init__(self, *arguments: object, **variables: str) -> None:
        super().__init__("serve", *arguments, **variables)
        self.first = self.until(lambda line: True)

    @property
    def url(self) -> str:
        found = re.search(r"http://[0-9.:]+", self.first)
        assert found, (self.first, self.ended())
        return found[0]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, list[str], str]:
        """End it; return its exit code, the lines after the first, and what is on stderr."""
        self.process.send_signal(number)
        code, errors = self.ended()
        return code, self.lines[1:], errors


@pytest.fixture
def start() -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def begin(*arguments: object, **variables: str) -> Served:
        started.append(Served(*arguments, **variables))
        return started[-1]

    yield begin
    for served in started:
        served.kill()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(PIPELINE)
    return tmp_path / "orders.yaml"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_answers_and_ends_on_a_signal(
    start: Callable[..., Served], file: Path, path: Path, chain: Chain, number: int
) -> None:
    served = start(file, path, "--no-start", "--http", "127.0.0.1:0")
    assert f" HTTP API on {served.url} for 1 pipeline and 1 store; {served.url}/docs describes it" in served.first
    assert httpx.get(f"{served.url}/healthz", trust_env=False).json() == {"status": "healthy"}
    assert httpx.get(f"{served.url}/docs", trust_env=False).status_code == 200
    code, rest, errors = served.end(number)
    assert (code, errors) == (0, "")
    assert [line.partition(" ")[2] for line in rest] == [
        "stopping, each pipeline after its running epoch",
        "stopped",
    ]


def test_events_are_documents_on_request(start: Callable[..., Served], file: Path) -> None:
    served = start(file, "--no-start", "--http", "127.0.0.1:0", "--json")
    first = json.loads(served.first)
    assert {key: value for key, value in first.items() if key not in ("at", "url")} == {
        "event": "serving",
        "pipelines": ["orders"],
        "stores": [],
    }
    code, rest, _ = served.end()
    assert code == 0
    assert [json.loads(line)["event"] for line in rest] == ["stopping", "stopped"]


def test_a_second_manager_of_the_same_pipeline_is_refused(start: Callable[..., Served], file: Path) -> None:
    first = start(file, "--no-start", "--http", "127.0.0.1:0")
    second = in_a_pipe("serve", file, "--no-start", "--http", "127.0.0.1:0")
    assert second.returncode == 2
    assert f"in use by another manager (process {first.process.pid} on " in second.stderr
    assert second.stderr.count("\n") == 1
    first.end()
    third = start(file, "--no-start", "--http", "127.0.0.1:0")
    assert third.end()[0] == 0


def test_what_cannot_be_served_is_one_line(file: Path, tmp_path: Path) -> None:
    nothing = in_a_pipe("serve", tmp_path / "nowhere", "--http", "127.0.0.1:0")
    assert (nothing.returncode, nothing.stderr.count("\n")) == (2, 1)
    assert "nowhere" in nothing.stderr
    open_to_all = in_a_pipe("serve", file, "--no-start", "--http", "0.0.0.0:0")
    assert open_to_all.returncode == 2
    assert "HOLDFAST_HTTP_TOKEN" in open_to_all.stderr
    file.write_text(PIPELINE.replace("takes: orders", "takes: nobody"))
    wrong = in_a_pipe("serve", file, "--http", "127.0.0.1:0", "--json")
    assert wrong.returncode == 2
    assert "orders.yaml:6" in json.loads(wrong.stdout)["error"]


def test_a_token_from_a_file_is_asked_for(start: Callable[..., Served], file: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    served = start(file, "--no-start", "--http", "127.0.0.1:0", "--token-file", tmp_path / "token")
    assert httpx.get(f"{served.url}/v0/pipelines", trust_env=False).status_code == 401
    headers = {"Authorization": "Bearer 0123456789abcdef"}
    found = httpx.get(f"{served.url}/v0/pipelines", headers=headers, trust_env=False).json()
    assert [each["name"] for each in found] == ["orders"]
    assert served.end()[0] == 0


def test_the_calls_of_the_documentation_work(file: Path) -> None:
    """Goal: what a reader copies from docs/serve.md works. Method: curl itself, in the order of the page."""
    [block] = re.findall(r"```sh\n(.*?)```", (DOCS / "serve.md").read_text(), re.DOTALL)
    lines = block.strip().splitlines()
    assert len(lines) > 5
    manager = Manager(file, start=True)
    manager.reaches("Running")
    try:
        for line in lines:
            call = shlex.split(line.replace("localhost:8080", str(manager.client.base_url).rstrip("/")))
            ran = subprocess.run([*call, "--fail-with-body"], capture_output=True, text=True, check=False)
            assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
            assert ran.stdout
    finally:
        manager.close()


def test_every_call_of_the_manager_is_documented(file: Path) -> None:
    page = (DOCS / "serve.md").read_text()
    manager = Manager(file)
    try:
        paths = manager.get("/openapi.json").json()["paths"]
    finally:
        manager.close()
    own = [path for path, calls in paths.items() if any("manager" in call["tags"] for call in calls.values())]
    assert own
    assert [path for path in own if path.replace("{name}", "NAME") not in page] == []
