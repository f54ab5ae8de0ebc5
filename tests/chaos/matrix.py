"""The kill matrix (`make chaos-matrix`): every kind of operator on both state stores, killed at every named step.

A cell is one kind on one state store: a chain of real processes, each killed at the next moment of the protocol, and
the one after it during its recovery. At the end every sink must hold what an undisturbed run gives, value by value.
The two state stores of a kind share the moments, in turns, so that every kind and every store meets every moment;
with `--whole` each cell meets all of them.
Cells that are done are remembered in `.chaos-matrix/`; a run that is cut off goes on where it was.
"""

import argparse
import itertools
import json
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.judge import differences
from spark.kills import moments, recovery_moments, run_until
from spark.orders import contents, write_orders

FILES = 24
KEYED = ("running", "python_state")
KINDS = ("windows", "running", "deduplicated", "joined", "python_state", "several", "fan_out")
STATES = ("rocksdb", "memory")
CELLS = [
    (kind, state)
    for kind in KINDS
    for state in STATES
    if (kind, state) not in {("python_state", "memory"), ("fan_out", "memory")}
]
"""transformWithState exists for RocksDB only, and a fan-out has no state."""


def moments_of(kind: str, state: str, *, whole: bool) -> list[str]:
    """Return the moments of one cell."""
    every = moments(("lake", "db") if kind in KEYED else ("lake", "db", "raw"))
    shared = not whole and all((kind, other) in CELLS for other in STATES)
    return every[(KINDS.index(kind) + STATES.index(state)) % 2 :: 2] if shared else every


class Matrix:
    """Runs cells within a time limit and remembers their results."""

    def __init__(self, directory: Path, seconds: float, console: Console, *, whole: bool) -> None:
        self._directory, self._console, self._whole = directory, console, whole
        self._deadline = time.monotonic() + seconds
        self._results = directory / "results.json"
        self.done: dict[str, Any] = json.loads(self._results.read_text()) if self._results.exists() else {}

    def run(self, kind: str, state: str) -> None:
        """Run a cell unless it is done; one that the time limit cuts off starts anew the next time."""
        name = f"{kind}/{state}"
        if name in self.done or time.monotonic() > self._deadline:
            return
        base = self._directory / kind / state
        shutil.rmtree(base, ignore_errors=True)
        started = time.monotonic()
        try:
            result = self._chain(base, kind, state)
        except AssertionError as error:
            result = {"verdict": "FAILED", "why": str(error)}
        if result is not None:
            self.done[name] = {**result, "seconds": round(time.monotonic() - started)}
            self._results.write_text(json.dumps(self.done, indent=1) + "\n")

    def _chain(self, base: Path, kind: str, state: str) -> dict[str, Any] | None:
        killed, undisturbed = base / "killed", base / "undisturbed"
        for directory in (killed, undisturbed):
            write_orders(directory, 0, FILES)
        kills = recovery_kills = 0
        in_recovery = itertools.cycle(recovery_moments())
        for moment in moments_of(kind, state, whole=self._whole):
            if time.monotonic() > self._deadline:
                return None
            run_until(moment, killed, kind, state)
            run_until(next(in_recovery), killed, kind, state)
            kills, recovery_kills = kills + 1, recovery_kills + 1
            self._console.print(f"{kind:13} {state:8} killed at {moment}, and once more in the recovery")
        for directory in (killed, undisturbed):
            run_until("never", directory, kind, state)
        found, expected = contents(killed), contents(undisturbed)
        rows = sum(len(sink) for sink in expected.values())
        if wrong := differences(expected, found):
            raise AssertionError("; ".join(wrong))
        assert rows, "no sink shows anything"
        shutil.rmtree(base)
        return {"kills": kills, "recovery_kills": recovery_kills, "rows": rows, "verdict": "equal"}

    def table(self) -> Table:
        """Return the matrix as it stands."""
        table = Table("operator", "state", "kills", "in recovery", "rows compared", "seconds", "result")
        for kind, state in CELLS:
            cell = self.done.get(f"{kind}/{state}", {})
            values = [str(cell.get(key, "")) for key in ("kills", "recovery_kills", "rows", "seconds")]
            table.add_row(kind, state if kind != "fan_out" else "none", *values, cell.get("verdict", "not run"))
        return table


def main() -> int:
    """Run what is not done yet; exit 1 when a cell failed or is missing."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this long (default 3600)")
    parser.add_argument("--only", help="one kind of operator")
    parser.add_argument("--whole", action="store_true", help="every moment in every cell: takes twice as long")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    arguments = parser.parse_args()
    directory = Path(".chaos-matrix").absolute()
    if arguments.fresh:
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(exist_ok=True)
    console = Console()
    matrix = Matrix(directory, arguments.seconds, console, whole=arguments.whole)
    cells = [cell for cell in CELLS if arguments.only in (None, cell[0])]
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(lambda cell: matrix.run(*cell), cells))
    console.print(matrix.table())
    verdicts = [matrix.done.get(f"{kind}/{state}", {}).get("verdict") for kind, state in cells]
    for name, cell in matrix.done.items():
        if cell["verdict"] == "FAILED":
            console.print(f"{name}: {cell['why']}")
    return 0 if verdicts and all(verdict == "equal" for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
