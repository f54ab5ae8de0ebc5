"""What the store tests build: manifests and checkpoints."""

from typing import Any

from holdfast import CheckpointManifest, OperatorCheckpoint, SinkCommitStatus
from holdfast.stores.store import DurableCheckpointStore

PENDING, COMMITTED = SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED


def manifest(checkpoint_id: int, epoch: int | None = None, **fields: Any) -> CheckpointManifest:
    """Return a manifest; equal arguments give equal content."""
    values = {"version": 1, "timestamp_ms": 1_700_000_000_000 + checkpoint_id % 10**6, "vnode_count": 256, **fields}
    return CheckpointManifest(checkpoint_id=checkpoint_id, epoch=checkpoint_id if epoch is None else epoch, **values)


def with_state(checkpoint_id: int, state: bytes, **fields: Any) -> CheckpointManifest:
    """Return a manifest whose one operator, "count", is the whole of a sidecar."""
    return manifest(checkpoint_id, operator_states={"count": OperatorCheckpoint.external(0, len(state))}, **fields)


def state_of(checkpoint_id: int) -> bytes:
    """Return bytes that no other checkpoint has."""
    return f"state of {checkpoint_id} ".encode() * 10


def seal(store: DurableCheckpointStore, *ids: int, **fields: Any) -> CheckpointManifest:
    """Seal checkpoints with a sidecar of their own; return the last one."""
    for id in ids:
        sealed = store.save_with_state(with_state(id, state_of(id), **fields), [state_of(id)])
    return sealed


def flipped(data: bytes, position: int = 0) -> bytes:
    """Return the bytes with one bit changed."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
