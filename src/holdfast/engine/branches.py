"""Where a timeline went back: which part of what a sink shows is of the branch that goes on.

Epoch numbers are used again after a go-back, so a number alone does not tell the branches apart. A sink that took
part was claimed by the generation that went back; one that was away was not, and what it shows beyond that epoch was
given up. Every manifest says it from then on, and so does the ledger of every target that was rewound.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from holdfast.core.contracts import LedgerState
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.ledgers import Ledgers
from holdfast.engine.sequel import GIVEN_UP_AFTER

WENT_BACK = "went_back"
"""Key in a manifest's `recovery`: each generation that went back, and to which epoch."""


@dataclass(frozen=True)
class Branches:
    """The go-backs of a timeline, oldest first; one that a later one to an earlier epoch covers is left out."""

    points: tuple[tuple[int, int], ...] = ()
    """Generation, and the epoch it went back to."""

    @classmethod
    def of(cls, manifest: CheckpointManifest | None) -> "Branches":
        """Read what a manifest says, also when it is itself the one that goes back."""
        if manifest is None:
            return cls()
        said = manifest.recovery or {}
        points = [(point["generation"], point["epoch"]) for point in said.get(WENT_BACK, ())]
        if GIVEN_UP_AFTER in said:
            points.append((manifest.generation or 0, said[GIVEN_UP_AFTER]))
        return cls(_uncovered(points))

    def noted_in(self, ledgers: Ledgers, timeline: UUID | None) -> "Branches":
        """Return these, and what the targets say: a manifest that said so may be lost."""
        noted = [
            (state.rewound_in, state.rewound_to)
            for state in ledgers.states.values()
            if state.timeline == timeline and state.rewound_in > 0
        ]
        return Branches(_uncovered([*self.points, *noted]))

    def common_until(self, ledger: LedgerState) -> int:
        """Return the last epoch that a sink shows of the branch that goes on."""
        passed = (epoch for generation, epoch in self.points if ledger.generation < generation)
        return min([ledger.epoch, *passed])

    def to_json_value(self) -> dict[str, Any]:
        """Return what a manifest has to say in `recovery`; nothing when the timeline never went back."""
        points = [{"generation": generation, "epoch": epoch} for generation, epoch in self.points]
        return {WENT_BACK: points} if points else {}


NEVER_WENT_BACK = Branches()


def _uncovered(points: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Leave out a point that a later generation's, to the same or an earlier epoch, makes needless."""
    kept: list[tuple[int, int]] = []
    for generation, epoch in sorted(set(points), reverse=True):
        if all(epoch < later for _, later in kept):
            kept.append((generation, epoch))
    return tuple(reversed(kept))
