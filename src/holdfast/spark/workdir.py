"""Spark's own checkpoint directory, treated as a cache: captured after each batch, rebuilt at each start.

A directory is never rolled back or repaired in place, because stale state files of an abandoned future would be
loaded again without any error: every start restores into a fresh `work/<generation>/`.
"""

import contextlib
import hashlib
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.core.buffers import Buffer
from holdfast.core.completeness import EXPECTED_PART, Expected, problems
from holdfast.core.sidecar import CapturedFile, StateFile
from holdfast.errors import CorruptCheckpoint, PipelineError
from holdfast.spark.event_time import EVENT_TIME_PART, EventTime
from holdfast.spark.lines import NO_LINES, OffsetLines
from holdfast.spark.log_capture import LogCapture
from holdfast.spark.log_segments import LOG
from holdfast.spark.source_log import (
    COMPACT_INTERVAL,
    add_log_entries,
    compact_as_expected,
    needed_log_files,
    new_log_entries,
    source_of,
)
from holdfast.spark.state_files import (
    OffsetLogEntry,
    commit_log_entry,
    files_of_snapshot,
    operator_files,
    schemas_named,
)
from holdfast.stores.state_reader import StateReader

if TYPE_CHECKING:  # A checkpoint can be exported where Spark is not installed.
    from holdfast.spark.plan_facts import PlanFacts

SOURCES_OPERATOR = "holdfast.sources"
_ROOT_PART = "root"
_PARALLEL_FILES = 8
"""Reading, hashing and writing happen outside Python's lock; on object storage each file is a round trip."""
_LOG_OFFSET = re.compile(r'"logOffset":\s*(\d+)')
_LOG_LINE = re.compile(r'^\{"logOffset":\s*(\d+)\}$')
_LASTING = re.compile(r"/_metadata/(metadata|schema)$|^sources/")
_V2_METADATA = re.compile(r"^state/\d+/_metadata/v2/")


@dataclass(frozen=True)
class Capture:
    """One batch as it stands in the working directory."""

    parts: dict[str, bytes]
    operators: dict[str, list[CapturedFile]]
    offsets: OffsetLogEntry
    range_digest: str


