"""Who is asking: a thread that a running batch waits for must not wait for that batch to end.

Observers are called in the middle of an epoch, on the batch's thread and on those of sinks; so are functions that a
user gave to a sink. What they ask for is noted, and done by others as soon as the batch lets go.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

from holdfast.engine.events import Event, Observer


class Inside:
    """Knows which threads work for a batch of one pipeline right now, or tell its observers of something."""

    def __init__(self) -> None:
        self._here = threading.local()

    def __bool__(self) -> bool:
        """Whether this thread does."""
        return getattr(self._here, "depth", 0) > 0

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Mark this thread for a while."""
        self._here.depth = getattr(self._here, "depth", 0) + 1
        try:
            yield
        finally:
            self._here.depth -= 1

    def marked(self, work: Callable[[], object]) -> Callable[[], object]:
        """Return work that is known to be a batch's, on whatever thread it is done."""

        def run() -> object:
            with self.entered():
                return work()

        return run

    def telling(self, observer: Observer) -> Observer:
        """Return an observer whose calls of us are known to come from inside."""
        return _Told(self, observer)


class _Told:
    def __init__(self, inside: Inside, observer: Observer) -> None:
        self._inside, self._observer = inside, observer

    def on_event(self, event: Event) -> None:
        """Pass it on."""
        with self._inside.entered():
            self._observer.on_event(event)
