"""The last answer to a question that may take long: whoever reads numbers must not hang on a store that does."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.clock import Clock
from holdfast.secrets import scrub

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Heard(Generic[Answer]):
    """What was last heard. `answer` is the last one there was, `failed` whether a later question had none."""

    answer: Answer | None = None
    seconds_ago: float = 0.0
    failed: bool = False


class Remembered(Generic[Answer]):
    """Asks on a thread of its own, one question at a time, when the answer is older than `fresh_seconds`.

    `get` waits for it no longer than `patience_seconds`.
    """

    def __init__(
        self,
        ask: Callable[[], Answer],
        clock: Clock,
        *,
        fresh_seconds: float = 30.0,
        patience_seconds: float = 2.0,
    ) -> None:
        self._ask, self._clock = ask, clock
        self._fresh, self._patience = fresh_seconds, patience_seconds
        self._lock = threading.Lock()
        self._answer: Answer | None = None
        self._answered_at = 0.0
        self._asked_at: float | None = None
        self._failed = False
        self._done = threading.Event()
        self._done.set()

    def get(self) -> Heard[Answer]:
        """Return what is known, after asking again if that is due."""
        with self._lock:
            now = self._clock.monotonic()
            if self._done.is_set() and (self._asked_at is None or now - self._asked_at >= self._fresh):
                self._asked_at = now
                self._done.clear()
                threading.Thread(target=self._find_out, name="holdfast-question", daemon=True).start()
        answered = self._done.wait(self._patience)
        with self._lock:
            ago = self._clock.monotonic() - self._answered_at
            return Heard(self._answer, max(ago, 0.0), self._failed or not answered)

    def _find_out(self) -> None:
        try:
            answer = self._ask()
        except Exception as error:
            _log.debug("a question for metrics has no answer: %s", scrub(str(error)))
            with self._lock:
                self._failed = True
        else:
            with self._lock:
                self._answer, self._failed, self._answered_at = answer, False, self._clock.monotonic()
        finally:
            self._done.set()
