"""One Spark session for the tests that need large epochs, one PostgreSQL or S3 server for those that need one."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from pyspark.sql import SparkSession

from connectors.databases import Database, postgres_database, sqlite_database
from connectors.kafka_server import Broker
from connectors.kafka_target import BROKER
from connectors.postgres_server import running
from connectors.postgres_target import URL, run_alone
from connectors.targets import TARGETS, Target


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """Return a session of our own settings; other tests may share the context, so it is left running."""
    builder = SparkSession.builder.master("local[2]").appName("connectors")
    for key, value in {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate().newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    return session


@pytest.fixture(scope="session")
def kafka_broker(kafka: Broker) -> Iterator[Broker]:
    """Return the broker of all tests, which HOLDFAST_TEST_KAFKA names from here on, for child processes as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BROKER, kafka.bootstrap)
        yield kafka


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return a database of our own, on the server that HOLDFAST_TEST_POSTGRES names or on one that we start.

    The variable names the database from here on, for child processes as well.
    """
    with ExitStack() as stack:
        server = os.environ.get(URL) or stack.enter_context(running()).url
        name = f"holdfast_{uuid.uuid4().hex}"
        run_alone(server, f"CREATE DATABASE {name}")
        stack.callback(run_alone, server, f"DROP DATABASE {name} WITH (FORCE)")
        url = urlsplit(server)._replace(path=f"/{name}").geturl()
        stack.enter_context(pytest.MonkeyPatch.context()).setenv(URL, url)
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """Return a place in SQLite or PostgreSQL of which nothing is there yet."""
    if request.param == "postgres":
        return postgres_database(tmp_path, request.getfixturevalue("postgres_url"))
    return sqlite_database(tmp_path)


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, str]]:
    """Start moto in a process of its own: `deltalake` holds Python's lock while it lists, so it must not be ours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
            retries = Config(retries={"max_attempts": 30, "mode": "standard"})
            client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=retries, **keys)
            client.create_bucket(Bucket="lake")
            yield {
                **{key.upper(): value for key, value in keys.items()},
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
            }
        finally:
            process.kill()


@pytest.fixture(params=TARGETS, ids=lambda target: target.name)
def target(request: pytest.FixtureRequest) -> Target:
    """Return each exactly-once sink in turn, with what it needs running."""
    found: Target = request.param
    if found.needs is not None:
        request.getfixturevalue(found.needs)
    return found


@pytest.fixture
def seen(target: Target, tmp_path: Path) -> object:
    """Return a function that reads the target as a stranger does, ordered by id."""
    return lambda: sorted(target.read(tmp_path), key=lambda row: (row["id"], row["amount"]))
