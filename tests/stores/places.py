"""Places where a store can be, with ways to look at them, damage them and act in between."""

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from obstore.store import ObjectStore

from holdfast.core.names import checkpoint_name, manifest_name, sidecar_id_of, sidecar_name
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
from holdfast.stores.medium import Medium
from holdfast.stores.objects import Bucket
from holdfast.stores.store import DurableCheckpointStore

BUCKET = "holdfast"
S3_OPTIONS = {"region": "us-east-1", "access_key_id": "testing", "secret_access_key": "testing"}


class Interposed:
    """A medium on which something else happens, once, right before a named call."""

    def __init__(self, medium: Medium, call: str, action: Callable[[], object]) -> None:
        self._medium, self._call, self._actions = medium, call, [action]

    def __getattr__(self, name: str) -> Any:
        if name == self._call and self._actions:
            self._actions.pop()()
        return getattr(self._medium, name)


class Recorder:
    """An interceptor (`holdfast.testing`) that writes down every call and, if told, lets one kind of call fail."""

    def __init__(self, base: Path | str) -> None:
        self._base = f"{base}/checkpoints/"
        self.calls: list[str] = []
        self.fail: Callable[[str], bool] = lambda label: False

    def call(self, label: str, mutates: bool, run: Callable[[], Any], half: object = None) -> Any:
        label = label.replace(self._base, "").replace(self._base.rstrip("/"), ".")
        self.calls.append(label)
        result = run()
        if self.fail(label):
            raise OSError(errno.EIO, os.strerror(errno.EIO), label)
        return result


class Place(ABC):
    """Somewhere a store can be. Keys are paths below the store's root, as people see them."""

    @abstractmethod
    def medium(self) -> Medium:
        """Return a new medium on this place, ready for writing."""

    def open(
        self, *, retain: int | None = None, vnode_count: int = 256, medium: Any = None
    ) -> DurableCheckpointStore:
        """Open the store; nothing is pruned unless asked for."""
        return DurableCheckpointStore(medium or self.medium(), retain=retain, vnode_count=vnode_count)

    def interposed(self, call: str, action: Callable[[], object]) -> DurableCheckpointStore:
        """Open the store so that `action` happens right before the medium's `call`."""
        return self.open(medium=Interposed(self.medium(), call, action))

    def edit(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Change stored bytes behind the store's back."""
        self.put(key, change(self.get(key)))

    @abstractmethod
    def get(self, key: str) -> bytes: ...

    @abstractmethod
    def put(self, key: str, data: bytes) -> None: ...

    @abstractmethod
    def delete(self, key: str) -> None: ...

    @abstractmethod
    def contents(self) -> set[str]: ...


class DirectoryPlace(Place):
    pointer = "checkpoints/latest.txt"

    def __init__(self, base: Path) -> None:
        self.base = base

    def medium(self) -> DirectoryMedium:
        medium = DirectoryMedium(str(self.base), LocalDisk())
        medium.prepare()
        return medium

    def manifest(self, checkpoint_id: int) -> str:
        return f"checkpoints/{checkpoint_name(checkpoint_id)}/manifest.json"

    def sidecar(self, name_or_id: str | int) -> str:
        name = name_or_id if isinstance(name_or_id, str) else sidecar_name(name_or_id)
        retained = f"checkpoints/retained/{name}"
        own = f"checkpoints/{checkpoint_name(sidecar_id_of(name) or 0)}/state.bin"
        return retained if (self.base / retained).exists() else own

    def pointer_to(self, checkpoint_id: int) -> bytes:
        return checkpoint_name(checkpoint_id).encode()

    def get(self, key: str) -> bytes:
        return (self.base / key).read_bytes()

    def put(self, key: str, data: bytes) -> None:
        (self.base / key).parent.mkdir(parents=True, exist_ok=True)
        (self.base / key).write_bytes(data)

    def delete(self, key: str) -> None:
        (self.base / key).unlink()

    def contents(self) -> set[str]:
        found = (Path(path) / name for path, _, names in os.walk(self.base) for name in names)
        return {str(path.relative_to(self.base)) for path in found} - {"checkpoints/.lock"}


class BucketPlace(Place):
    pointer = "manifests/latest.json"

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.objects, self.prefix = Bucket(store), prefix

    def medium(self) -> BucketMedium:
        medium = BucketMedium(self.objects, "test://bucket", self.prefix)
        medium.prepare()
        return medium

    def manifest(self, checkpoint_id: int) -> str:
        return f"manifests/{manifest_name(checkpoint_id)}"

    def sidecar(self, name_or_id: str | int) -> str:
        return f"checkpoints/{name_or_id if isinstance(name_or_id, str) else sidecar_name(name_or_id)}"

    def pointer_to(self, checkpoint_id: int) -> bytes:
        return b'{"checkpoint_id":%d}' % checkpoint_id

    def get(self, key: str) -> bytes:
        stored = self.objects.read(f"{self.prefix}/{key}")
        assert stored is not None, key
        return stored.data

    def put(self, key: str, data: bytes) -> None:
        self.objects.upload(f"{self.prefix}/{key}", [data])

    def delete(self, key: str) -> None:
        self.objects.delete(f"{self.prefix}/{key}")

    def contents(self) -> set[str]:
        return set(self.objects.list(self.prefix))
