"""What went wrong, out of what Spark makes of it."""

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from holdfast import errors
from holdfast.errors import HoldfastError, SourceError

_OURS = re.compile(r"holdfast\.errors\.(\w+): (.+)")


def error_in(error: PySparkException) -> HoldfastError | None:
    """Return the error that our own code raised in one of Spark's Python processes; None when it did not.

    Spark passes such an error on as text, a traceback inside its own message.
    """
    found = _OURS.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, SourceError)
    return kind(message.strip()) if issubclass(kind, SourceError) else SourceError(message.strip())


def spark_message(error: PySparkException) -> str:
    """Return the first line that says something."""
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    return lines[0] if lines else type(error).__name__


def java_message(error: Py4JJavaError) -> str:
    """Return the first lines of what Java says, and of what caused it."""
    found, cause = [], error.java_exception
    while cause is not None:
        message = str(cause.getMessage() or "").strip()
        found += message.splitlines()[:1]
        cause = cause.getCause()
    return ": ".join(dict.fromkeys(found)) or type(error).__name__
