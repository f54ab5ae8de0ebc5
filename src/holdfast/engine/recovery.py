"""Where a pipeline goes on from. Read-only: the decision is made here and sealed by the fence."""

from dataclasses import dataclass
from uuid import UUID

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.validation import RecoveryReport
from holdfast.errors import CorruptCheckpoint, NoValidCheckpoint
from holdfast.stores.store import DurableCheckpointStore


@dataclass(frozen=True)
class RecoveryDecision:
    """What to go on from, and what is given up.

    `chosen` None is a fresh start. `abandons` are the ids that were passed over: no later recovery may choose
    them, even if they turn out readable again, because sinks will have moved on without them. `generation` is
    the highest that any readable manifest knows, `timeline` the one to keep (None: a new one begins).
    `newest_id` was read before anything else: whoever seals after that makes the fence lose, not the decision stale.
    """

    newest_id: int
    chosen: CheckpointManifest | None
    report: RecoveryReport
    abandons: tuple[int, ...]
    generation: int
    timeline: UUID | None


def decide_recovery(store: DurableCheckpointStore, *, fresh: bool = False) -> RecoveryDecision:
    """Choose the newest checkpoint that holds; refuse when there is something and none of it does.

    With `fresh` everything that exists is abandoned, on a person's word, and a new timeline begins.
    """
    newest_id = store.newest_id()
    if fresh:
        ids = tuple(store.list_ids())
        report = RecoveryReport(None, tuple((id, "abandoned: a fresh start was asked for") for id in ids), len(ids))
        return RecoveryDecision(newest_id, None, report, ids, _highest_generation(store), None)
    report = store.recover_latest_validated()
    chosen = None if report.chosen_id is None else store.load_by_id(report.chosen_id)
    starting = [manifest for manifest in store.manifests() if manifest.epoch == 0 and manifest.kind == "fence"]
    if chosen is None:
        _refuse_unless_empty(store, report, {manifest.checkpoint_id for manifest in starting})
    passed_over = {id for id, _ in report.skipped} - {manifest.checkpoint_id for manifest in starting}
    inherited = set(chosen.abandons) if chosen else set()
    return RecoveryDecision(
        newest_id=newest_id,
        chosen=chosen,
        report=report,
        abandons=tuple(sorted(passed_over | inherited)),
        generation=_highest_generation(store),
        timeline=chosen.timeline if chosen else (starting[-1].timeline if starting else None),
    )


def _refuse_unless_empty(store: DurableCheckpointStore, report: RecoveryReport, starting_fences: set[int]) -> None:
    """Tell an empty store from a destroyed one: ids, sidecars or a pointer without a good checkpoint are the latter.

    A store that holds nothing but fences of epoch 0 was started and never sealed an epoch: that is empty too.
    """
    if (
        set(store.list_ids()) <= starting_fences
        and not store.sidecars()
        and store.newest_id() in {0, *starting_fences}
    ):
        return
    reasons = "; ".join(f"checkpoint {id}: {reason}" for id, reason in report.skipped[:3])
    more = f" (and {len(report.skipped) - 3} more)" if len(report.skipped) > 3 else ""
    raise NoValidCheckpoint(
        f"{store.describe()} holds checkpoints, but none can be trusted: {reasons or 'manifests are gone'}{more}. "
        "Restore the store from a copy, or start over with --fresh, which abandons what is there"
    )


def _highest_generation(store: DurableCheckpointStore) -> int:
    """Return the highest generation any readable manifest carries; damaged ones are older writers' at worst."""
    highest = 0
    for id in reversed(store.list_ids()):
        try:
            manifest = store.load_by_id(id)
        except CorruptCheckpoint:
            highest += 1  # It may have been a fence: leave room for the generation it took.
            continue
        if manifest is not None and manifest.generation is not None:
            return highest + manifest.generation
    return highest
