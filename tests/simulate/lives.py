"""Lets a history happen, step by step, and asks the judge after each."""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from engine.worlds import records
from holdfast.core.contracts import OnForeign
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.resolution import discard_epoch
from holdfast.engine.startup import StartOptions
from holdfast.engine.upstream import oldest_fall_back
from holdfast.errors import Fenced, HoldfastError
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import SimulatedCrash
from simulate import checks
from simulate.advice import PATIENCE, follow
from simulate.checks import Broken, Judge
from simulate.gates import Gate, Plan
from simulate.sites import damaged
from simulate.steps import History, Step
from simulate.worlds import NAMES, SimulatedProcess, SimulatedWorld, seed_identifiers

MOST_SITES = 3


class Life:
    """One history, as it happens."""

    def __init__(self, history: History, judge: Judge | None = None) -> None:
        seed_identifiers(history.seed)
        self.history, self.judge = history, judge or Judge()
        self.world = SimulatedWorld(history.kind)
        self.world.take = lambda generation: 1 + (history.seed + generation) % 3
        self.running: list[SimulatedProcess] = []
        """Processes that did not end, by when they started: the last is the one that people know of."""
        self.done: Counter[str] = Counter()
        """What really happened: a history that does nothing finds nothing."""
        self._late: list[Gate] = []

    def run(self) -> None:
        """Let everything happen."""
        try:
            for number, step in enumerate(self.history.steps):
                self.do(step)
                if (number + step.pick) % 4 == 0:
                    self.look_ahead(self.world.copy())
                if (number + step.pick) % 8 == 3:
                    self.try_valid(self.world.copy(), step.pick)
            self._finish()
        except Broken:
            raise
        except SimulatedCrash:
            raise
        except Exception as error:
            if self.judge.wants(checks.CRASHED):
                raise Broken(checks.CRASHED, f"{type(error).__name__}: {error}") from error

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
        ACTIONS[step.do](self, step)
        self.judge.at_rest(self.world)

    # starting and running

    def run_epochs(self, step: Step) -> None:
        process = self.current()
        if process is None:
            process = self._started(step, self._options())
            self._epochs(process, step.count)
            return
        self._epochs(process, step.count, step)

    def start(self, step: Step) -> None:
        """Start a process, whoever runs already."""
        self._started(step, self._options())

    def go_back(self, step: Step) -> None:
        """Go on from an older checkpoint, on a person's word: from any, or from one that was not given up."""
        manifests = list(self.world.site.store().manifests())
        given_up = set(manifests[-1].abandons) if manifests and step.how != "any" else set()
        ids = [m.checkpoint_id for m in manifests if m.checkpoint_id not in given_up]
        if ids:
            self._started(step, StartOptions(from_id=ids[step.pick % len(ids)]))

    def fresh(self, step: Step) -> None:
        self._started(step, StartOptions(fresh=True, on_foreign=OnForeign(step.how)))

    def stop(self, step: Step) -> None:
        if (process := self.current()) is not None and not process.busy:
            self.running.remove(process)
            self.done["stopped"] += 1

    def wake(self, step: Step) -> None:
        """Let an earlier process go on, which may have been replaced."""
        current = self.current()
        asleep = [process for process in self.running if process is not current and not process.busy]
        if asleep:
            self.done["woken"] += 1
            self._epochs(asleep[step.pick % len(asleep)], 1, step)

    def current(self) -> SimulatedProcess | None:
        """Return the newest process of the current store."""
        self.running = [process for process in self.running if not process.gate.dead]
        here = [process for process in self.running if process.site is self.world.site]
        return here[-1] if here and not here[-1].busy else None

    def _options(self) -> StartOptions:
        return StartOptions()

    def _started(self, step: Step, options: StartOptions) -> SimulatedProcess | None:
        """Start; when that is refused, perhaps do what it says."""
        heeds = step.pick % 2 == 0
        process = self.attempt(self.world, options, step)
        for _ in range(PATIENCE):
            if not isinstance(process, HoldfastError):
                break
            advised = self._followed(self.world, process, options) if heeds else None
            if advised is None:
                break
            self.done["advice followed"] += 1
            options = advised
            process = self.attempt(self.world, options)
        if isinstance(process, SimulatedProcess):
            self.running.append(process)
            return process
        return None

    def _followed(self, world: SimulatedWorld, said: HoldfastError, options: StartOptions) -> StartOptions | None:
        try:
            return follow(world, said, options)
        except HoldfastError as error:
            self.judge.demand(checks.ADVICE, False, f"{said} - but doing that fails: {error}")
            return None

    def attempt(
        self, world: SimulatedWorld, options: StartOptions, step: Step | None = None
    ) -> SimulatedProcess | HoldfastError | None:
        """Start once. Returns the process, why it was refused, or None when it died."""
        process = world.begin(options, self.history.retain)
        before = world.everything() if step is None or not step.meets else None
        self._arm(process.gate, step)
        try:
            process.start()
        except SimulatedCrash:
            self.done["start died"] += 1
            self._perhaps_gave_up(process, False)
            return None
        except HoldfastError as error:
            world.trace.add(f"refused: {type(error).__name__}: {error}")
            self._perhaps_gave_up(process, before is not None and not self._acted(world, process))
            self.done[f"refused: {type(error).__name__}"] += 1
            if before is not None and not self._acted(world, process):
                self.judge.demand(
                    checks.REFUSALS, world.everything() == before, f"changed something: {options}: {error}"
                )
            return error
        finally:
            process.gate.arm(None)
        self.done["started"] += 1
        self._replace(world, process)
        world.trace.add(f"{process.gate.name} stands at epoch {process.epoch}, record {process.position}")
        process.replaced = process.site.generation > process.generation
        if process.replaced:
            return process  # It was replaced while it was paused, and did not have to act after that.
        self.judge.went_on(process)
        process.site.decided, process.site.generation = process.position, process.generation
        self.judge.alive(world, process)
        return process

    def _perhaps_gave_up(self, process: SimulatedProcess, refused: bool) -> None:
        """Expect no more than what a start on a person's word may have left, once it may have acted."""
        on_a_word = process.options.from_id is not None or process.options.fresh
        if on_a_word and not (refused and self.judge.wants(checks.REFUSALS)):
            process.site.decided = 0

    def _acted(self, world: SimulatedWorld, process: SimulatedProcess) -> bool:
        """Whether a start failed at what only acting can tell: that is no refusal."""
        return process.gate.faulted or any(world.target(name).failing for name in process.sinks)

    def _replace(self, world: SimulatedWorld, process: SimulatedProcess) -> None:
        for other in self.running:
            if other.site is process.site and 0 < other.generation < process.generation:
                other.replaced = True

    def _epochs(self, process: SimulatedProcess | None, count: int, step: Step | None = None) -> None:
        if process is None:
            return
        process.busy = True
        self._arm(process.gate, step, process)
        try:
            for _ in range(count):
                self._one_epoch(process)
        finally:
            process.busy = False
            process.gate.arm(None)

    def _one_epoch(self, process: SimulatedProcess) -> None:
        if process not in self.running:
            return
        world, was_replaced = self.world, process.replaced
        if process.position >= len(world.source.records):
            world.source.records = records(process.position + 3)
        process.targets_seen = world.visible()
        try:
            process.next_epoch()
        except SimulatedCrash:
            self.done["epoch died"] += 1
            self.running = [other for other in self.running if other is not process]
        except HoldfastError as error:
            world.trace.add(f"stopped: {type(error).__name__}: {error}")
            self.done[f"stopped: {type(error).__name__}"] += 1
            self.running = [other for other in self.running if other is not process]
            if isinstance(error, Fenced) and not process.replaced and len(world.sites) == 1:
                self.judge.demand(checks.FENCED, self._somebody_came(process), f"by nobody: {error}")
        else:
            self.done["epochs"] += 1
            self.judge.demand(checks.FENCED, not was_replaced, "a process that was replaced sealed an epoch")
            if not process.replaced:
                self.judge.alive(world, process)
        if process.replaced:
            self.judge.demand(
                checks.FENCED, world.visible() == process.targets_seen, "a process that was replaced changed a target"
            )

    def _somebody_came(self, process: SimulatedProcess) -> bool:
        return self.world.started > process.number or self.done["decided by hand"] > 0

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
            process.targets_seen = self.world.visible()
            self.world.trace.add(f"{process.gate.name} wakes")

    # by hand

    @contextlib.contextmanager
    def _by_hand(self, step: Step, what: str) -> Any:
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
        with self._by_hand(step, "prune") as store:
            store.prune(step.pick % 5)

    def clean(self, step: Step) -> None:
        with self._by_hand(step, "clean") as store:
            store.cleanup_orphans()

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
        keys = self.world.site.keys()
        if keys:
            key = keys[-1 - step.pick % len(keys)]
            self.world.site.damage(key, damaged(self.world.site.read(key), step.how, step.pick))
            self.done["damaged"] += 1

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
        if len(world.sites) < MOST_SITES and not self.running:
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

    # looking ahead

    def look_ahead(self, world: SimulatedWorld) -> None:
        """Start in a world that nobody needs any more: it goes on, or says what to do, and doing that helps."""
        self._starts_somehow(world, StartOptions(), checks.ADVICE)

    def try_valid(self, world: SimulatedWorld, pick: int) -> None:
        """Go back to something that is called valid, where sinks and source can: then that starts."""
        store = world.site.store()
        manifests = list(store.manifests())
        given_up = set(manifests[-1].abandons) if manifests else set()
        choice = [
            manifest
            for manifest in manifests
            if manifest.epoch > 0
            and manifest.timeline == manifests[-1].timeline
            and manifest.checkpoint_id not in given_up
            and store.validate_checkpoint(manifest.checkpoint_id).valid
        ]
        if not choice:
            return
        manifest = choice[pick % len(choice)]
        records = [world.target(name).held.record for name in world.sinks]
        if any(record is not None and record.timeline != manifest.timeline for record in records):
            return  # Another store has the targets now.
        world.kept_from = 0
        for name in NAMES:
            world.target(name).failing.clear()
            world.target(name).rewindable = True
        self.done["valid ones tried"] += 1
        self._starts_somehow(world, StartOptions(from_id=manifest.checkpoint_id), checks.VALID)

    def _starts_somehow(self, world: SimulatedWorld, options: StartOptions, checker: str) -> None:
        if not self.judge.wants(checker):
            return
        said: list[str] = []
        aside, self.running = self.running, []
        try:
            for _ in range(PATIENCE):
                process = self.attempt(world, options)
                if not isinstance(process, HoldfastError):
                    return
                said.append(f"{type(process).__name__}: {process}")
                wanted = options.from_id if checker == checks.VALID else None
                advised = self._followed(world, process, replace(options, from_id=None) if wanted else options)
                if advised is None:
                    self.judge.demand(checker, False, f"nobody can follow this: {said[-1]}")
                    return
                options = replace(advised, from_id=wanted) if wanted else advised
            self.judge.demand(checker, False, "no end of it: " + " | ".join(said))
        finally:
            self.running = aside

    def _finish(self) -> None:
        """Bring everything back, and run to the end: then nothing is missing."""
        self.running.clear()
        for name in NAMES:
            self.world.target(name).failing.clear()
            self.world.target(name).rewindable = True
        self.look_ahead(self.world)


ACTIONS: dict[str, Callable[[Life, Step], None]] = {
    "run": Life.run_epochs,
    "start": Life.start,
    "stop": Life.stop,
    "wake": Life.wake,
    "go back": Life.go_back,
    "fresh": Life.fresh,
    "savepoint": Life.savepoint,
    "release": Life.release,
    "prune": Life.prune,
    "clean": Life.clean,
    "damage": Life.damage,
    "restore": Life.restore,
    "sinks": Life.sinks,
    "trouble": Life.trouble,
    "repair": Life.repair,
    "rewindable": Life.rewindable,
    "trim": Life.trim,
    "copy": Life.copy,
    "switch": Life.switch,
    "clock": Life.clock,
    "move": Life.move,
    "discard": Life.discard,
    "take again": Life.take_again,
}


def broken_by(history: History, without: Iterable[str] = ()) -> Broken | None:
    """Return what a history breaks."""
    try:
        Life(history, Judge(without)).run()
    except Broken as error:
        return error
    return None
