"""The Spark session a pipeline runs in."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import PipelineDefinitionError

_creating = threading.Lock()
_PACKAGES = "spark.jars.packages"


def local_session(
    name: str,
    *,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
) -> SparkSession:
    """Return a session on this machine, created when there is none; beside another one, a session of its own.

    `packages` are fetched from the package index unless `conf` brings them already, as packages or as local jars.
    """
    # Spark starts Python workers of its own; without this they are whatever `python3` is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    settings = {**defaults, **with_packages(conf or {}, packages)}
    with _creating:
        if SparkContext._active_spark_context is None:
            builder = SparkSession.builder.master(master).appName(name)
            for key, value in settings.items():
                builder = builder.config(key, value)
            return builder.getOrCreate()
        own = own_session(SparkSession.builder.getOrCreate())
    for key, value in settings.items():
        if own.conf.isModifiable(key):
            own.conf.set(key, value)
    return own


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session that has what is in `spark` now: settings, views, functions. Neither sees what the other does.

    Listeners of `spark` hear of the queries that run in it.
    """
    java = spark._jsparkSession.cloneSession()
    ours = {str(listener.getClass().getName()) for listener in java.streams().listListeners()}
    for listener in spark._jsparkSession.streams().listListeners():
        if str(listener.getClass().getName()) not in ours:  # Some are made for every session.
            java.streams().addListener(listener)
    return type(spark)(spark.sparkContext, java)


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Let a session be the active one of this thread: Spark looks for Python data sources there, whoever asks."""
    sessions = SparkSession._get_j_spark_session_class(spark._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def brought_over(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a frame as one of our session: a function may have begun with one of its own."""
    if frame.sparkSession is spark or frame._jdf.sparkSession().equals(spark._jsparkSession):
        return frame
    return frame_of(frame._jdf.logicalPlan(), spark)


def frame_of(plan: Any, spark: SparkSession) -> DataFrame:
    """Return a logical plan of Spark's as a frame of this session."""
    datasets = getattr(getattr(spark._jvm, "org.apache.spark.sql.classic.Dataset$"), "MODULE$")
    return DataFrame(datasets.ofRows(spark._jsparkSession, plan), spark)


def with_packages(conf: Mapping[str, str], packages: Iterable[str]) -> dict[str, str]:
    """Return the settings with the packages that they do not name yet."""
    brought = conf.get(_PACKAGES, "")
    known = f"{brought},{conf.get('spark.jars', '')}"
    missing = [package for package in packages if package.split(":")[1] not in known]
    wanted = ",".join(filter(None, [brought, *missing]))
    return {**conf, _PACKAGES: wanted} if wanted else dict(conf)


def check_session(spark: Any) -> None:
    """Refuse what cannot work, before anything is started."""
    if not isinstance(spark, SparkSession) or not hasattr(spark, "_jsparkSession"):
        raise PipelineDefinitionError(
            "a pipeline needs a classic Spark session; Spark Connect cannot run its checkpoints"
        )
    master = spark.sparkContext.master or ""
    if not master.startswith("local"):
        raise PipelineDefinitionError(
            f"the Spark master '{master}' is not local: for now a pipeline runs with a local master, e.g. local[*]"
        )
