"""Make the golden copies again, with the version whose stores the present one has to go on with.

    git worktree add <old> <commit>
    PYTHONPATH=<old>/src:<old>/tests:tests .venv/bin/python tests/golden/make_golden.py [name ...]

Everything but ids (timelines, names of files) is the same each time: the records are numbered, the clock of the
pipelines without Spark stands still, and a process dies at a named step.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import holdfast
from engine.worlds import Point
from golden import orders
from golden.copies import Facts, pack
from golden.shop import EVERY, TAKE_BACK, Shop
from holdfast import open_store
from holdfast.core.contracts import LedgerState
from holdfast.engine.events import Event, StepFinished, StepStarted
from holdfast.engine.startup import StartOptions
from holdfast.spark.session import local_session
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import SimulatedCrash


def stopped(place: Path) -> Shop:
    """Run three epochs, and end in order."""
    shop = Shop(place, 8, EVERY)
    shop.run()
    return shop


def unsealed(place: Path) -> Shop:
    """Die when the third epoch is prepared everywhere, and not sealed."""
    return _dies(Shop(place, 9, EVERY), Point(StepStarted, 3, "seal"))


def owed(place: Path) -> Shop:
    """Die when the third epoch is sealed, and shown by nobody."""
    return _dies(Shop(place, 9, EVERY), Point(StepFinished, 3, "seal"))


def half_owed(place: Path) -> Shop:
    """Die when the third epoch is sealed, and shown by the first two sinks."""
    return _dies(Shop(place, 9, EVERY), Point(StepFinished, 3, "commit", EVERY[1]))


def gone_back(place: Path) -> Shop:
    """Go back from the third epoch to the first, run other epochs 2, 3 and 4, and end in order."""
    shop = _three_epochs(place)
    shop.run(options=_to_the_first(shop))
    return shop


def gone_back_owed(place: Path) -> Shop:
    """Go back from the third epoch to the first, and die when the other third epoch is sealed."""
    shop = _three_epochs(place)
    return _dies(shop, Point(StepFinished, 3, "seal"), options=_to_the_first(shop))


def going_back(place: Path) -> Shop:
    """Go back from the third epoch to the first, and die when that is sealed and one sink was rewound."""
    shop = _three_epochs(place)
    return _dies(shop, Point(StepFinished, 1, "recovery.rewind", TAKE_BACK[0]), options=_to_the_first(shop))


def _three_epochs(place: Path) -> Shop:
    shop = Shop(place, 9, TAKE_BACK)
    shop.run()
    shop.take = lambda generation: 2
    return shop


def _to_the_first(shop: Shop) -> StartOptions:
    return StartOptions(from_id=shop.of_epoch(1).checkpoint_id)


def _dies(shop: Shop, point: Point, **options: Any) -> Shop:
    try:
        shop.run(dies_at=point, **options)
    except SimulatedCrash:
        return shop
    raise AssertionError(f"the process did not come to: {point}")


def spark_stopped(place: Path) -> None:
    """Run three epochs with Spark, and end in order."""
    _run_orders(place, 3)


def spark_owed(place: Path) -> None:
    """Die with Spark when the third epoch is sealed, and shown by nobody."""
    try:
        _run_orders(place, 3, observers=[_Dies(3, "seal")])
    except _Death:
        return
    raise AssertionError("the process did not die")


def spark_gone_back(place: Path) -> None:
    """Go back from the third epoch to the first with Spark, and run until a fourth one."""
    _run_orders(place, 3, orders.TAKE_BACK)
    (first,) = (m.checkpoint_id for m in open_store(place / "store").manifests() if m.epoch == 1)
    _run_orders(place, 4, orders.TAKE_BACK, from_id=first)


def _run_orders(place: Path, files: int, names: tuple[str, ...] = orders.EVERY, **run: Any) -> None:
    orders.add_input(place, 0, files)
    session = local_session("golden", master="local[2]")
    orders.pipeline(place, session, names).run(once=True, **run)


class _Death(BaseException):
    """The end of a process. Not an Exception, so that nothing handles it."""


class _Dies:
    """An observer that ends the run after a step."""

    def __init__(self, epoch: int, step: str) -> None:
        self._moment = epoch, step

    def on_event(self, event: Event) -> None:
        """End the run if this is the moment."""
        if isinstance(event, StepFinished) and (event.epoch, event.step) == self._moment:
            raise _Death(str(event))


SHOPS: dict[str, Callable[[Path], Shop]] = {
    make.__name__: make for make in (stopped, unsealed, owed, half_owed, gone_back, gone_back_owed, going_back)
}
WITH_SPARK: dict[str, tuple[Callable[[Path], None], int]] = {
    "spark_stopped": (spark_stopped, 3),
    "spark_owed": (spark_owed, 3),
    "spark_gone_back": (spark_gone_back, 4),
}
"""What makes a copy, and how many input files it read."""


def main(names: Iterable[str]) -> None:
    """Make the copies of these names; all when there are none."""
    if hasattr(LedgerState, "nonce"):
        raise SystemExit(f"{holdfast.__file__} is no version from before: set PYTHONPATH")
    for name in list(names) or [*SHOPS, *WITH_SPARK]:
        _make(name)
        print(name)


def _make(name: str) -> None:
    if name in WITH_SPARK:
        make, files = WITH_SPARK[name]
        with orders.alone():
            place = orders.emptied()
            make(place)
            store = open_store(place / "store", retain=None)
            pack(name, place, Facts(_commit(), files, _checkpoints(store), {}), _is_no_input)
        return
    with tempfile.TemporaryDirectory() as scratch:
        shop = SHOPS[name](Path(scratch))
        ledgers = {name: ledger.epoch for name, ledger in shop.ledgers().items()}
        pack(name, shop.place, Facts(_commit(), len(shop.source.records), _checkpoints(shop.store()), ledgers))


def _is_no_input(path: Path) -> bool:
    return path.parts[0] != "in"


def _checkpoints(store: DurableCheckpointStore) -> dict[str, str]:
    found = {}
    for manifest in store.manifests():
        verdict = store.validate_checkpoint(manifest.checkpoint_id)
        said = "valid" if verdict.valid else verdict.reason
        found[str(manifest.checkpoint_id)] = f"{manifest.kind} of epoch {manifest.epoch}: {said}"
    return found


def _commit() -> str:
    folder = str(Path(holdfast.__file__).parent)
    return subprocess.check_output(["git", "-C", folder, "rev-parse", "--short=7", "HEAD"], text=True).strip()


if __name__ == "__main__":
    main(sys.argv[1:])
