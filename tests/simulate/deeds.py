"""What people do by hand while a pipeline runs, and what befalls its world."""

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator

from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.resolution import discard_epoch
from holdfast.engine.sync.notes import NOTES
from holdfast.engine.upstream import oldest_fall_back
from holdfast.errors import HoldfastError
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import SimulatedCrash
from simulate import checks
from simulate.checks import Judge
from simulate.gates import Gate, Plan
from simulate.machines import new_world
from simulate.sites import damaged
from simulate.steps import History, Step
from simulate.worlds import NAMES, SimulatedProcess

MOST_SITES = 3


class Deeds(ABC):
    """A history as it happens, but for starting and running: that is `lives.Life`."""

    def __init__(self, history: History, judge: Judge | None = None) -> None:
        self.history, self.judge = history, judge or Judge()
        self.world = new_world(history.kind, history.sync, history.seed)
        self.world.take = lambda generation: 1 + (history.seed + generation) % 3
        self.running: list[SimulatedProcess] = []
        """Processes that did not end, by when they started: the last is the one that people know of."""
        self.done: Counter[str] = Counter()
        """What really happened: a history that does nothing finds nothing."""
        self._late: list[Gate] = []

    def digest(self) -> str:
        """Return what two runs of one history must have in common."""
        text = "\n".join(self.world.trace.lines) + repr(self.world.everything())
        return hashlib.sha256(text.encode()).hexdigest()

    def do(self, step: Step) -> None:
        """Let one step happen, and look."""
        self.world.trace.add(repr(step))
        for gate in self._late:
            gate.deliver_late()
        self._late.clear()
        self.act(step)
        self.judge.at_rest(self.world)

    @abstractmethod
    def act(self, step: Step) -> None:
        """Let a step happen."""

    def current(self) -> SimulatedProcess | None:
        """Return the newest process of the current store."""
        self.running = [process for process in self.running if not process.gate.dead]
        here = [process for process in self.running if process.site is self.world.site]
        return here[-1] if here and not here[-1].busy else None

    def stop(self, step: Step) -> None:
        if (process := self.current()) is not None and not process.busy:
            self.running.remove(process)
            self.done["stopped"] += 1

    def _arm(self, gate: Gate, step: Step | None, process: SimulatedProcess | None = None) -> None:
        if step is None or not step.meets:
            return
        gate.arm(Plan(step.at, step.meets, lambda: self._during(step, process)))
        self._late.append(gate)

    def _during(self, step: Step, process: SimulatedProcess | None) -> None:
        self.done["paused"] += 1
        for inner in step.during:
            self.do(inner)
        if process is not None:
            process.look()
            self.world.trace.add(f"{process.gate.name} wakes")

    # by hand

    @contextlib.contextmanager
    def _by_hand(self, step: Step, what: str) -> Iterator[DurableCheckpointStore]:
        """Do something from the command line, beside whatever runs: it may fail, and may die."""
        gate = Gate(what, self.world.trace)
        self._arm(gate, step)
        try:
            yield self.world.site.store(gate)
            self.done[what] += 1
        except SimulatedCrash:
            self.done[f"{what} died"] += 1
        except HoldfastError as error:
            self.world.trace.add(f"{what}: {type(error).__name__}: {error}")
            self.done[f"{what} failed"] += 1

    def _picked(self, store: DurableCheckpointStore, step: Step) -> int | None:
        found = [id for id, epoch in store.list() if epoch]
        return found[step.pick % len(found)] if found else None

    def savepoint(self, step: Step) -> None:
        with self._by_hand(step, "savepoint") as store:
            if (id := self._picked(store, step)) is not None:
                store.set_identifier(id, f"name {step.pick}")

    def release(self, step: Step) -> None:
        with self._by_hand(step, "release") as store:
            named = [m.checkpoint_id for m in store.manifests() if m.identifier is not None]
            if named:
                store.set_identifier(named[step.pick % len(named)], None)

    def prune(self, step: Step) -> None:
        named = {} if step.during else self._savepoints()
        with self._by_hand(step, "prune") as store, self._kept_for_others(store):
            store.prune(step.pick % 5)
        self._still_there(named)

    def _kept_for_others(self, store: DurableCheckpointStore) -> contextlib.AbstractContextManager[None]:
        """Keep what a prune from the command line keeps for other machines."""
        return contextlib.nullcontext()

    def clean(self, step: Step) -> None:
        named = {} if step.during else self._savepoints()
        with self._by_hand(step, "clean") as store:
            store.cleanup_orphans()
        self._still_there(named)

    def _savepoints(self) -> dict[int, str]:
        """Return what has a name and holds."""
        store = self.world.site.store()
        return {
            manifest.checkpoint_id: manifest.identifier
            for manifest in store.manifests()
            if manifest.identifier is not None and store.validate_checkpoint(manifest.checkpoint_id).valid
        }

    def _still_there(self, named: dict[int, str]) -> None:
        lost = named.keys() - self._savepoints().keys()
        self.judge.demand(checks.VALID, not lost, f"savepoints {sorted(lost)} do not hold any more")

    def discard(self, step: Step) -> None:
        """Give up what the newest checkpoint owes to a sink."""
        world = self.world
        newest = next(reversed(list(world.site.store().manifests())), None)
        if newest is None:
            return
        owed = sorted(name for name, status in newest.sink_commit_statuses.items() if str(status) != "Committed")
        if not owed:
            return
        name = owed[step.pick % len(owed)]
        with self._by_hand(step, "decided by hand") as store:
            token = newest.sink_tokens.get(name)
            if token:
                world.excused[name] |= set(world.spans[token["range_digest"]])
            discard_epoch(store, name, newest.epoch, reason="tired", clock=world.clock)

    def take_again(self, step: Step) -> None:
        """Let the running process take a checkpoint of now, as `holdfast checkpoint` does."""
        process = self.current()
        if process is None or process.epoch == 0:
            return
        process.busy = True
        self._arm(process.gate, step)
        writer: CheckpointWriter = process.writer
        try:
            writer.seal_again()
            self.done["taken again"] += 1
        except (SimulatedCrash, HoldfastError):
            self.running = [other for other in self.running if other is not process]
        finally:
            process.busy = False
            process.gate.arm(None)

    # what befalls the world

    def damage(self, step: Step) -> None:
        site = self.world.site
        if keys := [key for key in site.contents() if not key.endswith(NOTES)]:
            key = keys[-1 - step.pick % len(keys)]
            site.spare = 0 if site.hurt else self._independent()
            site.damage(key, damaged(site.read(key), step.how, step.pick))
            self.done["damaged"] += 1

    def _independent(self) -> int:
        """Return how many checkpoints hold that share no bytes with one another, counted from the newest."""
        store, taken, count = self.world.site.store(), set[str](), 0
        manifests = list(store.manifests())
        given_up = set(manifests[-1].abandons) if manifests else set()
        for manifest in reversed(manifests):
            usable = manifest.epoch > 0 and manifest.checkpoint_id not in given_up
            if usable and not manifest.needed_sidecars & taken and store.glance_at(manifest).valid:
                taken |= manifest.needed_sidecars
                count += 1
        return count

    def restore(self, step: Step) -> None:
        self.world.site.restore()

    def sinks(self, step: Step) -> None:
        """Change the pipeline; the process that runs is stopped for it."""
        inside = self.world.sinks
        outside = [name for name in NAMES if name not in inside]
        if step.how in ("removed", "renamed") and len(inside) > 1:
            inside = [name for name in inside if name != inside[step.pick % len(inside)]]
        if step.how in ("added", "renamed") and outside:
            inside = sorted({*inside, outside[step.pick % len(outside)]})
        self.world.sinks = inside
        self.stop(step)

    def trouble(self, step: Step) -> None:
        action, kind = step.how.split()
        self.world.target(self.world.sinks[step.pick % len(self.world.sinks)]).failing[action] = kind

    def repair(self, step: Step) -> None:
        for name in NAMES:
            self.world.target(name).failing.clear()

    def rewindable(self, step: Step) -> None:
        target = self.world.target(NAMES[step.pick % len(NAMES)])
        target.rewindable = not target.rewindable

    def trim(self, step: Step) -> None:
        """Let the source forget what it was told that nobody needs any more, or more than that."""
        newest = next(reversed(list(self.world.site.store().manifests())), None)
        oldest = oldest_fall_back(self.world.site.store(), newest) if newest else None
        if oldest is None:
            return
        end = int(oldest.source_offsets["script"].offsets["next"])
        lost = step.how == "lost"
        self.world.kept_from = max(self.world.kept_from, end + (step.pick % 4 if lost else 0))
        self.done[f"trimmed {step.how}"] += 1

    def copy(self, step: Step) -> None:
        world = self.world
        if len(world.sites) < MOST_SITES and not self.running and not self.history.sync:
            number = len(world.sites)
            world.sites.append(world.site.copy(number, world.clock))
            world.work[number] = dict(world.work.get(world.site.number, {}))
            self.done["copied"] += 1

    def switch(self, step: Step) -> None:
        self.world.current = step.pick % len(self.world.sites)

    def clock(self, step: Step) -> None:
        self.world.clock.step_wall_clock(-step.pick * 60)

    def move(self, step: Step) -> None:
        """Go on without what the old machine had beside the store."""
        self.world.work.pop(self.world.site.number, None)
        self.stop(step)
