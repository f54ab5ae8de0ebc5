"""A pipeline without Spark: a source, targets and a store that outlive the process, and a process that can die.

A process does what the runner does: start, replay what has to be, epochs until the source is empty.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast import CheckpointManifest
from holdfast.core.names import manifest_name
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.coordinator import Coordinator, PipelineFacts, RecordedEpoch
from holdfast.engine.delivery import Delivery, DeliverySettings
from holdfast.engine.events import Event, Observer, Observers, StepFinished, StepStarted
from holdfast.engine.identity import fingerprint
from holdfast.engine.records import FoundRange
from holdfast.engine.startup import AskOthers, Start, StartOptions, Startup
from holdfast.engine.witness import NO_WITNESS, Witness
from holdfast.stores.bucket import BucketMedium
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import (
    ManualClock,
    MemoryObjects,
    RecordedTarget,
    RecordingSink,
    ScriptedEpoch,
    ScriptedSource,
    SimulatedCrash,
)
from holdfast.testing.recording_sink import Row
from holdfast.testing.scripted_source import Output, recorded_end, restored_count

PARTITIONS = 2
SETTINGS = DeliverySettings(prepare_seconds=10.0, commit_seconds=10.0, attempts=3)
IMPATIENT = replace(SETTINGS, prepare_seconds=0.05, commit_seconds=0.05)
OUTPUTS: dict[str, Output] = {
    "a": lambda record, seen: record,
    # Has no rows in every other epoch of two records.
    "b": lambda record, seen: {"id": record["id"], "name": "b"} if record["id"] % 4 in (1, 2) else None,
    # Shows whether the state is the right one.
    "c": lambda record, seen: {"id": record["id"], "seen": seen},
}


def records(count: int) -> list[Row]:
    """Return numbered records, counted from 1."""
    return [{"id": number} for number in range(1, count + 1)]


def flipped(data: bytes, position: int) -> bytes:
    """Return the bytes with one bit changed."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


class World:
    """Everything that a crash of the process does not take away."""

    def __init__(self, count: int = 8, outputs: Mapping[str, Output] = OUTPUTS, *, take: int = 2) -> None:
        self.objects = MemoryObjects()
        self.clock = ManualClock()
        self.source = ScriptedSource(records(count), outputs)
        self.targets = {name: RecordedTarget() for name in outputs}
        self.take: Callable[[int], int] = lambda generation: take
        """How many records an epoch takes, by the generation that runs it."""
        self.machine = 0
        """Where the next process runs."""
        self.work: dict[int, dict[int, dict[int, FoundRange]]] = {}
        """Machine -> generation -> epoch -> its range: working directories, which outlive their process."""
        self.spans: dict[str, range] = {}
        """Every range that was ever chosen, by its digest."""

    def medium(self) -> BucketMedium:
        return BucketMedium(self.objects, "memory://world", "world", self.clock)

    def store(self, medium: Any = None, *, retain: int | None = None) -> DurableCheckpointStore:
        return DurableCheckpointStore(
            medium or self.medium(), retain=retain, vnode_count=PARTITIONS, clock=self.clock
        )

    def copy(self) -> "World":
        """Return an independent world in the same state."""
        other = World(0, self.source.outputs)
        other.objects, other.work, other.take = self.objects.copy(), deepcopy(self.work), self.take
        other.source.records = list(self.source.records)
        for name, target in self.targets.items():
            other.targets[name].state, other.targets[name].rewindable = target.state, target.rewindable
        return other

    def process(self, **options: Any) -> "Process":
        """Return a process that has not started yet."""
        return Process(self, **options)

    def run(self, **options: Any) -> "Process":
        """Run a process until the source is empty."""
        process = self.process(**options)
        process.run()
        return process

    def lose_work(self) -> None:
        """Go on on another machine, and never come back."""
        self.work.clear()

    def ranges_of(self, machine: int, epoch: int) -> list[FoundRange]:
        """Return what the working directories on a machine say that an epoch was to read, the newest first."""
        directories = sorted(self.work.get(machine, {}).items(), reverse=True)
        return [ranges[epoch] for _, ranges in directories if epoch in ranges]

    def expected(self) -> dict[str, list[Row]]:
        return {name: self.source.expected(name) for name in self.targets}

    def shown(self) -> dict[str, list[Row]]:
        return {name: target.rows for name, target in self.targets.items()}

    def newest(self) -> CheckpointManifest:
        found = self.store().load_latest()
        assert found is not None
        return found

    def of_epoch(self, epoch: int) -> CheckpointManifest:
        """Return the newest manifest of an epoch."""
        return [manifest for manifest in self.store().manifests() if manifest.epoch == epoch][-1]

    def damage_manifest(self, checkpoint_id: int) -> None:
        key = f"world/manifests/{manifest_name(checkpoint_id)}"
        self._edit(key, lambda data: flipped(data, 300))

    def damage_sidecar(self, name: str | None, *, progress: bool = False) -> None:
        """Flip a bit of the state behind the progress chunk, or of the chunk itself."""
        assert name is not None
        self._edit(f"world/checkpoints/{name}", lambda data: flipped(data, 100 if progress else len(data) - 1))

    def _edit(self, key: str, change: Callable[[bytes], bytes]) -> None:
        stored = self.objects.read(key)
        assert stored is not None, key
        self.objects.overwrite(key, change(stored.data))


