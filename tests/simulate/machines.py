"""Machines with a store each and one bucket between them: the real copies and standbys, on simulated storage."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from engine.worlds import PARTITIONS
from holdfast.clock import Clock
from holdfast.engine.events import Observer, SyncFailed, SyncPushed
from holdfast.engine.startup import AskOthers, Start, StartOptions
from holdfast.engine.sync.link import SyncLink
from holdfast.engine.sync.notes import SyncNotes
from holdfast.engine.sync.push import newest_settled
from holdfast.engine.sync.service import SyncService
from holdfast.engine.sync.settings import SyncSettings
from holdfast.engine.sync.sides import Side
from holdfast.engine.sync.standby import Standby
from holdfast.errors import CheckpointStoreError, TransientStoreError
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import InterceptedObjects
from holdfast.testing.scripted_source import SOURCE
from simulate.gates import Gate
from simulate.sites import BucketSite, Reign, Site, new_site
from simulate.worlds import SimulatedProcess, SimulatedWorld

URL = "s3://copies/shop"
STANDBY, STARTS = "standby", "starts"
"""What a bucket hears of: every seal, so that a standby can take over at any time; or starts only."""
MOST_MACHINES = 3
_BUCKET = 99
_KEPT_BY_A_STANDBY = 3

_Result = TypeVar("_Result")


class NoFiles:
    """Files beside the checkpoints, of which these pipelines have none."""

    place = "memory://files"

    def names(self, prefix: str = "") -> list[str]:
        return []


class Nobody:
    """Watches nothing."""

    def on_event(self, event: object) -> None:
        """Forget it."""


class SharedBucket(BucketSite):
    """The bucket between the machines."""

    def __init__(self, clock: Clock, objects: Any = None) -> None:
        super().__init__(_BUCKET, clock, objects)
        self._damaged: dict[str, bytes | None] = {}

    def damage(self, key: str, data: bytes | None) -> None:
        super().damage(key, data)
        self._damaged[key] = data

    def restore(self) -> None:
        """Undo all damage, but where somebody wrote since."""
        now = self.contents()
        self.originals = {key: data for key, data in self.originals.items() if now.get(key) == self._damaged.get(key)}
        super().restore()
        self._damaged.clear()

    def copy(self, number: int, clock: Clock) -> "SharedBucket":
        other = SharedBucket(clock, self.objects.copy())
        self.copied_to(other)
        other._damaged = dict(self._damaged)
        return other


class _Line:
    """How one process reaches the bucket: through its gate, while the line of its machine is not cut."""

    def __init__(self, fleet: "Fleet", site: Site, gate: Gate) -> None:
        self._fleet, self._site, self._gate = fleet, site, gate

    def call(
        self, label: str, mutates: bool, run: Callable[[], _Result], half: Callable[[], object] | None = None
    ) -> _Result:
        operation, _, key = label.partition(" ")
        label = f"{operation} copies/{key}"
        if self._site.number in self._fleet.cut:
            return self._gate.call(label, False, lambda: _no_route(label))
        return self._gate.call(label, mutates, run, half)


def _no_route(label: str) -> Any:
    raise TransientStoreError(f"{label}: no route to host")


class Following:
    """A standby on a machine, as long as it lives."""

    def __init__(self, fleet: "Fleet", site: Site, gate: Gate, retain: int | None) -> None:
        self.site, self.gate, self.busy = site, gate, False
        store = site.store(gate)
        link = fleet.link(site, gate, store, Nobody())
        self.standby = Standby(store, link, Nobody(), site.clock, retain=retain or _KEPT_BY_A_STANDBY)

    def step(self) -> None:
        """Look once, or take over when it was told to."""
        self.standby._step()


class Fleet:
    """What machines have in common: the bucket, and who of them runs the pipeline."""

    def __init__(self, clock: Clock, kind: str, keep: int, reign: Reign) -> None:
        self.clock, self.kind, self.reign = clock, kind, reign
        self.settings = SyncSettings(URL, push_interval="1 hour", standby=kind == STANDBY, retention_min_count=keep)
        self.bucket = SharedBucket(clock)
        self.cut: set[int] = set()
        """Machines that do not reach the bucket."""
        self.disks: dict[int, Site] = {}
        """Stores that were taken away from their machines, where they can be brought back from."""
        self.standbys: dict[int, Following] = {}
        self.gates: dict[int, list[Gate]] = {}
        """The processes of each machine."""
        self.lost = False
        """Whether the source ever let go of more than it was told."""

    @property
    def every_seal(self) -> bool:
        return self.kind == STANDBY

    def copied_to(self, other: "Fleet", sites: Iterable[Site]) -> "Fleet":
        """Bring another fleet into the same state, in which nothing runs."""
        other.bucket = self.bucket.copy(_BUCKET, other.clock)
        other.cut, other.lost = set(self.cut), self.lost
        for site in sites:
            site.reign = other.reign
        other.disks = {number: site.copy(number, other.clock) for number, site in self.disks.items()}
        for site in other.disks.values():
            site.reign = other.reign
        return other

    def objects(self, site: Site, gate: Gate) -> Any:
        return InterceptedObjects(self.bucket.objects, _Line(self, site, gate))

    def link(self, site: Site, gate: Gate, store: DurableCheckpointStore, observer: Observer) -> SyncLink:
        """Return how a store is linked to the bucket, as `open_link` does."""
        self.gates.setdefault(site.number, []).append(gate)
        SyncNotes(store).marked()
        medium = BucketMedium(self.objects(site, gate), URL, "shop", self.clock)
        bucket = DurableCheckpointStore(medium, retain=None, vnode_count=PARTITIONS, clock=self.clock)
        files: Any = NoFiles()
        return SyncLink(self.settings, Side(store, files), Side(bucket, files), None, "shop", observer, self.clock)

    def end_of(self, uuid: str) -> int:
        """Return the end of what a checkpoint of the bucket holds; 0 when it is gone already."""
        found = (m for m in self.bucket.store().manifests() if m.uuid == UUID(uuid))
        return next((int(m.source_offsets[SOURCE].offsets["next"]) for m in found), 0)

    def was_replaced(self, site: Site) -> bool:
        """Whether the pipeline ran on this store, and runs on another one since."""
        by_another = self.reign.site not in (None, site.number)
        return by_another and site.ran is not None and site.ran < self.reign.generation

    def has_place(self, site: Site) -> bool:
        """Whether a start on this store is nobody's take-over."""
        return self.reign.site in (None, site.number) and site.number not in self.cut

    def promised(self, process: "SyncedProcess") -> int:
        """Return where a start may go on at the earliest: the end of what nobody lost and nobody gave up.

        The machine that ran last has all that was decided. Another one has it too where every seal is recorded;
        where not, it has what was copied.
        """
        if process.site.hurt:
            return 0
        if self.reign.site == process.site.number:
            return self.reign.decided
        if self.bucket.hurt:
            return 0
        return self.reign.decided if self.every_seal else min(self.reign.decided, process.copied)

    def another_bucket(self) -> None:
        """Name another prefix."""
        self.bucket = SharedBucket(self.clock)
        self.reign.copied = 0
        self.standbys.clear()


