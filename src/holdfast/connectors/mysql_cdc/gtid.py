"""Sets of transactions, in the two forms that MySQL and MariaDB write them. Nothing here talks to a server."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import SourceError

Interval = tuple[int, int]
"""The first and the last transaction number, both of them in it."""
_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)")
_MYSQL = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})((?::\d+(?:-\d+)?)+)", re.IGNORECASE)


class GtidSet(ABC):
    """The transactions that a log holds before some position. Values: every change makes a new one."""

    @abstractmethod
    def plus(self, gtid: str) -> "GtidSet":
        """Return the set with one more transaction, the next one in the log."""

    @abstractmethod
    def includes(self, other: "GtidSet") -> bool:
        """Whether everything in `other` is here too."""

    @abstractmethod
    def count_since(self, other: "GtidSet") -> int:
        """Return how many transactions are here and not in `other`."""


@dataclass(frozen=True)
class MariadbGtids(GtidSet):
    """MariaDB's form, `0-1-100,1-2-50`: the last transaction of every domain stands for all before it."""

    last: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Domain -> server and sequence number."""

    def plus(self, gtid: str) -> "GtidSet":
        """Return the set that ends with `gtid` in its domain."""
        if not self.last:
            return parse_gtids(gtid)
        domain, server, sequence = _mariadb_gtid(gtid)
        return MariadbGtids({**self.last, domain: (server, sequence)})

    def includes(self, other: GtidSet) -> bool:
        """Compare the sequence numbers of every domain."""
        if not isinstance(other, MariadbGtids):
            return False
        return all(domain in self.last and self.last[domain][1] >= last[1] for domain, last in other.last.items())

    def count_since(self, other: GtidSet) -> int:
        """Count sequence numbers; a server may leave some out."""
        before = other.last if isinstance(other, MariadbGtids) else {}
        return sum(max(0, last[1] - before.get(domain, (0, 0))[1]) for domain, last in self.last.items())

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (server, sequence) in sorted(self.last.items()))


@dataclass(frozen=True)
class MysqlGtids(GtidSet):
    """MySQL's form, `uuid:1-5:8,uuid:1-3`: intervals of transaction numbers of every server."""

    intervals: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    """Server -> its intervals, in order, none touching the next."""

    def plus(self, gtid: str) -> "GtidSet":
        """Return the set with `gtid` (or all of a set in this form) in it."""
        merged = {server: list(intervals) for server, intervals in self.intervals.items()}
        for server, intervals in _mysql_members(gtid):
            merged.setdefault(server, []).extend(intervals)
        return MysqlGtids({server: _joined(intervals) for server, intervals in merged.items()})

    def includes(self, other: GtidSet) -> bool:
        """Whether each interval of `other` lies in one of ours."""
        if not isinstance(other, MysqlGtids):
            return not str(other)
        return all(
            any(mine[0] <= first and last <= mine[1] for mine in self.intervals.get(server, ()))
            for server, intervals in other.intervals.items()
            for first, last in intervals
        )

    def count_since(self, other: GtidSet) -> int:
        """Count the numbers that are only here."""
        theirs = other.intervals if isinstance(other, MysqlGtids) else {}
        return sum(
            last - first + 1 - sum(_overlap((first, last), their) for their in theirs.get(server, ()))
            for server, intervals in self.intervals.items()
            for first, last in intervals
        )

    def __str__(self) -> str:
        return ",".join(
            f"{server}:" + ":".join(str(first) if first == last else f"{first}-{last}" for first, last in intervals)
            for server, intervals in sorted(self.intervals.items())
        )


def parse_gtids(text: str) -> GtidSet:
    """Read a set in either form. One that cannot be read is an error: going on without it would be a guess."""
    plain = "".join(text.split())
    if ":" in plain:
        return MysqlGtids().plus(plain)
    members = [_mariadb_gtid(member) for member in plain.split(",") if member]
    return MariadbGtids({domain: (server, sequence) for domain, server, sequence in members})


def _mariadb_gtid(text: str) -> tuple[int, int, int]:
    found = _MARIADB.fullmatch(text)
    if found is None:
        raise SourceError(f"'{text}' is no MariaDB GTID such as 0-1-100")
    domain, server, sequence = (int(part) for part in found.groups())
    return domain, server, sequence


def _mysql_members(text: str) -> list[tuple[str, list[Interval]]]:
    return [_mysql_member(member) for member in text.split(",") if member]


def _mysql_member(text: str) -> tuple[str, list[Interval]]:
    found = _MYSQL.fullmatch(text)
    if found is None:
        raise SourceError(
            f"'{text}' is no MySQL GTID such as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5; tags are not read"
        )
    return found[1].lower(), [_interval(part) for part in found[2].split(":")[1:]]


def _interval(text: str) -> Interval:
    first, _, last = text.partition("-")
    interval = (int(first), int(last or first))
    if not 0 < interval[0] <= interval[1]:
        raise SourceError(f"'{text}' is no interval of a MySQL GTID set")
    return interval


def _joined(intervals: list[Interval]) -> tuple[Interval, ...]:
    joined: list[Interval] = []
    for first, last in sorted(intervals):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _overlap(one: Interval, other: Interval) -> int:
    return max(0, min(one[1], other[1]) - max(one[0], other[0]) + 1)
