"""What the targets themselves say of a timeline: their word outlives every damage of the store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from holdfast.core.contracts import LedgerState


@dataclass(frozen=True)
class Ledgers:
    """The ledgers that were found, by sink, before anything was decided."""

    states: Mapping[str, LedgerState] = field(default_factory=dict)

    def generation(self, timeline: UUID | None) -> int:
        """Return the highest generation of a timeline that claimed a target; 0 when none did."""
        return max((state.generation for state in self._of(timeline).values()), default=0)

    def given_up(self, timeline: UUID | None, generation: int | None, epoch: int) -> str | None:
        """Return who says that a checkpoint was given up; None when nobody does."""
        for name, state in sorted(self.states.items()):
            if state.gives_up(timeline, generation, epoch):
                return (
                    f"given up: generation {state.rewound_in} went back to epoch {state.rewound_to}, "
                    f"says the ledger of sink '{name}'"
                )
        return None

    def last_rewind(self, timeline: UUID | None) -> LedgerState | None:
        """Return the ledger with the newest rewind, unless a target that was rewound then went on since."""
        noted = [state for state in self._of(timeline).values() if state.rewound_in > 0]
        newest = max(noted, key=lambda state: state.rewound_in, default=None)
        if newest is None:
            return None
        then = [state for state in noted if state.rewound_in == newest.rewound_in]
        return None if any(state.epoch > state.rewound_to for state in then) else newest

    def _of(self, timeline: UUID | None) -> dict[str, LedgerState]:
        return {name: state for name, state in self.states.items() if state.timeline == timeline}


NO_LEDGERS = Ledgers()
