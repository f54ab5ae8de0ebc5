"""What a look at a checkpoint found, and what a walk over all of them chose."""

from dataclasses import dataclass, field
from typing import Any

TAKEN_BACK = "it was sealed too late, by a writer that had been replaced, and taken back: it never happened"
"""Why a withdrawn checkpoint is not used."""
TOO_LATE = "it was sealed too late, by a writer that had been replaced: it never happened"
"""Why one is not used whose writer could not take it back any more."""


@dataclass(frozen=True)
class ManifestWarning:
    """Something odd that does not make the checkpoint unusable."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class IntegrityFailure:
    """Damage: the checkpoint must not be used."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class ValidationResult:
    """The verdict on one checkpoint. `valid` unless something in `issues` is an `IntegrityFailure`."""

    checkpoint_id: int
    issues: tuple[ManifestWarning | IntegrityFailure, ...] = ()

    @property
    def valid(self) -> bool:
        """Whether the checkpoint can be restored."""
        return not self.failures

    @property
    def failures(self) -> tuple[IntegrityFailure, ...]:
        """Return the damage found."""
        return tuple(issue for issue in self.issues if isinstance(issue, IntegrityFailure))

    @property
    def reason(self) -> str:
        """Return every issue in one line."""
        return "; ".join(issue.message for issue in self.issues)

    def to_json_value(self) -> dict[str, Any]:
        """Return plain values for `--json` and HTTP."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "valid": self.valid,
            "issues": [
                {"fatal": isinstance(issue, IntegrityFailure), "message": issue.message} for issue in self.issues
            ],
        }


@dataclass(frozen=True)
class RecoveryReport:
    """How a checkpoint was chosen: every newer one that was passed over is in `skipped` with its reason.

    `chosen_id` None means that there is nothing to restore: read `examined` before taking that for a fresh store.
    """

    chosen_id: int | None
    skipped: tuple[tuple[int, str], ...] = ()
    examined: int = 0
    elapsed_seconds: float = field(default=0.0, compare=False)

    def to_json_value(self) -> dict[str, Any]:
        """Return plain values for `--json`, HTTP and the `recovery` key of a fence."""
        return {
            "chosen_id": self.chosen_id,
            "skipped": [{"checkpoint_id": id, "reason": reason} for id, reason in self.skipped],
            "examined": self.examined,
            "elapsed_seconds": self.elapsed_seconds,
        }
