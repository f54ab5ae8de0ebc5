"""The one door through which the filesystem store touches a disk.

Each method is one system call or a short fixed sequence, so that a test can stand in front of the door, count
the steps, and crash before, after or in the middle of any of them (`holdfast.testing`).
"""

import contextlib
import errno
import fcntl
import os
from dataclasses import dataclass
from typing import Protocol

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.buffers import Buffer
from holdfast.stores import locks


@dataclass(frozen=True)
class Entry:
    """One name in a directory."""

    name: str
    is_directory: bool


class NewFile(Protocol):
    """A file being written. It is held, visibly to other processes, until it is closed or its writer dies."""

    def write(self, data: Buffer) -> None:
        """Append all of `data`."""
        ...

    def sync(self) -> None:
        """Make what was written survive a power loss."""
        ...

    def close(self) -> None:
        """Stop holding the file."""
        ...


class Disk(Protocol):
    """What the filesystem store needs of a disk. Errors are OSError, as the system raises them."""

    def create(self, path: str) -> NewFile:
        """Create a file that must not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """Create one directory that must not exist."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Move atomically. Replaces a file; fails on a directory that is not empty."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name that must not exist."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory survive a power loss."""
        ...

    def entries(self, path: str) -> list[Entry]:
        """List a directory."""
        ...

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        ...

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Read up to `length` bytes from `offset`; fewer at the end of the file."""
        ...

    def size(self, path: str) -> int:
        """Return a file's length."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the name is there."""
        ...

    def is_held(self, path: str) -> bool:
        """Whether a living writer still holds the file."""
        ...

    def locked(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Hold an exclusive lock for a moment; released by the system when the process dies.

        Waits for it, but not for ever: then the OSError names who holds it.
        """
        ...


class LocalDisk:
    """A real filesystem."""

    def __init__(self, *, patience: float = locks.PATIENCE_SECONDS, clock: Clock = SYSTEM_CLOCK) -> None:
        self._patience, self._clock = patience, clock

    def create(self, path: str) -> "_LocalFile":
        """Create and hold a new file."""
        file = locks.LockableFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        # The file is new: the only one who can have locked it is somebody asking `is_held`, for a moment.
        if not file.lock(self._patience, self._clock):
            file.close()
            raise OSError(errno.ETIMEDOUT, "somebody else locked a new file", path)
        return _LocalFile(file)

    def make_directory(self, path: str) -> None:
        """Create one directory."""
        os.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        """Move atomically."""
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        """Flush the names in a directory."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entries(self, path: str) -> list[Entry]:
        """List a directory."""
        with os.scandir(path) as found:
            return [Entry(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        with open(path, "rb") as file:
            return file.read()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Read a part of a file."""
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            parts, missing = [], length
            while missing > 0 and (part := file.read(missing)):
                parts.append(part)
                missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, path: str) -> int:
        """Return a file's length."""
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        """Whether the name is there."""
        return os.path.lexists(path)

    def is_held(self, path: str) -> bool:
        """Whether a living writer holds the file."""
        try:
            file = locks.LockableFile(path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        with contextlib.closing(file):
            return not file.try_lock(fcntl.LOCK_SH)

    def locked(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Hold an exclusive lock on a lock file."""
        return locks.locked(path, patience=self._patience, clock=self._clock)


class _LocalFile:
    """A new file on a real filesystem, held by a lock on it."""

    def __init__(self, file: locks.LockableFile) -> None:
        self._file = file

    def write(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._file.fileno(), rest) :]

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
