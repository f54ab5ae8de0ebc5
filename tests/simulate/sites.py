"""Places where a store is: a bucket, or a directory on a disk that forgets what was not synced."""

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.worlds import PARTITIONS
from holdfast.clock import Clock
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import NewFile
from holdfast.stores.medium import Medium
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import InterceptedDisk, InterceptedObjects, MemoryObjects, SimulatedDisk, seeded_loss
from simulate.gates import Gate

_ROOT = "/data/store"


@dataclass
class Reign:
    """Who runs the pipeline, as far as anybody got to hear of it. Machines with a bucket between them share one."""

    decided: int = 0
    """The end of what was decided and not given up by a person."""
    copied: int = 0
    """The end of what a bucket holds of it; 0 when that was given up."""
    generation: int = 0
    """The generation that got through a start last."""
    owner: int = 0
    """The number of its process."""
    site: int | None = None
    """The number of its store."""
    words: list[Any] = field(default_factory=list)
    """Starts on a person's word that are under way: paused, somewhere before their end."""

    def copy(self) -> "Reign":
        """Return the same, with nobody under way."""
        return Reign(self.decided, self.copied, self.generation, self.owner, self.site)


class Site(ABC):
    """One store, as it outlives its processes."""

    def __init__(self, number: int, clock: Clock) -> None:
        self.number, self.clock = number, clock
        self.reign = Reign()
        self.originals: dict[str, bytes] = {}
        """What was damaged, as it was before."""
        self.hurt = 0
        """How many objects were ever damaged."""
        self.spare = 0
        """How many independent checkpoints there were before the first damage."""
        self.ran: int | None = None
        """The generation under which the pipeline ran here last."""

    @property
    def decided(self) -> int:
        """The end of what was decided here and not given up by a person, as far as anybody got to hear of it."""
        return self.reign.decided

    @decided.setter
    def decided(self, end: int) -> None:
        if end < self.reign.copied:
            self.reign.copied = 0  # The copy is beyond what was gone back to: it is given up too.
        self.reign.decided = end

    @property
    def generation(self) -> int:
        """The generation that got through a start here last."""
        return self.reign.generation

    @generation.setter
    def generation(self, generation: int) -> None:
        self.reign.generation = generation

    @property
    def owner(self) -> int:
        """The number of its process."""
        return self.reign.owner

    @owner.setter
    def owner(self, number: int) -> None:
        self.reign.owner, self.reign.site = number, self.number

    @property
    def words(self) -> list[Any]:
        """Starts on a person's word that are under way: paused, somewhere before their end."""
        return self.reign.words

    @words.setter
    def words(self, words: list[Any]) -> None:
        self.reign.words = words

    def store(self, gate: Gate | None = None, retain: int | None = None) -> DurableCheckpointStore:
        """Open the store, as one process does."""
        return DurableCheckpointStore(self.medium(gate), retain=retain, vnode_count=PARTITIONS, clock=self.clock)

    def copied_to(self, other: "Site") -> "Site":
        other.originals, other.hurt, other.spare = dict(self.originals), self.hurt, self.spare
        other.reign = self.reign.copy()
        return other

    def damage(self, key: str, data: bytes | None) -> None:
        """Put other bytes under a key, or take it away."""
        if key not in self.originals:
            self.originals[key] = self.read(key)
        self.hurt += 1
        self.write(key, data)

    def restore(self) -> None:
        """Undo all damage, as far as what was damaged is still there or was taken away."""
        for key, data in self.originals.items():
            self.write(key, data)
        self.originals.clear()

    def contents(self) -> dict[str, bytes]:
        """Return all that is there."""
        return {key: self.read(key) for key in self.keys()}

    @abstractmethod
    def medium(self, gate: Gate | None) -> Medium: ...

    @abstractmethod
    def copy(self, number: int, clock: Clock) -> "Site":
        """Return an independent store with the same bytes."""

    @abstractmethod
    def keys(self) -> list[str]: ...

    @abstractmethod
    def read(self, key: str) -> bytes: ...

    @abstractmethod
    def write(self, key: str, data: bytes | None) -> None: ...

    @abstractmethod
    def fingerprint(self) -> object: ...


