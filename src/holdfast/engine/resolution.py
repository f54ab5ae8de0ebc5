"""A person's word, recorded: approving a changed pipeline, giving up what a sink will not take.

Both seal the newest good checkpoint again, as a fence does, with the decision in its `recovery` key: whoever starts
next goes on from there and finds it. A pipeline that is still running is fenced by that, so stop it first.
"""

from collections.abc import Mapping
from typing import Any

from holdfast.clock import SYSTEM_CLOCK, Clock, new_uuid
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest, ParentRef
from holdfast.engine.fencing import take_over
from holdfast.engine.recovery import decide_recovery
from holdfast.errors import InvalidRequest, NoValidCheckpoint
from holdfast.stores.store import DurableCheckpointStore

APPROVED = "approved"
RESOLVED = "resolved"


def approve(store: DurableCheckpointStore, fingerprint: int, *, clock: Clock = SYSTEM_CLOCK) -> CheckpointManifest:
    """Let the pipeline with this fingerprint go on from the newest good checkpoint."""
    decision = decide_recovery(store)
    if decision.chosen is None:
        raise NoValidCheckpoint(f"{store.describe()} has no checkpoint that a pipeline could go on from")
    return take_over(store, plan=lambda _: {APPROVED: [f"{fingerprint:016x}"]}, clock=clock).fence


def discard_epoch(
    store: DurableCheckpointStore, sink: str, epoch: int, *, reason: str, clock: Clock = SYSTEM_CLOCK
) -> CheckpointManifest:
    """Give up what was sealed for one sink: it will never show that epoch, and the pipeline can go on.

    The rows are lost for that sink, and the record says so. The sink's ledger is not touched: the next epoch
    follows the one it stands at.
    """
    decision = decide_recovery(store)
    chosen = decision.chosen
    if chosen is None or sink not in chosen.sink_commit_statuses:
        raise InvalidRequest(f"the newest checkpoint knows no sink '{sink}'")
    if chosen.epoch != epoch or chosen.sink_commit_statuses[sink] == SinkCommitStatus.COMMITTED:
        raise InvalidRequest(
            f"sink '{sink}' is owed nothing of epoch {epoch}: the newest checkpoint is of epoch {chosen.epoch} "
            f"and says {chosen.sink_commit_statuses[sink]}"
        )
    token: Mapping[str, Any] = chosen.sink_tokens.get(sink, {})
    update = {
        "checkpoint_id": decision.newest_id + 1,
        "timestamp_ms": clock.now_ms(),
        "uuid": new_uuid(clock),
        "generation": decision.generation + 1,
        "kind": "fence",
        "identifier": None,
        "parent": ParentRef(id=chosen.checkpoint_id, manifest_checksum=chosen.manifest_checksum or ""),
        "abandons": list(decision.abandons),
        "sink_commit_statuses": {**chosen.sink_commit_statuses, sink: SinkCommitStatus.COMMITTED},
        "sink_tokens": {name: value for name, value in chosen.sink_tokens.items() if name != sink},
        "recovery": {RESOLVED: {"sink": sink, "epoch": epoch, "action": "discard", "reason": reason, "token": token}},
        "manifest_checksum": None,
    }
    return store.save(chosen.model_copy(update=update, deep=True))
