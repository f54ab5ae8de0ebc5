"""The folder of a Delta table on object storage, next to `deltalake`'s own access to its log.

Through obstore, because `deltalake`'s file system keeps every Python thread waiting while it lists.
"""

import contextlib
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
# How deltalake commits: no business of data files.
_DELTA_OPTIONS = (
    "conditional_put",
    "copy_if_not_exists",
    "unsafe_rename",
    "locking_provider",
    "dynamo",
    "max_retries",
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
