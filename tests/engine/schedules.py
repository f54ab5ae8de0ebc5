"""Random lives of a pipeline, and what must be true of its targets whatever happens.

A schedule mixes crashes, damage, failing sinks, second writers, sinks that come and go, and a person who gives epochs
up. Nothing may ever be shown twice or out of order, and in the end nothing is missing but what a person gave up or a
sink was not there for. A refusal is fine if the schedule gave a reason for it; then the person does what it says.
"""

import random
from collections.abc import Callable
from typing import Any

from engine.worlds import Point, Process, World, records
from holdfast import CheckpointManifest, Fenced, SinkCommitStatus
from holdfast.engine.events import StepFinished
from holdfast.engine.resolution import discard_epoch
from holdfast.engine.startup import StartOptions
from holdfast.errors import HoldfastError, PipelineError, ReplayMismatch, SinkError
from holdfast.testing import SimulatedCrash, Trouble

FAILURES = [Trouble.BUSY, Trouble.BROKEN, Trouble.UNKNOWN_BEFORE, Trouble.UNKNOWN_AFTER]


class Stuck(Exception):
    """The pipeline refuses, rightly, and only a person who knows better can help."""


class Schedule:
    """One life, made from a seed."""

    def __init__(self, seed: int, *, in_turn: bool = True) -> None:
        self.seed, self._random, self._in_turn = seed, random.Random(seed), in_turn
        self.world = World(6)
        self.world.take = lambda generation: 1 + (seed + generation) % 3
        self.excused: dict[str, set[int]] = {name: set() for name in self.world.targets}
        """Records that a sink may lack."""
        self.sinks = list(self.world.targets)
        self.rewindable = self._random.random() < 0.5
        for target in self.world.targets.values():
            target.rewindable = self.rewindable
        self.story: list[str] = []
        self._troubled = self._range_lost = self._went_back = self._moved = self._absent = False
        self._processes: list[Process] = []

    def run(self) -> None:
        try:
            for _ in range(self._random.randint(6, 14)):
                self._random.choice(EVENTS)(self)
                self._check(whole=False)
            self._finish()
            self._check(whole=True)
        except Stuck:
            self._check(whole=False)
        except BaseException as error:
            error.add_note(f"seed {self.seed}: " + "; ".join(self.story))
            raise
        finally:
            for process in self._processes:
                process.delivery.close()

    # what happens

    def _live(self) -> None:
        """Run a process that dies somewhere, or stops because a sink fails, or finishes."""
        self._read_more()
        dies_at = self._random.randint(0, 120)
        for _ in range(self._random.choice([0, 0, 0, 1, 2])):
            self._troubled = True
            action = self._random.choice(["prepare", "commit", "commit", "open", "abort"])
            name, kind = self._random.choice(self.sinks), self._random.choice(FAILURES)
            times = self._random.choice([1, 1, 3])
            self.story.append(f"{kind} {action} of {name}")
            self.world.targets[name].trouble(action, kind, times)
        self.story.append(f"dies at {dies_at}")
        self._attempt(self._process(dies_at=dies_at))

    def _be_replaced(self) -> None:
        """Let a second process take over at some point of the first, which then goes on and must change nothing."""
        at, epochs, ends = self._random.randint(0, 90), self._random.randint(0, 3), self._random.random() < 0.5
        self.story.append(f"replaced at {at} by one that runs {epochs} epochs")
        first = self._process()
        second = self._process()
        after: list[Any] = []
        stuck: list[Stuck] = []

        def take_over(point: Point) -> None:
            if len(first.life.points) == at + 1:
                try:
                    if self._attempt(second, epochs=epochs):
                        after.append(self.world.shown())
                except Stuck as error:
                    stuck.append(error)  # Raised here it would look like an error of the sink that is being asked.
                first.life.replaced = first.life.fenced and second.life.fenced

        self._also(first, take_over)
        self._attempt(first)
        if stuck:
            raise stuck[0]
        if after and first.generation < second.generation:
            assert self.world.shown() == after[0], "a writer that was replaced changed a target"
        if after and ends:
            self._attempt(second, started=True)

    def _damage(self) -> None:
        """Damage the newest checkpoint, if there is another one to fall back to."""
        good = self._good()
        if len({manifest.sidecar for manifest in good}) < 2 or len({manifest.epoch for manifest in good}) < 2:
            return
        newest, what = good[-1], self._random.choice(["state", "progress", "manifest", "manifest progress"])
        self.story.append(f"damage {what} of {newest.checkpoint_id}")
        if "manifest" in what:
            self.world.damage_manifest(newest.checkpoint_id)
        if "state" in what:
            self.world.damage_sidecar(newest.sidecar)
        if "progress" in what:
            self.world.damage_sidecar(newest.sidecar, progress=True)
            self._range_lost = True

    def _go_back(self) -> None:
        """Go on from an older checkpoint, on purpose. All sinks are there: one that is not would not be rewound."""
        self.sinks = list(self.world.targets)
        if good := self._good():
            self._went_back = True
            options = StartOptions(from_id=self._random.choice(good).checkpoint_id)
            self.story.append(f"go back to {options.from_id}")
            self._attempt(self._process(options=options, dies_at=self._random.randint(0, 200)))

    def _good(self) -> list[CheckpointManifest]:
        """Return the checkpoints that recovery could choose."""
        store = self.world.store()
        found = list(store.manifests())
        abandoned = {id for manifest in found for id in manifest.abandons}
        return [
            manifest
            for manifest in found
            if manifest.checkpoint_id not in abandoned and store.validate_checkpoint(manifest.checkpoint_id).valid
        ]

    def _change_sinks(self) -> None:
        self.sinks = sorted(self._random.sample(["a", "b", "c"], self._random.choice([2, 3, 3])))
        self._absent |= len(self.sinks) < len(self.world.targets)
        self.story.append(f"sinks {self.sinks}")

    def _give_up(self) -> None:
        """Discard what the newest checkpoint owes to a sink."""
        try:
            chosen = self.world.store().recover_latest_validated().chosen_id
            manifest = self.world.store().load_by_id(chosen or 0)
        except HoldfastError:
            return
        if manifest is None or manifest.sidecar is None:
            return
        statuses = manifest.sink_commit_statuses
        owed = sorted(name for name, status in statuses.items() if status != SinkCommitStatus.COMMITTED)
        if owed:
            name = self._random.choice(owed)
            self.story.append(f"discard epoch {manifest.epoch} of {name}")
            discard_epoch(self.world.store(), name, manifest.epoch, reason="tired", clock=self.world.clock)
            self.excused[name] |= set(self.world.spans[manifest.sink_tokens[name]["range_digest"]])

    def _read_more(self) -> None:
        self.world.source.records = records(len(self.world.source.records) + self._random.randint(1, 3))

    def _move(self) -> None:
        """Go on on another machine, whose old working directories may still be there."""
        self.world.machine, self._moved = 1 - self.world.machine, True
        if self._random.random() < 0.5:
            self.world.work.pop(self.world.machine, None)
        self.story.append(f"on machine {self.world.machine}")

    def _finish(self) -> None:
        """Bring everything back, and run to the end."""
        self.story.append("finish")
        self.sinks = list(self.world.targets)
        for target in self.world.targets.values():
            target.calm()
        for _ in range(4):
            if self._attempt(self._process()):
                return
        raise AssertionError("it never came to an end")

    # how

    def _process(self, **options: Any) -> Process:
        process = self.world.process(sinks=self.sinks, in_turn=self._in_turn, **options)
        self._also(process, lambda point: self._excuse_absent(process, point))
        self._processes.append(process)
        return process

    def _also(self, process: Process, look: Callable[[Point], None]) -> None:
        before = process.life.on_point

        def both(point: Point) -> None:
            before(point)
            look(point)

        process.life.on_point = both

    def _excuse_absent(self, process: Process, point: Point) -> None:
        """Note what is sealed while a sink is not part of the pipeline."""
        if point.kind is StepFinished and point.step == "seal":
            for name in self.world.targets.keys() - process.sinks.keys():
                self.excused[name] |= set(process.span)

    def _attempt(self, process: Process, *, epochs: int | None = None, started: bool = False) -> bool:
        """Run a process; False when it died or refused for a reason. A refusal without one is an error."""
        try:
            if not started:
                process.start()
            while epochs is None or epochs > 0:
                if not process.next_epoch():
                    break
                epochs = None if epochs is None else epochs - 1
            return True
        except SimulatedCrash:
            return False
        except HoldfastError as error:
            self.story.append(f"{type(error).__name__}: {error}")
            self._expect(error, process)
            return False

    def _expect(self, error: HoldfastError, process: Process) -> None:
        text = str(error)
        newest = max(manifest.generation or 0 for manifest in self.world.store().manifests())
        if process.life.replaced or 0 < process.generation < newest:
            return  # Whatever it was that stopped it is fine.
        if isinstance(error, Fenced):
            raise AssertionError("fenced by nobody")
        elif isinstance(error, SinkError) and "cannot be rewound" in text:
            assert self._range_lost or self._went_back
            assert not self.rewindable
            for target in self.world.targets.values():  # A person restores the target by hand.
                target.rewindable = True
        elif isinstance(error, PipelineError) and "was removed from the pipeline" in text:
            assert len(process.sinks) < len(self.world.targets)
            self.sinks = list(self.world.targets)
        elif isinstance(error, ReplayMismatch):
            # An old working directory of another machine knows an attempt at the epoch that never happened, or a sink
            # was away while the others were rewound.
            assert self._range_lost or self._went_back
            assert self._moved or self._absent
            raise Stuck from error
        elif isinstance(error, PipelineError) and "cannot follow one that failed" in text:
            assert self._troubled
        else:
            assert isinstance(error, SinkError)
            assert self._troubled
            assert "the target is b" in text or "the connection broke" in text, text

    # what must be true

    def _check(self, *, whole: bool) -> None:
        for name, target in self.world.targets.items():
            shown = [row["id"] for row in target.rows]
            expected = {row["id"]: row for row in self.world.source.expected(name)}
            assert shown == sorted(set(shown)), f"{name} shows {shown}"
            assert target.rows == [expected[id] for id in shown], f"{name} shows wrong rows"
            missing = expected.keys() - set(shown) - {number + 1 for number in self.excused[name]}
            assert not whole or not missing, f"{name} lacks {sorted(missing)}"


EVENTS: list[Callable[[Schedule], None]] = [
    *[Schedule._live] * 4,
    *[Schedule._damage] * 2,
    *[Schedule._be_replaced] * 2,
    Schedule._change_sinks,
    *[Schedule._give_up] * 2,
    Schedule._go_back,
    Schedule._move,
]
