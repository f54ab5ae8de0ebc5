"""Making files on a local disk survive a power loss, in the order that matters."""

import contextlib
import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

_SYNC_THREADS = 8


def sync_file(path: str) -> None:
    """Flush one file, or the names in one directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: str) -> None:
    """Flush every file below `root`, then every directory, `root` included."""
    directories: list[str] = []
    files: list[str] = []
    for folder, _, names in os.walk(root):
        directories.append(folder)
        files.extend(os.path.join(folder, name) for name in names)
    if len(files) == 1:
        sync_file(files[0])
    else:
        with ThreadPoolExecutor(_SYNC_THREADS) as pool:
            list(pool.map(sync_file, files))
    for folder in reversed(directories):
        sync_file(folder)


def refuse_unwritable(folder: str) -> None:
    """Raise the `OSError` that making files in a folder would raise, as far as that shows without making anything.

    A folder that is not there yet could be made by whoever may write to the nearest one above it.
    """
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)


def make_directories(path: str) -> None:
    """Create a directory and what is missing above it, durably."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        sync_file(os.path.dirname(folder))


def write_file(path: str, data: bytes) -> None:
    """Write and flush a file; its name is durable once the directory is flushed."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: str, data: bytes) -> None:
    """Replace a file atomically and durably. Not for two writers at once: hold a lock."""
    write_file(path + ".new", data)
    os.rename(path + ".new", path)
    sync_file(os.path.dirname(path))


def remove(path: str) -> None:
    """Remove a file or a directory with all it holds; nothing there is fine."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def names_in(path: str) -> list[str]:
    """List a directory; none there is empty."""
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []
