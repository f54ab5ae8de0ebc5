"""Where a pipeline goes on from. Read-only: the decision is made here and sealed by the fence."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from holdfast.core.generations import Began, Generations
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_id_of
from holdfast.core.validation import TOO_LATE, RecoveryReport
from holdfast.engine.branches import NEVER_WENT_BACK, Branches
from holdfast.engine.ledgers import NO_LEDGERS, Ledgers
from holdfast.engine.sequel import NOTHING_FOLLOWED, Sequel, find_sequel
from holdfast.errors import CheckpointNotFound, CorruptCheckpoint, InvalidRequest, NoValidCheckpoint
from holdfast.stores.store import DurableCheckpointStore

APPROVED = "approved"
"""Key in a manifest's `recovery`: the fingerprints of changed pipelines that a person let go on from it."""


@dataclass(frozen=True)
class RecoveryDecision:
    """What to go on from, and what is given up.

    `chosen` None is a fresh start. `abandons` are the ids that were passed over: no later recovery may choose
    them, even if they turn out readable again, because sinks will have moved on without them. `generation` is
    the highest that any readable manifest knows, `timeline` the one to keep (None: a new one begins).
    `newest_id` was read before anything else: whoever seals after that makes the fence lose, not the decision stale.
    `sequel` is what followed the chosen checkpoint: what is to be replayed, what was given up; `branches` are the
    go-backs of the timeline so far; `began` says where generations began.
    """

    newest_id: int
    chosen: CheckpointManifest | None
    report: RecoveryReport
    abandons: tuple[int, ...]
    generation: int
    timeline: UUID | None
    sequel: Sequel = NOTHING_FOLLOWED
    branches: Branches = NEVER_WENT_BACK
    began: Began = ()


def decide_recovery(
    store: DurableCheckpointStore,
    *,
    fresh: bool = False,
    from_id: int | None = None,
    ledgers: Ledgers = NO_LEDGERS,
) -> RecoveryDecision:
    """Choose the newest checkpoint that holds; refuse when there is something and none of it does.

    On a person's word: with `fresh` everything that exists is abandoned and a new timeline begins; with `from_id`
    exactly that checkpoint is chosen, and every later one is abandoned. What was given up before is known from the
    store; where it is damaged, from the ledgers of the targets that were rewound then.
    """
    newest_id = store.newest_id()
    if from_id is not None:
        return _go_back(store, from_id, newest_id, ledgers)
    if fresh:
        ids = _everything(store, newest_id)
        report = RecoveryReport(None, tuple((id, "abandoned: a fresh start was asked for") for id in ids), len(ids))
        highest = _highest_generation(store, newest_id)
        began = Generations.told_by(store.manifests()).known
        return RecoveryDecision(newest_id, None, report, ids, highest, None, began=began)
    report = store.recover_latest_validated(given_up=ledgers.given_up)
    chosen = None if report.chosen_id is None else store.load_by_id(report.chosen_id)
    pruned_since = chosen is None and report.chosen_id is not None
    if pruned_since or (report.skipped and store.newest_id() != newest_id):
        # Somebody sealed and pruned while we looked: what was passed over may just have been removed. Look again.
        return decide_recovery(store, ledgers=ledgers)
    manifests = list(store.manifests())
    starting = [manifest for manifest in manifests if manifest.epoch == 0 and manifest.kind == "fence"]
    if chosen is None:
        try:
            _refuse_unless_empty(store, report, starting)
        except NoValidCheckpoint:
            if store.newest_id() == newest_id:
                raise
            return decide_recovery(
                store, ledgers=ledgers
            )  # Somebody sealed while we looked: what we saw does not fit together.
    passed_over = {id for id, _ in report.skipped} - {manifest.checkpoint_id for manifest in starting}
    inherited = set(chosen.abandons) if chosen else set()
    timeline = chosen.timeline if chosen else (starting[-1].timeline if starting else None)
    return RecoveryDecision(
        newest_id=newest_id,
        chosen=chosen,
        report=report,
        abandons=tuple(sorted(passed_over | inherited)),
        generation=_highest_generation(store, newest_id),
        timeline=timeline,
        sequel=find_sequel(store, chosen, (id for id, _ in report.skipped), timeline, ledgers),
        branches=Branches.of(chosen).noted_in(ledgers, timeline),
        began=Generations.told_by(manifests).known,
    )


def _everything(store: DurableCheckpointStore, newest_id: int) -> tuple[int, ...]:
    """Return every id that was used, also those of which only the sidecar is left: the manifest may come back."""
    left = (sidecar_id_of(name) or 0 for name in store.sidecars())
    return tuple(sorted({*store.list_ids(), *(id for id in left if 0 < id <= newest_id)}))


