"""What happens to machines with a bucket between them: copies, standbys, take-overs, lost disks, cut lines."""

import contextlib
from abc import abstractmethod

from holdfast.engine.startup import StartOptions
from holdfast.engine.sync.notes import keeping_copied
from holdfast.engine.sync.standby import ACTIVATED, STANDBY
from holdfast.engine.upstream import oldest_fall_back
from holdfast.errors import Fenced, HoldfastError, SourceHistoryLost
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import SimulatedCrash
from simulate import checks
from simulate.deeds import Deeds
from simulate.gates import PAUSE, Gate
from simulate.machines import MOST_MACHINES, Fleet, Following, Machines, SyncedProcess
from simulate.sites import Site, damaged
from simulate.steps import Step
from simulate.worlds import NAMES, SimulatedProcess

_DOCUMENTS = ("owner.json", "materials.json", "latest.json")


class Takeovers(Deeds):
    """The deeds of a history whose world has machines; in another one they do nothing."""

    @abstractmethod
    def _started(self, step: Step, options: StartOptions) -> SimulatedProcess | None:
        """Start a process on the current machine."""

    @property
    def fleet(self) -> Fleet | None:
        return self.world.fleet if isinstance(self.world, Machines) else None

    # copies

    def push(self, step: Step) -> None:
        """Let a process copy its newest checkpoint, beside whatever it does."""
        able = [
            process
            for process in self.running
            if isinstance(process, SyncedProcess) and not process.gate.dead and not process.pushing
        ]
        if not able:
            return
        process = able[step.pick % len(able) if step.pick % 4 == 3 else -1]
        fleet, was_replaced, bucket = process.fleet, self._by_another_machine(process), process.fleet.bucket
        before = bucket.fingerprint()
        process.pushing = True
        self._arm(process.gate, step, process)
        try:
            end = process.push(step.how == "asked")
            if end is not None:
                self.done["pushed"] += 1
                if not process.replaced and process.bucket is fleet.bucket:
                    fleet.reign.copied = max(fleet.reign.copied, min(end, fleet.reign.decided))
            elif any(event.action == "push" for event in process.failures()):
                self.done["push failed"] += 1
        except SimulatedCrash:
            self.done["push died"] += 1
        except HoldfastError as error:
            self.world.trace.add(f"push: {type(error).__name__}: {error}")
            self.done["push refused"] += 1
        finally:
            process.pushing = False
            process.gate.arm(None)
        if was_replaced and step.meets != PAUSE and not bucket.hurt:
            self.judge.demand(
                checks.FENCED, bucket.fingerprint() == before, "a machine that was replaced wrote to the bucket"
            )
        if process.told:
            self.judge.demand(checks.FENCED, self.world.started > 1, "by nobody: a push was refused")
            self.done["told by a push"] += 1
            if not process.busy:
                self.running = [other for other in self.running if other is not process]

    def _by_another_machine(self, process: SyncedProcess) -> bool:
        reign = process.fleet.reign
        return process.replaced and reign.site not in (None, process.site.number)

    def may_seal_without_showing(self, process: SimulatedProcess) -> bool:
        """Whether nobody but its sinks tells a process that it was replaced: without rows it does not ask them."""
        return isinstance(process, SyncedProcess) and not process.fleet.every_seal

    # standbys

    def follow(self, step: Step) -> None:
        """Let a standby look once."""
        if self._can_follow and (following := self._standby(step)) is not None:
            self._let(following, step)

    @property
    def _can_follow(self) -> bool:
        """Whether the pipeline is set up for standbys: otherwise one is refused when it is made."""
        return self.fleet is not None and self.fleet.every_seal

    def take_over(self, step: Step) -> None:
        """Let another machine take over: its standby is activated, or the pipeline is just started there."""
        if self.fleet is None:
            return
        if step.how == "run" or not self._can_follow:
            site = self._idle_machine(step)
            if site is not None:
                self._start_on(site, step)
            return
        following = self._standby(step)
        if following is None:
            return
        dies_here = step.pick % 3 == 0
        following.standby.request_activation()
        self._let(following, step if dies_here else None)
        if following.standby.status.state == ACTIVATED:
            self.fleet.standbys.pop(following.site.number, None)
            self.done["activated"] += 1
            self._start_on(following.site, Step("start", step.pick) if dies_here else step)

    def _start_on(self, site: Site, step: Step) -> None:
        assert self.fleet is not None
        before = self.fleet.reign.site
        self.world.current = site.number
        process = self._started(step, StartOptions())
        if process is not None and before not in (None, process.site.number):
            self.done["taken over"] += 1

    def _idle_machine(self, step: Step) -> Site | None:
        """Return a machine on which nothing runs: mostly another one than that which ran last, perhaps a new one."""
        world, fleet = self.world, self.fleet
        assert isinstance(world, Machines)
        assert fleet is not None
        used = {process.site.number for process in self.running if not process.gate.dead}
        used |= {number for number, following in fleet.standbys.items() if following.busy}
        if step.pick % 5:
            used.add(fleet.reign.site or 0)
        idle = [site for site in world.sites if site.number not in used]
        if len(world.sites) < MOST_MACHINES and (not idle or step.pick % 3 == 0):
            self.done["machine"] += 1
            return world.add_machine()
        return idle[step.pick % len(idle)] if idle else None

    def _standby(self, step: Step) -> Following | None:
        fleet = self.fleet
        if fleet is None:
            return None
        asleep = [following for _, following in sorted(fleet.standbys.items()) if self._waits(following)]
        if asleep and step.pick % 5:
            return asleep[step.pick % len(asleep)]
        site = self._idle_machine(step)
        if site is None:
            return None
        try:
            gate = Gate(f"standby on store {site.number}", self.world.trace)
            fleet.standbys[site.number] = following = Following(fleet, site, gate, self.history.retain)
        except HoldfastError as error:
            self.world.trace.add(f"no standby: {type(error).__name__}: {error}")
            return None
        return following

    def _waits(self, following: Following) -> bool:
        return not (following.busy or following.gate.dead) and following.standby.status.state == STANDBY

    def _let(self, following: Following, step: Step | None) -> None:
        assert self.fleet is not None
        following.busy = True
        before = self.fleet.bucket.fingerprint(), self.world.visible()
        self._arm(following.gate, step)
        try:
            following.step()
            self.done["followed" if following.standby.status.error is None else "follow failed"] += 1
        except SimulatedCrash:
            self.done["standby died"] += 1
        finally:
            following.busy = False
            following.gate.arm(None)
        if step is None or step.meets != PAUSE:
            unchanged = before == (self.fleet.bucket.fingerprint(), self.world.visible())
            self.judge.demand(checks.REFUSALS, unchanged, "a standby that follows changed the bucket or a target")
        status = following.standby.status
        if status.error is not None:
            self.world.trace.add(f"standby: {status.error}")
        if following.gate.dead or status.state not in (STANDBY, ACTIVATED):
            self.fleet.standbys = {n: f for n, f in self.fleet.standbys.items() if f is not following}
        if isinstance(following.standby._failure, Fenced):
            self.done["standby refused"] += 1

    # what befalls machines

    def empty(self, step: Step) -> None:
        """Take the disk of a machine away, and all that runs there."""
        world = self.world
        if isinstance(world, Machines):
            world.take_disk(step.pick % len(world.sites))
            self.done["disk taken"] += 1

    def damage_bucket(self, step: Step) -> None:
        if self.fleet is None:
            return
        bucket = self.fleet.bucket
        keys = bucket.keys()
        if keys:
            key = keys[-1 - step.pick % len(keys)]
            how = "lost" if step.how == "flip" and key.endswith(_DOCUMENTS) else step.how
            bucket.damage(key, damaged(bucket.read(key), how, step.pick))
            self.done["bucket damaged"] += 1

    def restore(self, step: Step) -> None:
        super().restore(step)
        if self.fleet is not None:
            self.fleet.bucket.restore()

    def cut_off(self, step: Step) -> None:
        if self.fleet is not None:
            self.fleet.cut.add(step.pick % len(self.world.sites))
            self.done["cut off"] += 1

    def repair(self, step: Step) -> None:
        super().repair(step)
        if self.fleet is not None:
            self.fleet.cut.clear()

    def _kept_for_others(self, store: DurableCheckpointStore) -> contextlib.AbstractContextManager[None]:
        return super()._kept_for_others(store) if self.fleet is None else keeping_copied(store)

    def trim(self, step: Step) -> None:
        """Let the source forget what a running process, which holds what was copied, tells it."""
        process = self.current()
        if self.fleet is None:
            super().trim(step)
        elif step.how == "lost":
            self.fleet.lost = True
            super().trim(step)
        elif process is not None and process.epoch > 0:
            oldest = oldest_fall_back(process.site.store(), process.writer.last)
            if oldest is not None:
                end = int(oldest.source_offsets["script"].offsets["next"])
                self.world.kept_from = max(self.world.kept_from, end)
                self.done["trimmed acknowledged"] += 1

    # what is demanded

    def judge_refusal(self, process: SimulatedProcess, error: HoldfastError) -> None:
        """Whoever takes over has what it needs: the source keeps what comes after the copies."""
        if not isinstance(process, SyncedProcess) or not isinstance(error, SourceHistoryLost):
            return
        fleet, options = process.fleet, process.options
        hurt = fleet.lost or fleet.bucket.hurt or any(site.hurt for site in self.world.sites)
        excused = hurt or options.from_id is not None or options.fresh or fleet.reign.copied == 0
        self.judge.demand(checks.VALID, bool(excused), f"the source was told too much: {error}")

    def judge_place(self, process: SimulatedProcess) -> None:
        """Refuse a machine that was replaced and comes back by merely being started."""
        if isinstance(process, SyncedProcess):
            excused = process.site.hurt or process.fleet.bucket.hurt
            self.judge.demand(
                checks.FENCED,
                bool(excused) or not process.was_replaced,
                f"store {process.site.number} was replaced and was merely started again",
            )


def all_repaired(world: Machines) -> None:
    """Let every machine reach the bucket, and every target do what it is told."""
    world.fleet.cut.clear()
    for name in NAMES:
        world.target(name).failing.clear()
