"""The pipeline generator (`make fuzz PIPELINES=200 SEED=1 SECONDS=3600`): random pipelines against plain Spark.

Each pipeline, its input and what happens to it follow from its seed alone. One that differs from plain Spark is made
small and printed as it can stand in `kept_pipelines.py`; at the end it is told what really was exercised.
"""

import argparse
import json
import logging
import os
import random
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from fuzz.described import Case, as_text
from fuzz.grammar import STATEFUL, draw
from fuzz.shrinking import shrunk
from fuzz.verdicts import Verdict, judged
from holdfast.spark.session import local_session
from spark.killed_pipeline import quick_start

TESTS = Path(__file__).parent.parent
PATIENCE = 300
"""Seconds for a pipeline; a shrinking may take as long for every step."""
_MANY = 60
"""So many pipelines share a session: what Spark keeps of each adds up."""


def features(case: Case) -> Iterator[str]:
    """Yield what a case has, for the distribution."""
    yield f"mode: {case.mode}"
    yield f"state: {case.state}" if set(case.operators()) & set(STATEFUL) else "state: none"
    yield f"sources: {len(case.sources)}"
    yield f"sinks: {len(case.sinks)}"
    yield f"outputs: {len(case.outputs)}"
    yield from {f"sink kind: {sink.kind}" for sink in case.sinks}
    yield from {f"setting: {name}" for name, _ in case.settings}
    yield from {f"option: {name}" for name, _ in case.options}
    for view in case.views:
        kind = view.details[0] if view.operator in ("join", "static join", "udf") else ""
        self_join = " with itself" if view.operator in ("join", "union") and len({*view.over}) == 1 else ""
        yield f"operator: {view.operator}{self_join} {kind}".rstrip()
    if len([view for view in case.views if view.operator in STATEFUL]) > 1:
        yield "several stateful operators"
    if any(not file for source in case.sources for file in source.files):
        yield "input: empty files"
    if any(source.delay is None for source in case.sources):
        yield "input: without watermark"


# a worker, which has a Spark session


def work(seeds: list[int], scratch: Path) -> None:
    """Run pipelines one after the other, and tell about each in a line."""
    logging.disable(logging.CRITICAL)
    conf = {**quick_start(scratch), "spark.log.level": "OFF"}
    spark = local_session("fuzz", master="local[2]", conf=conf)
    for seed in seeds:
        _tell({"begins": seed})
        began = time.monotonic()
        case = draw(seed)
        try:
            verdict = judged(case, spark)
        except Exception as error:
            verdict = Verdict(
                "found", f"the generator failed: {type(error).__name__}", traceback.format_exc()[-1500:]
            )
        _tell({**_told(seed, case, verdict), "seconds": round(time.monotonic() - began, 1)})


def shrink(case: Case, kind: str, scratch: Path) -> Case:
    """Make a case small that fails in this way."""
    logging.disable(logging.CRITICAL)
    spark = local_session("fuzz", master="local[2]", conf={**quick_start(scratch), "spark.log.level": "OFF"})
    return shrunk(case, lambda smaller: judged(smaller, spark).kind == kind)


def _told(seed: int, case: Case, verdict: Verdict) -> dict[str, Any]:
    done = {**verdict.done, **dict.fromkeys(features(case), 1)}
    return {"seed": seed, "outcome": verdict.outcome, "kind": verdict.kind, "said": verdict.said, "done": done}


def _tell(told: dict[str, Any]) -> None:
    print(json.dumps(told), file=sys.__stdout__, flush=True)


# the run


class Worker:
    """A process with a Spark session, that is given seeds."""

    def __init__(self, arguments: list[str], log: Path, seeds: Iterable[int] = ()) -> None:
        self.left = list(seeds)
        command = [sys.executable, str(Path(__file__)), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "TZ": "UTC"}
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, env=environment, start_new_session=True
        )
        assert self._process.stdout is not None
        self._lines = self._process.stdout
        self.seed: int | None = None
        self._heard = time.monotonic()

    def fileno(self) -> int:
        return self._lines.fileno()

    def line(self) -> dict[str, Any] | None:
        """Return what it tells; None when it has ended."""
        text = self._lines.readline()
        self._heard = time.monotonic()
        if not text:
            return None
        told: dict[str, Any] = json.loads(text) if text.startswith(b"{") else {}
        if "begins" in told:
            self.seed = self.left.pop(0)
        if "seed" in told:
            self.seed = None
        return told

    @property
    def hangs(self) -> bool:
        return time.monotonic() - self._heard > PATIENCE

    def end(self) -> None:
        with_children = self._process.pid
        if self._process.poll() is None:
            os.killpg(with_children, 9)
        self._process.wait()
        self._lines.close()
        self._log.close()


