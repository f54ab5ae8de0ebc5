"""A person's word about a pipeline: approving a change, and what to do with an epoch that a sink does not show."""

import re

from holdfast.core.entries import SinkCommitStatus
from holdfast.engine.recovery import decide_recovery
from holdfast.engine.resolution import approve, discard_epoch
from holdfast.errors import InvalidRequest
from holdfast.interfaces.run_reports import ApprovalReceipt, ResolutionReceipt
from holdfast.stores.store import DurableCheckpointStore

_FINGERPRINT = re.compile(r"[0-9a-fA-F]{1,16}")


def approve_change(store: DurableCheckpointStore, fingerprint: str) -> ApprovalReceipt:
    """Let the pipeline with this fingerprint go on."""
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise InvalidRequest(
            f"'{fingerprint}' is no fingerprint: copy the 16 hexadecimal digits that 'holdfast run' printed"
        )
    fence = approve(store, int(fingerprint, 16))
    return ApprovalReceipt(store.describe(), f"{int(fingerprint, 16):016x}", fence.checkpoint_id, fence.epoch)


def discard(store: DurableCheckpointStore, sink: str, epoch: int, reason: str) -> ResolutionReceipt:
    """Give up what was sealed for a sink."""
    fence = discard_epoch(store, sink, epoch, reason=reason)
    outcome = "given up, its rows are lost for this sink"
    return ResolutionReceipt(store.describe(), sink, epoch, "discard", outcome, fence.checkpoint_id)


def check_owed(store: DurableCheckpointStore, sink: str, epoch: int) -> None:
    """Refuse unless the newest good checkpoint is of this epoch and the sink is not known to show it."""
    chosen = decide_recovery(store).chosen
    status = None if chosen is None else chosen.sink_commit_statuses.get(sink)
    if chosen is None or status is None:
        raise InvalidRequest(f"the newest checkpoint of {store.describe()} knows no sink '{sink}'")
    if chosen.epoch != epoch or status == SinkCommitStatus.COMMITTED:
        raise InvalidRequest(
            f"sink '{sink}' is owed nothing of epoch {epoch}: the newest checkpoint is of epoch {chosen.epoch} "
            f"and says {status}"
        )