class BucketSite(Site):
    """A store in a bucket."""

    def __init__(self, number: int, clock: Clock, objects: MemoryObjects | None = None) -> None:
        super().__init__(number, clock)
        self.objects = objects or MemoryObjects()

    def medium(self, gate: Gate | None) -> BucketMedium:
        objects: Any = self.objects if gate is None else InterceptedObjects(self.objects, gate)
        return BucketMedium(objects, f"memory://store{self.number}", "shop", self.clock)

    def copy(self, number: int, clock: Clock) -> Site:
        return self.copied_to(BucketSite(number, clock, self.objects.copy()))

    def keys(self) -> list[str]:
        return self.objects.keys()

    def read(self, key: str) -> bytes:
        stored = self.objects.read(key)
        assert stored is not None
        return stored.data

    def write(self, key: str, data: bytes | None) -> None:
        if data is None:
            self.objects.delete(key)
        else:
            self.objects.overwrite(key, data)

    def fingerprint(self) -> object:
        return self.objects.fingerprint()


class DiskSite(Site):
    """A store in a directory."""

    def __init__(self, number: int, clock: Clock, disk: SimulatedDisk | None = None) -> None:
        super().__init__(number, clock)
        self.disk = disk or SimulatedDisk()
        self.gates: list[Gate] = []
        if disk is None:
            DirectoryMedium(_ROOT, self.disk).prepare()
            self.disk.settle()

    def medium(self, gate: Gate | None) -> DirectoryMedium:
        disk: Any = _Current(self) if gate is None else _GatedDisk(_Current(self), gate)
        if gate is not None and gate not in self.gates:
            self.gates.append(gate)
            gate.on_crash.append(self._crashed)
        return DirectoryMedium(_ROOT, disk)

    def _crashed(self, how: str) -> None:
        if how != "power":
            return
        for gate in self.gates:
            gate.dead = True
        self.disk = self.disk.power_loss(seeded_loss(random.Random(len(self.disk.pending))))
        self.gates.clear()

    def copy(self, number: int, clock: Clock) -> Site:
        return self.copied_to(DiskSite(number, clock, self.disk.process_crash()))

    def keys(self) -> list[str]:
        return [path for path in self.disk.paths() if not path.endswith((".lock", "latest.txt"))]

    def read(self, key: str) -> bytes:
        return self.disk.read(key)

    def write(self, key: str, data: bytes | None) -> None:
        if data is None:
            if self.disk.exists(key):
                self.disk.unlink(key)
                self.disk.sync_directory(key.rpartition("/")[0])
        elif self.disk.exists(key):
            self.disk.overwrite(key, data)
        elif self.disk.exists(key.rpartition("/")[0]):
            file = self.disk.create(key)
            file.write(data)
            file.sync()
            file.close()
            self.disk.sync_directory(key.rpartition("/")[0])

    def fingerprint(self) -> object:
        return self.disk.fingerprint()


class _Current:
    """The disk as it is now: a power loss replaces it."""

    def __init__(self, site: DiskSite) -> None:
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site.disk, name)


class _GatedDisk(InterceptedDisk):
    """A disk as one process reaches it. Files that it holds are let go when it dies."""

    def __init__(self, disk: Any, gate: Gate) -> None:
        super().__init__(disk, gate)
        self._inner, self._gate = disk, gate
        gate.on_crash.append(self._let_go)
        self._files: list[NewFile] = []

    def create(self, path: str) -> NewFile:
        file = super().create(path)
        self._files.append(file._file)  # type: ignore[attr-defined]
        return file

    @contextlib.contextmanager
    def locked(self, path: str) -> Iterator[None]:
        with super().locked(path):
            self._gate.locks += 1
            try:
                yield
            finally:
                self._gate.locks -= 1

    def _let_go(self, how: str) -> None:
        for file in self._files:
            file.close()


def new_site(kind: str, number: int, clock: Clock) -> Site:
    """Return an empty store."""
    return BucketSite(number, clock) if kind == "bucket" else DiskSite(number, clock)


def damaged(data: bytes, how: str, pick: int) -> bytes | None:
    """Return what damage makes of some bytes; None: they are gone."""
    if how == "lost" or not data:
        return None
    if how == "cut":
        return data[: pick % len(data)]
    position = random.Random(pick).randrange(len(data))
    return data[:position] + bytes([data[position] ^ (1 << pick % 8)]) + data[position + 1 :]
