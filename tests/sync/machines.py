"""Machines with a store each, one bucket between them, and targets that all of them write to. No Spark."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.worlds import PARTITIONS, Process, World
from holdfast import StoreConfigurationError, SyncSettings, TransientStoreError
from holdfast.engine.startup import Start
from holdfast.engine.sync.catalogue import Catalogue
from holdfast.engine.sync.link import SyncLink
from holdfast.engine.sync.notes import SyncNotes
from holdfast.engine.sync.pull import Puller
from holdfast.engine.sync.push import Copied, newest_settled
from holdfast.engine.sync.service import SyncService
from holdfast.engine.sync.sides import Side
from holdfast.engine.sync.standby import Standby
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.materials import DirectoryMaterials
from holdfast.stores.objects import Objects
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import MemoryObjects

URL = "s3://copies/shop"
PREFIX = "shop"
pa.array([1])  # Loaded now: on a busy machine that takes longer than a sink is given for its first rows.


def settings(**changes: Any) -> SyncSettings:
    """Return settings for the bucket of the tests; nothing is pushed unless a test asks for it."""
    return SyncSettings(URL, **{"push_interval": "1 hour", **changes})


class Requests:
    """An interceptor that counts requests, and lets those fail that a test chooses, by their label."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.error: Callable[[str], Exception | None] = lambda label: None

    def call(self, label: str, mutates: bool, run: Callable[[], Any], half: object = None) -> Any:
        self.labels.append(label)
        if (error := self.error(label)) is not None:
            raise error
        return run()

    @property
    def writes(self) -> list[str]:
        """Return the requests that change something."""
        return [label for label in self.labels if label.split()[0] in ("create", "replace", "upload", "delete")]

    def cut_off(self) -> None:
        """Let nothing through any more."""
        self.error = lambda label: TransientStoreError(f"{label}: no route to host")

    def lock_out(self) -> None:
        """Accept no credentials any more."""
        self.error = lambda label: StoreConfigurationError(f"{label}: access denied")

    def heal(self) -> None:
        """Let everything through again."""
        self.error = lambda label: None


class InterceptedBucket:
    """The objects of a bucket as one machine reaches them."""

    def __init__(self, objects: Objects, requests: Requests) -> None:
        self._objects, self._requests = objects, requests

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._objects, name)

        def call(key: str, *rest: Any) -> Any:
            if name == "upload":
                rest = ([b"".join(rest[0])],)
            return self._requests.call(f"{name} {key}", True, lambda: method(key, *rest))

        return call


class Fleet:
    """What all machines share: the source, the targets, the bucket."""

    def __init__(self, base: Path, count: int = 8, *, bucket: Objects | None = None, take: int = 2) -> None:
        self.base = base
        self.world = World(count, take=take)
        self.objects = bucket or MemoryObjects()
        self._machines = 0

    def machine(self, **changes: Any) -> "Machine":
        """Return a machine with an empty disk."""
        self._machines += 1
        return Machine(self, f"machine{self._machines}", settings(**changes))

    def bucket(self, requests: Requests | None = None) -> Side:
        """Return the bucket, as somebody reaches it."""
        objects: Any = InterceptedBucket(self.objects, requests) if requests else self.objects
        medium = BucketMedium(objects, URL, PREFIX, self.world.clock)
        store = DurableCheckpointStore(medium, retain=None, vnode_count=PARTITIONS, clock=self.world.clock)
        return Side(store, DirectoryMaterials(str(self.base / "bucket-materials")))

    def written(self) -> Any:
        """Return all that is in the bucket and in the targets, to be compared."""
        assert isinstance(self.objects, MemoryObjects)
        return self.objects.fingerprint(), {name: target.state for name, target in self.world.targets.items()}

    def right(self) -> bool:
        """Return whether every target shows every row exactly once."""
        return self.world.shown() == self.world.expected()


class Machine(World):
    """A disk with a store, on which processes run."""

    def __init__(self, fleet: Fleet, name: str, settings: SyncSettings) -> None:
        world = fleet.world
        super().__init__(0)
        self.fleet, self.name, self.settings = fleet, name, settings
        self.objects = MemoryObjects()
        self.clock, self.source, self.targets, self.spans = world.clock, world.source, world.targets, world.spans
        self.take = world.take
        self.requests = Requests()
        self.seed: Side | None = None

    def side(self) -> Side:
        """Return the machine's own store."""
        return Side(self.store(), DirectoryMaterials(str(self.fleet.base / self.name)))

    def link(self, observer: Any = None) -> SyncLink:
        """Return the machine's link to the bucket."""
        local = self.side()
        link_to = self.fleet.bucket(self.requests)
        SyncNotes(local.store).marked()
        return SyncLink(self.settings, local, link_to, self.seed, "shop", observer or Silent(), self.clock)

    def process(self, **options: Any) -> "SyncedProcess":
        """Return a process that has not started yet."""
        return SyncedProcess(self, **options)

    def puller(self, bucket: Side) -> Puller:
        """Return what pulls from a bucket onto this machine."""
        return Puller(bucket, self.side(), Catalogue(bucket.store), self.clock)

    def push(self) -> Copied:
        """Push the newest checkpoint, as a process of its own."""
        link = self.link()
        newest = newest_settled(link.local.store)
        assert newest is not None
        return link.pusher.push(newest)

    def standby(self) -> Standby:
        """Return a standby on this machine."""
        link = self.link()
        return Standby(link.local.store, link, Silent(), self.clock, retain=3)


class Silent:
    """Nobody watches."""

    def on_event(self, event: object) -> None:
        """Forget it."""


class SyncedProcess(Process):
    """A process of a pipeline with copies in a bucket. It pushes when a test says so."""

    def __init__(self, machine: Machine, **options: Any) -> None:
        super().__init__(machine, **options)
        self.sync = SyncService(machine.link(self.life), self.life, machine.clock)

    def recover(self) -> Start:
        """Begin as the runner does: first the bucket, then recovery."""
        self._options = self.sync.begin(self._options)
        self.witness = self.sync.witness
        return super().recover()


@contextmanager
def running(machine: Machine, **options: Any) -> Iterator[SyncedProcess]:
    """Start a process and end it, without anything in between."""
    process = machine.process(**options)
    try:
        process.start()
        yield process
    finally:
        process.delivery.close()
