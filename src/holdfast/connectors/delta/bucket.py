"""The folder of a Delta table on object storage, next to `deltalake`'s own access to its log.

Through obstore, because `deltalake`'s file system keeps every Python thread waiting while it lists.
"""

import contextlib
import io
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import AzureStore, GCSStore, S3Store, from_url

from holdfast.errors import PipelineDefinitionError
from holdfast.secrets import scrub

# obstore keeps these apart from the other options.
_CLIENT_OPTIONS = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "user_agent", "http1_only"),
    *("http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"),
    *("proxy_excludes",),
}
# How deltalake commits and tries again: no business of data files.
_DELTA_OPTIONS = (
    "conditional_put",
    "copy_if_not_exists",
    "unsafe_rename",
    "locking_provider",
    "dynamo",
    "max_retries",
    "retry_timeout",
    "backoff_config",
)


class BucketFolder:
    """A prefix of a bucket. Errors are OSError, a missing object FileNotFoundError, as on a disk."""

    def __init__(self, url: str, storage_options: dict[str, str]) -> None:
        self._store = _store(url, storage_options)

    def write(self, path: str, data: bytes) -> None:
        """Write an object."""
        with _as_on_a_disk():
            obstore.put(self._store, path, data)

    def read(self, path: str) -> bytes:
        """Read an object."""
        with _as_on_a_disk():
            return bytes(obstore.get(self._store, path).bytes())

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of an object."""
        with _as_on_a_disk():
            return bytes(obstore.get_range(self._store, path, start=start, length=length))

    def size(self, path: str) -> int:
        """Return an object's size."""
        with _as_on_a_disk():
            return int(obstore.head(self._store, path)["size"])

    def remove(self, path: str) -> None:
        """Remove an object, and what lies below it as in a folder; nothing there is fine."""
        with _as_on_a_disk():
            below = [entry["path"] for batch in obstore.list(self._store, path) for entry in batch]
        for name in [path, *below]:
            with contextlib.suppress(FileNotFoundError), _as_on_a_disk():
                obstore.delete(self._store, name)

    def names_in(self, path: str) -> set[str]:
        """Return the names directly below a path."""
        with _as_on_a_disk():
            entries = [entry["path"] for batch in obstore.list(self._store, path) for entry in batch]
        return {entry.removeprefix(f"{path}/").split("/")[0] for entry in entries}

    def names_after(self, path: str, name: str) -> list[str]:
        """Return the names directly below a path that sort behind `name`, without listing those before it."""
        with _as_on_a_disk():
            listed = obstore.list(self._store, path, offset=f"{path}/{name}")
            entries = [entry["path"].removeprefix(f"{path}/") for batch in listed for entry in batch]
        return [entry for entry in entries if "/" not in entry]


class RangedFile(io.RawIOBase):
    """An object as a file for reading: every read is one request for a range."""

    def __init__(self, bucket: BucketFolder, path: str, size: int) -> None:
        super().__init__()
        self._bucket, self._path, self._size, self._position = bucket, path, size, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read anywhere."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes; all that is left when negative."""
        left = max(self._size - self._position, 0)
        length = left if size < 0 else min(size, left)
        if length == 0:
            return b""
        data = self._bucket.read_range(self._path, self._position, length)
        self._position += len(data)
        return data


def _store(url: str, storage_options: dict[str, str]) -> Any:
    client, config = _split(storage_options)
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    options: dict[str, Any] = {"config": config, "client_options": client}
    try:
        match parts.scheme.lower():
            case "s3" | "s3a":
                return S3Store(parts.netloc, prefix=prefix, **options)
            case "gs":
                return GCSStore(parts.netloc, prefix=prefix, **options)
            case "az" | "azure" | "adl":
                return AzureStore(parts.netloc, prefix=prefix, **options)
        return from_url(url, **options)
    except (BaseError, ValueError) as error:
        raise PipelineDefinitionError(f"{scrub(url)}: {scrub(str(error).splitlines()[0])}") from error


def _split(storage_options: dict[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    client: dict[str, Any] = {}
    config: dict[str, str] = {}
    for key, value in storage_options.items():
        name = key.lower()
        plain = name.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if plain in _CLIENT_OPTIONS:
            client[plain] = value.lower() == "true" if value.lower() in ("true", "false") else value
        elif not any(part in plain for part in _DELTA_OPTIONS):
            config[name] = value
    return client, config


@contextlib.contextmanager
def _as_on_a_disk() -> Iterator[None]:
    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(str(error).splitlines()[0]) from error
    except BaseError as error:
        raise OSError(scrub(str(error).splitlines()[0])) from error
