"""The progress chunk: what an epoch read, readable even when its manifest is lost.

It stands at offset 0 of a sidecar as a framed binary snapshot (version 2), so its length and digest are its own.
Recovery uses it to replay exactly the recorded range of an epoch that sinks already have.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.clock import utc_from_ms
from holdfast.core.buffers import Buffer
from holdfast.core.snapshot_codec import CheckpointId, CheckpointState
from holdfast.errors import DeserializationError

ABANDONS_PART = "abandons"
"""Part: the checkpoint ids that were given up for good when the epoch was sealed. Left out when there are none."""


@dataclass(frozen=True)
class ProgressRecord:
    """One epoch's exact range and the tokens its sinks returned.

    `parts` are raw documents by name, for example `offsets/41`, `commits/41`, `sources/0/12`, `tokens`.
    """

    timeline: UUID
    checkpoint_id: int
    epoch: int
    generation: int
    attempt: int = 0
    created_ms: int = 0
    parts: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def abandons(self) -> list[int]:
        """The ids that the writer's fence gave up: true even if this very epoch was never sealed."""
        ids: list[int] = json.loads(self.parts.get(ABANDONS_PART, b"[]"))
        return ids

    def to_bytes(self) -> bytes:
        """Return the framed record."""
        state = CheckpointState.new(CheckpointId(str(self.timeline), self.epoch, utc_from_ms(self.created_ms)))
        for name, data in self.parts.items():
            state.set_operator_state(name, data)
        state.metadata = {
            "checkpoint_id": str(self.checkpoint_id),
            "generation": str(self.generation),
            "attempt": str(self.attempt),
        }
        return state.serialize_framed()

    @classmethod
    def from_bytes(cls, data: Buffer) -> "ProgressRecord":
        """Read the record at the start of `data`; what follows it is left alone."""
        state, _ = CheckpointState.deserialize_prefix(data)
        try:
            return cls(
                timeline=UUID(state.id.stream_id),
                checkpoint_id=int(state.metadata["checkpoint_id"]),
                epoch=state.id.sequence,
                generation=int(state.metadata["generation"]),
                attempt=int(state.metadata["attempt"]),
                created_ms=round(state.id.created_at.timestamp() * 1000),
                parts=dict(state.operator_states),
            )
        except (KeyError, ValueError) as error:
            raise DeserializationError(f"not a progress record: {error}", 0) from error
