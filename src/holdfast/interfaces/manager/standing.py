"""Where a pipeline is between stopped and answering, and why something cannot be done there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from holdfast.core.status import BootstrapPolicy
from holdfast.interfaces.manager.memory import Desired, ErrorBody


class Phase(StrEnum):
    """How far a pipeline is from having a process that answers."""

    STOPPED = "Stopped"
    PROVISIONING = "Provisioning"
    UP = "Up"
    STOPPING = "Stopping"
    BACKING_OFF = "BackingOff"
    AWAITING_APPROVAL = "AwaitingApproval"


@dataclass(frozen=True)
class Launch:
    """How a process is to be started."""

    initial: Desired
    bootstrap_policy: BootstrapPolicy | None = None
    sinks: str | None = None
    """What to do with targets of another timeline; a person's word about one start, not about later ones."""


@dataclass(frozen=True)
class Standing:
    """Where a pipeline is now."""

    phase: Phase
    since: datetime
    address: str | None = None
    token: str | None = None
    pid: int | None = None
    restarts: int = 0
    """Crashes in a row."""
    last_failure: ErrorBody | None = None
    """Why the process before this one ended, while it is being replaced."""
    approval: dict[str, Any] | None = None
    """What changed in the pipeline, while somebody has to approve it."""


class NotNow(Exception):
    """The pipeline is not in a phase in which this can be done."""

    def __init__(self, action: str, phase: Phase, why: str) -> None:
        self.action, self.phase = action, phase
        super().__init__(why)


class UndismissedError(Exception):
    """The pipeline failed, and nobody has said yet that this was seen."""


Notice = Callable[[str, dict[str, Any]], None]
"""Takes what happened and its facts."""
CommandOf = Callable[[Launch], Sequence[str]]
