"""`holdfast run` under a manager: it serves whom the manager told it to, and tells where, and what ended it.

Loads no web framework: every command may load this.
"""

import contextlib
from collections.abc import Callable, Iterator

from holdfast.engine.events import Event
from holdfast.errors import ApprovalNeeded, HoldfastError
from holdfast.interfaces.execution import RunWatcher
from holdfast.interfaces.http.addresses import Address
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.settings import HttpListening, HttpSettings
from holdfast.interfaces.manager.tether import Failure, Tether
from holdfast.secrets import scrub

_REQUESTS_PER_SECOND = 2000.0
"""Everybody who asks the manager comes as one client, and the manager has counted them already."""


class NoManager:
    """Nobody started this process but a person."""

    http: HttpSettings | None = None

    def heard(self, watcher: RunWatcher) -> RunWatcher:
        """Return the watcher itself."""
        return watcher


class ManagerLine(NoManager):
    """The manager that started this process."""

    def __init__(self, tether: Tether) -> None:
        self._tether = tether
        security = Security(Tokens(tether.token), requests_per_second=_REQUESTS_PER_SECOND)
        self.http = HttpSettings(Address("127.0.0.1", 0), security)

    def heard(self, watcher: RunWatcher) -> RunWatcher:
        """Return a watcher through which the manager hears where the API listens."""
        return _Heard(watcher, self._tether)


class _Heard:
    def __init__(self, watcher: RunWatcher, tether: Tether) -> None:
        self._watcher, self._tether = watcher, tether

    def on_event(self, event: Event) -> None:
        if isinstance(event, HttpListening):
            self._tether.listening(event.url.removeprefix("http://"))
        self._watcher.on_event(event)

    def entering(self, state: str) -> None:
        self._watcher.entering(state)


@contextlib.contextmanager
def under_manager(redact: Callable[[str], str]) -> Iterator[NoManager]:
    """Lend what the manager wants, if there is one; it hears what is raised, and its end ends this process."""
    tether = Tether.of_environment()
    if tether is None:
        yield NoManager()
        return
    tether.watch()
    try:
        yield ManagerLine(tether)
    except HoldfastError as error:
        tether.failed(Failure(redact(scrub(str(error))), type(error).__name__, _details(error)))
        raise
    except Exception as error:
        fault = redact(scrub(f"fault in holdfast: {type(error).__name__}: {error}"))
        tether.failed(Failure(fault, "InternalError"))
        raise


def _details(error: HoldfastError) -> dict[str, object] | None:
    if isinstance(error, ApprovalNeeded):
        return {"fingerprint": error.fingerprint, "changes": list(error.changes)}
    return None
