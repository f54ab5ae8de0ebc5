"""Reads state out of sidecars, verified; and the progress chunk, even when its manifest is lost."""

import hashlib
from collections.abc import Iterator

from holdfast.core.frames import FRAME_HEADER_LENGTH, frame_length
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_id_of
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import INDEX_MAGIC, PROGRESS_OPERATOR, StateCatalog, StateFile, decode_chunk
from holdfast.core.snapshot_codec import SNAPSHOT_MAGIC
from holdfast.errors import CorruptCheckpoint, DeserializationError
from holdfast.stores.medium import Medium

READ_BYTES = 4 * 1024 * 1024


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
            raise CorruptCheckpoint(
                f"{file.operator}/{file.path}: digest mismatch: expected {file.sha256}, got {digest.hexdigest()}"
            )

    def _pieces(self, file: StateFile) -> Iterator[bytes]:
        if file.location is None:
            yield file.inline or b""
            return
        for start in range(0, file.size, READ_BYTES):
            length = min(READ_BYTES, file.size - start)
            yield self._range(file.location.sidecar, file.location.offset + start, length)

    def progress(self, sidecar: str) -> ProgressRecord:
        """Return the progress record at the start of a sidecar."""
        try:
            length = frame_length(self._range(sidecar, 0, FRAME_HEADER_LENGTH), SNAPSHOT_MAGIC)
            return ProgressRecord.from_bytes(self._range(sidecar, 0, length))
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
