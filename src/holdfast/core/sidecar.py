"""The incremental sidecar: one object per checkpoint that holds only bytes no earlier checkpoint holds.

    state.bin = progress chunk | operator chunk | operator chunk | ...
    operator chunk = index frame | new bytes, one file after the other

The index lists every file of the operator: path, size, SHA-256, and where its bytes are: in this chunk (an
offset behind the index) or in an earlier sidecar (its name and an absolute offset). A checkpoint can therefore
be read with its own sidecar and the ones its indexes name, and nothing else. An operator small enough to be
inlined carries its chunk, with all its bytes, in the manifest.

This module is the format and the decision what to write; reading and writing are the store's.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core import canonical_json
from holdfast.core.buffers import Buffer
from holdfast.core.entries import OperatorCheckpoint
from holdfast.core.frames import FRAME_HEADER_LENGTH, decode_frame, encode_frame
from holdfast.core.names import sidecar_id_of
from holdfast.errors import DeserializationError

INDEX_MAGIC = b"HFIX"
INDEX_VERSION = 1
PROGRESS_OPERATOR = "holdfast.progress"


@dataclass(frozen=True)
class Location:
    """Where bytes stand: a sidecar's name and the offset in it."""

    sidecar: str
    offset: int


@dataclass(frozen=True)
class StateFile:
    """One file of an operator's state in a sealed checkpoint.

    `location` is None for a file whose operator is inlined: its bytes are `inline`.
    """

    operator: str
    path: str
    size: int
    sha256: str
    location: Location | None
    inline: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class CapturedFile:
    """One file of an operator's state that is to be sealed; `open` lends its bytes, and is called only if new."""

    path: str
    size: int
    sha256: str
    open: Callable[[], Buffer] = field(repr=False)


@dataclass(frozen=True)
class StateCatalog:
    """Every file of a sealed checkpoint and where its bytes are: what the next checkpoint builds on."""

    files: tuple[StateFile, ...] = ()

    def locations(self) -> dict[tuple[str, int], Location]:
        """Return where bytes with a given digest and size already stand."""
        return {(file.sha256, file.size): file.location for file in self.files if file.location is not None}

    def live_bytes(self) -> dict[str, int]:
        """Return, for each sidecar, how many of its bytes this checkpoint still uses."""
        live: dict[str, int] = {}
        for (_, size), location in self.locations().items():
            live[location.sidecar] = live.get(location.sidecar, 0) + size
        return live


@dataclass(frozen=True)
class BuiltSidecar:
    """The outcome of `build_sidecar`: what to write, and what the manifest says about it."""

    chunks: tuple[Buffer, ...]
    operator_states: dict[str, OperatorCheckpoint]
    batches: tuple[str, ...]
    new_bytes: int
    moved_bytes: int
    _files: tuple[StateFile, ...] = field(repr=False)

    def catalog(self, own_name: str) -> StateCatalog:
        """Return the catalog of the checkpoint, once the store has said under which name the sidecar went in."""
        return StateCatalog(tuple(_resolve(file, own_name) for file in self._files))


_HERE = ""  # stands for the sidecar being built, whose name only the store knows


def build_sidecar(
    progress: Buffer,
    operators: Mapping[str, Sequence[CapturedFile]],
    *,
    base: StateCatalog | None = None,
    move: Mapping[StateFile, Buffer] | None = None,
    inline_threshold: int = 4096,
) -> BuiltSidecar:
    """Lay out the sidecar of one checkpoint.

    `base` is the catalog of the newest sealed checkpoint: only bytes reachable from it are cited, because that is
    the one checkpoint that pruning always keeps. `move` holds files (with their bytes) that are written again here
    although `base` has them, to empty the sidecars they stand in.
    """
    moved = {(file.sha256, file.size): data for file, data in (move or {}).items()}
    known = {key: where for key, where in (base.locations() if base else {}).items() if key not in moved}
    layout = _Layout(progress)
    for name in sorted(operators):
        files = sorted(operators[name], key=lambda file: file.path)
        if sum(file.size for file in files) <= inline_threshold:
            layout.add_inline(name, files)
        else:
            layout.add_external(name, files, known, moved)
    return layout.finish()


class _Layout:
    """Collects chunks in the order they are written."""

    def __init__(self, progress: Buffer) -> None:
        length = memoryview(progress).nbytes
        self._chunks: list[Buffer] = [progress]
        self._states = {PROGRESS_OPERATOR: OperatorCheckpoint.external(0, length)}
        self._files: list[StateFile] = []
        self._position = length
        self._new = self._moved = 0

    def add_inline(self, operator: str, files: Sequence[CapturedFile]) -> None:
        contents = [bytes(_checked(file, file.open())) for file in files]
        entries, offset = [], 0
        for file in files:
            entries.append((file, None, offset))
            offset += file.size
        self._states[operator] = OperatorCheckpoint.inline(_index(entries) + b"".join(contents))
        self._files += [
            StateFile(operator, file.path, file.size, file.sha256, None, data)
            for file, data in zip(files, contents, strict=True)
        ]

    def add_external(
        self,
        operator: str,
        files: Sequence[CapturedFile],
        known: Mapping[tuple[str, int], Location],
        moved: Mapping[tuple[str, int], Buffer],
    ) -> None:
        entries: list[tuple[CapturedFile, str | None, int]] = []
        written: list[Buffer] = []
        here: dict[tuple[str, int], int] = {}
        offset = 0
        for file in files:
            key = (file.sha256, file.size)
            if key in known:
                entries.append((file, known[key].sidecar, known[key].offset))
                continue
            if key in here:
                entries.append((file, None, here[key]))
                continue
            entries.append((file, None, offset))
            here[key] = offset
            written.append(_checked(file, moved[key] if key in moved else file.open()))
            offset += file.size
            self._new += 0 if key in moved else file.size
            self._moved += file.size if key in moved else 0
        index = _index(entries)
        data_start = self._position + len(index)
        self._states[operator] = OperatorCheckpoint.external(self._position, len(index) + offset)
        self._chunks += [index, *written]
        self._position = data_start + offset
        self._files += [
            StateFile(operator, file.path, file.size, file.sha256, _place(sidecar, position, data_start))
            for file, sidecar, position in entries
        ]

    def finish(self) -> BuiltSidecar:
        batches = {f.location.sidecar for f in self._files if f.location is not None} - {_HERE}
        return BuiltSidecar(
            chunks=tuple(self._chunks),
            operator_states=self._states,
            batches=tuple(sorted(batches)),
            new_bytes=self._new,
            moved_bytes=self._moved,
            _files=tuple(self._files),
        )


