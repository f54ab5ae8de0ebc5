"""Writes the archive of Spark's classes that `quick_jvm` tells JVMs of: runs a pipeline, and keeps what it loaded.

PYTHONPATH=tests python -m spark.archive_classes
"""

import os
import tempfile
from pathlib import Path

from pyspark import SparkContext

from holdfast.spark.session import local_session
from spark.orders import write_orders
from spark.pipelines import windows
from spark.quick_jvm import ARCHIVE, SHORT_LIVED
from spark.quick_workers import spark_home


def run_pipeline() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-archive-") as folder:
        base = Path(folder)
        write_orders(base, 0, 2)
        windows(base, spark=local_session("archive", master="local[2]")).run(once=True)


def end_jvm() -> None:
    """Wait until it has ended: it does when nobody is left to talk to it, and writes the archive then."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def main() -> None:
    unfinished = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_HOME"] = spark_home()  # An archive fits the class path that it was made with.
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    run_pipeline()
    end_jvm()
    unfinished.rename(ARCHIVE)


if __name__ == "__main__":
    main()
