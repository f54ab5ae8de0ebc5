"""What happened to a pipeline, beyond the checkpoints that are kept: segments of JSON lines, written once.

    epochs-001767225600000-1f0c6b6f4d9a2e77.jsonl     one line per epoch
    runs-001767225600000-90b1e2a7c4d35f18.jsonl       recoveries, replays, ends: rarer, and worth keeping longer
    verifications-001767225600000-5b0c….jsonl         what reading a checkpoint in the background found

A name says what is in a segment, when that begins and the digest of its bytes, so a damaged one is noticed and
the same segment written again is the same file. Small segments are merged now and then, and the oldest go when a kind
takes more than its share. No checkpoint depends on any of it.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core import canonical_json
from holdfast.errors import CheckpointStoreError
from holdfast.stores.medium import Medium

_log = logging.getLogger(__name__)

EPOCH, VERIFICATION = "epoch", "verification"
_VERSION = 1
_STREAMS = ("epochs", "runs", "verifications")
_NAME = re.compile(rf"({'|'.join(_STREAMS)})-[0-9]{{15}}-[0-9a-f]{{16}}\.jsonl")
_TIDY_EVERY = 8


@dataclass(frozen=True)
class HistoryLimits:
    """How much history is kept. `epoch_bytes` holds 30,000 epochs or more, `run_bytes` some thousand starts."""

    epoch_bytes: int = 16 * 1024 * 1024
    run_bytes: int = 4 * 1024 * 1024
    verification_bytes: int = 1024 * 1024
    segment_bytes: int = 1024 * 1024
    """A segment of this size is left alone; smaller ones are merged."""
    small_segments: int = 16
    """How many smaller ones there may be before they are merged."""

    def bytes_of(self, stream: str) -> int:
        """Return how much one stream may take."""
        return dict(zip(_STREAMS, (self.epoch_bytes, self.run_bytes, self.verification_bytes), strict=True))[stream]


class _Gone(Exception):
    """A segment that was listed is gone: what it held is in another one by now, or was too old to stay."""


class History:
    """The history of one store. Entries are JSON objects with a `kind` and a time, `at_ms`; each gets a version, `v`.

    Any number may append at once, and any number may read beside them. Best effort: the newest entries may be lost
    with the power, and a damaged segment is left out.
    """

    def __init__(self, medium: Medium, limits: HistoryLimits | None = None) -> None:
        self._medium = medium
        self._limits = limits or HistoryLimits()
        self._appends = 0
        self._on_the_way: list[Callable[[], Iterable[Mapping[str, Any]]]] = []

    def show(self, on_the_way: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Have readers of this object see also what is `on_the_way`: entries, oldest first, that will be appended."""
        self._on_the_way.append(on_the_way)

    def show_no_more(self, on_the_way: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Take back what `show` was given."""
        self._on_the_way.remove(on_the_way)

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write entries, oldest first: a segment for each stream among them. Now and then tidy up."""
        lines: dict[str, list[bytes]] = {}
        for entry in entries:
            lines.setdefault(_stream_of(entry["kind"]), []).append(_line(entry))
        for stream, some in lines.items():
            self._write(stream, some, durable=False)
        # The first time too: a process that lives for a moment only would never get to it.
        if self._appends % _TIDY_EVERY == 0:
            self._tidy_all()
        self._appends += 1

    def entries(
        self, *kinds: str, last: int | None = None, on_note: Callable[[str], object] = _log.warning
    ) -> list[dict[str, Any]]:
        """Return entries oldest first: all, or those of some kinds; the newest `last`. `on_note` hears of damage."""
        while True:
            try:
                return self._read(kinds, last, on_note)
            except _Gone:
                continue

    def _read(self, kinds: Sequence[str], last: int | None, on_note: Callable[[str], object]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        # Before the segments: what is appended meanwhile is seen twice rather than not at all.
        coming = [entry for on_the_way in tuple(self._on_the_way) for entry in on_the_way()]
        for stream in sorted({_stream_of(kind) for kind in kinds}) or _STREAMS:
            new = [_line(entry) for entry in coming if _stream_of(entry["kind"]) == stream]
            known, some = set(new), list(_understood(new, kinds))
            for name in reversed(self._sizes(stream)):
                # A merge that was cut off left its result beside its parts too: the same line counts once.
                new = [line for line in dict.fromkeys(self._lines(name, on_note)) if line not in known]
                known.update(new)
                some = [*_understood(new, kinds), *some]
                if last is not None and len(some) >= last:
                    break
            found += some
        found.sort(key=lambda entry: int(entry["at_ms"]))
        return found if last is None else found[max(len(found) - last, 0) :]

    def _sizes(self, stream: str) -> dict[str, int]:
        """Return the segments of a stream, oldest first, with their sizes."""
        listed = self._medium.segments().items()
        return {name: size for name, size in listed if _NAME.fullmatch(name) and name.startswith(stream)}

    def _lines(self, name: str, on_note: Callable[[str], object]) -> list[bytes]:
        data = self._medium.read_segment(name)
        if data is None:
            raise _Gone
        if not name.endswith(f"-{_digest(data)}.jsonl"):
            on_note(f"history segment {name} is damaged and left out")
            return []
        return data.splitlines()

    def _write(self, stream: str, lines: Sequence[bytes], *, durable: bool) -> str:
        data = b"".join(line + b"\n" for line in lines)
        name = f"{stream}-{json.loads(lines[0])['at_ms']:015d}-{_digest(data)}.jsonl"
        self._medium.write_segment(name, data, durable=durable)
        return name

    def _tidy_all(self) -> None:
        try:
            for stream in _STREAMS:
                self._merge_small(stream)
                self._drop_oldest(stream)
        except CheckpointStoreError as error:
            # What was to be appended is there: to raise would make the caller append it again.
            _log.warning("history was written, but tidying it up failed: %s", error)

    def _merge_small(self, stream: str) -> None:
        small = [name for name, size in self._sizes(stream).items() if size < self._limits.segment_bytes]
        if len(small) <= self._limits.small_segments:
            return
        try:
            lines = dict.fromkeys(line for name in small for line in self._lines(name, _log.warning))
        except _Gone:
            return  # Somebody else is at it.
        # Durable before the parts go, or a power loss could take both.
        merged = {self._write(stream, some, durable=True) for some in _pieces(lines, self._limits.segment_bytes)}
        for name in small:
            if name not in merged:
                self._medium.remove_segment(name)

    def _drop_oldest(self, stream: str) -> None:
        """Remove what does not fit behind the newest segment, which stays in any case."""
        room = self._limits.bytes_of(stream)
        for position, (name, size) in enumerate(reversed(self._sizes(stream).items())):
            room -= size
            if room < 0 and position > 0:
                self._medium.remove_segment(name)


def _stream_of(kind: str) -> str:
    return {EPOCH: "epochs", VERIFICATION: "verifications"}.get(kind, "runs")


def _line(entry: Mapping[str, Any]) -> bytes:
    return canonical_json.compact({"v": _VERSION, **entry})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _understood(lines: Iterable[bytes], kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the entries of some kinds; what a later version wrote in another form stays stored and is not shown."""
    for line in lines:
        entry = json.loads(line)
        if entry["v"] == _VERSION and (not kinds or entry["kind"] in kinds):
            yield entry


def _pieces(lines: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    """Cut lines into pieces of at least `size` bytes; the last one may be smaller."""
    piece: list[bytes] = []
    length = 0
    for line in lines:
        piece.append(line)
        length += len(line) + 1
        if length >= size:
            yield piece
            piece, length = [], 0
    if piece:
        yield piece
