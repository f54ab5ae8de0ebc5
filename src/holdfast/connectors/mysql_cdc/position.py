"""Where a mysql_cdc source stands: a place in a binary log, the transactions before it, the rest of the snapshot."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.connectors.mysql_cdc.gtid import GtidSet, parse_gtids
from holdfast.errors import SourceError

LOG_BEGINNING = 4
"""The place of the first event in a log file, after its magic number."""
FARTHEST = (1 << 32) - 1
"""The last place that a server can be asked for, in four bytes. A file with a huge transaction goes beyond it."""
_GTIDS, _FILE, _OFFSET, _SERVER, _SNAPSHOT = "gtid_set", "binlog_file", "binlog_position", "server_id", "snapshot"
_CURSOR = re.compile(r"(\d+)/(\d+)@([0-9a-f]+)")
_NUMBERED = re.compile(r".+\.(\d+)")


@dataclass(frozen=True)
class Place:
    """A place in one server's binary log."""

    file: str
    offset: int

    def __post_init__(self) -> None:
        if _NUMBERED.fullmatch(self.file) is None:
            raise SourceError(f"'{self.file}' is no name of a binary log file such as mysql-bin.000003")

    @property
    def order(self) -> tuple[int, int]:
        """What compares places of one log."""
        return file_number(self.file), self.offset

    @property
    def can_be_asked_for(self) -> bool:
        """Whether a server understands it."""
        return self.offset <= FARTHEST

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"

    @property
    def sortable(self) -> str:
        """The place as text that sorts as the log does."""
        return f"{self.file}:{self.offset:012d}"


def file_number(file: str) -> int:
    """Return the number that a log file's name ends with; the next file has the next one."""
    return int(file.rpartition(".")[2])


@dataclass(frozen=True)
class SnapshotCursor:
    """How far a snapshot was read: the next of so many chunks, and which snapshot that is."""

    chunk: int
    chunks: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.chunk}/{self.chunks}@{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> "SnapshotCursor":
        """Read what stands in an offset."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise SourceError(f"'{text}' is no place in a snapshot such as 3/12@9f86d081")
        return cls(int(found[1]), int(found[2]), found[3])


@dataclass(frozen=True)
class Position:
    """The next thing to read: the rest of the snapshot, if there is one, then the log from a place on."""

    place: Place
    server_id: int
    """Whose log the place is in. Every server of a replication set-up has a number of its own."""
    gtids: GtidSet | None = None
    """The transactions before `place`; None where the server has no GTIDs."""
    snapshot: SnapshotCursor | None = None

    def offsets(self) -> dict[str, str]:
        """Return it as it stands in a manifest. The order of the keys is fixed: Spark compares offsets as text."""
        known = {
            _GTIDS: None if self.gtids is None else str(self.gtids),
            _FILE: self.place.file,
            _OFFSET: str(self.place.offset),
            _SERVER: str(self.server_id),
            _SNAPSHOT: None if self.snapshot is None else str(self.snapshot),
        }
        return {key: value for key, value in known.items() if value is not None}

    @classmethod
    def from_offsets(cls, offsets: Mapping[str, str]) -> "Position":
        """Read what `offsets` returned. Anything else is an error, never a position to fall back to."""
        try:
            place, server_id = Place(str(offsets[_FILE]), int(offsets[_OFFSET])), int(offsets[_SERVER])
        except (KeyError, ValueError):
            raise SourceError(f"{json.dumps(dict(offsets))} is no position of a mysql_cdc source") from None
        gtids, snapshot = offsets.get(_GTIDS), offsets.get(_SNAPSHOT)
        return cls(
            place,
            server_id,
            None if gtids is None else parse_gtids(gtids),
            None if snapshot is None else SnapshotCursor.parse(snapshot),
        )

    def after_chunks(self, count: int) -> "Position":
        """Return the position after so many more chunks of the snapshot, at its end that of the log behind it."""
        assert self.snapshot is not None
        chunk = min(self.snapshot.chunk + count, self.snapshot.chunks)
        ended = chunk == self.snapshot.chunks
        return replace(self, snapshot=None if ended else replace(self.snapshot, chunk=chunk))

    def same_place_in_log(self, other: "Position") -> bool:
        """Whether no transaction lies between the two."""
        if self.gtids is not None and other.gtids is not None:
            return self.gtids == other.gtids
        return self.place == other.place

    def is_at_or_after(self, other: "Position") -> bool:
        """Whether everything before `other` is before this one too.

        In one log the places tell. GTIDs do not: where two servers write in one domain of MariaDB, a later one may
        have a smaller number.
        """
        if self.server_id != other.server_id and self.gtids is not None and other.gtids is not None:
            return self.gtids.includes(other.gtids)
        return self.place.order >= other.place.order
