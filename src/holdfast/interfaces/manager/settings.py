"""What a person may say about a manager. Loads no web framework: every command may load this."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.interfaces.http.settings import HttpSettings
from holdfast.interfaces.manager.logs import LogLimits
from holdfast.interfaces.manager.restarting import RestartPolicy

Notice = Callable[[str | None, str, dict[str, Any]], None]
"""Takes a pipeline's name, or None for the manager itself, what happened, and its facts."""


@dataclass(frozen=True)
class FleetSettings:
    """How a manager keeps its pipelines."""

    data: str | None = None
    """Where logs and what is wanted are kept, a folder for each pipeline; beside each pipeline's store if None."""
    start: bool = True
    """Whether a pipeline that was never seen before is started."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    logs: LogLimits = field(default_factory=LogLimits)
    command: tuple[str, ...] = (sys.executable, "-m", "holdfast.interfaces.cli")
    """What `run FILE ...` is appended to."""


@dataclass(frozen=True)
class ServeOptions:
    """One run of a manager."""

    targets: Sequence[str]
    http: HttpSettings = field(default_factory=HttpSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    stop_seconds: float = 60.0
    """How long processes may take to end with the manager before they are killed."""
