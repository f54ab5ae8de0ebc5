"""Goal: two processes on one store never both believe they decided, and neither takes away what the other needs.

Method: run two jobs on one store, one call to the disk or bucket at a time. The first is stopped before each of its
calls in turn and the second runs completely in the gap; then come schedules that switch several times, from a seed.
A call that waits for a lock lets the other job move on.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from crash_lab import FULL, SEED, AuditedStore, Ledger, World, Writer, begin_phase, described, files_of, look, recover
from crash_scenarios import new_world

from holdfast.engine.recovery import decide_recovery
from holdfast.errors import CheckpointNotFound, Fenced
from holdfast.testing import Gate, Outcome, Slot, Turns

GAPS = 10**9 if FULL else 7
SWITCHING = 60 if FULL else 2
CHAIN = 4


def _save(writer: Writer) -> None:
    writer.save_chain(files_of(writer.epoch + 1))
    writer.commit()


def _save_inline(writer: Writer) -> None:
    writer.save_inline()


def _take_over_and_prune(writer: Writer) -> None:
    """Own the store, move on, and prune even the fence that would have stopped the one before."""
    writer.take_over()
    for _ in range(2):
        writer.save_chain(files_of(writer.epoch + 1))
        writer.prune(1)


def _take_over(writer: Writer) -> None:
    writer.open()
    writer.take_over()
    writer.save_state()


def _update(writer: Writer) -> None:
    writer.commit()


def _name_old(writer: Writer) -> None:
    writer.name(2, "pinned")


def _name_new(writer: Writer) -> None:
    writer.name(CHAIN, "newest")


def _prune(writer: Writer) -> None:
    writer.prune(1)


def _clean(writer: Writer) -> None:
    writer.cleanup()


def _read(writer: Writer) -> None:
    """Look from outside, without a part in it: there is always a newest checkpoint, and one that holds."""
    latest = writer.store.load_latest()
    assert latest is not None
    assert latest.checkpoint_id >= CHAIN
    decision = decide_recovery(writer.store)
    assert decision.chosen is not None
    assert decision.chosen.checkpoint_id >= CHAIN


JOBS: dict[str, Callable[[Writer], None]] = {
    "save": _save,
    "save inline": _save_inline,
    "take over and prune": _take_over_and_prune,
    "take over": _take_over,
    "update": _update,
    "name old": _name_old,
    "name new": _name_new,
    "prune": _prune,
    "clean": _clean,
    "read": _read,
}


def prepared(kind: str) -> tuple[World, Ledger]:
    world, ledger = new_world(kind), Ledger()
    begin_phase("two writers/setup")
    writer = Writer(AuditedStore(world, ledger))
    writer.open()
    for _ in range(CHAIN):
        writer.save_chain(files_of(writer.epoch + 1))
    world.settle()
    return world, ledger


def together(world: World, ledger: Ledger, jobs: dict[str, str], slots: list[Slot]) -> dict[str, Outcome]:
    """Run the jobs, each on a store of its own, in the order of the slots."""
    begin_phase("two writers")
    stores: dict[str, Writer] = {}

    def job(name: str) -> Callable[[Gate], None]:
        def run(gate: Gate) -> None:
            writer = Writer(AuditedStore(world, ledger, gate, alone=False)).adopt()
            stores[name] = writer
            JOBS[jobs[name]](writer)

        return run

    return Turns(slots, world.blocked).run({name: job(name) for name in jobs})


def judge(world: World, ledger: Ledger, outcomes: dict[str, Outcome], tally: Counter[str]) -> None:
    for name, outcome in outcomes.items():
        if outcome.error is not None and not isinstance(outcome.error, Fenced | CheckpointNotFound):
            outcome.error.add_note(f"in writer {name}")
            raise outcome.error
    look(world, ledger)
    begin_phase("recovery")
    recover(world, ledger)
    look(world, ledger)


def schedules(first_calls: int, second_calls: int, chance: random.Random) -> Iterator[list[Slot]]:
    gaps = range(first_calls + 1)
    for gap in gaps if len(gaps) <= GAPS else sorted(chance.sample(gaps, GAPS)):
        yield [Slot("a", gap), Slot("b")]
    for _ in range(SWITCHING):
        cuts = [chance.randint(1, max(first_calls // 2, 1)), chance.randint(1, max(second_calls, 1))]
        yield [Slot("a", cuts[0]), Slot("b", cuts[1]), Slot("a", chance.randint(1, first_calls)), Slot("b")]


@pytest.mark.parametrize("kind", ["disk", "bucket"])
@pytest.mark.parametrize("second", JOBS)
@pytest.mark.parametrize("first", JOBS)
def test_two_writers(first: str, second: str, kind: str, tally: Counter[str]) -> None:
    base, ledger = prepared(kind)
    chance = random.Random(f"{SEED}/{first}/{second}/{kind}")
    jobs = {"a": first, "b": second}
    counts = together(base.copy(), ledger.copy(), jobs, [])
    for slots in schedules(len(counts["a"].trace), len(counts["b"].trace), chance):
        tally["interleavings of two writers"] += 1
        world, promised = base.copy(), ledger.copy()
        with described(kind, f"a={first}, b={second}", slots):
            judge(world, promised, together(world, promised, jobs, slots), tally)
