"""What a Delta table's history says about undoing epochs.

The log is walked from its newest entry. Every entry of ours says where the ledger stood after it, so the first one at
or before the wanted epoch is the state to go back to; what was passed on the way is what has to be undone.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.connectors.delta.folder import DataFile, sink_tag
from holdfast.connectors.delta.log import LogEntry, read_entry


@dataclass
class LookBack:
    """What happened to a table since an epoch."""

    version: int = -1
    """The version to go back to."""
    range_digest: str | None = None
    alone: bool = True
    """Whether nobody else wrote to the table since."""
    files: Counter[tuple[str, int]] = field(default_factory=Counter)
    """How many data files (sink tag, epoch) added, for epochs that were not undone since."""
    modes: set[str | None] = field(default_factory=set)
    """How those epochs were shown; None where the log does not say."""


def look_back(history: Iterable[dict[str, Any]], timeline: str, sink: str, epoch: int) -> LookBack | None:
    """Find the state after `epoch` of one sink; None when the log does not reach back that far."""
    found, passed = LookBack(), _Passed()
    for commit in history:
        entry = read_entry(commit)
        if entry is None or (entry.timeline, entry.sink) != (timeline, sink):
            found.alone = False
        elif entry.epoch <= epoch:
            found.version, found.files, found.modes = entry.version, passed.files, passed.modes
            found.range_digest = entry.range_digest if entry.epoch == epoch else None
            return found
        else:
            passed.take(entry)
    return None


def look_before(history: Iterable[dict[str, Any]], timeline: str) -> LookBack | None:
    """Find the state before a timeline first wrote to the table; None when the log does not reach back that far."""
    found, passed, strangers, oldest = LookBack(), _Passed(), False, -1
    for commit in history:
        oldest = commit["version"]
        entry = read_entry(commit)
        if entry is None or entry.timeline != timeline:
            strangers = True
            continue
        passed.take(entry)
        found.version, found.files, found.modes = entry.version - 1, passed.files, passed.modes
        found.alone = not strangers
    return found if oldest == 0 and found.version >= 0 else None


class _Passed:
    """Entries met so far, newest first. What was committed above a later rewind's epoch is already undone."""

    def __init__(self) -> None:
        self.files: Counter[tuple[str, int]] = Counter()
        self.modes: set[str | None] = set()
        self._undone_above: dict[str, int] = {}

    def take(self, entry: LogEntry) -> None:
        limit = self._undone_above.get(entry.sink)
        if entry.action == "rewind":
            self._undone_above[entry.sink] = entry.epoch if limit is None else min(limit, entry.epoch)
        elif entry.action == "commit" and (limit is None or entry.epoch <= limit):
            self.files[sink_tag(entry.sink), entry.epoch] = entry.files
            self.modes.add(entry.mode)


def files_to_undo(active: Iterable[str], expected: Counter[tuple[str, int]], timeline_tag: str) -> list[str] | None:
    """Return the active files of the expected epochs; None when some of them were rewritten or removed."""
    found: Counter[tuple[str, int]] = Counter()
    paths = []
    for path in active:
        file = DataFile.parse(path)
        if file is not None and file.timeline == timeline_tag and (file.sink, file.epoch) in expected:
            found[file.sink, file.epoch] += 1
            paths.append(path)
    return paths if found == expected else None