class SyncedProcess(SimulatedProcess):
    """A process of a machine, with copies in the bucket. It pushes when a step says so."""

    def __init__(
        self, world: SimulatedWorld, fleet: Fleet, site: Site, options: StartOptions, retain: int | None
    ) -> None:
        super().__init__(world, site, options, retain)
        self.fleet, self.pushing, self.told = fleet, False, False
        self.copied = 0
        """The end of what the bucket held when it was asked: what comes while a start takes over may be too late."""
        self.sync: SyncService

    def recover(self, ask_others: AskOthers | None = None) -> Start:
        """Begin as the runner does: first the bucket, then recovery."""
        self.was_replaced, self.copied = self.fleet.was_replaced(self.site), self.fleet.reign.copied
        self.bucket = self.fleet.bucket
        link = self.fleet.link(self.site, self.gate, self.store, self.observer)
        self.sync = SyncService(link, self.observer, self.world.clock)
        self._options = self.sync.begin(self._options)
        self.witness = self.sync.witness
        started = super().recover(ask_others)
        self.observer.add(self.sync)
        self.sync._on_fenced = lambda error: setattr(self, "told", True)
        return started

    def start(self) -> Start:
        started = super().start()
        self.site.ran = self.generation
        return started

    def promised(self) -> int:
        return self.fleet.promised(self)

    def failures(self) -> list[SyncFailed]:
        """Return what went wrong with copies so far."""
        return [event for event in self.life.events if isinstance(event, SyncFailed)]

    def push(self, asked: bool) -> int | None:
        """Copy the newest checkpoint, as the thread beside the epochs does; return its end when that was answered."""
        heard = len(self.life.events)
        if asked:
            self.sync.request()
            manifest = self.sync._next()
        else:
            try:
                manifest = newest_settled(self.store)
            except CheckpointStoreError as error:
                self.sync._ended(None, error)
                return None
        if manifest is not None:
            self.sync._push(manifest)
        pushed = [event for event in self.life.events[heard:] if isinstance(event, SyncPushed)]
        return self.fleet.end_of(pushed[-1].checkpoint) if pushed else None


