"""One process that runs a pipeline, from its start until nothing of it is left."""

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from holdfast.clock import SYSTEM_CLOCK, Clock, new_token
from holdfast.interfaces.manager.logs import PipelineLog
from holdfast.interfaces.manager.tether import TETHER_VARIABLE, Failure, ManagersEnd

_MANAGERS_OWN = ("HOLDFAST_HTTP_TOKEN", "HOLDFAST_HTTP_READ_TOKEN")
_LAST_WORDS_SECONDS = 2.0
_LAST_LINES = 5


@dataclass(frozen=True)
class Ending:
    """How a process ended: `code` is its exit code, or the negative number of the signal that ended it."""

    code: int
    seconds: float
    failure: Failure


def _environment(tether: int) -> dict[str, str]:
    """Return our own environment without what opens the manager's API: a process gets a token of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_MANAGERS_OWN)}
    return {**kept, TETHER_VARIABLE: str(tether)}


def _started(command: Sequence[str], tether: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(tether),
        pass_fds=[tether],
        start_new_session=True,
    )


class Child:
    """A running process.

    It leads a group of its own, so that no signal of the terminal reaches it, and so that all that it started goes
    with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: PipelineLog,
        on_listening: Callable[["Child"], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.token = new_token() + new_token()
        self._clock, self._log, self._on_listening = clock, log, on_listening
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._began = clock.monotonic()
        self._tether = ManagersEnd(self.token)
        try:
            self._process = _started(command, self._tether.descriptor)
        except OSError:
            self._tether.close()
            raise
        self._tether.handed_over()
        self._readers = [
            threading.Thread(target=self._read_lines, args=(self._process.stdout,), name="holdfast-log", daemon=True),
            threading.Thread(target=self._read_messages, name="holdfast-tether", daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def address(self) -> str | None:
        """Where its HTTP API listens, once it has said so."""
        return self._tether.address

    def _read_lines(self, output: IO[bytes]) -> None:
        with output:
            for data in output:
                line = data.decode(errors="backslashreplace").rstrip("\r\n")
                self._last_lines.append(line)
                self._log.append(line)

    def _read_messages(self) -> None:
        while self._tether.read():
            if self._tether.address is not None and self._tether.failure is None:
                self._on_listening(self)

    def terminate(self) -> None:
        """Ask it to finish what it does, and end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, with all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self) -> Ending:
        """Block until it has ended; what it left running goes too."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.kill()  # As long as its number is not given back, the group is ours for certain.
        code = self._process.wait()
        for reader in self._readers:
            reader.join(_LAST_WORDS_SECONDS)
        self._tether.close()
        return Ending(code, self._clock.monotonic() - self._began, self._tether.failure or self._guessed(code))

    def _guessed(self, code: int) -> Failure:
        """Say what happened when the process itself could not."""
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "?"
            return Failure(f"the process was ended by signal {-code} ({name})", "ProcessKilled", {"signal": -code})
        said = next((line for line in reversed(self._last_lines) if line.strip()), "")
        told = f": {said}" if said else ""
        return Failure(f"the process ended with exit code {code}{told}", "ProcessFailed", {"exit_code": code})
