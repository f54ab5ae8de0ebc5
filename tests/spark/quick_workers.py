"""Spark's Python processes start in half the time when they find pyspark installed, and not in Spark's zip archive.

Spark puts the archive first on their path, and there are no compiled modules in it: each process compiles what it
imports. A home of Spark without the archive leaves them what is installed, which is the same. A pipeline with a
Python source or Python state starts four of them or more.
"""

import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

HOME = Path(sys.prefix) / "spark-home"


def spark_home() -> str:
    """Return a home of Spark that has everything but the archive, made when there is none."""
    if not HOME.exists():
        installed = find_spec("pyspark")
        assert installed is not None
        assert installed.origin is not None
        made = Path(tempfile.mkdtemp(dir=sys.prefix))
        for part in ("bin", "data", "jars", "sbin"):
            (made / part).symlink_to(Path(installed.origin).parent / part)
        try:
            made.rename(HOME)
        except OSError:
            shutil.rmtree(made)
            if not HOME.exists():  # Otherwise another process was faster.
                raise
    return str(HOME)
