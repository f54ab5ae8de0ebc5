"""Somebody outside the store who must have heard of a take-over, and may want to hear of every seal.

With one store for all, the store alone decides who writes. Two machines with a store each can both believe that they
do; a witness that both can reach says which of them is right.
"""

from typing import Protocol

from holdfast.core.manifest import CheckpointManifest


class OutOfDate(Exception):
    """The witness knew more than our store, which has been told since: decide again."""


class Witness(Protocol):
    """Hears of take-overs and seals. `TransientStoreError`: nobody answered, so nothing may go on."""

    def generation(self) -> int:
        """Return the highest generation that anybody announced; 0 when nobody did."""
        ...

    def announce(self, fence: CheckpointManifest) -> None:
        """Hear of a take-over, before its fence is sealed. `Fenced`: somebody was quicker. May raise `OutOfDate`."""
        ...

    def record(self, sealed: CheckpointManifest, progress: bytes | None = None) -> None:
        """Hear of a seal, before its sinks commit. `Fenced`: the pipeline is somebody else's now.

        `progress` is what stands at the start of its sidecar; without it the sidecar is asked.
        """
        ...


class NoWitness:
    """The store alone decides."""

    def generation(self) -> int:
        """Know of nobody."""
        return 0

    def announce(self, fence: CheckpointManifest) -> None:
        """Agree."""

    def record(self, sealed: CheckpointManifest, progress: bytes | None = None) -> None:
        """Agree."""


NO_WITNESS = NoWitness()
