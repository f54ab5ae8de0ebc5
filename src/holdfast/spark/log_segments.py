"""The source log as checkpoints hold it: in segments, so that an epoch costs what it reads, not what was ever read.

Every tenth log file of Spark's repeats all entries before it. A checkpoint has each entry once: the segment
`log/<source>/<first>-<last>` holds those of some log batches, headed like a file of Spark's. An epoch adds a segment,
small ones are joined now and then, and none ever changes: it is written once, hashed once and sealed once. A start
makes Spark's files of them.

A file of Spark's may be a segment as it is. So the first ones are where a version before sealed the log itself, and
their bytes need not be sealed again.
"""

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.spark.source_log import batch_of, file_name

LOG = "log"
_PATH = re.compile(rf"^{LOG}/(?P<source>[^/]+)/(?P<first>\d+)-(?P<last>\d+)$")
_OUTWEIGHS = 3
"""Segments of one size become one when there are four: an entry is written again a few times, and they remain few."""
_LARGEST = 1024 * 1024
"""Bytes: one that is larger stays as it is."""


@dataclass(frozen=True)
class Segment:
    """The entries of log batches `first` to `last` of a source."""

    source: str
    first: int
    last: int
    size: int

    @property
    def path(self) -> str:
        """Where it is, below the working directory and in a checkpoint."""
        return f"{LOG}/{self.source}/{self.first}-{self.last}"


def segments_below(root: str) -> list[Segment]:
    """Return the segments in a working directory, each source's in order."""
    found = []
    for directory, _, files in os.walk(os.path.join(root, LOG)):
        for file in files:
            path = os.path.join(directory, file)
            if match := _PATH.match(os.path.relpath(path, root)):
                first, last = int(match["first"]), int(match["last"])
                found.append(Segment(match["source"], first, last, os.path.getsize(path)))
    return sorted(found, key=lambda segment: (segment.source, segment.first))


def text_of(root: str, segment: Segment) -> bytes:
    """Return what a segment holds."""
    with open(os.path.join(root, segment.path), "rb") as file:
        return file.read()


def write_segment(root: str, source: str, first: int, last: int, text: bytes) -> Segment:
    """Add a segment."""
    segment = Segment(source, first, last, len(text))
    _write(os.path.join(root, segment.path), [text])
    return segment


def joined(root: str, segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments with the newest ones joined, if they are many enough for their size."""
    count = _how_many_together(segments)
    if count == 0:
        return list(segments)
    parts = segments[-count:]
    text = _one_text([text_of(root, part) for part in parts])
    return [*segments[:-count], write_segment(root, parts[0].source, parts[0].first, parts[-1].last, text)]


def _how_many_together(segments: Sequence[Segment]) -> int:
    """Return how many of the newest to join: all from one on that is outweighed by what follows it."""
    sizes = [s.size for s in itertools.takewhile(lambda s: s.size < _LARGEST, reversed(segments))]
    following = list(itertools.accumulate(sizes, initial=0))
    outweighed = [count for count, size in enumerate(sizes) if following[count] >= _OUTWEIGHS * size]
    return outweighed[-1] + 1 if outweighed else 0


def _one_text(texts: Sequence[bytes]) -> bytes:
    """Return the entries of all under the newest header. A text without entries is its header alone."""
    header = texts[-1].split(b"\n", 1)[0]
    return b"\n".join([header, *(body for text in texts for body in text.split(b"\n", 1)[1:])])


def write_spark_log(root: str, segments: Sequence[Segment], compact_interval: int) -> None:
    """Write the log of a source as Spark expects it: a compact file when one was due, and what came after it."""
    source, newest = segments[-1].source, segments[-1].last
    due = (newest + 1) // compact_interval * compact_interval - 1
    whole = [segment for segment in segments if segment.last <= due]
    header, *lines = _one_text([text_of(root, segment) for segment in segments[len(whole) :]] or [b"v1"]).split(b"\n")
    later: dict[int, list[bytes]] = {number: [] for number in range(due + 1, newest + 1)}
    before: list[bytes] = []
    for line in lines:
        later.get(batch_of(line) or 0, before).append(line)
    if due >= 0:
        texts = [text_of(root, segment) for segment in whole]
        compact = [*texts, b"\n".join([texts[-1].split(b"\n", 1)[0] if texts else header, *before])]
        _write(os.path.join(root, file_name(source, due, compact=True)), [_one_text(compact)])
    for number, entries in later.items():
        _write(os.path.join(root, file_name(source, number, compact=False)), [b"\n".join([header, *entries])])


def _write(path: str, texts: Iterable[bytes]) -> None:
    """Write a file. One that is there is replaced, not written over: somebody may have its bytes mapped."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "wb") as file:
        file.writelines(texts)
    os.replace(f"{path}.new", path)
