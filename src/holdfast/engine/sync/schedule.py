"""When the next copy is due."""

from holdfast.clock import Clock, jitter

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0


class PushSchedule:
    """Counts from the end of the last success; after failures it waits longer each time."""

    def __init__(self, every_seconds: float | None, clock: Clock) -> None:
        self._every, self._clock = every_seconds, clock
        self._due_at = clock.monotonic()
        self._failures = 0

    def seconds_left(self) -> float | None:
        """Return how long to wait; None: for ever."""
        return None if self._every is None else max(0.0, self._due_at - self._clock.monotonic())

    def succeeded(self) -> None:
        """Count from now."""
        self._failures = 0
        self._due_at = self._clock.monotonic() + (self._every or 0.0)

    def failed(self) -> float | None:
        """Return after how many seconds it is tried again; None: not by itself."""
        if self._every is None:
            return None
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self._failures) * jitter()
        self._failures = min(self._failures + 1, 20)
        self._due_at = self._clock.monotonic() + pause
        return pause
