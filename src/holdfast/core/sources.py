"""What a pipeline knows of a source, whatever Spark does with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

OffsetReader = Callable[[str], Mapping[str, str]]
"""One source's line of Spark's offset log -> its offsets in the connector's own terms."""


@dataclass(frozen=True)
class SourceSpec:
    """A Spark streaming source by format and options, and how its offsets are told.

    `replayable` says whether a recorded range can be read again, exactly: without that there is no exactly-once.
    `secret_options` are left out of everything that is stored, hashed or shown.
    """

    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    schema: str | None = None
    replayable: bool = True
    why_not_replayable: str = ""
    read_offsets: OffsetReader = field(default=lambda line: {"offset": line}, compare=False)
    secret_options: frozenset[str] = frozenset()

    def identity(self) -> dict[str, object]:
        """Return what makes this source this source, without credentials."""
        shown = {key: value for key, value in self.options.items() if key not in self.secret_options}
        return {"format": self.format, "schema": self.schema, "options": dict(sorted(shown.items()))}
