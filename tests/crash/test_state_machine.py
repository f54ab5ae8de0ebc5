"""Goal: no order of events breaks a promise. Method: Hypothesis invents orders, the ledger of the lab judges them.

The events are those of a life: epochs, statuses, savepoints, pruning, clean-up, take-overs, a writer that was
replaced and does not know, a process that dies in the middle of any of these, a power loss.
"""

import random
from typing import Any

from crash_lab import (
    FULL,
    TALLY,
    AuditedStore,
    BucketWorld,
    DiskWorld,
    Ledger,
    World,
    Writer,
    begin_phase,
    files_of,
    look,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.sidecar import Mover
from holdfast.errors import Fenced, NoValidCheckpoint, TransientStoreError
from holdfast.testing import (
    NAMED_LOSSES,
    CrashPlan,
    CrashPoint,
    Fault,
    FaultSchedule,
    Interceptor,
    SimulatedCrash,
    When,
    seeded_loss,
)

SETTINGS = settings(
    max_examples=400 if FULL else 30,
    stateful_step_count=40 if FULL else 25,
    deadline=None,
    derandomize=not FULL,
    suppress_health_check=list(HealthCheck),
)

JOBS: dict[str, Any] = {
    "save": lambda writer: writer.save_chain(files_of(writer.epoch + 1)),
    "save and move": lambda writer: writer.save_chain(files_of(writer.epoch + 1), Mover(chain_length=2)),
    "save state": lambda writer: writer.save_state(),
    "save inline": lambda writer: writer.save_inline(),
    "update": lambda writer: writer.commit() if writer.last and writer.last.epoch else None,
    "prune": lambda writer: writer.prune(1),
    "prune 3": lambda writer: writer.prune(3),
    "clean": lambda writer: writer.cleanup(),
    "take over": lambda writer: writer.take_over(),
}
jobs = st.sampled_from(sorted(JOBS))
seals = st.sampled_from(sorted(name for name in JOBS if name.startswith(("save", "take over"))))


class Life(RuleBasedStateMachine):
    """One store and what happens to it."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.writer: Writer | None = None
        self.replaced: Writer | None = None
        self.phase = 0

    def start(self, interceptor: Interceptor | None = None) -> Writer:
        self.phase += 1
        begin_phase(f"life/{self.phase}")
        return Writer(AuditedStore(self.world, self.ledger, interceptor))

    @precondition(lambda self: self.writer is None)
    @rule()
    def recover(self) -> None:
        writer = self.start()
        writer.open()
        try:
            writer.take_over()
        except NoValidCheckpoint:
            assert self.ledger.wanted() is None
            writer.take_over(fresh=True)
        self.writer = writer

    @precondition(lambda self: self.writer is not None)
    @rule(job=jobs)
    def work(self, job: str) -> None:
        JOBS[job](self.writer)

    @precondition(lambda self: self.writer is not None)
    @rule(pick=st.integers(0, 20), name=st.sampled_from(["alpha", "beta", None]))
    def savepoint(self, pick: int, name: str | None) -> None:
        assert self.writer is not None
        ids = [id for id, epoch in self.writer.store.list() if epoch]
        if ids:
            self.writer.name(ids[pick % len(ids)], name)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def start_afresh(self) -> None:
        assert self.writer is not None
        self.writer.take_over(fresh=True)

    @precondition(lambda self: self.writer is not None)
    @rule(pick=st.integers(0, 20))
    def go_back(self, pick: int) -> None:
        """Go back to an older checkpoint, which gives up every later one."""
        assert self.writer is not None
        ids = sorted(id for id, epoch in self.writer.store.list() if epoch and id not in self.ledger.abandoned)
        if ids:
            self.writer.take_over(from_id=ids[pick % len(ids)])

    @precondition(lambda self: self.writer is not None)
    @rule()
    def be_replaced(self) -> None:
        """Let another process take over while this one lives on and does not know."""
        self.replaced = self.writer
        self.writer = self.start()
        self.writer.open()
        self.writer.take_over()

    @precondition(lambda self: self.replaced is not None)
    @rule()
    def wake_the_replaced(self) -> None:
        """Let the process that was replaced seal its next epoch: whatever happened since, it is told."""
        assert self.replaced is not None
        before = dict(self.ledger.promised)
        try:
            self.replaced.save_state()
        except Fenced:
            self.replaced = None
        else:
            raise AssertionError("a replaced writer sealed an epoch")
        assert self.ledger.promised == before

    @precondition(lambda self: self.writer is not None)
    @rule(job=jobs, step=st.integers(0, 40), when=st.sampled_from(list(When)), loss=st.integers(0, 40))
    def die_while_working(self, job: str, step: int, when: When, loss: int) -> None:
        """Kill the process at a step; the power may go with it."""
        assert self.writer is not None
        plan = self._crash(step, when)
        writer = self._with(self.writer, plan)
        try:
            JOBS[job](writer)
        except (SimulatedCrash, TransientStoreError):
            TALLY["crashes in the state machine"] += 1
        self.writer = self.replaced = None
        self._restart(loss)

    @precondition(lambda self: self.writer is not None)
    @rule(job=seals, step=st.integers(0, 14), when=st.sampled_from(list(When)), loss=st.integers(0, 40))
    def die_while_sealing(self, job: str, step: int, when: When, loss: int) -> None:
        """Do the same where it matters most."""
        self.die_while_working(job, step, when, loss)

    def _with(self, writer: Writer, interceptor: Interceptor) -> Writer:
        """Return the same writer with something in front of its storage."""
        other = Writer(AuditedStore(self.world, self.ledger, interceptor))
        other.last, other.last_id, other.epoch = writer.last, writer.last_id, writer.epoch
        other.generation, other.catalog = writer.generation, writer.catalog
        return other

    def _crash(self, step: int, when: When) -> Interceptor:
        if isinstance(self.world, DiskWorld):
            return CrashPlan(CrashPoint(step, when))
        return FaultSchedule({step: Fault.CRASH_BEFORE if when is When.BEFORE else Fault.CRASH_AFTER})

    def _restart(self, loss: int) -> None:
        if not isinstance(self.world, DiskWorld):
            return
        if loss < len(NAMED_LOSSES):
            self.world.disk = self.world.disk.power_loss(NAMED_LOSSES[loss])
        elif loss < 20:
            self.world.disk = self.world.disk.power_loss(seeded_loss(random.Random(loss)))
        else:
            self.world.disk = self.world.disk.process_crash()

    @precondition(lambda self: self.writer is not None)
    @rule(loss=st.integers(0, 20))
    def lose_power(self, loss: int) -> None:
        self.writer = self.replaced = None
        self._restart(loss)

    @invariant()
    def promises_are_kept(self) -> None:
        durable = not isinstance(self.world, DiskWorld) or not self.world.disk.pending
        look(self.world, self.ledger if durable else self.ledger.copy())
        TALLY["states looked at by the state machine"] += 1


class LifeOnDisk(Life):
    @initialize()
    def empty(self) -> None:
        self.world = DiskWorld()
        self.recover()


class LifeInABucket(Life):
    @initialize()
    def empty(self) -> None:
        self.world = BucketWorld()
        self.recover()


def test_life_on_a_disk() -> None:
    run_state_machine_as_test(LifeOnDisk, settings=SETTINGS)


def test_life_in_a_bucket() -> None:
    run_state_machine_as_test(LifeInABucket, settings=SETTINGS)
