"""Standing in front of the disk: count its steps, crash at one of them, or let one fail."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from holdfast.core.buffers import Buffer
from holdfast.stores.disk import Disk, Entry, NewFile

_Result = TypeVar("_Result")


class SimulatedCrash(BaseException):
    """The process died here. Not an `Exception`, so that no code under test can carry on."""


class When(StrEnum):
    """Where in a step the crash comes."""

    BEFORE = "before"
    MIDDLE = "in the middle of"
    AFTER = "after"


@dataclass(frozen=True)
class CrashPoint:
    """A crash before, in the middle of, or after the step with that number, counted from 0."""

    step: int
    when: When = When.BEFORE

    def __str__(self) -> str:
        return f"{self.when} step {self.step}"


class Interceptor(Protocol):
    """Decides about every call that passes. `half` does one half of a write, None for anything else."""

    def call(
        self, label: str, mutates: bool, run: Callable[[], _Result], half: Callable[[], object] | None = None
    ) -> _Result:
        """Carry the call out with `run`, or do not."""
        ...


class InterceptedDisk:
    """A disk that asks an interceptor about every call, reads and writes alike."""

    def __init__(self, disk: Disk, interceptor: Interceptor) -> None:
        self._disk = disk
        self._interceptor = interceptor

    def create(self, path: str) -> NewFile:
        """Create a file; what is done with it passes the interceptor too."""
        file = self._change(f"create {path}", lambda: self._disk.create(path))
        return _InterceptedFile(file, path, self._interceptor)

    def make_directory(self, path: str) -> None:
        """Create a directory."""
        self._change(f"mkdir {path}", lambda: self._disk.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        """Move."""
        self._change(f"rename {source} {target}", lambda: self._disk.rename(source, target))

    def link(self, source: str, target: str) -> None:
        """Give a second name."""
        self._change(f"link {source} {target}", lambda: self._disk.link(source, target))

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._change(f"unlink {path}", lambda: self._disk.unlink(path))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._change(f"rmdir {path}", lambda: self._disk.remove_directory(path))

    def sync_directory(self, path: str) -> None:
        """Flush names."""
        self._change(f"sync directory {path}", lambda: self._disk.sync_directory(path))

    def entries(self, path: str) -> list[Entry]:
        """List a directory."""
        return self._look(f"list {path}", lambda: self._disk.entries(path))

    def read(self, path: str) -> bytes:
        """Read a whole file."""
        return self._look(f"read {path}", lambda: self._disk.read(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Read a part of a file."""
        return self._look(f"read {path}", lambda: self._disk.read_range(path, offset, length))

    def size(self, path: str) -> int:
        """Return a file's length."""
        return self._look(f"stat {path}", lambda: self._disk.size(path))

    def exists(self, path: str) -> bool:
        """Whether the name is there."""
        return self._look(f"stat {path}", lambda: self._disk.exists(path))

    def is_held(self, path: str) -> bool:
        """Whether a living writer holds the file."""
        return self._look(f"is held {path}", lambda: self._disk.is_held(path))

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        """Take and release a lock; taking it is a step, because it may create the file."""
        with contextlib.ExitStack() as taken:
            self._change(f"lock {path}", lambda: taken.enter_context(self._disk.locked(path)))
            yield

    def _change(self, label: str, run: Callable[[], _Result]) -> _Result:
        return self._interceptor.call(label, True, run)

    def _look(self, label: str, run: Callable[[], _Result]) -> _Result:
        return self._interceptor.call(label, False, run)


class _InterceptedFile:
    def __init__(self, file: NewFile, path: str, interceptor: Interceptor) -> None:
        self._file = file
        self._path = path
        self._interceptor = interceptor

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        self._interceptor.call(
            f"write {self._path}",
            True,
            lambda: self._file.write(view),
            half=lambda: self._file.write(view[: len(view) // 2]),
        )

    def sync(self) -> None:
        self._interceptor.call(f"sync {self._path}", True, self._file.sync)

    def close(self) -> None:
        self._interceptor.call(f"close {self._path}", False, self._file.close)


class CrashPlan:
    """An interceptor that counts steps that change something and crashes at one. The dead do nothing more.

    `trace` holds what each step was; `writes` the numbers of those that can be cut in half.
    """

    def __init__(self, crash_at: CrashPoint | None = None) -> None:
        self._crash_at = crash_at
        self.trace: list[str] = []
        self.writes: set[int] = set()
        self.crashed = False

    def call(
        self, label: str, mutates: bool, run: Callable[[], _Result], half: Callable[[], object] | None = None
    ) -> _Result:
        """Carry out, unless this is the step, or the crash was before."""
        if self.crashed:
            raise SimulatedCrash("a call after the crash")
        if not mutates:
            return run()
        step = len(self.trace)
        self.trace.append(label)
        if half is not None:
            self.writes.add(step)
        if self._crash_at is None or self._crash_at.step != step:
            return run()
        self.crashed = True
        if self._crash_at.when is When.MIDDLE and half is not None:
            half()
        if self._crash_at.when is When.AFTER:
            run()
        raise SimulatedCrash(f"{self._crash_at.when} step {step}: {label}")

    def crash_points(self) -> Iterator[CrashPoint]:
        """Yield every point of the run that was counted: before and after each step, in the middle of each write."""
        for step in range(len(self.trace)):
            yield CrashPoint(step, When.BEFORE)
            if step in self.writes:
                yield CrashPoint(step, When.MIDDLE)
            yield CrashPoint(step, When.AFTER)


class CrashingDisk(InterceptedDisk):
    """A disk that counts its steps and raises `SimulatedCrash` at one of them."""

    def __init__(self, disk: Disk, crash_at: CrashPoint | None = None) -> None:
        self.plan = CrashPlan(crash_at)
        super().__init__(disk, self.plan)


class FaultPlan:
    """An interceptor that lets one step fail with an OSError, as a full or dying disk does, and goes on after it.

    With `applied` the step is carried out all the same: the error came on the way back.
    """

    def __init__(self, fail_at: int | None = None, number: int = errno.EIO, *, applied: bool = False) -> None:
        self._fail_at = fail_at
        self._number = number
        self._applied = applied
        self.trace: list[str] = []

    def call(
        self, label: str, mutates: bool, run: Callable[[], _Result], half: Callable[[], object] | None = None
    ) -> _Result:
        """Carry out, unless this is the step."""
        if not mutates:
            return run()
        step = len(self.trace)
        self.trace.append(label)
        if step != self._fail_at:
            return run()
        if self._applied:
            run()
        elif half is not None:
            half()
        raise OSError(self._number, os.strerror(self._number), label)


class FaultyDisk(InterceptedDisk):
    """A disk of which one step fails with an OSError."""

    def __init__(
        self, disk: Disk, fail_at: int | None = None, number: int = errno.EIO, *, applied: bool = False
    ) -> None:
        self.plan = FaultPlan(fail_at, number, applied=applied)
        super().__init__(disk, self.plan)
