"""Can we recover now? The answer, and what it rests on, cheap enough to be asked every minute.

It comes from manifests, from which sidecars are there and how long they are, and from history: when checkpoints were
last read in full and what that found, how long starts took, who started last. `recover --dry-run` reads every byte,
and takes as long as recovery itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from holdfast.core.manifest import CheckpointManifest
from holdfast.interfaces.inspection import sink_states
from holdfast.interfaces.reports import Record, SinkState, Skipped, time_text
from holdfast.interfaces.store_look import Choice, StoreLook
from holdfast.stores.store import DurableCheckpointStore

IN_DOUBT_SECONDS = 300.0
"""A sealed epoch that a sink is not known to show for longer than this needs a look."""
_SMALL_STATE = 1024 * 1024
"""Below this the size of the state does not decide how long a start takes."""


class Recoverable(StrEnum):
    """The verdict in one word."""

    YES = "yes"
    DEGRADED = "degraded"
    """A start would recover, but something needs a look: `reasons` says what."""
    NO = "no"


@dataclass(frozen=True)
class RestorePoint(Record):
    """The checkpoint that a start would go on from."""

    checkpoint_id: int
    epoch: int
    uuid: UUID | None
    created_at: str | None
    age_seconds: float
    state_bytes: int


@dataclass(frozen=True)
class VerifiedPoint(Record):
    """The newest checkpoint that was read in full and found sound, by a `verification` or by a `recovery`."""

    checkpoint_id: int
    epoch: int | None
    by: str
    at: str | None
    seconds_ago: float
    age_seconds: float | None
    """How old the checkpoint itself is."""


@dataclass(frozen=True)
class RecoveryEstimate(Record):
    """How long recovery would take, without Spark's own start; None when nobody can tell."""

    seconds: float | None
    basis: str


@dataclass(frozen=True)
class FenceHolder(Record):
    """Who may write: the generation that sealed last, and what is known of its process."""

    generation: int | None
    timeline: UUID | None
    since: str | None
    host: str | None
    process: int | None
    ended_at: str | None
    """When that process wrote down its end; None: it is running, or it was killed."""


@dataclass(frozen=True)
class StoreHealth(Record):
    """The verdict and everything it rests on."""

    store: str
    at: str | None
    recoverable: Recoverable
    refused: bool
    """Whether a start would refuse: something is there, and none of it can be trusted."""
    reasons: tuple[str, ...]
    """Why it is not a plain yes."""
    checkpoint: RestorePoint | None
    verified: VerifiedPoint | None
    estimate: RecoveryEstimate
    holder: FenceHolder | None
    skipped: tuple[Skipped, ...]
    damaged: tuple[int, ...]
    """Ids that are known to be damaged and were not given up."""
    sinks_in_doubt: tuple[SinkState, ...]
    """Sinks that are not known to show the newest epoch. That passes, unless the pipeline stands still."""
    fallbacks: tuple[int, ...]
    """Ids that recovery could still choose if that checkpoint did not hold, newest first."""
    independent_fallback: int | None
    """The newest of them that shares no sidecar with it."""
    checkpoints: int
    bytes: int
    """All sidecars together."""


def store_health(store: DurableCheckpointStore, now_ms: int) -> StoreHealth:
    """Look at a store and give the verdict. Raises `TransientStoreError` when the storage does not answer."""
    look = StoreLook.at(store, now_ms)
    choice = look.choice()
    chosen = choice.chosen
    fallbacks = [] if chosen is None else look.fallbacks(chosen)
    in_doubt = tuple(_in_doubt(look.newest))
    reasons = tuple(_reasons(look, choice, in_doubt))
    point = None if chosen is None else _restore_point(look, chosen)
    return StoreHealth(
        store=store.describe(),
        at=time_text(now_ms),
        recoverable=_verdict(choice, reasons),
        refused=choice.refused,
        reasons=reasons,
        checkpoint=point,
        verified=_verified(look),
        estimate=_estimate(look, point),
        holder=_holder(look),
        skipped=choice.skipped,
        damaged=tuple(look.damaged_ids()),
        sinks_in_doubt=in_doubt,
        fallbacks=tuple(manifest.checkpoint_id for manifest in fallbacks),
        independent_fallback=None if chosen is None else _independent(chosen, fallbacks),
        checkpoints=len(look.ids),
        bytes=sum(look.sidecars.values()),
    )


def _verdict(choice: Choice, reasons: Sequence[str]) -> Recoverable:
    if choice.chosen is None:
        return Recoverable.NO
    return Recoverable.DEGRADED if reasons else Recoverable.YES


def _reasons(look: StoreLook, choice: Choice, in_doubt: Sequence[SinkState]) -> Iterator[str]:
    if choice.chosen is None:
        yield choice.nothing or "nothing can be restored"
    else:
        yield from _damage(look, choice, choice.chosen)
        yield from _doubts(look, in_doubt)
    yield from _failure(look)


