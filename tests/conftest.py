"""Where the store tests run: a directory, memory, S3 on moto's server, and Azurite when HOLDFAST_AZURITE says where.

HOLDFAST_AZURITE is the endpoint of a running Azurite, for example http://127.0.0.1:10000/devstoreaccount1
(`npx azurite-blob --inMemoryPersistence --skipApiVersionCheck`).
"""

import base64
import contextlib
import hmac
import logging
import os
import shutil
import sys
import threading
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import boto3
import hypothesis
import pytest
from moto.moto_server import threaded_moto_server, werkzeug_app
from moto.server import ThreadedMotoServer
from obstore.store import AzureStore, MemoryStore, ObjectStore, S3Store

from holdfast.stores.store import DurableCheckpointStore

sys.path.insert(0, str(Path(__file__).parent))  # So that `stores.builders` is found however the tests are collected.
from connectors import kafka_server
from connectors.kafka_jars import Unobtainable, connector_jars
from interfaces.published_client import client_python
from spark.quick_jvm import java_options
from spark.quick_workers import spark_home
from stores.places import BUCKET, S3_OPTIONS, BucketPlace, DirectoryPlace, Place

# Whoever starts the first Spark session decides for all tests which Python its workers are.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_HOME", spark_home())
for launched in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(launched, java_options())

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

AZURITE = os.environ.get("HOLDFAST_AZURITE")
# Azurite's published development key; it opens nothing else.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_azurite_only = pytest.mark.skipif(AZURITE is None, reason="HOLDFAST_AZURITE is not set")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take minutes, so that all others run beside them.

    What the engine decides is asked on S3 by `make test-all` only: how S3 answers is asked in tests/stores.
    """
    items.sort(key=lambda item: not any(name in item.nodeid for name in ("test_kills", "test_systems")))
    for item in items:
        if item.path.parent.name == "engine" and "[s3" in item.name:
            item.add_marker(pytest.mark.long)


_tried: Counter[str] = Counter()
_seeds: set[int] = set()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Take what the crash lab counted; a worker process hands it to the one that prints."""
    lab = sys.modules.get("crash_lab")
    if lab is None:
        return
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["crash lab"] = (dict(lab.TALLY), lab.SEED)
    else:
        _tried.update(lab.TALLY)
        _seeds.add(lab.SEED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what a worker process counted."""
    counts, seed = getattr(node, "workeroutput", {}).get("crash lab", ({}, None))
    _tried.update(counts)
    _seeds.update([seed] if counts else [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the crash lab tried, and its seed."""
    if not _tried:
        return
    terminalreporter.section("crash lab")
    for what, count in sorted(_tried.items()):
        terminalreporter.write_line(f"{count:>9,}  {what}")
    for seed in _seeds:
        terminalreporter.write_line(f"seed {seed}: repeat with HOLDFAST_CRASH_SEED={seed}")


class OneRequestAtATime(werkzeug_app.DomainDispatcherApplication):
    """Moto looks and then writes; S3 does both at once. One request at a time makes moto atomic as well."""

    _turn = threading.Lock()
    _backends: ClassVar[dict[str | None, Any]] = {}

    def __call__(self, environ, start_response):  # type: ignore[no-untyped-def]
        with self._turn:
            return super().__call__(environ, start_response)

    def get_backend_for_host(self, host):  # type: ignore[no-untyped-def]
        """Remember the answer: for each one moto looks at every module it has on disk."""
        if host not in self._backends:
            self._backends[host] = super().get_backend_for_host(host)
        return self._backends[host]


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Start moto's server on a free port, with one bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threaded_moto_server, "DomainDispatcherApplication", OneRequestAtATime)
        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    client.create_bucket(Bucket=BUCKET)
    yield endpoint
    server.stop()


def cannot_be_had(reason: Exception) -> NoReturn:
    """Skip what needs a server that is not here; where HOLDFAST_TEST_NO_SKIPS is set, that is a failure."""
    if os.environ.get("HOLDFAST_TEST_NO_SKIPS"):
        pytest.fail(str(reason))
    pytest.skip(str(reason))


@pytest.fixture(scope="session")
def kafka() -> Iterator[kafka_server.Broker]:
    """Start a Kafka broker, or skip where its programs cannot be had."""
    with contextlib.ExitStack() as stack:
        try:
            broker = stack.enter_context(kafka_server.running())
        except Unobtainable as error:
            cannot_be_had(error)
        yield broker


@pytest.fixture(scope="session")
def kafka_connector() -> str:
    """Return Spark's Kafka connector, for the setting `spark.jars`, or skip where it cannot be had."""
    try:
        return connector_jars()
    except Unobtainable as error:
        cannot_be_had(error)


@pytest.fixture(scope="session")
def published_client() -> Path:
    """Return a Python that has the client of the checkpoint API that PyPI has, or skip where it cannot be had."""
    try:
        return client_python()
    except Unobtainable as error:
        cannot_be_had(error)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return where Chromium is, or skip where it is not."""
    names = (os.environ.get("HOLDFAST_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    for name in filter(None, names):
        if found := shutil.which(name):
            return found
    cannot_be_had(FileNotFoundError("the tests of the page need Chromium: scripts/install-chromium"))


@pytest.fixture(scope="session")
def s3_bucket(s3_endpoint: str) -> ObjectStore:
    return S3Store(BUCKET, endpoint=s3_endpoint, client_options={"allow_http": True}, **S3_OPTIONS)


@pytest.fixture(scope="session")
def azure_container() -> ObjectStore:
    """Create a container on the Azurite that HOLDFAST_AZURITE names."""
    assert AZURITE is not None
    account, name = AZURITE.rstrip("/").rpartition("/")[2], f"holdfast-{uuid.uuid4().hex}"
    date = formatdate(usegmt=True)
    headers = f"x-ms-date:{date}\nx-ms-version:2021-12-02\n"
    text = f"PUT{chr(10) * 12}{headers}/{account}/{account}/{name}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURITE_KEY), text.encode(), "sha256")).decode()
    request = urllib.request.Request(f"{AZURITE}/{name}?restype=container", method="PUT", data=b"")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", "2021-12-02")
    request.add_header("content-type", "")
    request.add_header("authorization", f"SharedKey {account}:{signature}")
    with urllib.request.urlopen(request):
        pass
    return AzureStore(
        name, account_name=account, account_key=AZURITE_KEY, endpoint=AZURITE, client_options={"allow_http": True}
    )


@pytest.fixture(params=["directory", "memory", "s3", pytest.param("azure", marks=_azurite_only)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return an empty place of each kind in turn."""
    prefix = f"tests/{uuid.uuid4().hex}"
    match request.param:
        case "directory":
            return DirectoryPlace(tmp_path / "store")
        case "memory":
            return BucketPlace(MemoryStore(), prefix)
        case "s3":
            return BucketPlace(request.getfixturevalue("s3_bucket"), prefix)
    return BucketPlace(request.getfixturevalue("azure_container"), prefix)


@pytest.fixture
def store(place: Place) -> DurableCheckpointStore:
    """Return an empty store on each kind of place in turn; it prunes only when told."""
    return place.open()


@pytest.fixture
def directory(tmp_path: Path) -> DirectoryPlace:
    return DirectoryPlace(tmp_path / "store")


@pytest.fixture
def memory() -> BucketPlace:
    return BucketPlace(MemoryStore(), "tests/memory")
