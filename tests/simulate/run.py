"""Simulation (`make simulate HISTORIES=10000 SEED=1 STEPS=50 SECONDS=3600`): random histories, and what they break.

Each history follows from its seed alone. One that breaks a promise is made short and printed as it can stand in
`kept.py`; at the end it is told what really happened in all of them.
"""

import argparse
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from simulate.checks import CHECKERS, Broken, Judge
from simulate.lives import Life, broken_by
from simulate.shrink import as_text, shrunk
from simulate.steps import Draw, History

CHUNK = 20
"""How many histories a process is given at a time."""
_SHOWN = 12
"""How many failures are made short; of the others there is the seed."""


@dataclass
class Chunk:
    """What came of a few histories."""

    done: Counter[str]
    broken: list[tuple[int, str]]
    seconds: float


def live(seeds: range, steps: int, without: tuple[str, ...]) -> Chunk:
    """Let some histories happen."""
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    chunk = Chunk(Counter(), [], 0.0)
    for seed in seeds:
        life = Life(Draw(seed).history(steps), Judge(without))
        try:
            life.run()
        except Broken as error:
            chunk.broken.append((seed, str(error)))
        chunk.done.update(life.done)
    chunk.seconds = time.process_time() - began
    return chunk


def kind_of(said: str) -> str:
    """Return what two failures of one cause have in common."""
    said = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<uuid>", said)
    return re.sub(r"\d+", "<n>", re.sub(r"sink '\w+'", "sink", said))[:100]


def shortest(seed: int, steps: int, without: tuple[str, ...]) -> tuple[History, Broken]:
    """Return the shortest history found that breaks what that of the seed breaks, and what it says."""
    whole = Draw(seed).history(steps)
    first = broken_by(whole, without)
    assert first is not None, f"seed {seed} does not fail again: the simulation is not deterministic"

    def fails(history: History) -> bool:
        found = broken_by(history, without)
        return found is not None and kind_of(str(found)) == kind_of(str(first))

    found = shrunk(whole, fails)
    return found, broken_by(found, without) or first


def chunks(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, CHUNK):
        yield range(start, min(start + CHUNK, first + count))


class Run:
    """Many histories, on several processes."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._without = tuple(arguments.without.split(",")) if arguments.without else ()
        self._done: Counter[str] = Counter()
        self._broken: list[tuple[int, str]] = []
        self._began = time.monotonic()
        self._histories = 0

    def run(self) -> int:
        """Return how many histories broke something."""
        arguments = self._arguments
        waiting = chunks(arguments.seed, arguments.histories)
        with ProcessPoolExecutor(arguments.processes) as pool:
            running: dict[Future[Chunk], range] = {}
            while True:
                while len(running) < 2 * arguments.processes and not self._late:
                    if (seeds := next(waiting, None)) is None:
                        break
                    running[pool.submit(live, seeds, arguments.steps, self._without)] = seeds
                if not running:
                    break
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._take(future.result(), len(running.pop(future)))
        print()
        self._report()
        return len(self._broken)

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._began > self._arguments.seconds

    def _take(self, chunk: Chunk, histories: int) -> None:
        self._histories += histories
        self._done += chunk.done
        self._broken += chunk.broken
        print(
            f"\r{self._histories:>7,} histories, {sum(self._done.values()):>9,} events, {len(self._broken)} broken, "
            f"{time.monotonic() - self._began:.0f} s",
            end="",
            flush=True,
        )

    def _report(self) -> None:
        for what, count in sorted(self._done.items()):
            print(f"{count:>9,}  {what}")
        kinds: dict[str, list[int]] = {}
        for seed, said in sorted(self._broken):
            kinds.setdefault(kind_of(said), []).append(seed)
        for number, (kind, seeds) in enumerate(sorted(kinds.items(), key=lambda item: -len(item[1]))):
            print(f"\n{len(seeds)} x {kind}\n  seeds {', '.join(map(str, seeds[:20]))}")
            if number < _SHOWN and not self._arguments.as_drawn:
                history, error = shortest(seeds[0], self._arguments.steps, self._without)
                print(as_text(history))
                print(f"  {error}")
        first = self._arguments.seed
        print(
            f"\n{self._histories:,} histories of {self._arguments.steps} steps, "
            f"seeds {first} to {first + self._arguments.histories - 1}: {len(self._broken)} broke something"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first history; the next ones follow")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no history after that")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--without", default="", help=f"checkers to leave out: {', '.join(CHECKERS)}")
    parser.add_argument("--as-drawn", action="store_true", help="do not make failing histories short")
    return min(1, Run(parser.parse_args()).run())


if __name__ == "__main__":
    sys.exit(main())
