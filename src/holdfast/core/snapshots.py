"""Periodic snapshots of streams: a small store, and the schedule that fills it.

This is the model system's in-process checkpointing, for a program that handles events one by one. A pipeline
on Spark is checkpointed by the engine, through manifests; it does not come through here.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.snapshot_codec import CheckpointId, CheckpointState


class SnapshotStore(Protocol):
    """Where a `CheckpointManager` keeps states. Streams are independent of each other.

    The manager saves from whatever thread calls `on_event`; a store shared by several threads must be safe
    for that. How long states live, and whether they survive the process, is the store's own promise.
    """

    def save(self, state: CheckpointState) -> None:
        """Keep a state, replacing one of the same stream and sequence. Must raise when it did not keep it."""
        ...

    def latest(self, stream_id: str) -> CheckpointState | None:
        """Return the state with the highest sequence, or None."""
        ...

    def list(self, stream_id: str) -> Sequence[CheckpointState]:
        """Return all states of a stream, lowest sequence first; empty for an unknown stream."""
        ...

    def delete_before(self, stream_id: str, sequence: int) -> int:
        """Forget the states below `sequence`, which itself stays; return how many there were."""
        ...

    def checkpoint_count(self, stream_id: str) -> int:
        """Return how many states of a stream are kept."""
        ...


class InMemoryCheckpointStore:
    """Keeps the `max_per_stream` highest sequences of each stream, until the process ends. Thread-safe.

    States are copied on the way in and out, so changing one never changes what is kept. A sequence lower than
    everything in a full stream is dropped at once.
    """

    def __init__(self, max_per_stream: int) -> None:
        if max_per_stream < 1:
            raise ValueError(f"max_per_stream must be at least 1, not {max_per_stream}")
        self._max_per_stream = max_per_stream
        self._streams: dict[str, dict[int, CheckpointState]] = {}
        self._lock = threading.Lock()

    def save(self, state: CheckpointState) -> None:
        """Keep a copy, replacing one of the same sequence; forget the lowest sequence when over the limit."""
        with self._lock:
            states = self._streams.setdefault(state.id.stream_id, {})
            states[state.id.sequence] = state.copy()
            if len(states) > self._max_per_stream:
                del states[min(states)]

    def latest(self, stream_id: str) -> CheckpointState | None:
        """Return a copy of the state with the highest sequence, whenever it was saved, or None."""
        with self._lock:
            states = self._streams.get(stream_id)
            return states[max(states)].copy() if states else None

    def list(self, stream_id: str) -> Sequence[CheckpointState]:
        """Return copies of all states of a stream, lowest sequence first."""
        with self._lock:
            states = self._streams.get(stream_id, {})
            return [states[sequence].copy() for sequence in sorted(states)]

    def delete_before(self, stream_id: str, sequence: int) -> int:
        """Forget the states below `sequence`, which itself stays; return how many there were."""
        with self._lock:
            states = self._streams.get(stream_id, {})
            doomed = [kept for kept in states if kept < sequence]
            for kept in doomed:
                del states[kept]
            return len(doomed)

    def checkpoint_count(self, stream_id: str) -> int:
        """Return how many states of a stream are kept."""
        with self._lock:
            return len(self._streams.get(stream_id, {}))


@dataclass(frozen=True)
class _Mark:
    """The last checkpoint of a stream, from which the next one is counted."""

    sequence: int
    at_seconds: float


class CheckpointManager:
    """Takes a checkpoint of a stream every so many events, every so many seconds, or whichever comes first.

    Every stream has a schedule of its own. One stream is driven by one thread at a time; different streams
    may be driven by different threads. Time is looked at when an event comes: a silent stream takes no
    checkpoint. After a restart call `recover` before the first event; without it a stream counts from
    sequence 0, and its clock from the first event.
    """

    def __init__(
        self,
        store: SnapshotStore,
        interval_events: int | None = None,
        *,
        interval_seconds: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if interval_events is None and interval_seconds is None:
            raise ValueError("give interval_events, interval_seconds or both")
        if interval_events is not None and interval_events < 1:
            raise ValueError(f"interval_events must be at least 1, not {interval_events}")
        if interval_seconds is not None and not interval_seconds > 0:
            raise ValueError(f"interval_seconds must be above 0, not {interval_seconds}")
        self._store = store
        self._interval_events = interval_events
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._marks: dict[str, _Mark] = {}
        self._total_checkpoints = 0
        self._lock = threading.Lock()

    @property
    def store(self) -> SnapshotStore:
        """The store given at the start; saving into it from outside does not move the schedule."""
        return self._store

    @property
    def total_checkpoints(self) -> int:
        """How many checkpoints this manager has saved, over all streams; recovered ones do not count."""
        return self._total_checkpoints

    def on_event(
        self,
        stream_id: str,
        sequence: int,
        watermark_ns: int,
        capture: Callable[[CheckpointState], None] | None = None,
    ) -> bool:
        """Call after each processed event; return whether a checkpoint that includes it was saved.

        When one is due, `capture` receives the new state, with `event_count` equal to `sequence`, and fills
        in operator states and source offsets; it is not called otherwise. Without it the checkpoint restores
        a position but no state. If `capture` or the store raises, nothing counts as saved and the next event
        tries again. A sequence not above the last checkpoint's (a replay) never takes one.
        """
        if not self._is_due(self._mark_of(stream_id), sequence):
            return False
        state = CheckpointState.new(CheckpointId.new(stream_id, sequence, self._clock))
        state.watermark_ns, state.event_count = watermark_ns, sequence
        if capture is not None:
            capture(state)
        self._store.save(state)
        with self._lock:
            self._marks[stream_id] = self._mark_now(sequence)
            self._total_checkpoints += 1
        return True

    def recover(self, stream_id: str) -> CheckpointState | None:
        """Return the newest state to restore operators and offsets from, or None when there is none.

        `id.sequence` is the last event included: processing goes on with the one after it. The schedule goes
        on from there as well, so a restart takes no checkpoint at once; with no state it starts over.
        """
        state = self._store.latest(stream_id)
        with self._lock:
            self._marks[stream_id] = self._mark_now(state.id.sequence if state else 0)
        return state

    def _is_due(self, mark: _Mark, sequence: int) -> bool:
        if sequence <= mark.sequence:
            return False
        if self._interval_events is not None and sequence >= mark.sequence + self._interval_events:
            return True
        elapsed_seconds = self._clock.monotonic() - mark.at_seconds
        return self._interval_seconds is not None and elapsed_seconds >= self._interval_seconds

    def _mark_of(self, stream_id: str) -> _Mark:
        """Return the stream's mark; a stream never seen before starts at sequence 0, now."""
        with self._lock:
            mark = self._marks.get(stream_id)
            if mark is None:
                mark = self._marks[stream_id] = self._mark_now(0)
            return mark

    def _mark_now(self, sequence: int) -> _Mark:
        return _Mark(sequence, self._clock.monotonic())
