"""Lets a history happen, step by step, and asks the judge after each."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from engine.worlds import records
from holdfast.core.contracts import OnForeign
from holdfast.engine.startup import StartOptions
from holdfast.errors import Fenced, HoldfastError, NoValidCheckpoint
from holdfast.interfaces.inspection import abandoned_by
from holdfast.testing import SimulatedCrash
from simulate import checks
from simulate.advice import PATIENCE, follow
from simulate.checks import Broken, Judge
from simulate.machines import Machines
from simulate.steps import History, Step
from simulate.takeovers import Takeovers
from simulate.worlds import NAMES, SimulatedProcess, SimulatedWorld, simulated


class Life(Takeovers):
    """One history, as it happens."""

    def run(self) -> None:
        """Let everything happen."""
        with simulated(self.history.seed):
            try:
                self._run()
            except Broken:
                raise
            except Exception as error:
                if self.judge.wants(checks.CRASHED):
                    raise Broken(checks.CRASHED, f"{type(error).__name__}: {error}") from error

    def _run(self) -> None:
        for number, step in enumerate(self.history.steps):
            self.do(step)
            if (number + step.pick) % 4 == 0:
                self.look_ahead(self.world.copy())
            if (number + step.pick) % 8 == 3:
                self.try_valid(self.world.copy(), step.pick)
        self._finish()

    def act(self, step: Step) -> None:
        ACTIONS[step.do](self, step)

    # starting and running

    def run_epochs(self, step: Step) -> None:
        process = self.current()
        if process is None:
            process = self._started(step, StartOptions())
            self._epochs(process, step.count)
            return
        self._epochs(process, step.count, step)

    def start(self, step: Step) -> None:
        """Start a process, whoever runs already."""
        self._started(step, StartOptions())

    def go_back(self, step: Step) -> None:
        """Go on from an older checkpoint, on a person's word: from any, or from one that was not given up."""
        manifests = list(self.world.site.store().manifests())
        given_up = set(manifests[-1].abandons) if manifests and step.how != "any" else set()
        ids = [m.checkpoint_id for m in manifests if m.checkpoint_id not in given_up]
        if ids:
            self._started(step, StartOptions(from_id=ids[step.pick % len(ids)]))

    def fresh(self, step: Step) -> None:
        self._started(step, StartOptions(fresh=True, on_foreign=OnForeign(step.how)))

    def wake(self, step: Step) -> None:
        """Let an earlier process go on, which may have been replaced."""
        current = self.current()
        asleep = [process for process in self.running if process is not current and not process.busy]
        if asleep:
            self.done["woken"] += 1
            self._epochs(asleep[step.pick % len(asleep)], 1, step)

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
        if options.from_id is not None or options.fresh:
            process.site.words.append(process)
        try:
            process.start()
        except SimulatedCrash:
            self.done["start died"] += 1
            self._perhaps_gave_up(process, False)
            return None
        except HoldfastError as error:
            world.trace.add(f"refused: {type(error).__name__}: {error}")
            self._perhaps_gave_up(process, before is not None and not self._acted(world, process))
            # Where there is a copy of the store, its process may have gone back: then all of this one was given up.
            survives = process.site.hurt == 1 and process.site.spare > 1 and len(world.sites) == 1
            self.judge.demand(
                checks.VALID,
                not (survives and isinstance(error, NoValidCheckpoint)),
                f"one damaged object ended a store with {process.site.spare} independent checkpoints: {error}",
            )
            self.done[f"refused: {type(error).__name__}"] += 1
            self.judge_refusal(process, error)
            if before is not None and not self._acted(world, process):
                self.judge.demand(
                    checks.REFUSALS, world.unchanged(before, process.site), f"changed something: {options}: {error}"
                )
            return error
        finally:
            process.gate.arm(None)
            process.site.words = [other for other in process.site.words if other is not process]
        self.done["started"] += 1
        self._replace(world, process)
        world.trace.add(f"{process.gate.name} stands at epoch {process.epoch}, record {process.position}")
        # By its number too: in a store that was lost altogether, generations begin anew.
        process.replaced = process.site.generation > process.generation and process.site.owner > process.number
        if process.replaced:
            return process  # It was replaced while it was paused, and did not have to act after that.
        self.judge.went_on(process)
        self.judge_place(process)
        process.site.decided, process.site.generation = process.position, process.generation
        process.site.owner = process.number
        if options.from_id is not None or options.fresh:
            process.site.spare = 0
        self.judge.alive(world, process)
        return process

    def _perhaps_gave_up(self, process: SimulatedProcess, refused: bool) -> None:
        """Expect no more than what a start on a person's word may have left, once it may have acted."""
        on_a_word = process.options.from_id is not None or process.options.fresh
        if on_a_word and not (refused and self.judge.wants(checks.REFUSALS)):
            process.site.decided = process.site.spare = 0

    def _acted(self, world: SimulatedWorld, process: SimulatedProcess) -> bool:
        """Whether a start failed at what only acting can tell: that is no refusal."""
        return process.gate.faulted or any(world.target(name).failing for name in process.sinks)

    def _replace(self, world: SimulatedWorld, process: SimulatedProcess) -> None:
        for other in self.running:
            if other.site.reign is process.site.reign and 0 < other.generation < process.generation:
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
        process.look()
        try:
            process.next_epoch()
        except SimulatedCrash:
            self.done["epoch died"] += 1
            self.running = [other for other in self.running if other is not process]
        except HoldfastError as error:
            world.trace.add(f"stopped: {type(error).__name__}: {error}")
            self.done[f"stopped: {type(error).__name__}"] += 1
            self.running = [other for other in self.running if other is not process]
            if isinstance(error, Fenced) and not process.replaced and not world.has_copies:
                self.judge.demand(checks.FENCED, self._somebody_came(process), f"by nobody: {error}")
        else:
            self.done["epochs"] += 1
            may = self.may_seal_without_showing(process)
            self.judge.demand(checks.FENCED, may or not was_replaced, "a process that was replaced sealed an epoch")
            if not process.replaced:
                self.judge.alive(world, process)
        if process.replaced:
            self.judge.demand(
                checks.FENCED, process.sees_what_it_saw(), "a process that was replaced changed a target"
            )

    def _somebody_came(self, process: SimulatedProcess) -> bool:
        return self.world.started > 1 or self.done["decided by hand"] > 0

    # looking ahead

    def look_ahead(self, world: SimulatedWorld) -> None:
        """Start in a world that nobody needs any more: it goes on, or says what to do, and doing that helps."""
        self._starts_somehow(world, StartOptions(), checks.ADVICE)

    def try_valid(self, world: SimulatedWorld, pick: int) -> None:
        """Go back to something that is called valid, where sinks and source can: then that starts."""
        if isinstance(world, Machines) and (world.site.hurt or not world.fleet.has_place(world.site)):
            return  # It is another machine's turn, or the bucket knows more than what is left here.
        store = world.site.store()
        manifests = list(store.manifests())
        given_up = abandoned_by({manifest.checkpoint_id: manifest for manifest in manifests})
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
        site = world.site
        aside, self.running = self.running, []
        try:
            for _ in range(PATIENCE):
                process = self.attempt(world, options)
                if not isinstance(process, HoldfastError):
                    return
                said.append(f"{type(process).__name__}: {process}")
                if checker == checks.VALID and world.site is not site:
                    return  # What to do was to go to another machine.
                if checker == checks.VALID and "the rows cannot be shown any more" in str(process):
                    return  # It is valid, but a later way back has been there since, and that is said.
                if checker == checks.VALID and "cannot be used: it was given up" in str(process):
                    return  # Only the targets know that, and they were asked.
                wanted, inside = options.from_id if checker == checks.VALID else None, world.sinks
                advised = self._followed(world, process, replace(options, from_id=None) if wanted else options)
                if advised is None:
                    self.judge.demand(checker, False, f"nobody can follow this: {said[-1]}")
                    return
                decided = "go on from that with a plain start" in str(process) and world.sinks == inside
                options = replace(advised, from_id=wanted) if wanted and not decided else advised
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
    "push": Life.push,
    "follow": Life.follow,
    "take over": Life.take_over,
    "empty": Life.empty,
    "damage bucket": Life.damage_bucket,
    "cut off": Life.cut_off,
}


def broken_by(history: History, without: Iterable[str] = ()) -> Broken | None:
    """Return what a history breaks."""
    try:
        Life(history, Judge(without)).run()
    except Broken as error:
        return error
    return None
