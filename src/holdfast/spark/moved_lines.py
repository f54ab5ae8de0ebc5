"""The lines of Spark's offset log, when another number of branches reads the sources than when they were written.

Spark has a line for every branch that reads a source, in the order of the plan, and a log directory for every stream,
by its number. More branches of the same source repeat its line; a source that was never read has none.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from holdfast.core.sidecar import StateFile
from holdfast.engine.coordinator import RecordedEpoch
from holdfast.errors import PipelineError
from holdfast.spark.state_files import OffsetLogEntry

_NEVER_READ = "-"
_OFFSETS = re.compile(r"offsets/\d+")
_LOG = re.compile(r"(sources|log)/(\d+)/(.+)")


class MovedLines:
    """What the streams of a checkpoint are in the query that goes on from it."""

    def __init__(self, before: Sequence[str], after: Sequence[str]) -> None:
        self._before, self._after = tuple(before), tuple(after)
        had, has = list(dict.fromkeys(before)), list(dict.fromkeys(after))
        for stream in has:
            source = stream.partition("/")[0]
            if stream not in had and source in had:
                raise PipelineError(
                    f"source '{source}' was read by one stream, and is to be joined with itself now: nobody knows "
                    "what the second one has seen. Undo the change, or start over with --fresh"
                )
        self._logs = {str(had.index(stream)): str(has.index(stream)) for stream in has if stream in had}

    @property
    def same(self) -> bool:
        """Whether nothing changed."""
        return self._before == self._after

    def parts(self, parts: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return recorded parts as the query has them."""
        if self.same:
            return dict(parts)
        return {name: self._offsets(data) if _OFFSETS.fullmatch(name) else data for name, data in parts.items()}

    def files(self, files: Sequence[StateFile]) -> list[StateFile]:
        """Return files under the names that the query has for them. Logs of streams that are gone are left out."""
        if self.same:
            return list(files)
        named = ((file, self._path(file.path)) for file in files)
        return [replace(file, path=path) for file, path in named if path is not None]

    def _offsets(self, data: bytes) -> bytes:
        entry = OffsetLogEntry.parse(data.decode())
        if len(entry.sources) != len(self._before):
            raise PipelineError(
                f"the offsets of the checkpoint have {len(entry.sources)} lines, its definition reads "
                f"{len(self._before)} streams: undo the change, or start over with --fresh"
            )
        lines: dict[str, str] = {}
        for stream, line in zip(self._before, entry.sources, strict=True):
            if lines.setdefault(stream, line) != line:
                raise PipelineError(
                    f"source '{stream}' stands at two places, because it is joined with itself: outputs cannot be "
                    "added or removed beside that. Undo the change, or start over with --fresh"
                )
        return replace(entry, sources=tuple(lines.get(s, _NEVER_READ) for s in self._after)).to_text().encode()

    def _path(self, path: str) -> str | None:
        match = _LOG.fullmatch(path)
        if match is None:
            return path
        return f"{match[1]}/{self._logs[match[2]]}/{match[3]}" if match[2] in self._logs else None


def refuse_other_lines(records: Iterable[RecordedEpoch], inputs: Sequence[str]) -> None:
    """Refuse a start that would have to replay an epoch which was planned for other branches. Changes nothing."""
    for record in records:
        lines = OffsetLogEntry.parse(record.parts[f"offsets/{record.epoch - 1}"].decode()).sources
        if len(lines) != len(inputs):
            raise PipelineError(
                f"epoch {record.epoch} is to be replayed, and was planned by a pipeline with other outputs: start it "
                "as it was, until the epoch is done, and change it then"
            )
