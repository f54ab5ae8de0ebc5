"""How a run is shown: nothing, lines, or JSON; `live` has the view for a terminal. All of them are observers."""

import contextlib
import json
import logging
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.engine.events import Event
from holdfast.interfaces.cli.event_lines import lines_of
from holdfast.interfaces.cli.phrases import printable
from holdfast.interfaces.redaction import Redact, redacted
from holdfast.interfaces.reports import time_text


class Watcher:
    """Shows nothing. The others show a run while it lasts, as a context."""

    def __init__(self, redact: Redact = str, file: TextIO | None = None) -> None:
        self._redact, self._file = redact, file
        self._turn = threading.Lock()

    def __enter__(self) -> "Watcher":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the view."""

    def entering(self, state: str) -> None:
        """Hear what the run is about to do."""

    def on_event(self, event: Event) -> None:
        """Take one event."""

    def note(self, text: str) -> None:
        """Take a warning from inside."""

    def _write_line(self, line: str) -> None:
        """Print a line whole: sinks work at the same time, and what they say must not run together."""
        with self._turn, contextlib.suppress(BrokenPipeError):  # Nobody reads any more: no reason to stop a pipeline.
            print(line, file=self._file or sys.stdout, flush=True)


class LineWatcher(Watcher):
    """One line per thing that happened, with the time, for a log."""

    def __init__(self, redact: Redact = str, file: TextIO | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(redact, file)
        self._clock = clock

    def entering(self, state: str) -> None:
        """Write it."""
        self._write(state)

    def on_event(self, event: Event) -> None:
        """Write what people want to read of it."""
        for line in lines_of(event):
            self._write(line)

    def note(self, text: str) -> None:
        """Write it as a warning."""
        self._write(f"warning: {text}")

    def _write(self, line: str) -> None:
        self._write_line(f"{time_text(self._clock.now_ms())} {printable(self._redact(line))}")


class JsonWatcher(Watcher):
    """One JSON document per event and line, the steps of epochs included."""

    def on_event(self, event: Event) -> None:
        """Write the structured form."""
        document = redacted(event.to_json_value(), self._redact)
        self._write_line(json.dumps(document, ensure_ascii=False, default=str))

    def note(self, text: str) -> None:
        """Write it to stderr: stdout is for events."""
        print(f"holdfast: warning: {printable(self._redact(text))}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def logs_as_notes(watcher: Watcher, *, debug: bool) -> Iterator[None]:
    """Send warnings from inside to the watcher for a while, and silence those that say what it shows anyway.

    Events also go to the `holdfast` logger; what runs below it are other voices. Py4J writes a traceback for every
    error that passes through it, which we report in one line.
    """
    ours, py4j = logging.getLogger("holdfast"), logging.getLogger("py4j")
    handler = _Notes(watcher)
    before = (ours.propagate, py4j.level)
    ours.addHandler(handler)
    ours.propagate = False
    if not debug:
        py4j.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = before[0]
        py4j.setLevel(before[1])


class _Notes(logging.Handler):
    def __init__(self, watcher: Watcher) -> None:
        super().__init__(logging.WARNING)
        self._watcher = watcher

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a warning on, unless it is an event in words."""
        if record.name != "holdfast":
            self._watcher.note(record.getMessage())