class Run:
    """Many pipelines, on several processes."""

    def __init__(self, arguments: argparse.Namespace, home: Path) -> None:
        self._arguments, self._home = arguments, home
        self._waiting = list(range(arguments.seed, arguments.seed + arguments.pipelines))
        self._done: Counter[str] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._broken: dict[str, list[tuple[int, str]]] = {}
        self._seconds: list[float] = []
        self._began = time.monotonic()

    def run(self) -> int:
        """Return how many pipelines broke something."""
        workers: list[Worker] = []
        while self._waiting or workers:
            while len(workers) < self._arguments.processes and self._waiting and not self._late:
                workers.append(self._worker())
            if self._late:
                self._waiting = []
            ready, _, _ = select.select(workers, [], [], 5)
            for worker in workers[:]:
                told = worker.line() if worker in ready else {}
                if told is None or worker.hangs:
                    self._ended(worker, "hangs" if worker.hangs else "the process died")
                    workers.remove(worker)
                elif "outcome" in told:
                    self._take(told)
                    if self._late:
                        worker.seed = None
                        self._ended(worker, "")
                        workers.remove(worker)
        self._report()
        return sum(map(len, self._broken.values()))

    def _worker(self) -> Worker:
        seeds, self._waiting = self._waiting[:_MANY], self._waiting[_MANY:]
        size = max(1, len(seeds) // self._arguments.processes) if not self._waiting else len(seeds)
        seeds, self._waiting = seeds[:size], seeds[size:] + self._waiting
        arguments = ["--work", json.dumps(seeds), "--scratch", str(self._home)]
        return Worker(arguments, self._home / "worker.log", seeds)

    @property
    def _late(self) -> bool:
        return time.monotonic() - self._began > self._arguments.seconds

    def _ended(self, worker: Worker, why: str) -> None:
        worker.end()
        self._waiting = worker.left + self._waiting
        if worker.seed is not None:
            self._take({"seed": worker.seed, "outcome": "found", "kind": why, "said": str(self._home), "done": {}})

    def _take(self, told: dict[str, Any]) -> None:
        self._outcomes[told["outcome"]] += 1
        self._done.update(told["done"])
        self._seconds.append(told.get("seconds", 0.0))
        if told["kind"]:
            self._broken.setdefault(told["kind"], []).append((told["seed"], told["said"]))
            print(f"seed {told['seed']}: {told['kind']}\n  {told['said'][:400]}", flush=True)
        count = sum(self._outcomes.values())
        if count % 10 == 0:
            found = sum(map(len, self._broken.values()))
            print(f"{count:>5} pipelines, {found} found, {time.monotonic() - self._began:.0f} s", flush=True)

    def _report(self) -> None:
        print()
        for what, count in sorted(self._done.items()):
            print(f"{count:>6}  {what}")
        print()
        for outcome, count in self._outcomes.most_common():
            print(f"{count:>6}  {outcome}")
        seconds, count = time.monotonic() - self._began, sum(self._outcomes.values())
        for kind, broken in sorted(self._broken.items(), key=lambda item: -len(item[1])):
            seeds = ", ".join(str(seed) for seed, _ in broken[:20])
            print(f"\n{len(broken)} x {kind}\n  seeds {seeds}\n  {broken[0][1]}")
            if not self._arguments.as_drawn:
                self._print_small(broken[0][0], kind)
        first = self._arguments.seed
        found = sum(map(len, self._broken.values()))
        print(
            f"\n{count} pipelines from seed {first} in {seconds:.0f} s, "
            f"{count * 3600 / max(seconds, 1):.0f} in an hour: {found} found; "
            f"repeat with make fuzz SEED={first} PIPELINES={count}"
        )

    def _print_small(self, seed: int, kind: str) -> None:
        worker = Worker(
            ["--shrink", json.dumps([seed, kind]), "--scratch", str(self._home)], self._home / "worker.log"
        )
        small = as_text(draw(seed))
        while True:
            ready, _, _ = select.select([worker], [], [], PATIENCE * 3)
            told = worker.line() if ready else None
            if told is None or "small" in told:
                break
        worker.end()
        print(small if told is None else told["small"], flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=200)
    parser.add_argument("--seed", type=int, help="the seed of the first pipeline; the next ones follow")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no pipeline after that")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--as-drawn", action="store_true", help="do not make failing pipelines small")
    parser.add_argument("--show", type=int, help="print the case of a seed, and do nothing else")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--shrink", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, default=Path(), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.show is not None:
        print(as_text(draw(arguments.show)))
        return 0
    if arguments.work:
        work(json.loads(arguments.work), arguments.scratch / f"spark-{os.getpid()}")
        os._exit(0)
    if arguments.shrink:
        seed, kind = json.loads(arguments.shrink)
        _tell({"small": as_text(shrink(draw(seed), kind, arguments.scratch / f"spark-{os.getpid()}"))})
        os._exit(0)
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(10**6)
    print(f"seed {arguments.seed}: {arguments.pipelines} pipelines within {arguments.seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-fuzz-", ignore_cleanup_errors=True) as home:
        return min(1, Run(arguments, Path(home)).run())


if __name__ == "__main__":
    sys.exit(main())
