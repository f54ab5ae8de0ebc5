"""One commit against another (`make bench-commits BASE=<commit>`): the time of an epoch, in turns.

Each side is a process of its own, with its own JVM and the code of its commit; both go on from round to round and
take turns with the same input. The second side of a pair goes first in the next one. A ratio is the base's median
epoch over ours, within a pair: above 1 means that the present code is faster.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from measuring import interval, machine_facts
from pipeline import RESULTS, WORKLOADS, own_seconds
from pipeline_workloads import Workload

HERE = Path(__file__).resolve().parent
CHOSEN = tuple(w for w in WORKLOADS if w.name.startswith("tiny epochs") and w.store == "disk")


class Side:
    """A process that runs a workload's epochs when it is asked to."""

    def __init__(self, code: Path, workload: Workload, directory: Path, seed: int) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{code / 'src'}{os.pathsep}{code / 'benchmarks'}"}
        command = [sys.executable, "-P", str(HERE / "commits_side.py"), workload.name, str(directory), str(seed)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def round(self, epochs: int) -> dict[str, list[float]]:
        """Run one round; return the seconds of its epochs, and of our own work in each."""
        _pipe(self._process.stdin).write(f"{epochs}\n")
        _pipe(self._process.stdin).flush()
        for line in _pipe(self._process.stdout):
            if line.startswith("round "):
                found = json.loads(line.removeprefix("round "))
                return {"epoch": found["epoch"], "own": [own_seconds(steps) for steps in found["steps"]]}
        raise SystemExit(f"a side ended with code {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        _pipe(self._process.stdin).close()
        self._process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


@contextmanager
def code_of(commit: str, directory: Path) -> Iterator[Path]:
    """Check a commit out beside everything else; yield its folder."""
    place = directory / "base"
    if subprocess.run(
        ["git", "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}"], stdout=subprocess.DEVNULL
    ).returncode:
        raise SystemExit(f"there is no commit '{commit}' here")
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(place), commit], check=True)
    try:
        yield place
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(place)], check=False)


def measure(workload: Workload, base: Path, directory: Path, generator: random.Random) -> dict[str, Any]:
    """Run both sides round by round, after one round that does not count."""
    seed = generator.randrange(2**31)
    with ExitStack() as stack:
        sides = {}
        for name, code in (("base", base), ("present", HERE.parent)):
            sides[name] = Side(code, workload, directory / name, seed)
            stack.callback(sides[name].close)
        order = list(sides)
        rounds: dict[str, list[dict[str, list[float]]]] = {name: [] for name in sides}
        for number in range(-1, workload.rounds):
            order.reverse()
            for name in order:
                os.sync()  # Neither side pays for what the other wrote and left to the disk.
                result = sides[name].round(workload.epochs + 1)
                if number >= 0:
                    rounds[name].append(result)
            print(f"\r  {workload.name}: round {number + 1} of {workload.rounds}", end="", flush=True)
    print()
    figures: dict[str, Any] = {"workload": workload.name, "pairs": workload.rounds, "epochs": workload.epochs}
    for what in ("epoch", "own"):
        medians = {name: [statistics.median(r[what]) for r in found] for name, found in rounds.items()}
        pairs = [b / p for b, p in zip(medians["base"], medians["present"], strict=True)]
        low, high = interval(pairs, generator)
        figures[what] = {
            "ratio": round(statistics.median(pairs), 3),
            "low": round(low, 3),
            "high": round(high, 3),
            **{f"{name}_ms": round(1000 * statistics.median(values), 2) for name, values in medians.items()},
        }
    return figures


def main() -> None:
    """Measure what was asked for and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    scratch = Path(tempfile.mkdtemp(prefix=".bench-pipeline-", dir="."))
    results = []
    try:
        facts = machine_facts(str(scratch))
        with code_of(arguments.base, scratch) as base:
            for number, workload in enumerate(w for w in CHOSEN if arguments.only in w.name):
                chosen = replace(workload, rounds=arguments.rounds)
                results.append(measure(chosen, base, scratch / str(number), generator))
                print(json.dumps(results[-1]))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    found = {"base": arguments.base, "machine": facts, "seed": arguments.seed, "results": results}
    (RESULTS / "commits.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
