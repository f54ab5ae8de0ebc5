"""Goal: a prune takes nothing away that a start goes on from, or that somebody names, while it is at work.

Method: a prune, and beside it a start that goes back, or a person who names a checkpoint, in every order of their
calls to the disk or bucket with HOLDFAST_CRASH=full, else in those with the fewest switches. Then look at every byte.
"""

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from crash_lab import FULL, VNODES, AuditedStore, Ledger, World, Writer, begin_phase, described, files_of
from crash_scenarios import new_world
from every_order import Watched, every_order

from holdfast.engine.fencing import take_over
from holdfast.errors import CheckpointNotFound, CorruptCheckpoint
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import ManualClock, Outcome

ORDERS = None if FULL else 120
OLD = 2


def opened(world: World, watched: Watched | None = None) -> DurableCheckpointStore:
    return DurableCheckpointStore(world.medium(watched), retain=None, vnode_count=VNODES, clock=ManualClock())


def prune(world: World, watched: Watched) -> object:
    return opened(world, watched).prune_ids(1)


def go_back(world: World, watched: Watched) -> object:
    return take_over(opened(world, watched), from_id=OLD, clock=ManualClock()).fence


def name_old(world: World, watched: Watched) -> object:
    return opened(world, watched).set_identifier(OLD, "wanted")


def chain(world: World) -> None:
    """Four checkpoints, each citing bytes of those before it."""
    writer = Writer(AuditedStore(world, Ledger()))
    writer.open()
    for _ in range(4):
        writer.save_chain(files_of(writer.epoch + 1))


def branch_given_up(world: World) -> None:
    """As `chain`, but the second to fourth were given up by a start that went back to the first."""
    chain(world)
    writer = Writer(AuditedStore(world, Ledger()))
    writer.take_over(from_id=1)
    writer.save_state()


JOBS: dict[str, tuple[Callable[[World], None], Callable[[World, Watched], object]]] = {
    "go back": (chain, go_back),
    "name": (chain, name_old),
    "name what was given up": (branch_given_up, name_old),
}


@pytest.mark.parametrize("kind", ["disk", "bucket"])
@pytest.mark.parametrize("job", JOBS)
def test_nothing_goes_that_is_wanted(job: str, kind: str, tally: Counter[str]) -> None:
    prepare, other = JOBS[job]
    base = new_world(kind)
    begin_phase("beside prune/setup")
    prepare(base)
    base.settle()
    newest = opened(base).list_ids()[-1]
    orders = every_order(base, {"prune": prune, "other": other}, lambda: begin_phase("beside prune"))
    for order, world, outcomes in itertools.islice(orders, ORDERS):
        tally["orders of a prune and a start or a name"] += 1
        with described(kind, job, " ".join(f"{name}*{len([*same])}" for name, same in itertools.groupby(order))):
            judge(opened(world), outcomes, newest)


def judge(store: DurableCheckpointStore, outcomes: dict[str, Outcome], newest: int) -> None:
    """Whatever the order was: nobody failed without a reason, and what anybody got to hear of is whole."""
    if outcomes["prune"].error is not None:
        raise outcomes["prune"].error
    error, wanted = outcomes["other"].error, outcomes["other"].result
    if error is not None and not isinstance(error, CheckpointNotFound | CorruptCheckpoint):
        raise error
    assert error is None or newest == store.list_ids()[-1], "something was sealed, and then refused"
    for id in store.list_ids():
        verdict = store.validate_checkpoint(id)
        assert verdict.valid, f"checkpoint {id} is there and not whole: {verdict.reason}"
    if error is None:
        assert wanted is not None
        assert store.validate_checkpoint(wanted.checkpoint_id).valid  # type: ignore[attr-defined]
        store.prune(1)
        assert store.validate_checkpoint(wanted.checkpoint_id).valid  # type: ignore[attr-defined]
    assert store.recover_latest_validated().chosen_id == store.list_ids()[-1]
