"""Names of staged rows: which sink, timeline, epoch, generation and attempt they belong to.

    <sink>-<12 digits of the timeline>-<epoch>-<generation>-<attempt>[-<process>]

The process is missing in names from before processes had a nonce.

Two attempts never share a name, and an abort finds exactly what it may remove.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID

from holdfast.core.contracts import EpochRef, Token
from holdfast.errors import SinkError

STAGED = "staged"
"""Key in a prepared epoch's payload: the name, for those who have nothing but the token."""

_NAME = re.compile(
    r"(?P<sink>.+)-(?P<timeline>[0-9a-f]{12})-(?P<epoch>\d+)-(?P<generation>\d+)-(?P<attempt>\d+)"
    r"(-(?P<nonce>[0-9a-f]{8}))?"
)


def timeline_tag(timeline: UUID) -> str:
    """Return the random digits of a timeline: enough to tell the timelines of one target apart."""
    return timeline.hex[-12:]


@dataclass(frozen=True)
class StagedName:
    """One attempt's staged rows."""

    sink: str
    timeline: str
    epoch: int
    generation: int
    attempt: int
    nonce: str = ""

    @classmethod
    def of(cls, sink: str, ref: EpochRef) -> "StagedName":
        """Return the name for an attempt."""
        tag = timeline_tag(ref.timeline)
        return cls(quote(sink, safe=""), tag, ref.epoch, ref.generation, ref.attempt, ref.nonce)

    @classmethod
    def of_token(cls, sink: str, timeline: UUID, token: Token) -> "StagedName":
        """Return the name of what a token stands for."""
        return cls.of(sink, EpochRef(timeline, token.generation, token.epoch, token.attempt, token.nonce))

    @classmethod
    def parse(cls, text: str) -> "StagedName | None":
        """Return the name that `text` spells, None for anything else."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        epoch, generation, attempt = (int(found[group]) for group in ("epoch", "generation", "attempt"))
        return cls(found["sink"], found["timeline"], epoch, generation, attempt, found["nonce"] or "")

    def __str__(self) -> str:
        attempt = f"{self.sink}-{self.timeline}-{self.epoch}-{self.generation}-{self.attempt}"
        return f"{attempt}-{self.nonce}" if self.nonce else attempt

    def is_same_sink(self, other: "StagedName") -> bool:
        """Whether both are staged by one sink of one timeline."""
        return (self.sink, self.timeline) == (other.sink, other.timeline)

    def precedes(self, other: "StagedName") -> bool:
        """Whether this is a lower attempt at the same epoch of the same sink."""
        if not self.is_same_sink(other) or self.epoch != other.epoch:
            return False
        if self.generation != other.generation:
            return self.generation < other.generation
        return self.nonce == other.nonce and self.attempt < other.attempt


@contextlib.contextmanager
def reading_back(place: str) -> Iterator[None]:
    """Turn whatever is wrong with staged rows into one line that says where they are."""
    try:
        yield
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SinkError(f"staged rows cannot be read back ({reason}); they are in {place}") from error
