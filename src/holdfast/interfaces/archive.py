"""A checkpoint outside a store: as one file, or as a directory that another system wrote.

The file is a plain tar with `manifest.json` and, if the checkpoint has a sidecar, `state.bin`: unpacked, it is a
checkpoint directory. What the checkpoint needs beside it stands below `materials/`, and `materials.json` says what
that is; what it still has to replay stands below `replays/`. It needs nothing else, and every byte in it is covered
by a checksum.
"""

import contextlib
import io
import mmap
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, cast

from holdfast.clock import new_token
from holdfast.core.buffers import Buffer
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.validation import ValidationResult
from holdfast.errors import CorruptCheckpoint, InvalidRequest, TransientStoreError
from holdfast.interfaces import carried_replays
from holdfast.stores import durable
from holdfast.stores.medium import Medium, Versioned
from holdfast.stores.verification import ByteProgress, Verifier

MANIFEST_MEMBER = "manifest.json"
STATE_MEMBER = "state.bin"
INDEX_MEMBER = "materials.json"
FILES_FOLDER = "materials/"
_LARGEST_MANIFEST = 1 << 30
_LARGEST_TAR_TIME = 8**11 - 1
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Package:
    """What stands in an archive or a checkpoint directory, not yet trusted. `state` is mapped, not read."""

    source: str
    manifest_bytes: bytes
    state: memoryview | None
    from_archive: bool
    index: bytes | None = None
    files: Mapping[str, memoryview] = field(default_factory=dict)
    """What the checkpoint needs beside it, by name, and what the archive says of that."""
    replays: Mapping[str, memoryview] = field(default_factory=dict)
    """What it still has to replay, by name."""


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what the operating system says about a person's file into an error that says what to do."""
    try:
        yield
    except FileNotFoundError as error:
        raise InvalidRequest(f"{what}: there is no {error.filename}") from None
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise InvalidRequest(f"{what}: {error.strerror}: {error.filename}") from None
    except OSError as error:
        raise TransientStoreError(f"{what}: {error.strerror or error}") from None


# Writing


def write_archive(
    path: str,
    manifest: CheckpointManifest,
    chunks: Sequence[Buffer] | None,
    files: Mapping[str, str],
    index: bytes,
    replays: Mapping[str, bytes],
) -> int:
    """Write an archive under a temporary name, flush it, and give it its name; return its size.

    `files` are local ones, by the name that they get below `materials/`; `index` stands beside them. `replays` are
    short ones, by the name that they get below `replays/`.
    """
    directory = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(directory, f".{os.path.basename(path)}.{new_token()}.tmp")
    with translated(f"cannot write {path}"):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with open(descriptor, "wb") as file:
                _write_members(file, manifest, chunks, files, index, replays)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            os.replace(temporary, path)
            durable.sync_file(directory)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    return size


def _write_members(
    file: BinaryIO,
    manifest: CheckpointManifest,
    chunks: Sequence[Buffer] | None,
    files: Mapping[str, str],
    index: bytes,
    replays: Mapping[str, bytes],
) -> None:
    modified = min(manifest.timestamp_ms // 1000, _LARGEST_TAR_TIME)
    document = manifest.to_json().encode()
    with tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_COPY_BYTES) as tar:
        tar.addfile(_member(MANIFEST_MEMBER, len(document), modified), io.BytesIO(document))
        if chunks is not None:
            total = sum(memoryview(chunk).nbytes for chunk in chunks)
            tar.addfile(_member(STATE_MEMBER, total, modified), cast(BinaryIO, _ChunkReader(chunks)))
        for name, data in replays.items():
            tar.addfile(_member(carried_replays.FOLDER + name, len(data), modified), io.BytesIO(data))
        if files:
            tar.addfile(_member(INDEX_MEMBER, len(index), modified), io.BytesIO(index))
        for name, path in files.items():
            with open(path, "rb") as content:
                tar.addfile(_member(FILES_FOLDER + name, os.stat(path).st_size, modified), content)


