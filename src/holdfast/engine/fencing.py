"""Taking over a store: the first seal of a starting process, before anything else is touched.

A writer seals only at its own last id + 1. Whoever takes over seals a fence at the newest id + 1, so the older
writer's next seal meets an existing id, and it is told: `Fenced`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from holdfast.clock import SYSTEM_CLOCK, Clock, new_uuid
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import CheckpointManifest, ParentRef
from holdfast.engine.recovery import RecoveryDecision, decide_recovery
from holdfast.engine.witness import NO_WITNESS, OutOfDate, Witness
from holdfast.errors import Fenced
from holdfast.stores.store import DurableCheckpointStore

Plan = Callable[[RecoveryDecision], Mapping[str, Any]]


@dataclass(frozen=True)
class TakeOver:
    """What a successful take-over decided: the sealed fence, and the recovery it stands for."""

    fence: CheckpointManifest
    decision: RecoveryDecision


def take_over(
    store: DurableCheckpointStore,
    *,
    fresh: bool = False,
    from_id: int | None = None,
    plan: Plan = lambda decision: {},
    clock: Clock = SYSTEM_CLOCK,
    witness: Witness = NO_WITNESS,
) -> TakeOver:
    """Choose what to go on from and seal a fence for it; repeat when somebody else seals in between.

    `plan` turns the decision into what recovery will do (per sink), which is sealed with the fence: a crash
    during recovery repeats it. `witness` hears of the fence first: a store that only we can see fences nobody else.
    """
    while True:
        decision = decide_recovery(store, fresh=fresh, from_id=from_id)
        decision = replace(decision, generation=max(decision.generation, witness.generation()))
        fence = build_fence(store, decision, plan(decision), clock)
        try:
            witness.announce(fence)
        except OutOfDate:
            continue
        try:
            return TakeOver(store.save(fence), decision)
        except Fenced:
            continue


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
        "kind": "fence",
        "identifier": None,
        "abandons": list(decision.abandons),
        "recovery": {"report": decision.report.to_json_value(), **decision.sequel.to_json_value(), **plan},
        "manifest_checksum": None,
    }
    if chosen is None:
        empty = CheckpointManifest.new_with_vnode_count(newest + 1, 0, store.vnode_count())
        return empty.model_copy(update={**common, "timeline": _timeline(decision, clock)})
    parent = ParentRef(id=chosen.checkpoint_id, manifest_checksum=chosen.manifest_checksum or "")
    return chosen.model_copy(update={**common, "parent": parent, "dependencies": _needs(chosen)}, deep=True)


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
