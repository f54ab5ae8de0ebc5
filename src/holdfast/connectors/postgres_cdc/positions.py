"""Positions in a PostgreSQL server's log, and in the snapshot that comes before it."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import SourceError

_LSN, _SNAPSHOT = "lsn", "snapshot"


def parse_lsn(text: str) -> int:
    """Return the number behind `X/Y`."""
    high, slash, low = text.partition("/")
    try:
        number = (int(high, 16) << 32) + int(low, 16)
    except ValueError:
        number = -1
    if not slash or not 0 <= number < 1 << 64:
        raise SourceError(f"'{text}' is no position of a PostgreSQL log, such as 0/1234ABCD")
    return number


def lsn_text(number: int) -> str:
    """Return a position as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def sortable_lsn(number: int) -> str:
    """Return a position as text that sorts as the number does; the server reads this form, too."""
    return f"{number >> 32:08X}/{number & 0xFFFFFFFF:08X}"


@dataclass(frozen=True)
class Position:
    """What comes next: a chunk of the snapshot, or the transactions whose commit is at `lsn` or later."""

    lsn: int
    chunk: int | None = None
    """The next chunk of the snapshot; None once it was read."""

    @classmethod
    def parse(cls, offsets: Mapping[str, str]) -> "Position":
        """Read offsets as they stand in a manifest and in Spark's offset log."""
        if _LSN not in offsets:
            raise SourceError(f"these are no offsets of a postgres_cdc source: {dict(offsets)}")
        chunk = offsets.get(_SNAPSHOT)
        return cls(parse_lsn(offsets[_LSN]), None if chunk is None else int(chunk))

    def offsets(self) -> dict[str, str]:
        """Return it as it stands in a manifest. The order of the keys never changes: Spark compares text."""
        log = {_LSN: lsn_text(self.lsn)}
        return log if self.chunk is None else {**log, _SNAPSHOT: str(self.chunk)}
