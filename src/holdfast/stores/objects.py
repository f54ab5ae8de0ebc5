"""The one seam through which the object store talks to a bucket, and where obstore's errors are translated.

`holdfast.testing` stands in front of it to inject conflicts, time-outs and partial listings.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import ObjectStore

from holdfast.core.buffers import Buffer
from holdfast.errors import StoreConfigurationError, TransientStoreError, UnsupportedStore
from holdfast.secrets import scrub

PART_BYTES = 8 * 1024 * 1024
_PARALLEL_PARTS = 4
_CREATE_ATTEMPTS = 3


class ObjectExists(Exception):
    """A create found an object under that key."""


class RequestConflict(TransientStoreError):
    """Two requests met and neither is known to have won."""


class ObjectChanged(Exception):
    """A replace found another version, or none."""


@dataclass(frozen=True)
class StoredObject:
    """An object's bytes and the entity tag they had."""

    data: bytes
    version: str


class Objects(Protocol):
    """What the object store needs of a bucket. An unknown outcome is a TransientStoreError."""

    def create(self, key: str, data: bytes) -> None:
        """Put an object that must not exist; ObjectExists otherwise."""
        ...

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Put over exactly that version, and return the new one; ObjectChanged otherwise."""
        ...

    def upload(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Put a large object in parts, unconditionally."""
        ...

    def read(self, key: str) -> StoredObject | None:
        """Get an object, None when there is none."""
        ...

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        """Get up to `length` bytes from `offset`, None when there is no such object."""
        ...

    def size(self, key: str) -> int | None:
        """Return an object's size, None when there is none."""
        ...

    def list(self, prefix: str) -> dict[str, int]:
        """Return the keys below a prefix, without it, with their sizes."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; deleting what is not there is fine."""
        ...


class Bucket:
    """A bucket (or memory) behind obstore."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create(self, key: str, data: bytes) -> None:
        """Put with If-None-Match.

        S3 also answers 409 when two requests met and neither left an object, and wants the request repeated; obstore
        reports both answers alike.
        """
        with _translated(f"cannot create {key}"):
            for _ in range(_CREATE_ATTEMPTS):
                try:
                    obstore.put(self._store, key, data, mode="create", use_multipart=False)
                    return
                except (AlreadyExistsError, FileExistsError):
                    if self.size(key) is not None:
                        raise ObjectExists from None
        raise TransientStoreError(f"cannot create {key}: it kept meeting other requests; try again")

    def replace(self, key: str, data: bytes, version: str) -> str:
        """Put with If-Match."""
        mode: Any = {"e_tag": version}
        with _translated(f"cannot replace {key}"):
            try:
                return str(obstore.put(self._store, key, data, mode=mode, use_multipart=False)["e_tag"])
            except (PreconditionError, FileNotFoundError, AlreadyExistsError):
                raise ObjectChanged from None

    def upload(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Put as a multipart upload; what is in memory at a time is a few parts."""
        with _translated(f"cannot upload {key}"):
            obstore.put(
                self._store,
                key,
                _in_parts(chunks),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=_PARALLEL_PARTS,
            )

    def read(self, key: str) -> StoredObject | None:
        """Get bytes and entity tag in one request."""
        with _translated(f"cannot read {key}"):
            try:
                result = obstore.get(self._store, key)
                return StoredObject(bytes(result.bytes()), str(result.meta["e_tag"]))
            except FileNotFoundError:
                return None

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        """Get a range; a range behind the end is empty."""
        if length == 0:
            return None if self.size(key) is None else b""
        with _translated(f"cannot read {key}"):
            try:
                return bytes(obstore.get_range(self._store, key, start=offset, length=length))
            except FileNotFoundError:
                return None
            except BaseError:
                size = self.size(key)
                if size is not None and offset >= size:
                    return b""
                raise

    def size(self, key: str) -> int | None:
        """Ask for the head."""
        with _translated(f"cannot read {key}"):
            try:
                return int(obstore.head(self._store, key)["size"])
            except FileNotFoundError:
                return None

    def list(self, prefix: str) -> dict[str, int]:
        """List everything below a prefix."""
        start = prefix.rstrip("/") + "/"
        with _translated(f"cannot list {prefix}"):
            return {
                str(item["path"]).removeprefix(start): int(item["size"])
                for page in obstore.list(self._store, prefix)
                for item in page
                if str(item["path"]).startswith(start)
            }

    def delete(self, key: str) -> None:
        """Delete; some services complain about a missing key, which is what we want anyway."""
        with _translated(f"cannot delete {key}"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._store, key)


def _in_parts(chunks: Iterable[Buffer]) -> Iterator[bytes | memoryview]:
    """Cut large buffers into parts: obstore copies what it is given, so it must not be given much at once."""
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), PART_BYTES):
            yield view[start : start + PART_BYTES]


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn obstore's errors into ours; no credentials get through."""
    try:
        yield
    except (
        PermissionDeniedError,
        UnauthenticatedError,
        InvalidPathError,
        UnknownConfigurationKeyError,
    ) as error:
        raise StoreConfigurationError(f"{what}: {_first_line(error)}") from None
    except NotSupportedError as error:
        raise UnsupportedStore(f"{what}: {_first_line(error)}") from None
    except (BaseError, OSError) as error:
        raise TransientStoreError(f"{what}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return what went wrong in one line. Of a server's XML only code and message: the rest may repeat a token."""
    text = str(error).strip()
    line = text.split("\n", 1)[0].partition("<")[0].rstrip(": ")
    said = [match[1] for tag in ("Code", "Message") if (match := re.search(f"<{tag}>([^<]*)</{tag}>", text))]
    return scrub(f"{line} ({', '.join(said)})" if said else line)