class Machines(SimulatedWorld):
    """A world in which the pipeline has machines with a store each, and a bucket."""

    fleet: Fleet

    def __init__(self, kind: str, sync: str, keep: int, **options: Any) -> None:
        super().__init__(kind, **options)
        self.sync, self.keep = sync, keep
        self.fleet = Fleet(self.clock, sync, keep, self.site.reign)
        for name in list(self.targets)[2::3]:
            self.target(name).spools = True

    @property
    def has_copies(self) -> bool:
        """Whether two stores believe to be one: machines know of each other."""
        return False

    def again(self) -> SimulatedWorld:
        return Machines(self.kind, self.sync, self.keep, sinks=self.sinks, trace=self.trace)

    def copy(self) -> SimulatedWorld:
        other = super().copy()
        assert isinstance(other, Machines)
        other.fleet.reign = self.fleet.reign.copy()
        self.fleet.copied_to(other.fleet, other.sites)
        for site, old in zip(other.sites, self.sites, strict=True):
            site.ran = old.ran
        return other

    def begin(self, options: StartOptions | None = None, retain: int | None = None) -> SyncedProcess:
        self.started += 1
        return SyncedProcess(self, self.fleet, self.site, options or StartOptions(), retain)

    def add_machine(self) -> Site:
        """Return a machine with an empty disk."""
        site = new_site(self.kind, len(self.sites), self.clock)
        site.reign = self.fleet.reign
        self.sites.append(site)
        return site

    def take_disk(self, number: int, *, kept: bool = True) -> None:
        """Take the store of a machine away, whatever runs there, and with it what sinks had spooled there.

        It is `kept` unless a message said to begin with an empty one: then nobody puts it back.
        """
        old = self.sites[number]
        for gate in self.fleet.gates.pop(number, []):
            gate.die()
        self.fleet.standbys.pop(number, None)
        if kept:
            self.fleet.disks[number] = old
        site = new_site(self.kind, number, self.clock)
        site.reign = self.fleet.reign
        self.sites[number] = site
        self.work.pop(number, None)
        if self.fleet.reign.site == number:
            self.fleet.reign.site = None
        for name in self.targets:
            self.target(name).move_spool(number, _away(number))

    def bring_disk_back(self) -> bool:
        """Put the store that was taken away last into its machine again."""
        if not self.fleet.disks:
            return False
        number = list(self.fleet.disks)[-1]
        old = self.fleet.disks.pop(number)
        for gate in self.fleet.gates.pop(number, []):
            gate.die()
        self.sites[number] = old
        self.current = number
        for name in self.targets:
            self.target(name).move_spool(_away(number), number)
        return True

    def another_bucket(self) -> None:
        """Name another prefix, on every machine: whose place it was in the other one does not matter there."""
        self.fleet.another_bucket()
        for site in self.sites:
            site.ran = None

    def everything(self) -> Any:
        sites = [(site.fingerprint(), site.contents()) for site in self.sites]
        return sites, self.visible(), self.kept_from, self.fleet.bucket.fingerprint()

    def unchanged(self, before: Any, starting: Site) -> bool:
        """Whether all is as it was, but for what the store of that start got from the bucket."""
        (sites, *rest), (sites_now, *rest_now) = before, self.everything()
        others = all(
            was[0] == now[0]
            for number, (was, now) in enumerate(zip(sites, sites_now, strict=True))
            if number != starting.number
        )
        return rest == rest_now and others and _only_got(starting, sites[starting.number][1])


def _away(number: int) -> int:
    """Return where the disk of a machine lies that was taken out."""
    return -1 - number


def _only_got(site: Site, before: Mapping[str, bytes]) -> bool:
    """Whether all that was sound is still there: a sidecar that had only begun may be whole now."""
    now, passing = site.contents(), ("sync.json", "latest.json", ".tmp")
    sound = {key: data for key, data in before.items() if key not in site.originals and not key.endswith(passing)}
    return all(now.get(key, b"").startswith(data) for key, data in sound.items())


def new_world(kind: str, sync: str, seed: int) -> SimulatedWorld:
    """Return the world that a history begins in."""
    return Machines(kind, sync, 1 + seed % 3) if sync else SimulatedWorld(kind)
