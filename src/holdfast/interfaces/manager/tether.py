"""The line between a manager and a process it started: a pair of sockets that nobody else can read.

    manager -> process   the token that opens its HTTP API
    process -> manager   where it listens; at the end, what made it fail

Neither a command line nor a file ever holds the token. When the manager is gone, however it went, the line is cut and
the process ends too: gracefully if it can, in any case soon.
"""

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock

TETHER_VARIABLE = "HOLDFAST_TETHER"
GRACE_SECONDS = 30.0
_LONGEST_MESSAGE = 1 << 20


@dataclass(frozen=True)
class Failure:
    """What ended a process, in the form of every error of the HTTP API."""

    message: str
    error_code: str
    details: Any = None

    def to_json_value(self) -> dict[str, Any]:
        """Return the error body."""
        return {"message": self.message, "error_code": self.error_code, "details": self.details}


class ManagersEnd:
    """The manager's end of the line to one process."""

    def __init__(self, token: str) -> None:
        self._line, self._others = socket.socketpair()
        # Before there is a process: one that ends at once would be gone before it could be told.
        _send(self._line, {"token": token})
        self._messages = self._line.makefile("rb")
        self.address: str | None = None
        """Where the process listens, once it has said so."""
        self.failure: Failure | None = None
        """What the process said of its end."""

    @property
    def descriptor(self) -> int:
        """The file descriptor to hand to the process; its number goes into `TETHER_VARIABLE`."""
        return self._others.fileno()

    def handed_over(self) -> None:
        """Keep only our own end: the process has the other one."""
        self._others.close()

    def read(self) -> bool:
        """Wait for one message and take it in; False when the process is gone, or has let go of its end."""
        line = b""
        with contextlib.suppress(OSError):
            line = self._messages.readline(_LONGEST_MESSAGE)
        if not line.endswith(b"\n"):
            return False
        message = json.loads(line)
        if "listening" in message:
            self.address = str(message["listening"])
        if "failed" in message:
            self.failure = Failure(**message["failed"])
        return True

    def close(self) -> None:
        """Cut the line."""
        self._others.close()
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)  # Also wakes whoever reads.
        self._messages.close()
        self._line.close()


class Tether:
    """The end that a process started by a manager holds."""

    def __init__(self, line: socket.socket, clock: Clock = SYSTEM_CLOCK) -> None:
        self._line, self._clock = line, clock
        first = line.makefile("rb").readline(_LONGEST_MESSAGE)
        self.token: str = json.loads(first)["token"]

    @staticmethod
    def of_environment(environment: Mapping[str, str] = os.environ) -> "Tether | None":
        """Return the line to the manager that started this process; None when none did."""
        number = environment.get(TETHER_VARIABLE)
        if number is None:
            return None
        line = socket.socket(fileno=int(number))
        line.set_inheritable(False)  # Processes of ours would keep the line up when we are gone.
        return Tether(line)

    def watch(self) -> None:
        """End this process when the manager is gone; returns at once."""
        threading.Thread(target=self._until_cut, name="holdfast-tether", daemon=True).start()

    def _until_cut(self) -> None:
        with contextlib.suppress(OSError):
            while self._line.recv(4096):
                """The manager has nothing more to say."""
        # As a person would: the first signal lets the running epoch finish. One that cannot is for recovery.
        os.kill(os.getpid(), signal.SIGTERM)
        self._clock.sleep(GRACE_SECONDS)
        os._exit(128 + signal.SIGTERM)

    def listening(self, address: str) -> None:
        """Tell the manager where this process answers."""
        self._tell({"listening": address})

    def failed(self, failure: Failure) -> None:
        """Tell the manager what ends this process."""
        self._tell({"failed": failure.to_json_value()})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # Nobody is there to hear it: the watch ends the process.
            _send(self._line, message)


def _send(line: socket.socket, message: dict[str, Any]) -> None:
    line.sendall(json.dumps(message).encode() + b"\n")
