"""Where time and fresh identifiers enter.

Everything else takes a `Clock`, so that a test can stop time and a crash run can be repeated. The only
functions that fall back to the system clock by themselves are constructors of the shared format, such as
`CheckpointManifest.new`.
"""

import os
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall clock, stopwatch and patience."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds of a stopwatch that never runs backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds of a stopwatch that never runs backwards."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def utc_from_ms(timestamp_ms: int) -> datetime:
    """Return the aware UTC time of a millisecond stamp."""
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


_last_uuid_ms = 0
_last_uuid_sequence = 0
_uuid_lock = threading.Lock()


def new_uuid(clock: Clock = SYSTEM_CLOCK) -> uuid.UUID:
    """Return a version 7 UUID, strictly greater than every one this process made before.

    The 12 bits behind the millisecond are a counter; when a millisecond has used them up, or the wall clock
    stepped back, the stamp moves ahead of the clock rather than repeat or shrink.
    """
    global _last_uuid_ms, _last_uuid_sequence
    with _uuid_lock:
        now = clock.now_ms()
        if now > _last_uuid_ms:
            _last_uuid_ms, _last_uuid_sequence = now, 0
        else:
            _last_uuid_sequence += 1
            if _last_uuid_sequence > 0xFFF:
                _last_uuid_ms, _last_uuid_sequence = _last_uuid_ms + 1, 0
        stamp, sequence = _last_uuid_ms, _last_uuid_sequence
    tail = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    return uuid.UUID(int=(stamp & ((1 << 48) - 1)) << 80 | 0x7 << 76 | sequence << 64 | 0b10 << 62 | tail)


def new_token() -> str:
    """Return a short random name for one attempt at something."""
    return os.urandom(8).hex()


def jitter() -> float:
    """Return a factor between 0.5 and 1, so that many writers do not come back at the same moment."""
    return 0.5 + int.from_bytes(os.urandom(2), "big") / 131072
