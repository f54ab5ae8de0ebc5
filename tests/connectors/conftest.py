"""One Spark session for the tests that need large epochs."""

import pytest
from pyspark.sql import SparkSession


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