class FailingMedium:
    """A store's medium that fails from a call on; that call may have been carried out."""

    def __init__(self, world: World) -> None:
        self._medium = world.medium()
        self._call, self._error, self._carried_out, self._failed = "", BaseException(), False, False

    def fail(self, call: str, error: BaseException, *, carried_out: bool = False) -> None:
        """Let the next `call`, and everything after it, raise `error`."""
        self._call, self._error, self._carried_out = call, error, carried_out

    def __getattr__(self, name: str) -> Any:
        if self._failed:
            raise self._error
        return self._fail if name == self._call else getattr(self._medium, name)

    def _fail(self, *arguments: Any) -> None:
        if self._carried_out:
            getattr(self._medium, self._call)(*arguments)
        self._failed = True
        raise self._error


@dataclass(frozen=True)
class Point:
    """An event at which a process can die: the `nth` of its kind in that process."""

    kind: type[Event]
    epoch: int
    step: str
    sink: str | None = None
    nth: int = 1

    @classmethod
    def of(cls, event: Event) -> "Point | None":
        if isinstance(event, StepStarted | StepFinished):
            return cls(type(event), event.epoch, event.step, event.sink)
        return None

    def __str__(self) -> str:
        which = f" of {self.sink}" if self.sink else ""
        again = f", time {self.nth}" if self.nth > 1 else ""
        return f"{self.kind.__name__} {self.step}{which} in epoch {self.epoch}{again}"


@dataclass
class Life:
    """The observer of one process: writes its events down, and ends it at one of them, named or counted from 0."""

    dies_at: Point | int | None = None
    on_point: Callable[[Point], object] = lambda point: None
    dead: bool = False
    replaced: bool = False
    points: list[Point] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _count: Counter[Point] = field(default_factory=Counter)

    def on_event(self, event: Event) -> None:
        self.check()
        self.events.append(event)
        point = Point.of(event)
        if point is None:
            return
        self._count[point] += 1
        point = replace(point, nth=self._count[point])
        self.points.append(point)
        self.on_point(point)
        if self.dies_at in (point, len(self.points) - 1):
            self.dead = True
            self.check()

    @property
    def fenced(self) -> bool:
        """Whether the process has sealed its fence."""
        return Point(StepFinished, 0, "recovery.fence") in self.points

    def check(self, action: str = "") -> None:
        """Raise when the process is dead: it does nothing any more, on no thread."""
        if self.dead:
            raise SimulatedCrash(str(self.dies_at))


