"""Reads state out of sidecars, verified; and the progress chunk, even when its manifest is lost."""

import hashlib
from collections.abc import Callable, Iterable, Iterator

from holdfast.core.frames import FRAME_HEADER_LENGTH, frame_length
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_id_of
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import INDEX_MAGIC, PROGRESS_OPERATOR, StateCatalog, StateFile, decode_chunk
from holdfast.core.snapshot_codec import SNAPSHOT_MAGIC
from holdfast.errors import CorruptCheckpoint, DeserializationError
from holdfast.stores.medium import Medium

READ_BYTES = 4 * 1024 * 1024
_GAP_BYTES = 64 * 1024
"""Dead bytes between two files that are read over rather than asked around: a request costs more."""


class StateReader:
    """Finds and reads the files of any checkpoint."""

    def __init__(self, medium: Medium) -> None:
        self._medium = medium

    def catalog(self, manifest: CheckpointManifest) -> StateCatalog:
        """Return every indexed file of a checkpoint; operators saved as plain bytes have none."""
        files: list[StateFile] = []
        for operator, state in sorted(manifest.operator_states.items()):
            if operator == PROGRESS_OPERATOR:
                continue
            if state.external:
                assert manifest.sidecar is not None
                files += self._external_files(
                    operator, manifest.sidecar, state.external_offset, state.external_length
                )
            elif (data := state.decode_inline()) is not None and data[:4] == INDEX_MAGIC:
                files += _decoded(operator, data, None, 0)
        return StateCatalog(tuple(files))

    def _external_files(self, operator: str, sidecar: str, offset: int, length: int) -> list[StateFile]:
        header = self._range(sidecar, offset, min(length, FRAME_HEADER_LENGTH))
        if header[:4] != INDEX_MAGIC:
            return []
        try:
            index = self._range(sidecar, offset, min(length, frame_length(header, INDEX_MAGIC)))
        except DeserializationError as error:
            raise CorruptCheckpoint(f"index of operator '{operator}' in {sidecar}: {error}") from error
        return _decoded(operator, index, sidecar, offset)

    def operator_bytes(self, manifest: CheckpointManifest, operator: str) -> bytes:
        """Return an operator's raw chunk, inline or external."""
        state = manifest.operator_states[operator]
        if state.external:
            assert manifest.sidecar is not None
            return self._range(manifest.sidecar, state.external_offset, state.external_length)
        return state.try_decode_inline() or b""

    def read(self, file: StateFile) -> bytes:
        """Return a file's bytes; CorruptCheckpoint when they are not what was sealed."""
        return b"".join(self.stream(file))

    def stream(self, file: StateFile) -> Iterator[bytes]:
        """Yield a file's bytes in pieces. The digest is compared at the end: use nothing before that."""
        digest = hashlib.sha256()
        for piece in self._pieces(file):
            digest.update(piece)
            yield piece
        if digest.hexdigest() != file.sha256:
            raise CorruptCheckpoint(_mismatch(file, digest.hexdigest()))

    def damaged(
        self,
        files: Iterable[StateFile],
        on_bytes: Callable[[int], None],
        on_sound: Callable[[StateFile], object] = lambda file: None,
    ) -> Iterator[str]:
        """Read every byte of `files` and yield what is not as it was sealed. Neighbours are read together."""
        for neighbours in _neighbours(files):
            try:
                if len(neighbours) == 1:
                    for piece in self.stream(neighbours[0]):
                        on_bytes(len(piece))
                    on_sound(neighbours[0])
                else:
                    yield from self._damaged_together(neighbours, on_bytes, on_sound)
            except CorruptCheckpoint as error:
                yield str(error)

    def _damaged_together(
        self, files: list[StateFile], on_bytes: Callable[[int], None], on_sound: Callable[[StateFile], object]
    ) -> Iterator[str]:
        sidecar, start, _ = _extent(files[0])
        end = max(_extent(file)[2] for file in files)
        data = memoryview(self._range(sidecar, start, end - start))
        for file in files:
            _, file_start, file_end = _extent(file)
            found = hashlib.sha256(data[file_start - start : file_end - start]).hexdigest()
            on_bytes(file.size)
            if found == file.sha256:
                on_sound(file)
            else:
                yield _mismatch(file, found)

    def _pieces(self, file: StateFile) -> Iterator[bytes]:
        if file.location is None:
            yield file.inline or b""
            return
        yield from self.stream_range(file.location.sidecar, file.location.offset, file.size)

    def stream_range(self, sidecar: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield a range of a sidecar in pieces, unverified: compare a checksum before using it."""
        for start in range(0, length, READ_BYTES):
            yield self._range(sidecar, offset + start, min(READ_BYTES, length - start))

    def progress(self, sidecar: str) -> ProgressRecord:
        """Return the progress record at the start of a sidecar."""
        return self._progress(sidecar)[0]

    def progress_bytes(self, sidecar: str) -> bytes:
        """Return the bytes of the progress record at the start of a sidecar, when they are sound."""
        return self._progress(sidecar)[1]

    def _progress(self, sidecar: str) -> tuple[ProgressRecord, bytes]:
        try:
            length = frame_length(self._range(sidecar, 0, FRAME_HEADER_LENGTH), SNAPSHOT_MAGIC)
            data = self._range(sidecar, 0, length)
            return ProgressRecord.from_bytes(data), data
        except DeserializationError as error:
            raise CorruptCheckpoint(f"{sidecar} has no readable progress record: {error}") from error

    def progress_records(self, checkpoint_id: int) -> list[ProgressRecord]:
        """Return what can be read of an id's progress without its manifest: one record per attempt that wrote."""
        records = []
        for name in sorted(self._medium.sidecars()):
            if sidecar_id_of(name) == checkpoint_id:
                try:
                    records.append(self.progress(name))
                except CorruptCheckpoint:
                    continue
        return records

    def _range(self, sidecar: str, offset: int, length: int) -> bytes:
        data = self._medium.read_sidecar(sidecar, offset, length)
        if data is None:
            raise CorruptCheckpoint(f"sidecar {sidecar} not found")
        if len(data) != length:
            raise CorruptCheckpoint(
                f"sidecar {sidecar} is too short: {length} bytes wanted at {offset}, {len(data)} there"
            )
        return data


def _decoded(operator: str, chunk: bytes, sidecar: str | None, offset: int) -> list[StateFile]:
    try:
        return decode_chunk(operator, chunk, sidecar, offset)
    except (DeserializationError, ValueError, AssertionError) as error:
        raise CorruptCheckpoint(f"index of operator '{operator}' is damaged: {error}") from error


def _mismatch(file: StateFile, found: str) -> str:
    return f"{file.operator}/{file.path}: digest mismatch: expected {file.sha256}, got {found}"


def _extent(file: StateFile) -> tuple[str, int, int]:
    """Return sidecar, start and end of a file's bytes; an inlined file stands nowhere."""
    if file.location is None:
        return "", 0, 0
    return file.location.sidecar, file.location.offset, file.location.offset + file.size


def _neighbours(files: Iterable[StateFile]) -> Iterator[list[StateFile]]:
    """Group files that stand close together, at most `READ_BYTES` from first to last byte; larger ones alone."""
    group: list[StateFile] = []
    for file in sorted(files, key=_extent):
        if group and not _fits(file, group):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _fits(file: StateFile, group: list[StateFile]) -> bool:
    sidecar, start, end = _extent(file)
    group_sidecar, group_start, _ = _extent(group[0])
    last_end = _extent(group[-1])[2]
    length = max(end, last_end) - group_start
    return sidecar == group_sidecar != "" and start - last_end <= _GAP_BYTES and length <= READ_BYTES
