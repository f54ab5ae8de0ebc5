"""The world of a history: stores, targets, a source that can lose its past, and the processes that run in it."""

import contextlib
import random
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from copy import deepcopy
from typing import Any, cast

import pytest

import holdfast.clock
from engine.worlds import OUTPUTS, SETTINGS, Process, World
from holdfast.engine.coordinator import RecordedEpoch
from holdfast.engine.delivery import Delivery
from holdfast.engine.startup import AskOthers, Intent, Start, StartOptions
from holdfast.engine.sync import catalogue, copying
from holdfast.errors import SourceHistoryLost
from holdfast.testing import ScriptedEpoch
from holdfast.testing.scripted_source import SOURCE
from simulate.gates import Gate, Trace
from simulate.in_turn import HandedOn, InTurn
from simulate.sites import Site, new_site
from simulate.targets import LedgerSink, Target

NAMES = ("a", "b", "c", "d", "e", "f", "g", "h")
"""Every sink there can be; what is not in `SimulatedWorld.sinks` is not in the pipeline now."""
KINDS = tuple(OUTPUTS.values())
RULES = {name: KINDS[number % len(KINDS)] for number, name in enumerate(NAMES)}


@contextlib.contextmanager
def simulated(seed: object) -> Iterator[None]:
    """Let tokens and UUIDs follow from a seed."""
    generator = random.Random(str(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holdfast.clock, "os", types.SimpleNamespace(urandom=generator.randbytes))
        patch.setattr(holdfast.clock, "_last_uuid_ms", 0)
        patch.setattr(holdfast.clock, "_last_uuid_sequence", 0)
        for module in (copying, catalogue):
            patch.setattr(module, "ThreadPoolExecutor", InTurn)
        patch.setattr(copying, "_Handover", HandedOn)
        yield


class SimulatedWorld(World):
    """Everything that a crash does not take away."""

    def __init__(
        self, kind: str = "bucket", sinks: Iterable[str] = ("a", "b", "c"), trace: Trace | None = None
    ) -> None:
        super().__init__(0, RULES)
        self.kind, self.trace = kind, trace or Trace()
        self.sites: list[Site] = [new_site(kind, 0, self.clock)]
        self.current = 0
        self.sinks = list(sinks)
        self.kept_from = 0
        """The first record that the source still has."""
        self.targets = {name: Target(name) for name in NAMES}
        self.excused: dict[str, set[int]] = {name: set() for name in NAMES}
        """Records that a target may lack: it was not in the pipeline, or somebody gave an epoch up for it."""
        self.renamed: set[str] = set()
        """Sinks that a person gave another name and an empty target because a start said so."""
        self.started = 0
        """How many processes there were."""

    @property
    def site(self) -> Site:
        return self.sites[self.current]

    @property
    def has_copies(self) -> bool:
        """Whether there are two stores that both believe to be the only one."""
        return len(self.sites) > 1

    def target(self, name: str) -> Target:
        return cast(Target, self.targets[name])

    def again(self) -> "SimulatedWorld":
        """Return a new world of this kind."""
        return SimulatedWorld(self.kind, self.sinks, self.trace)

    def copy(self) -> "SimulatedWorld":
        """Return an independent world in the same state, in which nothing runs."""
        self.trace.add("in a copy:")
        other = self.again()
        other.clock.step_wall_clock((self.clock.now_ms() - other.clock.now_ms()) / 1000)
        other.sites = [site.copy(site.number, other.clock) for site in self.sites]
        other.current, other.kept_from, other.started = self.current, self.kept_from, self.started
        other.source.records = list(self.source.records)
        other.work, other.spans, other.take = deepcopy(self.work), dict(self.spans), self.take
        other.renamed = set(self.renamed)
        other.excused = {name: set(records) for name, records in self.excused.items()}
        for name in NAMES:
            mine, its = self.target(name), other.target(name)
            its.held, its.rewindable, its.failing = mine.held, mine.rewindable, dict(mine.failing)
            its.spooled = dict(mine.spooled)
        return other

    def begin(self, options: StartOptions | None = None, retain: int | None = None) -> "SimulatedProcess":
        """Return a process of the current store that has not started yet."""
        self.started += 1
        return SimulatedProcess(self, self.site, options or StartOptions(), retain)

    def visible(self) -> dict[str, object]:
        return {name: self.target(name).held.visible() for name in NAMES}

    def everything(self) -> object:
        """Return what a start that is refused must not change."""
        return [site.fingerprint() for site in self.sites], self.visible(), self.kept_from

    def unchanged(self, before: object, starting: Site) -> bool:
        """Whether all is as it was before a start on that store."""
        return self.everything() == before


class _Here:
    """A lane on which a call is made at once: no thread, so that every run is the same."""

    def submit(self, work: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Nothing runs."""


class SerialDelivery(Delivery):
    """Talks to sinks one after the other."""

    def _lane(self, name: str, *, asking: bool = False) -> Any:
        return _Here()


class SimulatedProcess(Process):
    """One life of the pipeline's process, on one store."""

    def __init__(self, world: SimulatedWorld, site: Site, options: StartOptions, retain: int | None = None) -> None:
        self.number, self.site = world.started, site
        self.gate = Gate(f"process {self.number}", world.trace)
        world.machine = site.number
        super().__init__(
            world, sinks=world.sinks, options=options, settings=SETTINGS, store=site.store(self.gate, retain)
        )
        self.simulated, self.options = world, options
        self.sinks = {name: LedgerSink(world.target(name), self.gate, site.number) for name in world.sinks}
        self.delivery = SerialDelivery(self.sinks, SETTINGS, self.observer, world.clock)
        self.replaced = self.busy = False
        """Whether another process of this store went through a whole start since; whether it is paused in a call."""
        self._seen: dict[str, object] = {}
        """What targets showed that were somebody else's when it woke from its last pause."""
        word = (
            f"from {options.from_id}" if options.from_id else f"fresh {options.on_foreign}" if options.fresh else ""
        )
        world.trace.add(f"process {self.number} begins on store {site.number} with {' '.join(self.sinks)} {word}")

    def look(self) -> None:
        """Take note of the targets that others claimed. One that left the pipeline is claimed by nobody new."""
        shown = self.simulated.visible()
        self._seen = {name: shown[name] for name in shown if not self._owns(name)}

    def _owns(self, name: str) -> bool:
        record = self.simulated.target(name).held.record
        owner = self.started.owner if hasattr(self, "started") else None
        return owner is None or record is None or record.belongs_to(owner)

    def sees_what_it_saw(self) -> bool:
        """Whether none of those targets changed."""
        shown = self.simulated.visible()
        return all(shown[name] == seen for name, seen in self._seen.items())

    def promised(self) -> int:
        """Return where a start that nobody told to go back may go on at the earliest."""
        return 0 if self.site.hurt else self.site.decided

    def recover(self, ask_others: AskOthers | None = None) -> Start:
        return super().recover(ask_others or self._ask_source)

    def _ask_source(self, intent: Intent) -> None:
        """Ask the source, as `engine.upstream` does."""
        chosen = intent.decision.chosen
        self.check_history(int(chosen.source_offsets[SOURCE].offsets["next"]) if chosen else 0)

    def check_history(self, position: int) -> None:
        """Refuse what the source cannot give any more, as a source's control does."""
        if position < self.simulated.kept_from:
            raise SourceHistoryLost(
                f"source 'script' begins at record {self.simulated.kept_from} now, and record {position} is needed"
            )

    def work(self, epoch: int, span: range) -> ScriptedEpoch:
        self.check_history(span.start)
        return super().work(epoch, span)

    def run_epoch(self, work: ScriptedEpoch, record: RecordedEpoch | None = None) -> None:
        given_up = record.given_up if record else frozenset()
        shown = []
        for name, excused in self.simulated.excused.items():
            ledger = self.simulated.target(name).held.record
            if name not in self.sinks or name in given_up:
                excused |= set(work.span)
            elif ledger is None or ledger.epoch < work.epoch:
                shown.append(excused)
        super().run_epoch(work, record)
        for excused in shown:
            excused -= set(work.span)
        if not self.replaced:  # Whoever came meanwhile may have gone back, on a person's word.
            self.site.decided = max(self.site.decided, self.position)
