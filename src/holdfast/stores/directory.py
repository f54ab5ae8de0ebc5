"""A store in a directory tree.

    checkpoints/checkpoint_000042/manifest.json
    checkpoints/checkpoint_000042/state.bin
    checkpoints/retained/state-000040.bin     sidecar of a removed checkpoint that another one needs
    checkpoints/latest.txt                    a hint
    checkpoints/.staging/<attempt>/           a checkpoint being written, or one being removed
    checkpoints/.lock                         held for a moment around every change but the seal
    history/<name>                            segments of history; nothing else depends on them
    <name>.json                               documents, replaced under the lock

A checkpoint is written into a staging directory of its own, flushed, and renamed into place as a whole: the
rename is the seal. It fails when the name is taken, because a directory that is not empty cannot be replaced.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence

from holdfast.clock import new_token
from holdfast.core.buffers import Buffer
from holdfast.core.names import checkpoint_id_of, checkpoint_name, sidecar_id_of, sidecar_name
from holdfast.errors import StoreConfigurationError, TransientStoreError, UnsupportedStore
from holdfast.stores import durable
from holdfast.stores.disk import Disk, NewFile
from holdfast.stores.medium import AlreadySealed, Staged, VersionChanged, Versioned

_MANIFEST = "manifest.json"
_SIDECAR = "state.bin"
_TEMPORARY = ".tmp"


class DirectoryMedium:
    """Checkpoints as directories, with every write flushed in an order that survives a power loss."""

    def __init__(self, base: str, disk: Disk) -> None:
        self._base = base
        self._disk = disk
        self._root = os.path.join(base, "checkpoints")
        self._retained = os.path.join(self._root, "retained")
        self._staging = os.path.join(self._root, ".staging")
        self._lock = os.path.join(self._root, ".lock")
        self._pointer = os.path.join(self._root, "latest.txt")
        self._history = os.path.join(base, "history")
        self._held: dict[str, list[NewFile]] = {}

    def describe(self) -> str:
        """Return the path."""
        return self._base

    def prepare(self) -> None:
        """Create the directories and prove that a rename does not replace a checkpoint."""
        with _translated(f"cannot use {self._base} as a store"):
            for path in (self._base, self._root, self._retained, self._staging):
                self._make_directories(path)
            self._flush_path()
            self._probe()

    def refuse_unwritable(self) -> None:
        """Raise what `prepare` would raise where nothing can be written, as far as that shows without writing."""
        with _translated(f"cannot use {self._base} as a store"):
            durable.refuse_unwritable(self._root)

    def _make_directories(self, path: str) -> None:
        if self._disk.exists(path):
            return
        parent = os.path.dirname(path) or "."
        self._make_directories(parent)
        with contextlib.suppress(FileExistsError):
            self._disk.make_directory(path)
        self._disk.sync_directory(parent)

    def _flush_path(self) -> None:
        """Flush every name on the way here: a process that made one of them may have died before it could."""
        self._disk.sync_directory(self._root)
        self._disk.sync_directory(self._base)
        path = self._base
        while (parent := os.path.dirname(path)) not in ("", path):
            with contextlib.suppress(OSError):  # Above the store there may be what nobody lets us flush.
                self._disk.sync_directory(parent)
            path = parent

    def _probe(self) -> None:
        first, second = (os.path.join(self._staging, new_token()) for _ in range(2))
        with self._disk.locked(self._lock):
            for directory in (first, second):
                self._disk.make_directory(directory)
                self._disk.create(os.path.join(directory, "probe")).close()
            try:
                self._disk.rename(first, second)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                raise UnsupportedStore(
                    f"{self._base}: this filesystem lets a rename replace a directory that is not empty, "
                    "so a checkpoint could be overwritten; use another filesystem"
                )
            finally:
                self._delete_directory(first)
                self._delete_directory(second)

    def stage(self, checkpoint_id: int, chunks: Iterable[Buffer] | None, total: int) -> Staged:
        """Write the sidecar into a fresh staging directory."""
        attempt = new_token()
        with _translated(f"cannot write checkpoint {checkpoint_id}"):
            if chunks is not None and self._disk.exists(self._checkpoint(checkpoint_id)):
                raise AlreadySealed
            file = self._held_file(attempt, _MANIFEST if chunks is None else _SIDECAR)
            try:
                if chunks is not None:
                    for chunk in chunks:
                        file.write(chunk)
                    file.sync()
            except BaseException:
                self._abandon(attempt)
                raise
        name = None if chunks is None else sidecar_name(checkpoint_id)
        return Staged(checkpoint_id, name, attempt)

    def _held_file(self, attempt: str, name: str) -> NewFile:
        """Begin a file in a staging directory; under the lock, or it might be swept away before it is held."""
        directory = os.path.join(self._staging, attempt)
        with self._disk.locked(self._lock):
            self._disk.make_directory(directory)
            file = self._disk.create(os.path.join(directory, name))
            self._held[attempt] = [file]
        return file

    def seal(self, staged: Staged, manifest: bytes) -> None:
        """Write the manifest beside the sidecar, flush both names, rename the directory into place, flush that."""
        directory = os.path.join(self._staging, staged.attempt)
        target = self._checkpoint(staged.checkpoint_id)
        with _translated(f"cannot seal checkpoint {staged.checkpoint_id}"):
            try:
                if staged.sidecar is not None:
                    self._held[staged.attempt].append(self._disk.create(os.path.join(directory, _MANIFEST)))
                file = self._held[staged.attempt][-1]
                file.write(manifest)
                file.sync()
                self._disk.sync_directory(directory)
                self._publish(directory, target, alone=staged.sidecar is None)
                self._disk.sync_directory(self._root)
            finally:
                self._abandon(staged.attempt)

    def _publish(self, directory: str, target: str, *, alone: bool) -> None:
        try:
            self._disk.rename(directory, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            if not alone:
                raise AlreadySealed from None
            # The sidecar was stored on its own before: the manifest joins it, once.
            try:
                self._disk.link(os.path.join(directory, _MANIFEST), os.path.join(target, _MANIFEST))
            except (FileExistsError, FileNotFoundError):
                raise AlreadySealed from None  # Or it was a moment ago, and whoever did it has pruned it since.
            self._disk.sync_directory(target)

    def confirm(self, checkpoint_id: int) -> None:
        """Flush the names again."""
        with _translated(f"cannot flush checkpoint {checkpoint_id}"):
            self._disk.sync_directory(self._checkpoint(checkpoint_id))
            self._disk.sync_directory(self._root)

    def discard(self, staged: Staged) -> None:
        """Remove the staging directory."""
        with _translated("cannot remove a staged checkpoint"):
            self._abandon(staged.attempt)

    def _abandon(self, attempt: str) -> None:
        directory = os.path.join(self._staging, attempt)
        if attempt in self._held and self._disk.exists(directory):
            self._delete_directory(directory)
        for file in self._held.pop(attempt, []):
            file.close()

    def create_sidecar(self, checkpoint_id: int, chunks: Sequence[Buffer], total: int) -> None:
        """Rename a staged directory that holds only a sidecar into place."""
        staged = self.stage(checkpoint_id, chunks, total)
        directory = os.path.join(self._staging, staged.attempt)
        with _translated(f"cannot store the state of checkpoint {checkpoint_id}"):
            try:
                self._disk.sync_directory(directory)
                self._publish(directory, self._checkpoint(checkpoint_id), alone=False)
                self._disk.sync_directory(self._root)
            finally:
                self._abandon(staged.attempt)

    def put_sidecar(self, name: str, chunks: Iterable[Buffer], total: int) -> None:
        """Write and flush it aside, rename it into retained/, flush that."""
        attempt = new_token()
        with _translated(f"cannot write {name}"):
            file = self._held_file(attempt, _SIDECAR)
            try:
                for chunk in chunks:
                    file.write(chunk)
                file.sync()
                aside = os.path.join(self._staging, attempt, _SIDECAR)
                self._disk.rename(aside, os.path.join(self._retained, name))
                self._disk.sync_directory(self._retained)
            finally:
                self._abandon(attempt)

    def ids(self) -> list[int]:
        """List the checkpoint directories. One without a manifest is damage, and its id is taken all the same."""
        with _translated(f"cannot list {self._base}"):
            try:
                entries = self._disk.entries(self._root)
            except FileNotFoundError:
                return []
        found = (checkpoint_id_of(entry.name) for entry in entries if entry.is_directory)
        return sorted(id for id in found if id is not None)

    def read_manifest(self, checkpoint_id: int) -> Versioned | None:
        """Read manifest.json; its version is its digest."""
        with _translated(f"cannot read the manifest of checkpoint {checkpoint_id}"):
            try:
                data = self._disk.read(os.path.join(self._checkpoint(checkpoint_id), _MANIFEST))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return Versioned(data, hashlib.sha256(data).hexdigest())

    def replace_manifest(self, checkpoint_id: int, manifest: bytes, version: str) -> None:
        """Compare and replace under the lock; the rename is what readers see."""
        path = os.path.join(self._checkpoint(checkpoint_id), _MANIFEST)
        with (
            _translated(f"cannot update checkpoint {checkpoint_id}"),
            self._disk.locked(self._lock),
        ):
            current = self.read_manifest(checkpoint_id)
            if current is None or current.version != version:
                raise VersionChanged
            self._replace(path, manifest, flush=True)
            self._disk.sync_directory(os.path.dirname(path))

    def _replace(self, path: str, data: bytes, *, flush: bool) -> None:
        temporary = path + _TEMPORARY
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(temporary)
        file = self._disk.create(temporary)
        try:
            file.write(data)
            if flush:
                file.sync()
        finally:
            file.close()
        self._disk.rename(temporary, path)

    def read_pointer(self) -> int | None:
        """Read latest.txt: the name of a checkpoint directory."""
        with _translated("cannot read latest.txt"):
            try:
                text = self._disk.read(self._pointer)
            except (FileNotFoundError, IsADirectoryError):
                return None
        return checkpoint_id_of(text.decode(errors="replace").strip())

    def advance_pointer(self, checkpoint_id: int) -> int | None:
        """Replace latest.txt under the lock. Not flushed: it is a hint, and a lost or torn one is survived."""
        with _translated("cannot write latest.txt"), self._disk.locked(self._lock):
            current = self.read_pointer()
            if current is not None and current >= checkpoint_id:
                return current
            self._replace(self._pointer, checkpoint_name(checkpoint_id).encode(), flush=False)
            return current

    def sidecars(self) -> dict[str, int]:
        """Look into every checkpoint directory and into retained/."""
        places = {sidecar_name(id): os.path.join(self._checkpoint(id), _SIDECAR) for id in self.ids()}
        with _translated(f"cannot list {self._base}"):
            with contextlib.suppress(FileNotFoundError):
                places |= {
                    entry.name: os.path.join(self._retained, entry.name)
                    for entry in self._disk.entries(self._retained)
                    if sidecar_id_of(entry.name) is not None
                }
            sizes = {}
            for name, path in places.items():
                with contextlib.suppress(FileNotFoundError):
                    sizes[name] = self._disk.size(path)
        return sizes

    def sidecar_size(self, name: str) -> int | None:
        """Look in both places a sidecar can be."""
        for path in self._places(name):
            with (
                _translated(f"cannot read {name}"),
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
            ):
                return self._disk.size(path)
        return None

    def read_sidecar(self, name: str, offset: int, length: int) -> bytes | None:
        """Read from whichever of the two places has it."""
        for path in self._places(name):
            with (
                _translated(f"cannot read {name}"),
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
            ):
                return self._disk.read_range(path, offset, length)
        return None

    def _places(self, name: str) -> list[str]:
        checkpoint_id = sidecar_id_of(name)
        if checkpoint_id is None:
            return []
        # retained/ comes first and last: a sidecar may move there between the two looks.
        retained = os.path.join(self._retained, name)
        return [retained, os.path.join(self._checkpoint(checkpoint_id), _SIDECAR), retained]

    def remove_checkpoint(self, checkpoint_id: int, version: str | None, keep_sidecars: frozenset[str]) -> None:
        """Give a needed sidecar its second name first, then take the directory out of sight, then delete it."""
        directory = self._checkpoint(checkpoint_id)
        doomed = os.path.join(self._staging, new_token())
        name = sidecar_name(checkpoint_id)
        with _translated(f"cannot remove checkpoint {checkpoint_id}"), self._disk.locked(self._lock):
            current = self.read_manifest(checkpoint_id)
            if (current and current.version) != version:
                raise VersionChanged
            if name in keep_sidecars and self._disk.exists(os.path.join(directory, _SIDECAR)):
                with contextlib.suppress(FileExistsError):
                    self._disk.link(os.path.join(directory, _SIDECAR), os.path.join(self._retained, name))
                self._disk.sync_directory(self._retained)
            with contextlib.suppress(FileNotFoundError):
                self._disk.rename(directory, doomed)
                self._disk.sync_directory(self._root)
                self._delete_directory(doomed)

    def remove_sidecar(self, name: str) -> bool:
        """Delete from retained/; a sidecar beside a manifest goes with its checkpoint."""
        with _translated(f"cannot remove {name}"):
            try:
                self._disk.unlink(os.path.join(self._retained, name))
            except FileNotFoundError:
                return False
        return True

    def sweep(self) -> int:
        """Delete staging directories nobody holds, temporary files, and empty checkpoint directories."""
        removed = 0
        with _translated(f"cannot clean up {self._base}"), self._disk.locked(self._lock):
            for entry in self._entries(self._staging):
                path = os.path.join(self._staging, entry)
                if not self._is_held(path):
                    removed += self._delete_directory(path)
            removed += self._sweep_temporaries(self._root) + self._sweep_temporaries(self._history)
            for id in self.ids():
                directory = self._checkpoint(id)
                removed += self._sweep_temporaries(directory)
                if not self._entries(directory):
                    removed += self._remove_empty(directory)
        return removed

    def _sweep_temporaries(self, directory: str) -> int:
        """Delete temporary files that nobody holds: a segment is written without the lock."""
        names = (name for name in self._entries(directory) if name.endswith(_TEMPORARY))
        dead = [path for name in names if not self._disk.is_held(path := os.path.join(directory, name))]
        for path in dead:
            self._disk.unlink(path)
        return len(dead)

    def _is_held(self, directory: str) -> bool:
        return any(self._disk.is_held(os.path.join(directory, name)) for name in self._entries(directory))

    def _entries(self, directory: str) -> list[str]:
        try:
            return sorted(entry.name for entry in self._disk.entries(directory))
        except FileNotFoundError:
            return []

    def _delete_directory(self, directory: str) -> bool:
        for name in self._entries(directory):
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(os.path.join(directory, name))
        return self._remove_empty(directory)

    def _remove_empty(self, directory: str) -> bool:
        """Remove an empty directory; False when a writer was quicker: it renamed it away, removed it or filled it."""
        try:
            self._disk.remove_directory(directory)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True

    def read_document(self, name: str) -> Versioned | None:
        """Read a file beside checkpoints/; its version is its digest."""
        with _translated(f"cannot read {name}"):
            try:
                data = self._disk.read(os.path.join(self._base, name))
            except FileNotFoundError:
                return None
        return Versioned(data, hashlib.sha256(data).hexdigest())

    def write_document(self, name: str, data: bytes, version: str | None) -> None:
        """Compare and replace under the lock."""
        with _translated(f"cannot write {name}"), self._disk.locked(self._lock):
            current = self.read_document(name)
            if (current and current.version) != version:
                raise VersionChanged
            self._replace(os.path.join(self._base, name), data, flush=True)
            self._disk.sync_directory(self._base)

    def write_segment(self, name: str, data: bytes, *, durable: bool) -> None:
        """Write under a name of this attempt alone, and rename into place; no lock that an epoch could wait for."""
        path = os.path.join(self._history, name)
        temporary = f"{path}.{new_token()}{_TEMPORARY}"
        with _translated(f"cannot write {name}"):
            if not self._disk.exists(self._history):
                with contextlib.suppress(FileExistsError):
                    self._disk.make_directory(self._history)
            file = self._disk.create(temporary)
            try:
                file.write(data)
                if durable:
                    file.sync()
                self._disk.rename(temporary, path)  # Still held, so that no sweep takes it for a dead writer's.
            except OSError:
                with contextlib.suppress(OSError):
                    self._disk.unlink(temporary)
                raise
            finally:
                file.close()
            if durable:
                self._disk.sync_directory(self._history)
                self._disk.sync_directory(self._base)

    def segments(self) -> dict[str, int]:
        """List history/, without what is being written."""
        sizes = {}
        with _translated(f"cannot list the history of {self._base}"):
            for name in self._entries(self._history):
                if not name.endswith(_TEMPORARY):
                    with contextlib.suppress(FileNotFoundError):  # Merged with others a moment ago.
                        sizes[name] = self._disk.size(os.path.join(self._history, name))
        return sizes

    def read_segment(self, name: str) -> bytes | None:
        """Read a whole file."""
        with _translated(f"cannot read {name}"):
            try:
                return self._disk.read(os.path.join(self._history, name))
            except FileNotFoundError:
                return None

    def remove_segment(self, name: str) -> None:
        """Delete a file."""
        with _translated(f"cannot remove {name}"), contextlib.suppress(FileNotFoundError):
            self._disk.unlink(os.path.join(self._history, name))

    def _checkpoint(self, checkpoint_id: int) -> str:
        return os.path.join(self._root, checkpoint_name(checkpoint_id))


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn what the operating system says into what the caller can do about it."""
    try:
        yield
    except (PermissionError, NotADirectoryError, IsADirectoryError) as error:
        raise StoreConfigurationError(f"{what}: {error.strerror}: {error.filename}") from error
    except OSError as error:
        raise TransientStoreError(f"{what}: {error.strerror or error}") from error