def _damage(look: StoreLook, choice: Choice, chosen: CheckpointManifest) -> Iterator[str]:
    if choice.damaged:
        newest, others = choice.damaged[0], len(choice.damaged) - 1
        which = f"checkpoint {newest.checkpoint_id}{f' and {others} more' if others else ''}"
        what = newest.reason.split(": expected ")[0]  # Two digests would fill the line; `skipped` has them.
        back_to = f"checkpoint {chosen.checkpoint_id} (epoch {chosen.epoch})"
        yield f"{which} cannot be used, a start goes back to {back_to}: {what}"
    damaged = max((id for id in look.found_damaged() if id not in chosen.abandons), default=0)
    sound = max((reading.checkpoint_id for reading in look.sound_readings()), default=0)
    if sound < damaged < chosen.checkpoint_id:
        yield (
            f"checkpoint {damaged} was found damaged, and {chosen.checkpoint_id}, which may rest on the same bytes, "
            "was not verified since: 'holdfast verify' reads it"
        )


def _doubts(look: StoreLook, in_doubt: Sequence[SinkState]) -> Iterator[str]:
    newest = look.newest
    if newest is None:
        return
    standing_still = look.age_seconds(newest.timestamp_ms) > IN_DOUBT_SECONDS
    for sink in in_doubt:
        if sink.status == "Failed":
            yield f"sink '{sink.name}' could not show epoch {newest.epoch}: {sink.message}"
        elif standing_still:
            sealed = time_text(newest.timestamp_ms)
            yield f"sink '{sink.name}' is not known to show epoch {newest.epoch}, which was sealed at {sealed}"


def _failure(look: StoreLook) -> Iterator[str]:
    """Yield how the last run failed, unless somebody sealed a checkpoint since."""
    last, newest = (look.starts[-1] if look.starts else None), look.newest
    if last is None or last.error is None or last.ended_ms is None:
        return
    if newest is None or newest.timestamp_ms <= last.ended_ms:
        what = "start was refused" if last.outcome == "refuse" else "run failed"
        yield f"the last {what} at {last.ended_at}: {last.error.splitlines()[0]}"


def _in_doubt(newest: CheckpointManifest | None) -> Iterator[SinkState]:
    if newest is not None:
        yield from (sink for sink in sink_states(newest) if sink.status in ("Pending", "Failed"))


def _restore_point(look: StoreLook, chosen: CheckpointManifest) -> RestorePoint:
    return RestorePoint(
        checkpoint_id=chosen.checkpoint_id,
        epoch=chosen.epoch,
        uuid=chosen.uuid,
        created_at=time_text(chosen.timestamp_ms),
        age_seconds=look.age_seconds(chosen.timestamp_ms),
        state_bytes=sum(file.size for file in look.store.state_reader.catalog(chosen).files),
    )


def _verified(look: StoreLook) -> VerifiedPoint | None:
    readings = look.sound_readings()
    if not readings:
        return None
    newest = max(readings, key=lambda reading: (reading.checkpoint_id, reading.at_ms))
    return VerifiedPoint(
        checkpoint_id=newest.checkpoint_id,
        epoch=newest.epoch,
        by=newest.by,
        at=time_text(newest.at_ms),
        seconds_ago=look.age_seconds(newest.at_ms),
        age_seconds=None if newest.sealed_ms is None else look.age_seconds(newest.sealed_ms),
    )


def _estimate(look: StoreLook, point: RestorePoint | None) -> RecoveryEstimate:
    """Scale what the last recovery took with the size of the state."""
    if point is None:
        return RecoveryEstimate(None, "there is nothing to restore")
    for start in reversed(look.starts):
        if start.outcome == "restore" and start.seconds is not None and start.state_bytes is not None:
            ratio = max(point.state_bytes, _SMALL_STATE) / max(start.state_bytes, _SMALL_STATE)
            basis = f"the start at {start.at} restored {start.state_bytes:,} bytes in {start.seconds:g} s"
            return RecoveryEstimate(round(start.seconds * ratio, 1), basis)
    return RecoveryEstimate(None, "history knows no start that restored a checkpoint")


def _holder(look: StoreLook) -> FenceHolder | None:
    newest = look.newest
    if newest is None:
        return None
    starts = [s for s in look.starts if (s.generation, s.timeline) == (newest.generation, str(newest.timeline))]
    start = starts[-1] if starts else None
    return FenceHolder(
        generation=newest.generation,
        timeline=newest.timeline,
        since=start.at if start else None,
        host=start.host if start else None,
        process=start.process if start else None,
        ended_at=start.ended_at if start else None,
    )


def _independent(chosen: CheckpointManifest, fallbacks: Sequence[CheckpointManifest]) -> int | None:
    apart = (m.checkpoint_id for m in fallbacks if not m.needed_sidecars & chosen.needed_sidecars)
    return next(apart, None)
