"""Make the golden copies again, with the version whose stores the present one has to go on with.

    git worktree add <old> <commit>
    PYTHONPATH=<old>/src:<old>/tests .venv/bin/python tests/golden/make_golden.py [name ...]

Everything but ids (timelines, names of files) is the same each time: the records are numbered, the clock of the
pipelines without Spark stands still, and a process dies at a named step.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from copies import Facts, pack
from shop import EVERY, TAKE_BACK, Shop

import holdfast
from engine.worlds import Point
from holdfast.core.contracts import LedgerState
from holdfast.engine.events import StepFinished
from holdfast.engine.startup import StartOptions
from holdfast.testing import SimulatedCrash


def stopped(place: Path) -> Shop:
    """Run three epochs, and end in order."""
    shop = Shop(place, 8, EVERY)
    shop.run()
    return shop


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


SHOPS: dict[str, Callable[[Path], Shop]] = {
    make.__name__: make for make in (stopped, owed, half_owed, gone_back, gone_back_owed, going_back)
}


def main(names: Iterable[str]) -> None:
    """Make the copies of these names; all when there are none."""
    if hasattr(LedgerState, "nonce"):
        raise SystemExit(f"{holdfast.__file__} is no version from before: set PYTHONPATH")
    for name in list(names) or SHOPS:
        with tempfile.TemporaryDirectory() as scratch:
            shop = SHOPS[name](Path(scratch))
            pack(name, shop.place, _facts(shop))
        print(name)


def _facts(shop: Shop) -> Facts:
    store = shop.store()
    checkpoints = {}
    for manifest in store.manifests():
        verdict = store.validate_checkpoint(manifest.checkpoint_id)
        said = "valid" if verdict.valid else verdict.reason
        checkpoints[str(manifest.checkpoint_id)] = f"{manifest.kind} of epoch {manifest.epoch}: {said}"
    ledgers = {name: ledger.epoch for name, ledger in shop.ledgers().items()}
    return Facts(_commit(), len(shop.source.records), checkpoints, ledgers)


def _commit() -> str:
    folder = str(Path(holdfast.__file__).parent)
    return subprocess.check_output(["git", "-C", folder, "rev-parse", "--short=7", "HEAD"], text=True).strip()


if __name__ == "__main__":
    main(sys.argv[1:])
