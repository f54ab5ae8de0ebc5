"""Writes what happens into the store's history, beside the work: no epoch waits for it, and none fails by it."""

import logging
import threading
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.clock import Clock, new_token
from holdfast.engine.events import (
    CheckpointVerified,
    EpochCommitted,
    EpochReplayed,
    Event,
    Recovered,
    SinkRetry,
    Stopped,
)
from holdfast.secrets import scrub
from holdfast.stores.history import EPOCH, VERIFICATION, History

RECOVERY, REPLAY, STOP, GAP = "recovery", "replay", "stop", "gap"

_log = logging.getLogger(__name__)
_LONGEST_ERROR = 2000
_MOST_PROBLEMS = 20

Entry = dict[str, Any]


@dataclass(frozen=True)
class HistorySettings:
    """When to write, and how much may wait while the storage does not answer."""

    every_seconds: float = 10.0
    batch: int = 500
    """So many waiting entries are written at once."""
    most_waiting: int = 10_000
    """Beyond that the oldest are dropped, and counted."""
    patience_seconds: float = 10.0
    """How long `close` waits for the last write."""


class HistoryObserver:
    """Keeps epochs, recoveries, replays and the end of a run, each with the retries before it; and verifications.

    Taking an event never waits for storage: a thread of its own writes what was taken.
    """

    def __init__(self, history: History, clock: Clock, settings: HistorySettings | None = None) -> None:
        self._history = history
        self._clock = clock
        self._settings = settings or HistorySettings()
        self._marks: Entry = {"run": new_token()}
        self._retries: dict[tuple[str, str], Entry] = {}
        self._waiting: deque[Entry] = deque()
        self._in_writing: list[Entry] = []
        self._dropped = 0
        self._due = self._closed = self._failing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        history.show(self._unwritten)

    def _unwritten(self) -> list[Entry]:
        with self._changed:
            return [*self._in_writing, *self._waiting]

    def on_event(self, event: Event) -> None:
        """Take a note of what is worth keeping."""
        with self._changed:
            match event:
                case SinkRetry():
                    self._count(event)
                case EpochReplayed():
                    self._keep({"kind": REPLAY, "epoch": event.epoch})
                case EpochCommitted():
                    self._keep({"kind": EPOCH, **_rounded(event), **self._taken_retries()})
                case Recovered():
                    self._marks["generation"] = event.report.get("generation")
                    self._keep({"kind": RECOVERY, "report": event.report, **self._taken_retries()}, at_once=True)
                case CheckpointVerified():
                    self._keep({"kind": VERIFICATION, **_verified(event)}, at_once=True)
                case Stopped():
                    error = None if event.error is None else _shown(event.error)
                    stop = {"kind": STOP, "epoch": event.epoch, "error": error, "error_kind": event.kind}
                    self._keep({**stop, **self._taken_retries()})

    def _count(self, event: SinkRetry) -> None:
        """Add up the retries of an action: one line for each would be more than anybody reads."""
        known = self._retries.get((event.sink, event.action), {"times": 0, "seconds": 0.0})
        self._retries[event.sink, event.action] = {
            "sink": event.sink,
            "action": event.action,
            "times": known["times"] + 1,
            "seconds": round(known["seconds"] + event.pause_seconds, 4),
            "error": _shown(event.error),
        }

    def _taken_retries(self) -> Entry:
        retries = list(self._retries.values())
        self._retries.clear()
        return {"retries": retries}

    def _keep(self, entry: Entry, *, at_once: bool = False) -> None:
        self._waiting.append({"at_ms": self._clock.now_ms(), **self._marks, **entry})
        self._drop_oldest()
        if at_once or len(self._waiting) >= self._settings.batch:
            self._due = True
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_now_and_then, name="holdfast-history", daemon=True)
            self._thread.start()

    def _drop_oldest(self) -> None:
        while len(self._waiting) > self._settings.most_waiting:
            self._waiting.popleft()
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, and end. Storage that does not answer is given up after a while."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(self._settings.patience_seconds)
            if self._thread.is_alive():
                _log.warning("the end of this run may be missing from history: the storage did not answer in time")
        self._history.show_no_more(self._unwritten)

    def _write_now_and_then(self) -> None:
        closed = False
        while not closed:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._closed, self._settings.every_seconds)
                self._in_writing, dropped = list(self._waiting), self._dropped
                self._waiting.clear()
                self._due, self._dropped, closed = False, 0, self._closed
            written = not self._in_writing or self._written(self._in_writing, dropped)
            with self._changed:
                if not written:
                    self._waiting.extendleft(reversed(self._in_writing))
                    self._dropped += dropped
                    self._drop_oldest()
                self._in_writing = []

    def _written(self, entries: list[Entry], dropped: int) -> bool:
        marks = {key: entries[0][key] for key in ("at_ms", "run")}
        gap = [{"kind": GAP, **marks, "dropped": dropped}] if dropped else []
        try:
            self._history.append([*gap, *entries])
        except Exception as error:  # Nothing here is worth stopping a pipeline for.
            if not self._failing:
                _log.warning("history cannot be written, the pipeline goes on without: %s", scrub(str(error)))
            self._failing = True
            return False
        self._failing = False
        return True


def _rounded(event: EpochCommitted) -> Entry:
    """Return the event's values; a tenth of a millisecond is as exact as anybody needs."""
    steps = {name: round(seconds, 4) for name, seconds in event.steps.items()}
    return {**asdict(event), "seconds": round(event.seconds, 4), "steps": steps}


def _verified(event: CheckpointVerified) -> Entry:
    problems = [_shown(problem) for problem in event.problems[:_MOST_PROBLEMS]]
    return {**asdict(event), "problems": problems, "seconds": round(event.seconds, 4)}


def _shown(error: str) -> str:
    return scrub(error)[:_LONGEST_ERROR]
