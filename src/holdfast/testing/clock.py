"""A clock that stands still until somebody moves it."""

import threading


class ManualClock:
    """A `holdfast.clock.Clock` for tests: `sleep` returns at once and moves the time."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(now_ms)
        self._monotonic = 0.0
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return int(self._now_ms)

    def monotonic(self) -> float:
        """Seconds since this clock was made."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Do not wait: move the time instead."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move wall clock and stopwatch."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}")
        with self._lock:
            self._now_ms += seconds * 1000
            self._monotonic += seconds

    def step_wall_clock(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a time server may; the stopwatch does not notice."""
        with self._lock:
            self._now_ms += seconds * 1000
