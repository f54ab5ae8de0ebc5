"""One Spark session for the tests that need large epochs, one PostgreSQL server for those that need one."""

import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from connectors.postgres_server import running
from connectors.postgres_target import URL, run_alone


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
