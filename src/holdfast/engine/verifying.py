"""Reads checkpoints again while the pipeline runs, so that damage is found before somebody needs them.

A round goes the way of recovery: from the newest checkpoint to the oldest until one is sound. Then it reads one more
that shares no sidecar with it, because that is what remains when a shared one is lost. What was found goes to the
observers, and with them into the history of the store; and to whoever writes, so that no damaged bytes are cited.
"""

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.core.generations import Overruled
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sidecar import StateFile
from holdfast.core.validation import ValidationResult
from holdfast.engine.events import CheckpointVerified, Observer
from holdfast.errors import CorruptCheckpoint
from holdfast.secrets import scrub
from holdfast.stores.store import DurableCheckpointStore

_log = logging.getLogger(__name__)
_AFTER_A_FAILURE_SECONDS = 60.0
_AFTER_DAMAGE_SECONDS = 600.0
"""By then an epoch has written the damaged bytes again, or nobody has."""
_PATIENCE_SECONDS = 5.0

Accepts = Callable[[CheckpointManifest], bool]
OnDamage = Callable[[Collection[str], Collection[StateFile]], object]


@dataclass(frozen=True)
class VerificationSettings:
    """How often to read checkpoints again, and how fast."""

    every_seconds: float | None = 3600.0
    """From the end of one round to the next; None: never."""
    bytes_per_second: float = 16 * 1024 * 1024
    most_looked_at: int = 40
    """A round looks at no more checkpoints than that, damaged ones and those that are pruned meanwhile included."""


class BackgroundVerification:
    """Verifies on a thread of its own: no epoch waits for it, and none fails by it.

    Checkpoints may be pruned faster than they can be read. So what was read counts for the whole round: when one goes
    away under our hands, only what its successor has beyond it is left to read.
    """

    def __init__(
        self,
        store: DurableCheckpointStore,
        observer: Observer,
        clock: Clock,
        settings: VerificationSettings | None = None,
        on_damage: OnDamage = lambda sidecars, sound: None,
    ) -> None:
        """Tell `on_damage` which sidecars hold damage, and which files are sound all the same."""
        self._store, self._observer, self._clock = store, observer, clock
        self._settings, self._on_damage = settings or VerificationSettings(), on_damage
        self._closing = threading.Event()
        self._failing = self._damaged = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to wait for the first round: a start has just read what it goes on from."""
        if self._settings.every_seconds is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-verification", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End, in the middle of a round if need be."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)

    def _run(self) -> None:
        every = pause = self._settings.every_seconds or 0.0
        while not self._closing.wait(pause):
            pause = min(every, self._pause_after_a_round())

    def _pause_after_a_round(self) -> float:
        """Do a round; return after how long the next one is due at the latest."""
        try:
            sound = self.verify_now()
        except _Closing:
            return 0.0
        except Exception as error:  # Nothing here is worth stopping a pipeline for.
            if not self._failing:
                _log.warning("checkpoints cannot be verified, will be tried again: %s", scrub(str(error)))
            self._failing = True
            return _AFTER_A_FAILURE_SECONDS
        self._failing = False
        return math.inf if sound else _AFTER_DAMAGE_SECONDS

    def verify_now(self) -> bool:
        """Do one round on the calling thread; whether it found no damage. Raises when the storage does not answer."""
        self._damaged = False
        known: set[StateFile] = set()
        newest = self._first_sound(lambda manifest: True, known)
        if newest is not None:
            needed = newest.needed_sidecars
            self._first_sound(lambda manifest: not manifest.needed_sidecars & needed, known, newest.checkpoint_id)
        return not self._damaged

    def _first_sound(
        self, accepts: Accepts, known: set[StateFile], below: int | None = None
    ) -> CheckpointManifest | None:
        """Verify those that are accepted, newest first, until one is sound; return it.

        Behind a damaged one it goes on to older ones only: what was sealed meanwhile is built on the damage.
        """
        for _ in range(self._settings.most_looked_at):
            candidate = next(self._candidates(accepts, below), None)
            if candidate is None:
                return None
            checkpoint_id, manifest = candidate
            verdict = self._verify(checkpoint_id, manifest, known)
            if verdict is not None and verdict.valid:
                return manifest
            if verdict is not None:
                below = checkpoint_id
        _log.warning("no sound checkpoint among the %d that were looked at", self._settings.most_looked_at)
        return None

    def _candidates(self, accepts: Accepts, below: int | None) -> Iterator[tuple[int, CheckpointManifest | None]]:
        """Yield what recovery would look at, newest first, with its manifest if that can be read."""
        ids = self._store.list_ids()
        overruled = Overruled(set(ids))
        for id in reversed(ids):
            if overruled.by(id) is not None:
                continue
            try:
                manifest = self._store.load_by_id(id)
            except CorruptCheckpoint:
                if below is None or id < below:
                    yield id, None
                continue
            if manifest is None or overruled.take_in(manifest) is not None:
                continue
            if (below is None or id < below) and manifest.epoch > 0 and accepts(manifest):
                yield id, manifest

    def _verify(
        self, checkpoint_id: int, manifest: CheckpointManifest | None, known: set[StateFile]
    ) -> ValidationResult | None:
        """Read a checkpoint, tell what was found, and return it; None when it was pruned meanwhile."""
        started = self._clock.monotonic()
        pace = _Pace(self._settings.bytes_per_second, self._closing.wait)
        verdict = self._store.validate_checkpoint(checkpoint_id, pace.read, known)
        if not verdict.valid and checkpoint_id not in self._store.list_ids():
            return None  # What is missing was removed, not lost.
        self._observer.on_event(
            CheckpointVerified(
                checkpoint_id=checkpoint_id,
                epoch=None if manifest is None else manifest.epoch,
                sealed_ms=None if manifest is None else manifest.timestamp_ms,
                problems=tuple(failure.message for failure in verdict.failures),
                bytes=pace.bytes,
                seconds=self._clock.monotonic() - started,
            )
        )
        if not verdict.valid:
            self._damaged = True
            if manifest is not None:
                self._on_damage(manifest.needed_sidecars, known)
        return verdict


class _Closing(Exception):
    """The pipeline ends: whatever is being read does not matter any more."""


class _Pace:
    """Reads no faster than a rate allows: after each piece it waits for as long as the piece may take."""

    def __init__(self, bytes_per_second: float, wait: Callable[[float], bool]) -> None:
        self.bytes = 0
        self._rate, self._wait = bytes_per_second, wait

    def read(self, count: int) -> None:
        """Hear that a piece was read."""
        self.bytes += count
        if self._wait(count / self._rate):
            raise _Closing
