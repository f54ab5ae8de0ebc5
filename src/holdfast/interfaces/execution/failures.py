"""Whatever ends a run, as one of our errors with one clear line."""

import os
import re
import traceback
from collections.abc import Collection

from holdfast.engine.events import Event, StepStarted
from holdfast.errors import HoldfastError, PipelineError

_SPARK = ("pyspark", "py4j")
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception|Warning|Exit|Interrupt)\b.*")
_TRACEBACK = "Traceback (most recent call last):"
_LONGEST = 400


class Whereabouts:
    """An observer that remembers what a failure's message should say: the epoch and the step."""

    def __init__(self) -> None:
        self._at: tuple[int, str] | None = None

    def on_event(self, event: Event) -> None:
        """Remember it."""
        if isinstance(event, StepStarted) and event.sink is None:
            self._at = (event.epoch, event.step)

    def __str__(self) -> str:
        if self._at is None:
            return ""
        epoch, step = self._at
        return f"{step.replace('.', ', ')}: " if step.startswith("recovery.") else f"epoch {epoch}, {step}: "


def explained(error: Exception, pipeline: str, where: Whereabouts, user_files: Collection[str]) -> Exception:
    """Return what to tell about an error; the error itself when it says all, or when it is a fault of ours."""
    if isinstance(error, HoldfastError):
        return error
    prefix = f"pipeline '{pipeline}' failed: {where}"
    if type(error).__module__.split(".")[0] in _SPARK or isinstance(error, ConnectionError):
        return PipelineError(prefix + _of_spark(error))
    place = _place_in(error, user_files)
    return (
        error if place is None else PipelineError(f"{prefix}{type(error).__name__}: {_first_line(error)} ({place})")
    )


def _of_spark(error: Exception) -> str:
    """Return the line of Spark's long story that says what happened: the user's own error if there is one."""
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return "Spark's process has gone (out of memory, or killed?)"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if _PYTHON_ERROR.match(line)]
    told = (
        own[-1]
        if own and "Traceback (most recent call last):" in str(error)
        else (lines or [type(error).__name__])[0]
    )
    return told[:_LONGEST]


def _place_in(error: Exception, user_files: Collection[str]) -> str | None:
    """Return where in the user's own code an error comes from; None when it does not."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename in user_files]
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}, in {own[-1].name}" if own else None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:_LONGEST]
