"""What the sources' logs in a working directory have since the last capture, read once, and what of it is sealed."""

import os
from collections.abc import Mapping

from holdfast.spark.log_segments import (
    Segment,
    joined,
    segments_below,
    write_segment,
    write_spark_log,
)
from holdfast.spark.source_log import (
    compact_as_expected,
    files_of,
    is_log,
    log_position,
    needed_log_files,
    new_log_entries,
    number_of,
    source_of,
)


class LogCapture:
    """The logs of one working directory. An epoch is read, then captured, and sealed at last, or never."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.position: dict[str, int] = {}
        """The newest log batch of each source that was sealed."""
        self._segments: dict[str, list[Segment]] = {}
        self._next: dict[str, list[Segment]] | None = None
        self._written: set[str] = set()
        self._read: tuple[int, dict[str, bytes]] | None = None

    def entries(self, batch: int, until: Mapping[str, int]) -> dict[str, bytes]:
        """Return what is new up to the end of a batch's range, as path -> text."""
        new = self._new(batch).items()
        return {name: text for name, text in new if number_of(name) <= until.get(source_of(name), number_of(name))}

    def _new(self, batch: int) -> dict[str, bytes]:
        """Return all that is new. It is read once for a batch: Spark wrote it before the batch began."""
        if self._read is None or self._read[0] != batch:
            self._read = batch, new_log_entries(self._root, self.position)
        return self._read[1]

    def capture(self, batch: int) -> list[str]:
        """Return the paths of what a checkpoint needs: the segments of logs, and files that are no log."""
        found = dict(self._segments)
        others = self.position.keys() - found.keys()
        for name, text in sorted(self._new(batch).items(), key=lambda item: number_of(item[0])):
            source, number = source_of(name), number_of(name)
            if source in others or not (source in found or is_log(text)):
                others |= {source}
                continue
            segment = write_segment(self._root, source, number, number, text)
            self._written.add(segment.path)
            found[source] = joined(self._root, [*found.get(source, ()), segment])
        self._next = found
        return [
            *(segment.path for segments in found.values() for segment in segments),
            *(name for source in sorted(others) for name in files_of(self._root, source)),
        ]

    def captured(self) -> None:
        """Note that the last capture was sealed: the next range begins after it."""
        if self._next is None or self._read is None:
            return
        for path in (_paths(self._segments) | self._written) - _paths(self._next):
            os.unlink(os.path.join(self._root, path))
        for name in sorted(self._read[1], key=number_of):
            self.position[source_of(name)] = number_of(name)
        self._segments, self._next, self._read = self._next, None, None
        self._written.clear()

    def restored(self, compact_interval: int) -> None:
        """Go on from what a checkpoint brought: Spark's log is made of segments, or segments of Spark's log."""
        for segment in segments_below(self._root):
            self._segments.setdefault(segment.source, []).append(segment)
        for segments in self._segments.values():
            write_spark_log(self._root, segments, compact_interval)
        for name in needed_log_files(self._root):
            if source_of(name) not in self._segments or self._segments[source_of(name)][-1].last < number_of(name):
                self._adopt(name)
        compact_as_expected(self._root, compact_interval)
        self.position = log_position(self._root)

    def _adopt(self, name: str) -> None:
        """Make a segment of a file of Spark's log, as it is: the same bytes, the same file."""
        path, number, compact = os.path.join(self._root, name), number_of(name), name.endswith(".compact")
        with open(path, "rb") as file:
            if not (compact or is_log(file.read())):
                return
        first = 0 if compact else number
        segment = Segment(source_of(name), first, number, os.path.getsize(path))
        os.makedirs(os.path.dirname(os.path.join(self._root, segment.path)), exist_ok=True)
        os.link(path, os.path.join(self._root, segment.path))
        self._segments.setdefault(segment.source, []).append(segment)


def _paths(segments: Mapping[str, list[Segment]]) -> set[str]:
    return {segment.path for of_source in segments.values() for segment in of_source}