def _place(sidecar: str | None, position: int, data_start: int) -> Location:
    return Location(_HERE, data_start + position) if sidecar is None else Location(sidecar, position)


def _resolve(file: StateFile, own_name: str) -> StateFile:
    if file.location is None or file.location.sidecar != _HERE:
        return file
    return replace(file, location=Location(own_name, file.location.offset))


def _checked(file: CapturedFile, data: Buffer) -> Buffer:
    found = memoryview(data).nbytes
    if found != file.size:
        raise ValueError(f"{file.path} has {found} bytes, was announced with {file.size}")
    return data


def _index(entries: Iterable[tuple[CapturedFile, str | None, int]]) -> bytes:
    rows = [[file.path, file.size, file.sha256, sidecar, offset] for file, sidecar, offset in entries]
    return encode_frame(INDEX_MAGIC, INDEX_VERSION, canonical_json.compact({"files": rows}))


def decode_chunk(operator: str, chunk: Buffer, own_name: str | None, chunk_offset: int) -> list[StateFile]:
    """Return the files that an operator chunk lists. Only the index frame at the chunk's start is read.

    `own_name` and `chunk_offset` say where the chunk itself stands; None for an inlined one, which must be whole.
    """
    frame = decode_frame(chunk, INDEX_MAGIC)
    if frame.version != INDEX_VERSION:
        raise DeserializationError(f"sidecar index version {frame.version} is not known", 4)
    try:
        return [
            _decode_row(operator, row, chunk, own_name, chunk_offset + frame.length, frame.length)
            for row in json.loads(bytes(frame.payload))["files"]
        ]
    except (LookupError, TypeError, ValueError) as error:
        raise DeserializationError(f"sidecar index is malformed: {error}", FRAME_HEADER_LENGTH) from error


def _decode_row(
    operator: str, row: list[object], chunk: Buffer, own_name: str | None, data_start: int, index_length: int
) -> StateFile:
    path, sha256, sidecar = str(row[0]), str(row[2]), row[3]
    size, offset = int(str(row[1])), int(str(row[4]))
    if own_name is None:
        start = index_length + offset
        return StateFile(operator, path, size, sha256, None, bytes(memoryview(chunk)[start : start + size]))
    if sidecar is None:
        return StateFile(operator, path, size, sha256, Location(own_name, data_start + offset))
    return StateFile(operator, path, size, sha256, Location(str(sidecar), offset))


@dataclass
class Mover:
    """Decides which live bytes to write again, so that old sidecars become free, a little per checkpoint.

    Each checkpoint earns credit for the bytes it writes anyway, so moving at most doubles what is written. Bytes
    leave the oldest sidecar once it is `chain_length` ids old, whatever else there is to do: after a while every
    byte has moved, and the newest checkpoint shares no sidecar with those from before. While none is that old,
    they leave the emptiest one that is less than half full. At most `limit_bytes` move at once, or a single larger
    file for which credit was saved up.
    """

    limit_bytes: int = 64 * 1024 * 1024
    half_empty: float = 0.5
    chain_length: int = 32
    _credit: int = 0

    def choose(
        self, files: Iterable[StateFile], live: Mapping[str, int], sizes: Mapping[str, int], new_bytes: int
    ) -> list[StateFile]:
        """Return the files to move with this checkpoint, which writes `new_bytes` of its own.

        `files` are those that stay alive, `live` their bytes per sidecar, `sizes` the full size of each sidecar,
        the newest among them: age is counted from it.
        """
        source = self._source(live, sizes)
        at_source = {f.location: f for f in files if f.location is not None and f.location.sidecar == source}
        candidates = sorted(at_source.values(), key=lambda file: file.size)
        most = max([self.limit_bytes, *(file.size for file in candidates[-1:])])
        self._credit = min(self._credit + new_bytes, most)
        chosen: list[StateFile] = []
        for file in candidates:
            if file.size <= self._credit:
                self._credit -= file.size
                chosen.append(file)
        return chosen

    def _source(self, live: Mapping[str, int], sizes: Mapping[str, int]) -> str | None:
        if not live:
            return None
        ids = {name: sidecar_id_of(name) or 0 for name in {*live, *sizes}}
        oldest = min(live, key=lambda name: (ids[name], name))
        if max(ids.values()) - ids[oldest] >= self.chain_length:
            return oldest
        fill = {name: used / max(sizes.get(name, used), 1) for name, used in live.items()}
        emptiest = min(fill, key=lambda name: (fill[name], name))
        return emptiest if fill[emptiest] < self.half_empty else None
