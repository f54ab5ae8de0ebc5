"""What the processes of one pipeline print: kept in files, bounded, for those who ask and those who follow."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from typing import BinaryIO

_LONGEST_LINE = 64 * 1024
_PIECE = 256 * 1024


@dataclass(frozen=True)
class LogLimits:
    """How much is kept: `files` files of about `bytes` each."""

    bytes: int = 4 * 1024 * 1024
    files: int = 5

    @classmethod
    def within(cls, total: int) -> "LogLimits":
        """Return limits that keep about so many bytes in all."""
        return cls(bytes=max(total // cls.files, 1))


class PipelineLog:
    """The lines of one pipeline, over all its processes; the oldest go when the limits are reached."""

    def __init__(self, path: str, limits: LogLimits | None = None) -> None:
        limits = limits or LogLimits()
        self.path = path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._backups = max(limits.files - 1, 1)
        self._file = RotatingFileHandler(
            path, maxBytes=limits.bytes, backupCount=self._backups, encoding="utf-8", errors="backslashreplace"
        )
        self._file.setFormatter(logging.Formatter("%(message)s"))

    def append(self, line: str) -> None:
        """Add one line; what is beyond 64 KiB of it is cut off."""
        self._file.handle(logging.makeLogRecord({"msg": line[:_LONGEST_LINE]}))

    def tail(self, lines: int) -> list[str]:
        """Return the newest lines, oldest first."""
        found: list[str] = []
        for path in (self.path, *(f"{self.path}.{number}" for number in range(1, self._backups + 1))):
            if len(found) >= lines:
                break
            try:
                with open(path, encoding="utf-8", errors="backslashreplace") as file:
                    found = [*file.read().splitlines(), *found]
            except FileNotFoundError:
                break
        return found[max(len(found) - lines, 0) :]

    def follow(self, lines: int = 0) -> tuple[list[str], "LogFollower"]:
        """Return the newest lines and what reads on behind them: nothing twice, nothing left out."""
        self._file.acquire()
        try:
            return self.tail(lines), LogFollower(self.path)
        finally:
            self._file.release()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LogFollower:
    """Reads what is appended after it was made, over rotations; one that is slow misses what was rotated away."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = self._open()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def _open(self) -> BinaryIO | None:
        try:
            return open(self._path, "rb")
        except FileNotFoundError:
            return None

    def read(self) -> bytes:
        """Return what was appended since the last time; empty when nothing was."""
        return b"".join(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        if self._file is not None:
            yield self._file.read(_PIECE)
        if self._rotated():
            if self._file is not None:
                yield self._file.read()  # What was written before the rotation, and not read above.
                self._file.close()
            self._file = self._open()
            if self._file is not None:
                yield self._file.read(_PIECE)

    def _rotated(self) -> bool:
        """Whether the path is another file now than the one we read."""
        try:
            there = os.stat(self._path).st_ino
        except FileNotFoundError:
            return False
        return self._file is None or os.fstat(self._file.fileno()).st_ino != there

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
