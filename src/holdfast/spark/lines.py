"""What each line of Spark's offset log is: whose source, and which stream of Spark's reads it.

Spark makes one stream of a source that several branches read, two of one that is joined with itself, and none of one
that nobody reads. Each stream has a directory below `sources/`, numbered as they first appear in the plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.core.sources import Offsets, SourceControl

if TYPE_CHECKING:  # A checkpoint can be exported where Spark is not installed.
    from pyspark.sql import DataFrame

_NOT_BEGUN = "-"
"""The line of a stream without an offset."""


@dataclass(frozen=True)
class OffsetLines:
    """The lines of an offset log, in its order."""

    inputs: tuple[str, ...] = ()
    """The source of each line."""
    directories: tuple[str, ...] = ()
    """The directory below `sources/` of each line's stream."""

    @classmethod
    def of(cls, frame: "DataFrame", inputs: tuple[str, ...]) -> "OffsetLines":
        """Return the lines of a query whose inputs are known: relations that are equal become one stream."""
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        every = [leaves.apply(index) for index in range(int(str(leaves.size())))]
        relations = [leaf for leaf in every if bool(leaf.isStreaming())]
        streams: list[object] = []
        for relation in relations:
            if relation not in streams:
                streams.append(relation)
        return cls(inputs, tuple(str(streams.index(relation)) for relation in relations))

    @property
    def source_of(self) -> Mapping[str, str]:
        """Directory -> the source that is read there."""
        return dict(zip(self.directories, self.inputs, strict=False))

    def by_directory(self, lines: tuple[str, ...]) -> dict[str, str]:
        """Return the line of each stream: one that several branches read has the same line several times."""
        return dict(zip(self.directories, lines, strict=False))

    def by_source(self, lines: tuple[str, ...]) -> dict[str, list[str]]:
        """Return the line of each stream of each source; none of a source that one of its streams has not begun."""
        found: dict[str, list[str]] = {}
        for directory, line in self.by_directory(lines).items():
            found.setdefault(self.source_of[directory], []).append(line)
        return {name: of_streams for name, of_streams in found.items() if _NOT_BEGUN not in of_streams}


NO_LINES = OffsetLines()
"""Of a directory that nobody runs: what it holds is written and read as it is."""


def earlier(control: SourceControl | None, one: Offsets, other: Offsets) -> Offsets:
    """Return a position before which both streams of a source have read everything."""
    if one.keys() == other.keys() and all(value.isdecimal() for value in [*one.values(), *other.values()]):
        return {key: str(min(int(value), int(other[key]))) for key, value in one.items()}
    return other if control is not None and control.lag(other, one).amount > 0 else one