@dataclass
class WorkingDirectory:
    """One `work/<generation>/`. `lines` says what each line of the offset log is."""

    path: str
    lines: OffsetLines = NO_LINES
    compact_interval: int = COMPACT_INTERVAL[1]
    _digests: dict[str, tuple[int, str]] = field(default_factory=dict)
    _lasting: set[str] = field(default_factory=set)
    """Files that are written once and needed for good: what the stores hold, where sources began."""

    def __post_init__(self) -> None:
        self.logs = LogCapture(self.path)

    @property
    def has_state(self) -> bool:
        """Whether an operator keeps state here."""
        return self._exists("state")

    def offsets(self, batch: int) -> OffsetLogEntry:
        """Return what a batch reads; Spark wrote it before it called us."""
        return OffsetLogEntry.parse(self._read(f"offsets/{batch}").decode())

    def range(self, batch: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return where a batch starts and where it ends, a line for each input; the first one starts nowhere."""
        known = batch > 0 and self._exists(f"offsets/{batch - 1}")
        return self.offsets(batch - 1).sources if known else (), self.offsets(batch).sources

    def range_digest(self, batch: int) -> str:
        """Return a digest of the exact source range of a batch: where it starts, where it ends, which files."""
        return self._digest(batch, self._new_log_entries(batch))

    def _digest(self, batch: int, log_entries: Mapping[str, bytes]) -> str:
        digest = hashlib.sha256()
        for lines in self.range(batch):
            digest.update("\n".join(lines).encode() + b"\0")
        for name, text in sorted(log_entries.items()):
            # A compact file or a plain one: the entries of the range are the same.
            digest.update(name.removesuffix(".compact").encode() + b"\0" + _entries(text) + b"\0")
        return digest.hexdigest()

    def files_read(self, batch: int) -> dict[str, int]:
        """Return how many files a batch reads, for each input that is made of files."""
        source_of, ends = self.lines.source_of, self._log_end(self.offsets(batch).sources)
        found = {source_of[directory]: 0 for directory in ends}
        for name, text in self._new_log_entries(batch).items():
            directory = name.split("/")[1]
            if directory in ends:  # Others keep there where they began.
                found[source_of[directory]] += len(_entries(text).splitlines())
        return found

    def _new_log_entries(self, batch: int) -> dict[str, bytes]:
        return self.logs.entries(batch, self._log_end(self.offsets(batch).sources))

    def capture(self, batch: int, event_time: EventTime, facts: "PlanFacts") -> Capture:
        """Return everything a restart after `batch` needs; PipelineError when not all of it is here.

        The batch must have been consumed.
        """
        try:
            capture = self._capture(batch, event_time, facts)
        except FileNotFoundError as error:
            raise _incomplete(self.path, batch, [str(error)]) from error
        paths = [file.path for files in capture.operators.values() for file in files]
        # What Spark goes on with has to be whole as well: its log, beside the segments of it that are sealed.
        live = [path for path in paths if not path.startswith(f"{LOG}/")] + needed_log_files(self.path)
        if missing := problems(batch + 1, capture.parts, live) or problems(batch + 1, capture.parts, paths):
            raise _incomplete(self.path, batch, missing)
        return capture

    def _capture(self, batch: int, event_time: EventTime, facts: "PlanFacts") -> Capture:
        state_ids = facts.state_ids
        names = ["metadata", f"offsets/{batch}"] + ([f"offsets/{batch - 1}"] if batch > 0 else [])
        parts = {name: self._read(name) for name in names if self._exists(name)}
        parts[f"commits/{batch}"] = commit_log_entry(event_time.next_watermark_ms, state_ids).encode()
        parts[EVENT_TIME_PART] = event_time.to_part()
        parts[_ROOT_PART] = self.path.encode()
        parts |= self._new_log_entries(batch)
        operators = {
            f"state/{operator}": [self._captured(name) for name in files]
            for operator, files in operator_files(self.path, batch, state_ids).items()
        }
        if logs := self.logs.capture(batch):
            operators[SOURCES_OPERATOR] = [self._captured(name) for name in logs]
        captured = {file.path for files in operators.values() for file in files}
        self._digests = {name: known for name, known in self._digests.items() if name in captured}
        parts[EXPECTED_PART] = self._expected(batch, facts, operators).to_part()
        return Capture(parts, operators, self.offsets(batch), self.range_digest(batch))

    def _expected(self, batch: int, facts: "PlanFacts", operators: Mapping[str, list[CapturedFile]]) -> Expected:
        """Return what the plan that ran names, and what no plan names but was here before."""
        lines = zip(facts.log_directories, self.offsets(batch).sources, strict=False)
        ends = {directory: match for directory, line in lines if (match := _LOG_LINE.match(line))}
        lasting = {file.path for files in operators.values() for file in files if _LASTING.search(file.path)}
        logs_of_files = tuple(f"sources/{directory}/" for directory in ends)
        self._lasting = {path for path in self._lasting | lasting if not path.startswith(logs_of_files)}
        snapshots = (f for files in operators.values() for f in files if f.path.endswith(".zip"))
        referred = {name for file in snapshots for name in files_of_snapshot(self.path, file.path)}
        referred |= {
            name for files in operators.values() for name in schemas_named(self.path, [f.path for f in files])
        }
        logs = {directory: int(match[1]) for directory, match in ends.items()}
        return Expected(facts.stores, logs, tuple(sorted({*self._lasting, *referred})))

    def _log_end(self, lines: tuple[str, ...]) -> dict[str, int]:
        """Return the last log batch that a range includes, for each stream that keeps a log."""
        ends = {name: _LOG_OFFSET.search(line) for name, line in self.lines.by_directory(lines).items()}
        return {name: int(match[1]) for name, match in ends.items() if match}

    def captured(self) -> None:
        """Note that the last capture was sealed: the next range begins after it."""
        self.logs.captured()

    def _captured(self, name: str) -> CapturedFile:
        path = os.path.join(self.path, name)
        if name not in self._digests:
            data = _mapped(path)
            self._digests[name] = (memoryview(data).nbytes, hashlib.sha256(data).hexdigest())
        size, digest = self._digests[name]
        return CapturedFile(name, size, digest, lambda: _mapped(path))

    def write_offsets(self, batch: int, text: bytes, log_parts: dict[str, bytes]) -> None:
        """Make Spark run exactly this range as `batch` at its next start."""
        add_log_entries(self.path, log_parts, self.logs.position)
        compact_as_expected(self.path, self.compact_interval)
        self._write(f"offsets/{batch}", text)

    def add_closing_batch(self, batch: int, watermark_ms: int, at_ms: int) -> None:
        """Make Spark run the batch without data that it forgot at the restart, unless it has planned another."""
        closing = f"offsets/{batch + 1}"
        if not self._exists(closing):
            self._write(closing, self.offsets(batch).without_data(watermark_ms, at_ms).to_text().encode())

    def recorded(self, batch: int) -> bool:
        """Whether a batch was planned here."""
        return self._exists(f"offsets/{batch}")

    def recorded_parts(self, batch: int) -> dict[str, bytes]:
        """Return the recorded range of a batch that was planned here."""
        names = [f"offsets/{batch}"] + ([f"offsets/{batch - 1}"] if self._exists(f"offsets/{batch - 1}") else [])
        until = self._log_end(self.offsets(batch).sources)
        return {name: self._read(name) for name in names} | new_log_entries(self.path, {}, until)

    def recorded_digest(self, batch: int) -> str | None:
        """Return what `range_digest` said when the batch ran here; None when that cannot be told any more.

        The logs that are not of files say where a source began: that was new in the first batch only.
        """
        if batch > 0 and not self._exists(f"offsets/{batch - 1}"):
            return None
        if len(self.offsets(batch).sources) != len(self.lines.inputs):
            return None  # It was planned for other branches.
        since = self._log_end(self.offsets(batch - 1).sources) if batch > 0 else {}
        until = self._log_end(self.offsets(batch).sources)
        found = new_log_entries(self.path, since, until).items()
        return self._digest(batch, {name: text for name, text in found if batch == 0 or source_of(name) in until})

    def _read(self, name: str) -> bytes:
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    def _exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.path, name))

    def _write(self, name: str, data: bytes) -> None:
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def restore(
    target: str,
    parts: dict[str, bytes],
    files: Iterable[StateFile],
    reader: StateReader,
    old_directories: Iterable[str] = (),
    lines: OffsetLines = NO_LINES,
    compact_interval: int = COMPACT_INTERVAL[1],
) -> WorkingDirectory:
    """Rebuild a working directory from a checkpoint, in a place where nothing is.

    A file of an old working directory is linked instead of read from the store, after its digest was compared.
    """
    os.makedirs(target)
    directory = WorkingDirectory(target, lines, compact_interval)
    old, wanted = list(old_directories), list(files)
    for folder in {os.path.dirname(file.path) for file in wanted}:
        os.makedirs(os.path.join(target, folder), exist_ok=True)

    def restore_file(file: StateFile) -> None:
        path = os.path.join(target, file.path)
        if _V2_METADATA.match(file.path):
            _write_rebased(path, reader.read(file), parts[_ROOT_PART].decode(), target)
            return
        if not _link_verified(file, path, old):
            with open(path, "wb") as out:
                for piece in reader.stream(file):
                    out.write(piece)
        directory._digests[file.path] = (file.size, file.sha256)
        if _LASTING.search(file.path):
            directory._lasting.add(file.path)

    with ThreadPoolExecutor(_PARALLEL_FILES) as pool:
        for done in [pool.submit(restore_file, file) for file in wanted]:
            done.result()
    for name, data in parts.items():
        if name.startswith(("offsets/", "commits/")) or name == "metadata":
            directory._write(name, data)
    directory.logs.restored(compact_interval)
    return directory


def _write_rebased(path: str, data: bytes, old_root: str, new_root: str) -> None:
    """Write transformWithState's metadata, which names its schema files by absolute path, for the new place."""
    with open(path, "wb") as file:
        file.write(data.replace(old_root.encode(), new_root.encode()))


def _link_verified(file: StateFile, target: str, directories: list[str]) -> bool:
    for directory in directories:
        source = os.path.join(directory, file.path)
        with contextlib.suppress(OSError):
            if os.path.getsize(source) == file.size and hashlib.sha256(_mapped(source)).hexdigest() == file.sha256:
                os.link(source, target)
                return True
    return False


def check_parts(parts: dict[str, bytes], batch: int) -> None:
    """Refuse a progress record that lacks what a restart needs."""
    missing = [name for name in ("metadata", f"offsets/{batch}", f"commits/{batch}") if name not in parts]
    if missing:
        raise CorruptCheckpoint(f"the progress record of batch {batch} lacks {', '.join(missing)}")


def _incomplete(path: str, batch: int, missing: Sequence[str]) -> PipelineError:
    more = f" (and {len(missing) - 3} more)" if len(missing) > 3 else ""
    return PipelineError(
        f"epoch {batch + 1} is not sealed, because {path} does not hold all that a start from it would need: "
        f"{'; '.join(missing[:3])}{more}. Something removes files there, or they are written on another disk. "
        "The next start rebuilds the directory from the newest checkpoint"
    )


def _mapped(path: str) -> Buffer:
    """Lend a file's bytes without reading them into memory."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _entries(text: bytes) -> bytes:
    return b"\n".join(text.split(b"\n")[1:])
