"""Stopping on request: the first signal lets the running epoch finish, the second ends everything at once."""

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\x1b[?25h\n"


class StopSignals:
    """Catches SIGINT and SIGTERM for a while. To be entered after the Spark session exists: it sets its own handler.

    Handlers only set flags, because they interrupt the main thread anywhere, even in the middle of talking to Spark.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.woken = threading.Event()
        """Set by the first signal, and by whoever ends the waiting for another reason."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the earlier handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop(self) -> None:
        """Stop as the first signal would, on somebody's request. May be called from any thread."""
        if self.received is None:
            self.received = signal.SIGTERM
        self.woken.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            end_at_once(number)
        self.received = number
        self.woken.set()


def end_at_once(number: int = signal.SIGTERM) -> NoReturn:
    """End the process as that signal would: nothing is finished, and recovery makes up for it."""
    if sys.stdout.isatty():
        os.write(1, _SHOW_CURSOR)
    os._exit(128 + number)
