"""Decisions as data: what may change in a sealed manifest, and what retention may remove.

Nothing here reads or writes; the store carries the plans out.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.manifest import CheckpointManifest
from holdfast.errors import ManifestConflict

_MUTABLE = {"sink_commit_statuses", "sink_epochs", "identifier", "held_until", "manifest_checksum"}
_ENOUGH_DAMAGE = 3
"""So many objects must be damaged at once before a plan that read nothing back can lose everything."""


def merge_update(current: CheckpointManifest, proposed: CheckpointManifest) -> CheckpointManifest:
    """Return `current` with what `proposed` adds: statuses closer to Committed, later sink epochs, a name, a hold.

    A name in `current` stays when `proposed` has none: the update was made from an older copy. Anything else
    that differs is refused, because the manifest is the decision and the decision was made.
    """
    _refuse_other_changes(current, proposed)
    statuses = dict(current.sink_commit_statuses)
    for sink, status in proposed.sink_commit_statuses.items():
        if sink not in statuses or status.progress >= statuses[sink].progress:
            statuses[sink] = status
    epochs = dict(current.sink_epochs)
    for sink, epoch in proposed.sink_epochs.items():
        epochs[sink] = max(epoch, epochs.get(sink, 0))
    merged = {
        "sink_commit_statuses": statuses,
        "sink_epochs": epochs,
        "identifier": proposed.identifier or current.identifier,
        "held_until": max(proposed.held_until or 0, current.held_until or 0) or None,
    }
    return current.model_copy(update=merged, deep=True).stamped()


def _refuse_other_changes(current: CheckpointManifest, proposed: CheckpointManifest) -> None:
    ours, theirs = current.to_json_value(), proposed.to_json_value()
    # A caller's copy from before the store stamped it does not know these: the last is the sidecar's own name.
    unstamped = {key for key in ("state_checksum", "dependencies", "size") if key not in theirs or not theirs[key]}
    if current.dependencies and proposed.dependencies and not proposed.dependencies.state_files:
        ours["dependencies"]["state_files"] = []
    differing = sorted(
        key for key in (ours.keys() | theirs.keys()) - _MUTABLE - unstamped if ours.get(key) != theirs.get(key)
    )
    if differing:
        raise ManifestConflict(
            f"checkpoint {current.checkpoint_id} is sealed: {', '.join(differing)} cannot change; "
            "an update may only move sink statuses, sink epochs and the name"
        )


class Condition(StrEnum):
    """How a checkpoint looks without reading its state."""

    VALID = "valid"
    BROKEN = "broken"
    """The manifest is true, but something it needs is missing or short, or it has nothing to restore."""
    CORRUPT = "corrupt"
    """The manifest is damaged: nobody knows what it needs."""
    ORPHAN = "orphan"
    """There is no manifest, only what a dead writer or a lost file left behind."""
    UNREADABLE = "unreadable"
    """The storage did not give the manifest out: it may well be a good one."""


@dataclass(frozen=True)
class CheckpointFacts:
    """What retention knows of one checkpoint. `named`: somebody's word that it stays."""

    checkpoint_id: int
    condition: Condition = Condition.VALID
    named: bool = False
    needs: frozenset[str] = frozenset()
    replays: frozenset[int] = frozenset()
    """The checkpoints that know the epochs which are still to be replayed on top of it."""

    @property
    def valid(self) -> bool:
        """Whether recovery could choose it, as far as can be told without reading state."""
        return self.condition is Condition.VALID

    @property
    def needs_are_known(self) -> bool:
        """Whether `needs` can be believed."""
        return self.condition not in (Condition.CORRUPT, Condition.UNREADABLE)

    def shares_nothing_with(self, other: "CheckpointFacts") -> bool:
        """Whether no damaged sidecar can take both."""
        return self is not other and not self.needs & other.needs