def _go_back(store: DurableCheckpointStore, from_id: int, newest_id: int, ledgers: Ledgers) -> RecoveryDecision:
    chosen = store.load_by_id(from_id)
    if chosen is None:
        raise CheckpointNotFound(from_id, "'holdfast list' shows what there is")
    manifests = list(store.manifests())
    generations = Generations.told_by(manifests)
    _refuse_abandoned(manifests, chosen)
    if generations.too_late(from_id, chosen.generation):
        raise CorruptCheckpoint(f"checkpoint {from_id} cannot be used: {TOO_LATE}")
    if (who := ledgers.given_up(chosen.timeline, chosen.generation, chosen.epoch)) is not None:
        raise _given_up(from_id, who)
    verdict = store.validate_checkpoint(from_id)
    if not verdict.valid:
        raise CorruptCheckpoint(f"checkpoint {from_id} cannot be used: {verdict.reason}")
    later = tuple(id for id in store.list_ids() if id > from_id)
    report = RecoveryReport(
        from_id, tuple((id, f"abandoned: going back to {from_id}") for id in later), len(later) + 1
    )
    abandons = tuple(sorted({*later, *chosen.abandons}))
    generation = _highest_generation(store, newest_id)
    nothing = Sequel(given_up_after=chosen.epoch)
    branches = Branches.of(chosen).noted_in(ledgers, chosen.timeline)
    return RecoveryDecision(
        newest_id, chosen, report, abandons, generation, chosen.timeline, nothing, branches, generations.known
    )


def _refuse_abandoned(manifests: Sequence[CheckpointManifest], chosen: CheckpointManifest) -> None:
    """Refuse a branch that was given up: the sinks went on from an earlier epoch, and numbers are used again."""
    for manifest in manifests:
        if manifest.timeline != chosen.timeline or manifest.checkpoint_id == chosen.checkpoint_id:
            continue
        if chosen.checkpoint_id in manifest.abandons:
            went_on = f"which went on from epoch {manifest.epoch}, and so did the sinks"
            raise _given_up(chosen.checkpoint_id, f"given up by checkpoint {manifest.checkpoint_id}, {went_on}")


def _given_up(checkpoint_id: int, who: str) -> InvalidRequest:
    return InvalidRequest(
        f"checkpoint {checkpoint_id} cannot be used: it was {who}. 'holdfast list' shows which checkpoints are left"
    )


def _refuse_unless_empty(
    store: DurableCheckpointStore, report: RecoveryReport, starting: Sequence[CheckpointManifest]
) -> None:
    """Tell an empty store from a destroyed one: ids, sidecars or a pointer without a good checkpoint are the latter.

    A store that holds nothing but fences of epoch 0 was started and never sealed an epoch: that is empty too, and
    so is one where such a fence, sealed last, abandons the rest on a person's word (`fresh`). The sidecar of the
    very first epoch may be there already, when a writer died before it could seal it.
    """
    fences = {manifest.checkpoint_id for manifest in starting}
    given_up = starting[-1].gives_up(set(store.list_ids())) if starting else set()
    given_up |= {manifest.checkpoint_id for manifest in store.manifests() if manifest.withdrawn}
    first_epoch = {id + 1 for id in fences}
    sidecars = {sidecar_id_of(name) or 0 for name in store.sidecars()}
    if (
        set(store.list_ids()) <= fences | given_up
        and store.newest_id() in {0, *fences}
        and all(id <= max(given_up, default=0) for id in sidecars - first_epoch)
    ):
        return
    reasons = "; ".join(f"checkpoint {id}: {reason}" for id, reason in report.skipped[:3])
    more = f" (and {len(report.skipped) - 3} more)" if len(report.skipped) > 3 else ""
    raise NoValidCheckpoint(
        f"{store.describe()} holds checkpoints, but none can be trusted: {reasons or 'manifests are gone'}{more}. "
        "Restore the store from a copy, or start over with --fresh, which abandons what is there"
    )


def _highest_generation(store: DurableCheckpointStore, newest_id: int) -> int:
    """Return a generation that no writer so far can have had a higher one than.

    It is that of the newest readable manifest, plus one for each later id that ever was, whether its manifest is
    damaged, lost or pruned: it may have been a fence. Only what is there now would not do: fences go with a prune.
    """
    before_generations = 0
    for id in reversed(store.list_ids()):
        try:
            manifest = store.load_by_id(id)
        except CorruptCheckpoint:
            continue
        if manifest is not None and manifest.generation is not None:
            return manifest.generation + max(newest_id - id, 0)
        if manifest is not None:
            before_generations = max(before_generations, id)  # Another system wrote it: nobody was fenced by then.
    return newest_id - before_generations
