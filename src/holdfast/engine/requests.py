"""Checkpoints that somebody asked for: numbered, shared, answered.

A request is satisfied only by a snapshot that began after it arrived. Those that wait when one begins share it. The
checkpoint that an epoch seals anyway will do; with no data flowing the newest one is sealed again, between epochs.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.clock import SYSTEM_CLOCK, Clock, new_uuid, utc_from_ms
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.status import (
    CheckpointActivity,
    CheckpointDelayed,
    CheckpointFailure,
    CheckpointIdle,
    CheckpointInProgress,
    CheckpointStatus,
    PermanentSuspendError,
    SuspendError,
    TemporarySuspendError,
)
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.events import (
    CheckpointFailed,
    CheckpointTaken,
    EpochCommitted,
    Event,
    Observer,
    Recovered,
    StepStarted,
)
from holdfast.errors import Fenced, HoldfastError
from holdfast.secrets import scrub

_OUTCOMES_KEPT = 100

Seal = Callable[[], CheckpointManifest]


@dataclass(frozen=True)
class RequestOutcome:
    """How the requests numbered `first` to `last`, which shared one attempt, ended: by a checkpoint or an error.

    `requested_at` is when the first of them arrived.
    """

    first: int
    last: int
    requested_at: datetime
    finished_at: datetime
    checkpoint_id: int | None
    error: str | None


class SealAgain:
    """Seals the newest checkpoint once more, and tells observers.

    `on_fenced` hears that another writer owns the store: with no data flowing no epoch would ever find out.
    """

    def __init__(
        self, writer: CheckpointWriter, observer: Observer, clock: Clock, on_fenced: Callable[[Fenced], None]
    ) -> None:
        self._writer, self._observer, self._clock, self._on_fenced = writer, observer, clock, on_fenced

    def __call__(self) -> CheckpointManifest:
        """Do it, between epochs."""
        began = self._clock.monotonic()
        try:
            manifest = self._writer.seal_again()
        except Exception as error:
            self._observer.on_event(CheckpointFailed(self._writer.last.epoch, str(error)))
            if isinstance(error, Fenced):
                self._on_fenced(error)
            raise
        seconds = self._clock.monotonic() - began
        self._observer.on_event(CheckpointTaken(manifest.epoch, manifest.checkpoint_id, seconds))
        return manifest


class CheckpointRequests:
    """The requests to one process. Any thread may ask; one of our own serves, in turn with the epochs.

    It is an observer: it hears where epochs are. Until `serve` is called requests wait, because recovery is not done.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.incarnation_uuid = new_uuid(clock)
        """Sequence numbers are of this process alone: whoever asks later can tell by this that it is another one."""
        self._clock = clock
        self._changed = threading.Condition()
        self._issued = self._answered = 0
        self._oldest: datetime | None = None
        self._oldest_after_cut: datetime | None = None
        self._cut: int | None = None
        self._writing_since: datetime | None = None
        self._success: int | None = None
        self._failure: CheckpointFailure | None = None
        self._outcomes: deque[RequestOutcome] = deque(maxlen=_OUTCOMES_KEPT)
        self.replaying = False
        """Whether recovery computes epochs again that were decided before."""
        self._permanent: tuple[PermanentSuspendError, ...] = ()
        self._refusal: str | None = None
        self._closing = False
        self._seal: Seal | None = None
        self._turn: threading.Lock | None = None
        self._worker: threading.Thread | None = None

    # Whoever asks

    def request(self) -> int:
        """Ask for a checkpoint and return the request's number; `status` tells how it ended."""
        with self._changed:
            number, self._issued = self._issued, self._issued + 1
            if self._oldest is None:
                self._oldest = self._now()
            elif number == self._cut:
                self._oldest_after_cut = self._now()
            if self._refusal is not None:
                self._answer(self._issued, error=self._refusal)
            self._changed.notify_all()
            return number

    def status(self) -> CheckpointStatus:
        """Return the newest success and the newest failure."""
        with self._changed:
            return CheckpointStatus(success=self._success, failure=self._failure)

    def outcomes(self) -> list[RequestOutcome]:
        """Return how the last requests ended, oldest first."""
        with self._changed:
            return list(self._outcomes)

    def activity(self) -> CheckpointActivity:
        """Return what checkpointing is doing now; the checkpoints of epochs count."""
        with self._changed:
            if self._writing_since is not None:
                return CheckpointInProgress(started_at=self._writing_since)
            if self._oldest is None:
                return CheckpointIdle()
            if reasons := self._reasons():
                return CheckpointDelayed(reasons=reasons, delayed_since=self._oldest)
            return CheckpointInProgress(started_at=self._oldest)

    @property
    def permanent(self) -> tuple[PermanentSuspendError, ...]:
        """Why no request can succeed; empty when they can."""
        return self._permanent

    def suspend_error(self) -> SuspendError | None:
        """Return what stands between the pipeline and a checkpoint right now."""
        with self._changed:
            if self._permanent:
                return SuspendError("Permanent", self._permanent)
            reasons = self._reasons()
            return SuspendError("Temporary", reasons) if reasons else None

    def _reasons(self) -> tuple[TemporarySuspendError, ...]:
        if self._turn is None:
            return (TemporarySuspendError("Replaying" if self.replaying else "Coordination"),)
        return (TemporarySuspendError("TransactionInProgress"),) if self._turn.locked() else ()

    # The pipeline

    def serve(self, seal: Seal, turn: threading.Lock, permanent: Sequence[PermanentSuspendError] = ()) -> None:
        """Begin to serve: recovery is done. `seal` seals the newest checkpoint again; an epoch holds `turn`."""
        with self._changed:
            self._seal, self._turn, self._permanent, self.replaying = seal, turn, tuple(permanent), False
            if permanent:
                self._refuse(str(SuspendError("Permanent", self._permanent)))
        self._worker = threading.Thread(target=self._work, name="holdfast-checkpoints", daemon=True)
        self._worker.start()

    def take(self) -> CheckpointManifest:
        """Take a checkpoint for all who wait, and return it. Whoever calls holds the turn."""
        assert self._seal is not None
        self._snapshot_begins()
        try:
            manifest = self._seal()
        except BaseException as error:
            self._snapshot_ends(error=_told(error))
            raise
        self._snapshot_ends(manifest.checkpoint_id)
        return manifest

    def on_event(self, event: Event) -> None:
        """Follow recovery, and the checkpoints that epochs seal."""
        match event:
            case Recovered():
                self.replaying = bool(event.report.get("replays"))
            case StepStarted(step="capture", sink=None) if self._turn is not None:
                self._snapshot_begins()
            case EpochCommitted():
                self._snapshot_ends(event.checkpoint_id)

    def close(self, error: BaseException | None = None) -> None:
        """Stop serving: whoever still waits is told that the pipeline ended. Not while the turn is held."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join()
        with self._changed:
            self._writing_since = self._cut = None
            ended = "the pipeline ended before the checkpoint was taken"
            self._refuse(ended if error is None else f"{ended}: {_told(error)}")

    def _work(self) -> None:
        assert self._turn is not None
        while self._somebody_waits():
            with self._turn:
                # An epoch may have served them while we waited for our turn.
                if self._oldest is not None and not self._closing:
                    with contextlib.suppress(Exception):  # Whoever asked finds it in the status.
                        self.take()

    def _somebody_waits(self) -> bool:
        """Wait for a request; False when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._oldest is not None)
            return not self._closing

    def _snapshot_begins(self) -> None:
        with self._changed:
            self._cut, self._writing_since = self._issued, self._now()

    def _snapshot_ends(self, checkpoint_id: int | None = None, error: str | None = None) -> None:
        with self._changed:
            if self._cut is not None:
                self._answer(self._cut, checkpoint_id, error)
            self._cut = self._writing_since = None

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        self._answer(self._issued, error=reason)

    def _answer(self, end: int, checkpoint_id: int | None = None, error: str | None = None) -> None:
        """Answer every request below `end` that waits."""
        if self._oldest is None or end <= self._answered:
            return
        now = self._now()
        self._outcomes.append(RequestOutcome(self._answered, end - 1, self._oldest, now, checkpoint_id, error))
        if error is None:
            self._success = end - 1
        else:
            self._failure = CheckpointFailure(sequence_number=end - 1, error=error, failed_at=now)
        self._answered, self._oldest, self._oldest_after_cut = end, self._oldest_after_cut, None

    def _now(self) -> datetime:
        return utc_from_ms(self._clock.now_ms())


def _told(error: BaseException) -> str:
    text = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    return scrub(text)
