"""Files beside the checkpoints that sources and tables must be able to read again: `<store>/materials/...`.

Each is written whole or not at all, durably, and never changes. What opens them is a place, a path or URL, so that
Spark's workers can read them too; on object storage their credentials come from the environment.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote

from holdfast.clock import new_token
from holdfast.core.sources import Materials
from holdfast.errors import StoreConfigurationError, TransientStoreError
from holdfast.secrets import scrub
from holdfast.stores import durable
from holdfast.stores.objects import PART_BYTES, Bucket
from holdfast.stores.urls import open_bucket

FOLDER = "materials"
_TEMPORARY = ".tmp"


def open_materials(place: str, options: Mapping[str, str] | None = None) -> Materials:
    """Return the materials below a directory or an object storage URL; `options` as for `open_store`."""
    if "://" in place and not place.startswith("file://"):
        return BucketMaterials(place, dict(options or {}))
    return DirectoryMaterials(unquote(place.removeprefix("file://")))


@dataclass(frozen=True)
class DirectoryMaterials:
    """Materials in a directory."""

    place: str

    def put(self, name: str, data: bytes) -> None:
        """Write beside, flush, rename into place."""
        with self._new(name) as temporary, open(temporary, "wb") as file:
            file.write(data)

    def put_file(self, name: str, path: str) -> None:
        """Copy beside, flush, rename into place."""
        with self._new(name) as temporary:
            shutil.copyfile(path, temporary)

    @contextlib.contextmanager
    def _new(self, name: str) -> Iterator[str]:
        path = self._path(name)
        temporary = f"{path}.{new_token()}{_TEMPORARY}"
        with _translated(f"cannot write {name}"):
            durable.make_directories(os.path.dirname(path))
            try:
                yield temporary
                durable.sync_file(temporary)
                os.rename(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            durable.sync_file(os.path.dirname(path))

    def get(self, name: str) -> bytes | None:
        """Read a file."""
        with _translated(f"cannot read {name}"):
            try:
                with open(self._path(name), "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def local_copy(self, name: str, directory: str) -> str:
        """Return the file itself."""
        path = self._path(name)
        if not os.path.exists(path):
            raise FileNotFoundError(f"{name} is not below {self.place}")
        return path

    def names(self, prefix: str = "") -> list[str]:
        """Walk the directory."""
        found = (name for name in self._files() if not name.endswith(_TEMPORARY))
        return sorted(name for name in found if name.startswith(prefix))

    def sweep(self) -> None:
        """Unlink files that were never renamed into place."""
        for name in self._files():
            if name.endswith(_TEMPORARY):
                self.remove(name)

    def _files(self) -> list[str]:
        with _translated(f"cannot list {self.place}"):
            return [
                os.path.relpath(os.path.join(folder, file), self.place).replace(os.sep, "/")
                for folder, _, files in os.walk(self.place)
                for file in files
            ]

    def remove(self, name: str) -> None:
        """Unlink, and directories that are empty then."""
        with _translated(f"cannot remove {name}"), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))
        for folder in list(PurePosixPath(name).parents)[:-1]:
            with contextlib.suppress(OSError):  # Something else is in it.
                os.rmdir(self._path(str(folder)))

    def below(self, prefix: str) -> "DirectoryMaterials":
        """Return a directory in the directory."""
        return DirectoryMaterials(self._path(prefix))

    def _path(self, name: str) -> str:
        return os.path.join(self.place, *_checked(name).parts)


@dataclass(frozen=True)
class BucketMaterials:
    """Materials below a prefix of a bucket."""

    place: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def put(self, name: str, data: bytes) -> None:
        """Put an object."""
        bucket, key = self._object(name)
        bucket.upload(key, [data])

    def put_file(self, name: str, path: str) -> None:
        """Put an object in parts."""
        bucket, key = self._object(name)
        with open(path, "rb") as file:
            bucket.upload(key, iter(lambda: file.read(PART_BYTES), b""))

    def get(self, name: str) -> bytes | None:
        """Get an object."""
        bucket, key = self._object(name)
        found = bucket.read(key)
        return None if found is None else found.data

    def local_copy(self, name: str, directory: str) -> str:
        """Copy an object, a piece at a time."""
        bucket, key = self._object(name)
        size = bucket.size(key)
        if size is None:
            raise FileNotFoundError(f"{name} is not below {self.place}")
        path = os.path.join(directory, new_token())
        with open(path, "wb") as file:
            for offset in range(0, size, PART_BYTES):
                file.write(bucket.read_range(key, offset, PART_BYTES) or b"")
        return path

    def names(self, prefix: str = "") -> list[str]:
        """List the objects."""
        bucket, key = self._opened
        return sorted(name for name in bucket.list(key) if name.startswith(prefix))

    def sweep(self) -> None:
        """Do nothing: an object is there as a whole, or not at all."""

    def remove(self, name: str) -> None:
        """Delete an object."""
        bucket, key = self._object(name)
        bucket.delete(key)

    def below(self, prefix: str) -> "BucketMaterials":
        """Return a longer prefix."""
        return BucketMaterials(f"{self.place.rstrip('/')}/{_checked(prefix)}", self.options)

    @functools.cached_property
    def _opened(self) -> tuple[Bucket, str]:
        return open_bucket(self.place, self.options)

    def __getstate__(self) -> dict[str, object]:
        """Leave connections behind when Spark's workers are told where the files are."""
        return {"place": self.place, "options": self.options}

    def _object(self, name: str) -> tuple[Bucket, str]:
        bucket, prefix = self._opened
        return bucket, f"{prefix}/{_checked(name)}".lstrip("/")


def _checked(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise StoreConfigurationError(f"'{name}' is no name for a file below a store")
    return path


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TransientStoreError(f"{what}: {scrub(str(error))}") from error
