"""The Spark session of a run: its process is kept quiet, and why it does not start is told in one line."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from holdfast.core.sources import packages_of
from holdfast.errors import MissingExtra, PipelineError
from holdfast.interfaces import late
from holdfast.interfaces.pipeline_file import PipelineFile

_OLDEST_JAVA = 17
_LINES_KEPT = 200
_LAST_WORDS_SECONDS = 2.0
_TELLING = re.compile(r"Exception|Error|error:|FAILED|unresolved|not found", re.IGNORECASE)


def start_session(file: PipelineFile, *, debug: bool) -> Any:
    """Return the Spark session that a file asks for. With `debug` Spark's own log goes to stderr."""
    local_session = late.spark("session").local_session
    if "spark.pyspark.python" not in file.session.conf:
        # The workers' default is any `python3`, which need not be the one that has our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = {**({} if debug else {"spark.log.level": "OFF"}), **file.session.conf}
    said: deque[str] = deque(maxlen=_LINES_KEPT)
    try:
        with contextlib.nullcontext() if debug else _stderr_into(said):
            packages = packages_of(source.spec for source in file.sources)
            return local_session(file.name, master=file.session.master, conf=conf, packages=packages)
    except Exception as error:
        raise _not_started(error, said) from error


@contextlib.contextmanager
def ending(session: Any) -> Iterator[None]:
    """End a session afterwards."""
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # Its process ends with ours in any case.
            session.stop()


@contextlib.contextmanager
def _stderr_into(lines: deque[str]) -> Iterator[None]:
    """Let processes that are started meanwhile write their stderr into `lines`, for as long as they live.

    Spark's process and its Python workers write there at any time, into the middle of a live view or of JSON.
    """
    sys.stderr.flush()
    reading, writing = os.pipe()
    own = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    reader = threading.Thread(target=_collect, args=(reading, lines), name="spark-stderr", daemon=True)
    reader.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        sys.stderr.flush()
        os.dup2(own, 2)
        os.close(own)
        if failed:
            reader.join(_LAST_WORDS_SECONDS)


def _collect(reading: int, lines: deque[str]) -> None:
    with open(reading, encoding="utf-8", errors="replace") as pipe:
        for line in pipe:
            lines.append(line.rstrip())


def _not_started(error: Exception, said: deque[str]) -> PipelineError:
    """Say why there is no session: Java first, then what Spark's process said last."""
    java = java_problem()
    if java is not None:
        return MissingExtra(f"Spark needs Java {_OLDEST_JAVA} or newer; {java}")
    telling = next((line for line in reversed(list(said)) if _TELLING.search(line)), "")
    return PipelineError(f"Spark did not start: {(telling or str(error)).strip().splitlines()[0]}")


def java_problem() -> str | None:
    """Return what is wrong with the Java that Spark would use; None when it is recent enough."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    if java is None:
        return f"JAVA_HOME is {home}, and there is no java in it" if home else "no 'java' was found: install a JDK"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', told)
    version = int(match[1]) if match else None
    if version is not None and version < _OLDEST_JAVA:
        return f"{java} is version {version}: set JAVA_HOME to a newer one"
    return None
