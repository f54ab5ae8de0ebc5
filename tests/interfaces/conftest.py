"""A command line to type into, and stores to look at."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.engine.fencing import take_over
from holdfast.interfaces.cli import app
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store
from interfaces.chains import Chain


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that types a command; a fault in holdfast fails the test."""
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)

    def type_in(*arguments: object, answer: str | None = None) -> Ran:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=answer)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.output
        assert result.exit_code != 70, result.output
        return Ran(result.exit_code, result.stdout, result.stderr)

    return type_in


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


def writable(url: object) -> DurableCheckpointStore:
    return open_store(str(url), retain=None, vnode_count=4)


@pytest.fixture
def chain(path: Path) -> Chain:
    """Return a store with a first start (id 1) and four checkpoints (2 to 5, epochs 1 to 4) in a chain."""
    store = writable(path)
    take_over(store)
    chain = Chain(store)
    for id in range(2, 6):
        chain.seal(id, epoch=id - 1)
    return chain


@pytest.fixture(params=["directory", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty store of each kind in turn."""
    name = uuid.uuid4().hex
    if request.param == "directory":
        return str(tmp_path / name)
    if request.param == "memory":
        return f"memory://{name}"
    use_s3(monkeypatch, request.getfixturevalue("s3_endpoint"))
    return f"s3://holdfast/{name}"


def use_s3(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Set the environment as a person would."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
