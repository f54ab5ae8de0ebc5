"""Taking over a store: the first seal of a starting process, before anything else is touched.

A writer seals only at its own last id + 1. Whoever takes over seals a fence at the newest id + 1, so the older
writer's next seal meets an existing id, and it is told: `Fenced`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from holdfast.clock import SYSTEM_CLOCK, Clock, new_uuid
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.generations import Generations
from holdfast.core.manifest import REPLAY, CheckpointManifest, ParentRef
from holdfast.engine.ledgers import NO_LEDGERS, Ledgers
from holdfast.engine.recovery import RecoveryDecision, decide_recovery
from holdfast.engine.sequel import GIVEN_UP_AFTER, Sequel
from holdfast.engine.witness import NO_WITNESS, OutOfDate, Witness
from holdfast.errors import Fenced
from holdfast.stores.store import DurableCheckpointStore

Plan = Callable[[RecoveryDecision], Mapping[str, Any]]


@dataclass(frozen=True)
class TakeOver:
    """A fence, about to be sealed or sealed, and the recovery it stands for."""

    fence: CheckpointManifest
    decision: RecoveryDecision


_Proposal = TypeVar("_Proposal", bound=TakeOver)


def take_over(
    store: DurableCheckpointStore,
    *,
    fresh: bool = False,
    from_id: int | None = None,
    plan: Plan = lambda decision: {},
    clock: Clock = SYSTEM_CLOCK,
    witness: Witness = NO_WITNESS,
) -> TakeOver:
    """Choose what to go on from and seal a fence for it. `plan` says what is sealed with the fence."""

    def propose() -> TakeOver:
        decision = decide(store, witness, fresh=fresh, from_id=from_id)
        return TakeOver(build_fence(store, decision, plan(decision), clock), decision)

    return seal_fence(store, propose, witness)


def seal_fence(
    store: DurableCheckpointStore, propose: Callable[[], _Proposal], witness: Witness = NO_WITNESS
) -> _Proposal:
    """Seal what is proposed; have it proposed anew when somebody else seals in between.

    `propose` refuses by an error and changes nothing. `witness` hears of the fence first: a store that only we can
    see fences nobody else.
    """
    while True:
        proposal = propose()
        try:
            witness.announce(proposal.fence)
        except OutOfDate:
            continue
        try:
            return replace(proposal, fence=store.save(proposal.fence))
        except Fenced:
            continue


def decide(
    store: DurableCheckpointStore,
    witness: Witness = NO_WITNESS,
    *,
    fresh: bool = False,
    from_id: int | None = None,
    ledgers: Ledgers = NO_LEDGERS,
) -> RecoveryDecision:
    """Decide what to go on from; the generation is the highest that anybody saw: store, witness, or a target."""
    decision = decide_recovery(store, fresh=fresh, from_id=from_id, ledgers=ledgers)
    seen = decision.generation, witness.generation(), ledgers.generation(decision.timeline)
    return replace(decision, generation=max(seen))


def build_fence(
    store: DurableCheckpointStore, decision: RecoveryDecision, plan: Mapping[str, Any], clock: Clock
) -> CheckpointManifest:
    """Return the fence: the chosen checkpoint again, under the next id and a higher generation.

    It names the chosen checkpoint's sidecar as its own, so it needs no new state bytes.
    """
    newest, chosen = decision.newest_id, decision.chosen
    common: dict[str, Any] = {
        "checkpoint_id": newest + 1,
        "timestamp_ms": clock.now_ms(),
        "uuid": new_uuid(clock),
        "generation": decision.generation + 1,
        "began": list(Generations([*decision.began, (decision.generation + 1, newest + 1)]).known),
        "kind": "fence",
        "identifier": None,
        "abandons": list(decision.abandons),
        "recovery": {
            "report": decision.report.to_json_value(),
            **decision.branches.to_json_value(),
            **decision.sequel.to_json_value(),
            **plan,
        },
        "manifest_checksum": None,
    }
    if chosen is None:
        empty = CheckpointManifest.new_with_vnode_count(newest + 1, 0, store.vnode_count())
        return empty.model_copy(update={**common, "timeline": _timeline(decision, clock)})
    parent = ParentRef(id=chosen.checkpoint_id, manifest_checksum=chosen.manifest_checksum or "")
    return chosen.model_copy(update={**common, "parent": parent, "dependencies": _needs(chosen)}, deep=True)


def followed_by(fence: CheckpointManifest, sequel: Sequel) -> CheckpointManifest:
    """Return the fence with what is to be replayed, and what is given up, once the sinks were asked."""
    said = {key: value for key, value in (fence.recovery or {}).items() if key not in (REPLAY, GIVEN_UP_AFTER)}
    return fence.model_copy(update={"recovery": {**said, **sequel.to_json_value()}})


def process_nonce(fence: CheckpointManifest) -> str:
    """Return the name of the process that sealed a fence: no other process has it, not even on a copied store."""
    return fence.uuid.hex[-8:] if fence.uuid else ""


def _needs(chosen: CheckpointManifest) -> CheckpointDependencies | None:
    """Spell out the sidecar: one that is only implied by the id would be looked for under the fence's own id."""
    if chosen.dependencies is not None or chosen.sidecar is None:
        return chosen.dependencies
    return CheckpointDependencies(batches=(), state_files=(chosen.sidecar,))


def _timeline(decision: RecoveryDecision, clock: Clock) -> UUID:
    return decision.timeline or new_uuid(clock)