class InTurn:
    """Lets the sinks of a step act one after the other, in a fixed order, although each has a thread of its own."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._given = self._served = 0

    def __call__(self, work: Callable[[], object]) -> Callable[[], object]:
        ticket, self._given = self._given, self._given + 1

        def in_turn() -> object:
            with self._condition:
                self._condition.wait_for(lambda: self._served >= ticket)
            try:
                return work()
            finally:
                with self._condition:
                    self._served = max(self._served, ticket + 1)
                    self._condition.notify_all()

        return in_turn


class Process:
    """One life of the pipeline's process."""

    def __init__(
        self,
        world: World,
        *,
        sinks: Iterable[str] | None = None,
        dies_at: Point | int | None = None,
        on_point: Callable[[Point], object] = lambda point: None,
        options: StartOptions | None = None,
        settings: DeliverySettings = SETTINGS,
        identity: Mapping[str, Any] | None = None,
        in_turn: bool = True,
        store: DurableCheckpointStore | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.world, self.machine = world, world.machine
        self.life = Life(dies_at, on_point)
        self.observer = Observers([self.life, *observers])
        self.store = store or world.store()
        names = list(world.targets if sinks is None else sinks)
        self.sinks = {name: RecordingSink(world.targets[name], self.life.check) for name in names}
        self._identity = dict(identity or {})
        self._options, self._settings = options or StartOptions(), settings
        wrap = {"wrap": InTurn()} if in_turn else {}
        self.delivery = Delivery(self.sinks, settings, self.observer, world.clock, **wrap)
        self.position, self.seen, self.epoch, self.span = 0, 0, 0, range(0)
        self.witness: Witness = NO_WITNESS

    @property
    def generation(self) -> int:
        """The generation it runs as; 0 before it has one."""
        return self.started.owner.generation if hasattr(self, "started") else 0

    # what the runner does

    def run(self) -> None:
        """Start, and go on until the source is empty. A process that dies raises `SimulatedCrash`."""
        try:
            self.start()
            while self.next_epoch():
                pass
        finally:
            self.delivery.close()

    def start(self) -> Start:
        """Recover, and replay what has to be."""
        start = self.recover()
        for record in start.replays:
            self.replay(record)
        work = self.world.work.get(self.machine, {})
        self.world.work[self.machine] = {number: work[number] for number in work if number >= self.generation}
        return start

    def old_ranges(self, epoch: int) -> list[FoundRange]:
        """Return what old working directories say that an epoch was to read."""
        return self.world.ranges_of(self.machine, epoch)

    def startup(self) -> Startup:
        """Return a start that was not made yet."""
        return Startup(
            "shop",
            self.store,
            self.sinks,
            self.facts(),
            self._options,
            self.delivery,
            self._settings,
            self.observer,
            self.world.clock,
            self.witness,
        )

    def recover(self, ask_others: AskOthers = lambda intent: None) -> Start:
        self.started = start = self.startup().run(self.old_ranges, ask_others)
        self._restore(start)
        self.writer = CheckpointWriter(
            self.store, start.owner, start.fence, self.world.clock, inline_threshold=0, witness=self.witness
        )
        self.coordinator = Coordinator(
            self.store,
            self.sinks,
            start.positions,
            self.facts(),
            start.owner,
            self.writer,
            self.delivery,
            self._settings,
            self.observer,
            self.world.clock,
        )
        return start

    def facts(self) -> PipelineFacts:
        identity = {"sinks": {name: {"kind": "recording"} for name in self.sinks}, **self._identity}
        names = tuple(sorted(self.sinks))
        return PipelineFacts(("script",), names, fingerprint(identity), PARTITIONS, identity)

    def _restore(self, start: Start) -> None:
        if start.chosen is None:
            return
        assert start.chosen.sidecar is not None
        reader = self.store.state_reader
        progress = reader.progress(start.chosen.sidecar)
        assert progress.epoch == start.epoch
        files = {file.path: reader.read(file) for file in reader.catalog(start.chosen).files}
        self.position = recorded_end(progress.parts, start.epoch)
        self.seen, self.epoch = restored_count(files), start.epoch

    def replay(self, record: RecordedEpoch) -> None:
        end = recorded_end(record.parts, record.epoch)
        self.run_epoch(self.work(record.epoch, range(self.position, end)), record)

    def next_epoch(self) -> bool:
        """Run the next epoch; False when the source is empty."""
        left = len(self.world.source.records) - self.position
        if left <= 0:
            return False
        take = min(self.world.take(self.started.owner.generation), left)
        self.run_epoch(self.work(self.epoch + 1, range(self.position, self.position + take)))
        return True

    def work(self, epoch: int, span: range) -> ScriptedEpoch:
        """Choose a range for an epoch, as Spark does: it is written down before anything is computed."""
        self.span = span
        work = self.world.source.epoch(epoch, span, self.seen)
        self.world.spans[work.digest] = span
        directories = self.world.work.setdefault(self.machine, {})
        directories.setdefault(self.generation, {})[epoch] = FoundRange(work.recorded_range, work.digest)
        return work

    def run_epoch(self, work: ScriptedEpoch, record: RecordedEpoch | None = None) -> None:
        self.coordinator.run_epoch(work, record)
        self.position, self.seen = work.span.stop, restored_count(work.state)
        self.epoch = work.epoch
