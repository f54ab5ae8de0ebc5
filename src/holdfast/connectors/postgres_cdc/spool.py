"""Messages on their way from the process that finds out where an epoch ends to the one that reads it: a local file.

The file saves the server from decoding an epoch twice. Nothing depends on it: without it, the epoch is read from the
server.
"""

import contextlib
import glob
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from holdfast.connectors.postgres_cdc.settings import CdcSettings
from holdfast.errors import SourceUnavailable

_PREFIX = "holdfast-postgres-cdc-"
_LARGEST = 1 << 30
_LENGTH = 4


@dataclass(frozen=True)
class SpoolSlice:
    """A part of an epoch's messages, readable by itself."""

    path: str
    start: int
    stop: int

    @property
    def is_here(self) -> bool:
        """Whether the file is on this machine, as far as this slice goes."""
        with contextlib.suppress(OSError):
            return os.path.getsize(self.path) >= self.stop
        return False

    def messages(self) -> Iterator[bytes]:
        """Yield the messages."""
        with open(self.path, "rb") as file:
            left = self.stop - file.seek(self.start)
            while left > 0:
                length = int.from_bytes(file.read(_LENGTH))
                data = file.read(length)
                left -= _LENGTH + length
                if len(data) != length:
                    raise SourceUnavailable(f"{self.path} was cut off while it was read")
                yield data


class Spool:
    """Writes the files of one reader, one epoch after the other; an earlier one goes when a later one begins."""

    def __init__(self, settings: CdcSettings) -> None:
        address = settings.address
        place = f"{address.server}/{address.database}/{settings.slot}"
        mine = f"{_PREFIX}{hashlib.sha256(place.encode()).hexdigest()[:12]}-"
        # Left by a process that was killed. One that is alive goes on without its file.
        for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{mine}*")):
            shutil.rmtree(folder, ignore_errors=True)
        self._folder = tempfile.mkdtemp(prefix=mine)
        self._number = 0

    def begin(self) -> "SpoolWriter":
        """Begin an epoch."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._number += 1
        return SpoolWriter(self._path)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _path(self) -> str:
        return os.path.join(self._folder, str(self._number))


class SpoolWriter:
    """Writes one file, once there is something to write; none if it grows too large or the disk refuses it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._start = 0
        self.size = 0
        """What was written, or would have been."""
        self.is_lost = False

    @property
    def slice_size(self) -> int:
        """What was written since the last slice."""
        return self.size - self._start

    def add(self, message: bytes, header: Iterable[bytes]) -> None:
        """Write a message; before the first one of a slice the messages of its header."""
        try:
            if self.size == 0:
                self._file = open(self._path, "wb")  # noqa: SIM115
            if self.slice_size == 0:
                for before in header:
                    self._write(before)
            self._write(message)
        except OSError:
            self.discard()

    def _write(self, message: bytes) -> None:
        self.size += _LENGTH + len(message)
        if self._file is not None:
            self._file.write(len(message).to_bytes(_LENGTH) + message)
            if self.size > _LARGEST:
                self.discard()

    def slice(self) -> SpoolSlice:
        """Return what was written since the last slice."""
        start, self._start = self._start, self.size
        return SpoolSlice(self._path, start, self.size)

    def finish(self) -> None:
        """Make sure that everything can be read by others."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError:
            self._lose()

    def discard(self) -> None:
        """Write no more, and remove what there is."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
        self._lose()

    def _lose(self) -> None:
        self.is_lost = True
        with contextlib.suppress(OSError):
            os.unlink(self._path)
