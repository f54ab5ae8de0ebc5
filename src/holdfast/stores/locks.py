"""Locks between processes of one machine: waited for, but not for ever, and held by somebody who can be named.

The system drops such a lock (`flock`) when nobody has the file open any more. A child that is forked while the lock
is held has it open as well, so a worker that outlives its parent would keep everybody out. That is why a child closes
what it inherits here first of all, and why a lock is given back by unlocking, not only by closing.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator

from holdfast.clock import SYSTEM_CLOCK, Clock, utc_from_ms

PATIENCE_SECONDS = 30.0
"""How long a lock is waited for. What it guards takes moments, but for a sink's function or a large removal."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.05
_LONGEST_NOTE = 300

_forking = threading.RLock()
"""Held while a file is opened or closed here, and while this process forks: a child knows all that it inherits."""
_open: "set[LockableFile]" = set()


class LockableFile:
    """An open file that can be locked. Children of this process do not have it, however they were started."""

    def __init__(self, path: str, flags: int) -> None:
        with _forking:
            self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
            _open.add(self)

    def fileno(self) -> int:
        """Return the descriptor; -1 when the file is closed, or belongs to the process that forked this one."""
        return self._descriptor

    def try_lock(self, operation: int) -> bool:
        """Lock at once, shared or exclusive, or say that somebody else has it."""
        try:
            fcntl.flock(self._descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, patience: float, clock: Clock) -> bool:
        """Lock for oneself alone; False when that was not possible for as long as patience lasted."""
        deadline, pause = clock.monotonic() + patience, _FIRST_PAUSE
        while not self.try_lock(fcntl.LOCK_EX):
            rest = deadline - clock.monotonic()
            if rest <= 0:
                return False
            clock.sleep(min(pause, rest))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def close(self) -> None:
        """Unlock and close. In a forked child this does nothing: the lock is its parent's."""
        with _forking:
            if self._descriptor < 0:
                return
            _open.discard(self)
            descriptor, self._descriptor = self._descriptor, -1
            try:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            finally:
                os.close(descriptor)

    def leave_to_parent(self) -> None:
        """Close without unlocking, just after a fork."""
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            os.close(descriptor)


class Lock:
    """A lock file that is held, with a note in it of who holds it; empty when nobody does."""

    def __init__(self, path: str, file: LockableFile, clock: Clock) -> None:
        self._path, self._file = path, file
        since = f"{utc_from_ms(clock.now_ms()):%Y-%m-%dT%H:%M:%SZ}"
        note = f"process {os.getpid()} on {os.uname().nodename} since {since}\n".encode()
        self._write(note)

    def is_in_place(self) -> bool:
        """Whether its file still has its name: one that was removed meanwhile keeps nobody out."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let the next one have it. Again is fine."""
        if self._file.fileno() >= 0:
            self._write(b"")
        self._file.close()

    def _write(self, note: bytes) -> None:
        """Replace the note; a disk that is full or broken keeps nobody from the lock itself."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._file.fileno(), 0)
            if note:
                os.pwrite(self._file.fileno(), note, 0)


class LockHeld(TimeoutError):
    """Somebody else holds a lock for longer than patience lasts; `holder` says who, as far as that is known."""

    def __init__(self, path: str, holder: str, patience: float) -> None:
        self.holder = holder
        super().__init__(
            f"{path} is locked by {holder}, for longer than {patience:g} s; end that process if it hangs"
        )


def take(path: str, *, patience: float | None = None, clock: Clock = SYSTEM_CLOCK) -> Lock:
    """Lock a lock file, creating it if it is missing, and note in it who we are; LockHeld after a while."""
    patience = PATIENCE_SECONDS if patience is None else patience
    file = LockableFile(path, os.O_RDWR | os.O_CREAT)
    try:
        if not file.lock(patience, clock):
            raise LockHeld(path, _holder(file), patience)
        return Lock(path, file, clock)
    except BaseException:
        file.close()
        raise


@contextlib.contextmanager
def locked(path: str, *, patience: float | None = None, clock: Clock = SYSTEM_CLOCK) -> Iterator[None]:
    """Hold a lock file for a moment."""
    lock = take(path, patience=patience, clock=clock)
    try:
        yield
    finally:
        lock.release()


def _holder(file: LockableFile) -> str:
    note = os.pread(file.fileno(), _LONGEST_NOTE, 0).decode(errors="replace").strip()
    return note if note.isprintable() and note else "a process that left no note"


def _leave_all_to_parent() -> None:
    for file in _open:
        file.leave_to_parent()
    _open.clear()
    _forking.release()


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_leave_all_to_parent)
