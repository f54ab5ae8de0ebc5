"""From a path or URL to a store."""

import os
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import MemoryStore

from holdfast.core.manifest import DEFAULT_VNODE_COUNT
from holdfast.errors import StoreConfigurationError
from holdfast.secrets import scrub
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
from holdfast.stores.medium import Medium
from holdfast.stores.objects import Bucket
from holdfast.stores.store import DurableCheckpointStore

_BUCKET_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_shared_memory: dict[str, MemoryStore] = {}


def open_store(
    url_or_path: str | os.PathLike[str],
    *,
    retain: int | None = 10,
    vnode_count: int = DEFAULT_VNODE_COUNT,
    read_only: bool = False,
    options: Mapping[str, str] | None = None,
) -> DurableCheckpointStore:
    """Open the store at a path or a `file://`, `s3://`, `gs://`, `az://` or `memory://` URL.

    Opening proves that the storage honours conditional writes and creates what is missing; with `read_only`
    nothing is written, and a path that holds no store is an error. `options` are those of obstore (for example
    `endpoint`, `region`); credentials are better left in the environment. `memory://name` is one store for the
    whole process, `memory://` a new one each time.
    """
    medium = open_medium(os.fspath(url_or_path), options or {}, read_only=read_only)
    if not read_only:
        medium.prepare()
    return DurableCheckpointStore(medium, retain=retain, vnode_count=vnode_count)


def open_medium(url: str, options: Mapping[str, str], *, read_only: bool) -> Medium:
    """Choose the medium by scheme."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return _directory(url, read_only)
    parts = urlsplit(url)
    match scheme.lower():
        case "file":
            return _directory(unquote(parts.path), read_only)
        case "memory":
            name = parts.netloc + parts.path
            store = _shared_memory.setdefault(name, MemoryStore()) if name.strip("/") else MemoryStore()
            return BucketMedium(Bucket(store), url)
        case scheme if scheme in _BUCKET_SCHEMES:
            return _bucket(url, options)
    raise StoreConfigurationError(
        f"'{scrub(url)}' is not a store: unknown scheme '{scheme}'; "
        "use a path, file://, s3://, gs://, az:// or memory://"
    )


def _directory(path: str, read_only: bool) -> DirectoryMedium:
    if not path:
        raise StoreConfigurationError("the path of the store is empty")
    path = os.path.abspath(os.path.expanduser(path))
    if os.path.exists(path) and not os.path.isdir(path):
        raise StoreConfigurationError(f"{path} is a file; a store is a directory")
    if read_only and not os.path.isdir(os.path.join(path, "checkpoints")):
        raise StoreConfigurationError(f"there is no checkpoint store at {path}")
    return DirectoryMedium(path, LocalDisk())


def _bucket(url: str, options: Mapping[str, str]) -> BucketMedium:
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise StoreConfigurationError(
            f"'{scrub(url)}' carries credentials or parameters; put them into the environment or the options"
        )
    prefix = parts.path.strip("/")
    try:
        store = obstore.store.from_url(f"{parts.scheme}://{parts.netloc}", **dict(options))  # type: ignore[call-overload]
    except (BaseError, ValueError) as error:
        reason = scrub(str(error).split("\n", 1)[0])
        raise StoreConfigurationError(f"cannot open '{scrub(url)}': {reason}") from None
    return BucketMedium(Bucket(store), scrub(url), prefix)
