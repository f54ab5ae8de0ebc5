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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from holdfast.connectors.postgres_cdc_settings import CdcSettings
from holdfast.errors import SourceUnavailable

_PREFIX = "holdfast-postgres-cdc-"
_LARGEST = 1 << 30
_LENGTH = 4


@dataclass(frozen=True)
class SpoolFile:
    """An epoch's messages, all of them."""

    path: str
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether the file is here, on this machine, as it was written."""
        with contextlib.suppress(OSError):
            return os.path.getsize(self.path) == self.size
        return False

    def messages(self) -> Iterator[bytes]:
        """Yield the messages."""
        with open(self.path, "rb") as file:
            while head := file.read(_LENGTH):
                length = int.from_bytes(head)
                data = file.read(length)
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

    def begin(self, header: Sequence[bytes]) -> "SpoolWriter":
        """Begin an epoch, whose file begins with the messages of `header`."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._number += 1
        return SpoolWriter(self._path, header)

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _path(self) -> str:
        return os.path.join(self._folder, str(self._number))


class SpoolWriter:
    """Writes one file, once there is something to write; none if it grows too large or the disk refuses it."""

    def __init__(self, path: str, header: Sequence[bytes]) -> None:
        self._path, self._header = path, header
        self.size = 0
        """What was written, or would have been."""
        self._file: BinaryIO | None = None

    def add(self, message: bytes) -> None:
        """Write a message."""
        try:
            if self.size == 0:
                self._file = open(self._path, "wb")  # noqa: SIM115
                for before in self._header:
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

    def finish(self) -> SpoolFile | None:
        """Return the file; None when there is none."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
                return SpoolFile(self._path, self.size)
        except OSError:
            self._remove()
        return None

    def discard(self) -> None:
        """Write no more, and remove what there is."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