def _member(name: str, size: int, modified: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, modified, 0o644
    return member


class _ChunkReader:
    """Reads a sequence of buffers as one file, without joining them."""

    def __init__(self, chunks: Sequence[Buffer]) -> None:
        self._rest = [memoryview(chunk).cast("B") for chunk in reversed(chunks)]

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and self._rest:
            chunk = self._rest.pop()
            parts.append(bytes(chunk[:size]))
            if len(chunk) > size:
                self._rest.append(chunk[size:])
            size -= len(parts[-1])
        return b"".join(parts)


# Reading


def open_package(path: str) -> Package:
    """Open an archive or a checkpoint directory. Nothing is verified yet."""
    with translated(f"cannot read {path}"):
        return _open_directory(path) if os.path.isdir(path) else _open_archive(path)


def _open_directory(path: str) -> Package:
    if os.path.isdir(os.path.join(path, "checkpoints")):
        raise InvalidRequest(f"{path} is a store, not a checkpoint: name one of the directories in its checkpoints/")
    try:
        with open(os.path.join(path, MANIFEST_MEMBER), "rb") as file:
            manifest = file.read()
    except FileNotFoundError:
        raise InvalidRequest(f"{path} is not a checkpoint: it has no {MANIFEST_MEMBER}") from None
    try:
        with open(os.path.join(path, STATE_MEMBER), "rb") as file:
            state = map_file(file)
    except FileNotFoundError:
        state = None
    return Package(path, manifest, state, from_archive=False)


def _open_archive(path: str) -> Package:
    with open(path, "rb") as file:
        members = _members(path, file)
        content = map_file(file)
    if MANIFEST_MEMBER not in members:
        raise InvalidRequest(f"{path} is not a checkpoint archive: it has no {MANIFEST_MEMBER}")
    for name, member in members.items():
        if member.offset_data + member.size > len(content):
            raise CorruptCheckpoint(f"{path} is cut off in the middle of {name}; export the checkpoint again")
    parts = {name: content[member.offset_data :][: member.size] for name, member in members.items()}
    index = parts.get(INDEX_MEMBER)
    beside = [name for name in parts if name.startswith(FILES_FOLDER)]
    return Package(
        path,
        bytes(parts[MANIFEST_MEMBER]),
        parts.get(STATE_MEMBER),
        from_archive=True,
        index=None if index is None else bytes(index),
        files={name.removeprefix(FILES_FOLDER): parts[name] for name in beside},
        replays={
            name.removeprefix(carried_replays.FOLDER): part
            for name, part in parts.items()
            if name.startswith(carried_replays.FOLDER)
        },
    )


def _members(path: str, file: BinaryIO) -> dict[str, tarfile.TarInfo]:
    """Return the members of an archive; one that does not belong there means that it is no archive of ours."""
    found: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not _belongs(member.name) or not _is_plain_file(member):
                    raise InvalidRequest(f"{path} is not a checkpoint archive: it contains '{member.name}'")
                if member.name in found:
                    raise CorruptCheckpoint(f"{path} contains {member.name} twice")
                found[member.name] = member
    except tarfile.TarError as error:
        raise InvalidRequest(f"{path} is not a checkpoint archive ({error}); 'holdfast export' writes one") from None
    for name in (MANIFEST_MEMBER, INDEX_MEMBER):
        if name in found and found[name].size > _LARGEST_MANIFEST:
            raise InvalidRequest(f"{path}: {name} is too large to be one")
    return found


def _belongs(name: str) -> bool:
    if name.startswith(FILES_FOLDER):
        return not {"", ".", ".."} & set(name.split("/"))
    if name.startswith(carried_replays.FOLDER):
        id, _, file = name.removeprefix(carried_replays.FOLDER).partition("/")
        return re.fullmatch("[1-9][0-9]{0,19}", id) is not None and file in carried_replays.NAMES
    return name in (MANIFEST_MEMBER, STATE_MEMBER, INDEX_MEMBER)


def _is_plain_file(member: tarfile.TarInfo) -> bool:
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()


def map_file(file: BinaryIO) -> memoryview:
    """Return a file's content as memory that the system reads when it is looked at; it outlives the file object."""
    if os.fstat(file.fileno()).st_size == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


# Judging


def verify_package(
    manifest: CheckpointManifest, state: memoryview | None, on_bytes: ByteProgress
) -> ValidationResult:
    """Judge a checkpoint outside a store by the same rules as one inside: every byte it depends on is read."""
    # The verifier only reads, so a medium that can do nothing else is enough.
    medium = cast(Medium, _PackageMedium(manifest, state))
    return Verifier(medium, manifest.vnode_count).check(manifest.checkpoint_id, digests=True, on_bytes=on_bytes)


class _PackageMedium:
    """One checkpoint, as if it stood in a store."""

    def __init__(self, manifest: CheckpointManifest, state: memoryview | None) -> None:
        self._manifest = manifest
        self._state = state

    def read_manifest(self, checkpoint_id: int) -> Versioned | None:
        return Versioned(self._manifest.to_json().encode(), "")

    def sidecar_size(self, name: str) -> int | None:
        return None if self._state is None or name != self._manifest.sidecar else len(self._state)

    def read_sidecar(self, name: str, offset: int, length: int) -> bytes | None:
        if self._state is None or name != self._manifest.sidecar:
            return None
        return bytes(self._state[offset : offset + length])
