"""Events for many listeners at once. The work never waits for one of them: who cannot keep up is let go."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.engine.events import Event
from holdfast.interfaces.redaction import Redact, redacted
from holdfast.secrets import scrub

DEFAULT_BACKLOG = 1000
"""Events that a listener may be behind before it is let go."""


class Subscription:
    """What one listener has not taken yet."""

    def __init__(self, hub: "EventHub", on_news: Callable[[], None]) -> None:
        self._hub, self._on_news = hub, on_news
        self._waiting: deque[tuple[int, Event]] = deque()
        self._lock = threading.Lock()
        self.lost = False
        """Whether the listener fell too far behind; nothing more comes then."""

    def take(self) -> list[tuple[int, dict[str, Any]]]:
        """Return what came since the last time: numbers, and events in their structured form."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return [(number, redacted(event.to_json_value(), self._hub.redact)) for number, event in taken]

    def close(self) -> None:
        """Listen no longer."""
        self._hub._leave(self)

    def _offer(self, number: int, event: Event) -> bool:
        """Take an event in, if there is room; whether the listener keeps up."""
        with self._lock:
            self.lost = len(self._waiting) >= self._hub.backlog
            if not self.lost:
                self._waiting.append((number, event))
        self._on_news()
        return not self.lost


class EventHub:
    """An observer that passes events on to whoever subscribed. Numbers grow by one with every event."""

    def __init__(self, redact: Redact = scrub, *, backlog: int = DEFAULT_BACKLOG) -> None:
        self.redact, self.backlog = redact, backlog
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._count = 0

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._subscriptions)

    def subscribe(self, on_news: Callable[[], None]) -> Subscription:
        """Listen from now on.

        `on_news` is told that there is something to take, or that the listener was let go. It is called on the thread
        that works, so it only wakes somebody, and does not raise.
        """
        subscription = Subscription(self, on_news)
        with self._lock:
            self._subscriptions.append(subscription)
        return subscription

    def on_event(self, event: Event) -> None:
        """Pass one event on, in the same order to everybody."""
        with self._lock:
            self._count += 1
            self._subscriptions = [each for each in self._subscriptions if each._offer(self._count, event)]

    def _leave(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = [each for each in self._subscriptions if each is not subscription]
