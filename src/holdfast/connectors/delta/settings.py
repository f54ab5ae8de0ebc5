"""How a Delta table is read, as its user said it, and on its way through Spark's options to the reader."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import PipelineDefinitionError
from holdfast.secrets import scrub

FORMAT = "holdfast_delta"
ON_REWRITE = ("stop", "skip", "read_added")
ON_HISTORY_LOST = ("stop", "continue")
STARTING_OFFSET = "starting_offset"
STORAGE_OPTIONS = "secret_storage_options"
"""Spark itself hides options with such a name."""
LIMITS = ("max_files", "max_versions", "max_bytes")
_NUMBERS = (*LIMITS, "partitions")
TUNING = frozenset({*_NUMBERS, "on_history_lost"})
"""Options that may change at any time: they say how much is read at once, and what is done about an accident."""


@dataclass(frozen=True)
class Limits:
    """The most that one epoch reads; None is no limit. An epoch has at least one file, however large."""

    files: int | None = None
    versions: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class DeltaSettings:
    """Everything the reader has to know."""

    path: str
    change_feed: bool = False
    on_rewrite: str = "stop"
    on_history_lost: str = "stop"
    limits: Limits = Limits()
    partitions: int | None = None
    storage_options: dict[str, str] | None = None

    def __post_init__(self) -> None:
        _one_of("on_rewrite", self.on_rewrite, ON_REWRITE)
        _one_of("on_history_lost", self.on_history_lost, ON_HISTORY_LOST)
        if self.change_feed and self.on_rewrite != "stop":
            raise PipelineDefinitionError(
                "on_rewrite is for append-only reading: a change feed tells of removed rows"
            )
        numbers = {"partitions": self.partitions, **dict(zip(LIMITS, self._limits(), strict=True))}
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise PipelineDefinitionError(f"{name} of a delta source is at least 1, not {value}")
        if scrub(self.path) != self.path:
            raise PipelineDefinitionError(
                f"{scrub(self.path)} has credentials in it: put them into storage_options or the environment"
            )

    def _limits(self) -> tuple[int | None, int | None, int | None]:
        return self.limits.files, self.limits.versions, self.limits.bytes

    @property
    def skips_lost(self) -> bool:
        """Whether to go on without rows that are gone."""
        return self.on_history_lost == "continue"

    def options(self) -> dict[str, str]:
        """Return the options of Spark's reader."""
        given: dict[str, Any] = dict(zip(LIMITS, self._limits(), strict=True))
        given |= {"partitions": self.partitions, "change_feed": "true" if self.change_feed else None}
        given |= {"on_rewrite": self.on_rewrite, "on_history_lost": self.on_history_lost, "path": self.path}
        if self.storage_options is not None:
            given[STORAGE_OPTIONS] = json.dumps(self.storage_options, sort_keys=True)
        return {key: str(value) for key, value in given.items() if value is not None}

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> "DeltaSettings":
        """Read Spark's options."""
        numbers = {key: int(options[key]) for key in _NUMBERS if key in options}
        limits = Limits(*(numbers.get(key) for key in LIMITS))
        storage = options.get(STORAGE_OPTIONS)
        return cls(
            options["path"],
            options.get("change_feed") == "true",
            options["on_rewrite"],
            options["on_history_lost"],
            limits,
            numbers.get("partitions"),
            None if storage is None else json.loads(storage),
        )


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PipelineDefinitionError(f"{name} of a delta source is one of {', '.join(choices)}, not '{value}'")