@dataclass(frozen=True)
class RetentionPlan:
    """What to remove, and what must be read back first.

    Each id in `verify_first` is one that the store will depend on once `remove` is gone; if one of them turns out
    to be damaged, nothing is removed and a new plan is made without it.
    """

    keep: tuple[int, ...]
    remove: tuple[int, ...]
    verify_first: tuple[int, ...]
    needed_sidecars: frozenset[str]
    sidecars_may_go: bool
    newest_valid: int | None


def plan_retention(
    checkpoints: Iterable[CheckpointFacts], keep: int, verified: Collection[int] = frozenset()
) -> RetentionPlan:
    """Decide what may go so that `keep` recent checkpoints stay and no single flipped bit can take them all.

    Beyond the `keep` newest valid ones these stay: named ones, everything above the newest valid id (a writer may
    be at work there), the newest checkpoint that shares no sidecar with the newest (the fallback), the oldest
    one after the fallback, which takes its place once the newest shares nothing with it any more, and all that
    a recovery from one of these still has to replay. `verified` are those that were read back before.
    """
    facts = sorted(checkpoints, key=lambda c: c.checkpoint_id)
    valid = [c for c in facts if c.valid]
    if not valid:
        return RetentionPlan(tuple(c.checkpoint_id for c in facts), (), (), frozenset(), False, None)
    newest = valid[-1]
    recent = valid[-max(keep, 1) :]
    fallback = [c for c in valid if c.shares_nothing_with(newest)][-1:]
    successor = [c for c in valid if not fallback or c.checkpoint_id > fallback[0].checkpoint_id][:1]
    chosen = {c.checkpoint_id for c in [*recent, *fallback, *successor]}

    def stays(c: CheckpointFacts) -> bool:
        # Above the newest valid one a writer may be at work; damage among the recent ones may be worth a look.
        recent_or_above = not c.valid and c.checkpoint_id > recent[0].checkpoint_id
        unreadable = c.condition is Condition.UNREADABLE
        return c.named or unreadable or recent_or_above or c.checkpoint_id in chosen

    owed = owed_to(c for c in facts if stays(c))
    kept = [c for c in facts if stays(c) or c.checkpoint_id in owed]
    removed = [c for c in facts if not (stays(c) or c.checkpoint_id in owed)]
    return RetentionPlan(
        keep=tuple(c.checkpoint_id for c in kept),
        remove=tuple(c.checkpoint_id for c in removed),
        verify_first=_verify_first(kept, removed, verified),
        needed_sidecars=frozenset().union(*(c.needs for c in kept)),
        sidecars_may_go=all(c.needs_are_known for c in kept),
        newest_valid=newest.checkpoint_id,
    )


def owed_to(checkpoints: Iterable[CheckpointFacts]) -> frozenset[int]:
    """Return what a recovery from any of these still has to replay: all that is left of those ids must stay."""
    return frozenset().union(*(c.replays for c in checkpoints))


def _verify_first(
    kept: Iterable[CheckpointFacts], removed: Iterable[CheckpointFacts], verified: Collection[int]
) -> tuple[int, ...]:
    """Return what to read back before valid checkpoints go: what the store then rests on, unless it rests broadly."""
    resting = sorted((c for c in kept if c.valid), key=lambda c: (c.checkpoint_id in verified, c.checkpoint_id))
    unread = {id for c in removed if c.valid for id in _pillars(c, resting[::-1]) if id not in verified}
    return tuple(sorted(unread))


def _pillars(removed: CheckpointFacts, resting: Iterable[CheckpointFacts]) -> list[int]:
    """Return the checkpoints that must not all be damaged while the removed one is sound; none if they cannot be.

    As long as it is sound, only what it does not need itself can be damaged: of each that stays, just those sidecars
    count. One without any holds as surely as the removed one did. Those that share some count once.
    """
    found: list[int] = []
    seen: set[str] = set()
    for c in resting:
        rest = c.needs - removed.needs
        if not rest:
            return []
        if not rest & seen:
            seen |= rest
            found.append(c.checkpoint_id)
        if len(found) == _ENOUGH_DAMAGE:
            return []
    return found
