"""From a path or URL to a store."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
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
# obstore keeps these apart from the other options, and a misplaced one makes it panic.
_CLIENT_OPTIONS = (
    *(
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "timeout",
        "user_agent",
        "http1_only",
        "http2_only",
    ),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes"),
)
_RETRY_OPTIONS = ("max_retries", "retry_timeout")
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
    `endpoint`, `region`, and `retry_timeout` in seconds); credentials are better left in the environment.
    `memory://name` is one store for the whole process, `memory://` a new one each time.
    """
    medium = open_medium(os.fspath(url_or_path), options or {}, read_only=read_only)
    if not read_only:
        medium.prepare()
    return DurableCheckpointStore(medium, retain=retain, vnode_count=vnode_count, options=options)


def open_to_ask(
    url_or_path: str | os.PathLike[str], *, vnode_count: int = DEFAULT_VNODE_COUNT
) -> tuple[DurableCheckpointStore, bool]:
    """Open a store that somebody wants to write to, but changes nothing yet; and say whether it is there.

    One that is not reads as an empty one. Whether a bucket can be written shows only when something is written.
    """
    url = os.fspath(url_or_path)
    medium = open_medium(url, {}, read_only=False)
    exists = True
    if isinstance(medium, DirectoryMedium):
        medium.refuse_unwritable()
        exists = os.path.isdir(os.path.join(medium.describe(), "checkpoints"))
    return DurableCheckpointStore(medium, retain=None, vnode_count=vnode_count), exists


def open_medium(url: str, options: Mapping[str, str], *, read_only: bool) -> Medium:
    """Choose the medium by scheme."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        _refuse_lost_slash(url)
        return _directory(url, read_only)
    parts = urlsplit(url)
    match scheme.lower():
        case "file":
            if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
                raise StoreConfigurationError(
                    f"'{_shown(url)}' is not a file of this machine; use file:///absolute/path or a plain path"
                )
            return _directory(unquote(parts.path), read_only)
        case "memory":
            name = parts.netloc + parts.path
            store = _shared_memory.setdefault(name, MemoryStore()) if name.strip("/") else MemoryStore()
            return BucketMedium(Bucket(store), url)
        case scheme if scheme in _BUCKET_SCHEMES:
            return _bucket(url, options)
    raise StoreConfigurationError(
        f"'{_shown(url)}' is not a store: unknown scheme '{scheme}'; "
        "use a path, file://, s3://, gs://, az:// or memory://"
    )


def _refuse_lost_slash(path: str) -> None:
    """Refuse what a Path makes of a URL: it would become a directory called 's3:'."""
    scheme, separator, _ = path.partition(":")
    if separator and scheme.lower() in ("file", "memory", *_BUCKET_SCHEMES):
        raise StoreConfigurationError(
            f"'{_shown(path)}' is neither a path nor a URL; a URL begins with {scheme}:// and is no pathlib.Path"
        )


def _shown(url: str) -> str:
    """Return a URL for a message, without anything in it that may be a secret; a secret can hold a '/'."""
    scheme, slashes, rest = re.fullmatch(r"([^:]*)(:/*)(.*)", url, re.DOTALL).groups()  # type: ignore[union-attr]
    _, at, after = rest.rpartition("@")
    return scrub(f"{scheme}{slashes}{'***@' if at else ''}{after.partition('?')[0]}")


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
    bucket, prefix = open_bucket(url, options)
    return BucketMedium(bucket, url, prefix)


def open_bucket(url: str, options: Mapping[str, str] | None = None) -> tuple[Bucket, str]:
    """Return the bucket that a URL names, and the prefix in it."""
    parts, options = urlsplit(url), options or {}
    # abfss://container@account.dfs.core.windows.net/prefix is the one form with an '@' that is no credential.
    in_account = parts.scheme in ("abfs", "abfss") and parts.netloc.count("@") == 1 and "@" not in parts.path
    if ("@" in url and not in_account) or ":" in parts.netloc or parts.query or parts.fragment:
        raise StoreConfigurationError(
            f"'{_shown(url)}' carries credentials or parameters; put them into the environment or the options"
        )
    if not parts.netloc:
        raise StoreConfigurationError(f"'{url}' names no bucket; use {parts.scheme}://bucket/prefix")
    client = {key: value for key, value in options.items() if key in _CLIENT_OPTIONS}
    apart = (*_CLIENT_OPTIONS, *_RETRY_OPTIONS)
    config: dict[str, Any] = {key: value for key, value in options.items() if key not in apart}
    if client:  # Given at all, even empty, they replace those of the environment.
        config["client_options"] = client
    try:
        if retry := _retry_config(options):
            config["retry_config"] = retry
        store = obstore.store.from_url(f"{parts.scheme}://{parts.netloc}", **config)
    except (BaseError, ValueError) as error:
        reason = scrub(str(error).split("\n", 1)[0])
        raise StoreConfigurationError(f"cannot open '{url}': {reason}") from None
    return Bucket(store), parts.path.strip("/")


def _retry_config(options: Mapping[str, str]) -> dict[str, Any]:
    """Return how long obstore itself repeats a request; what is left out is left to it."""
    config: dict[str, Any] = {}
    if "max_retries" in options:
        config["max_retries"] = int(options["max_retries"])
    if "retry_timeout" in options:
        config["retry_timeout"] = timedelta(seconds=float(options["retry_timeout"]))
    return config
