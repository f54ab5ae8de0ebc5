"""What asking costs (`make bench-control`): CPU per epoch with 20 status requests a second, and without.

A pipeline runs in a process of its own, as `holdfast run` starts it, one epoch right after the other. Stretches of
time with and without requests take turns; a stretch counts as the CPU time of that process and its children (Spark's
among them) over the epochs that were completed in it. The requests come from here, so asking itself is not counted.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import Target, compare, machine_facts

from holdfast import open_store

RESULTS = Path(__file__).parent / "results" / "control.json"
TARGET = Target(1.05)
REQUESTS_PER_SECOND = 20
ROWS = 100
BACKLOG = 60
NAME = "bench"
FILE = """\
name: bench
store: ./store
sources:
  orders:
    files: {path: ./in, schema: "id long, customer string, amount double, ts timestamp", max_files: 1}
    watermark: {column: ts, delay: 1 minute}
views:
  revenue: SELECT customer, window(ts, '1 minute') AS minute, sum(amount) AS amount FROM orders GROUP BY 1, 2
sinks:
  lake: {takes: orders, delta: {path: ./lake}}
  db: {takes: revenue, sqlite: {path: ./revenue.db, table: revenue}}
"""


class Feeding:
    """Keeps input ahead of the pipeline, so that it never waits for data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "in"
        self._files = 0

    def keep_ahead_of(self, epoch: int) -> None:
        """Write the files of the next epochs."""
        while self._files < epoch + BACKLOG:
            rows = [self._row(self._files * ROWS + number) for number in range(ROWS)]
            hidden = self._directory / f".{self._files:06d}.json"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            hidden.rename(self._directory / f"{self._files:06d}.json")
            self._files += 1

    @staticmethod
    def _row(number: int) -> dict[str, Any]:
        moment = time.gmtime(1_767_225_600 + number // 10)
        return {
            "id": number,
            "customer": f"customer {number % 50}",
            "amount": number % 100 / 4,
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", moment),
        }


class Asking:
    """Asks for the status at a fixed rate while it is switched on."""

    def __init__(self, port: int, path: str) -> None:
        self._port, self._path = port, path
        self._on, self._ended = threading.Event(), threading.Event()
        self.answers = 0
        self.seconds: list[float] = []
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def switched_on(self) -> Iterator[None]:
        """Ask for a while."""
        self._on.set()
        try:
            yield
        finally:
            self._on.clear()

    def close(self) -> None:
        """Ask no more."""
        self._ended.set()
        self._on.set()
        self._thread.join()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        while self._on.wait() and not self._ended.is_set():
            began = time.perf_counter()
            try:
                connection.request("GET", self._path)
                answer = connection.getresponse()
                answer.read()
            except ConnectionError:  # The server lets go of connections that were idle for a stretch.
                connection.close()
                continue
            if answer.status != 200:
                raise RuntimeError(f"GET {self._path} was answered with {answer.status}")
            self.seconds.append(time.perf_counter() - began)
            self.answers += 1
            time.sleep(max(0.0, 1 / REQUESTS_PER_SECOND - (time.perf_counter() - began)))


class Measured:
    """The pipeline's process, seen from outside."""

    def __init__(self, directory: Path, process: int, stretch_seconds: float) -> None:
        self._store = open_store(directory / "store", read_only=True)
        self._feeding = Feeding(directory)
        self._process, self._stretch = process, stretch_seconds
        self.epochs = 0

    def epoch(self) -> int:
        """Return the newest sealed epoch."""
        newest = self._store.load_latest()
        return 0 if newest is None else newest.epoch

    def warm_up(self, epochs: int) -> None:
        """Let the first epochs pass: classes are loaded, tables are created."""
        while self.epoch() < epochs:
            self._feeding.keep_ahead_of(self.epoch())
            time.sleep(0.2)

    def cpu_per_epoch(self) -> float:
        """Let a stretch pass and return the CPU seconds of each of its epochs."""
        epoch, cpu = self._next_epoch(), cpu_seconds(self._process)
        until = time.monotonic() + self._stretch
        while time.monotonic() < until:
            self._feeding.keep_ahead_of(self.epoch())
            time.sleep(0.2)
        last, spent = self._next_epoch(), cpu_seconds(self._process) - cpu
        self.epochs += last - epoch
        return spent / (last - epoch)

    def _next_epoch(self) -> int:
        """Wait for the moment at which an epoch is sealed, and return it."""
        before = self.epoch()
        while (now := self.epoch()) == before:
            time.sleep(0.002)
        return now


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process, of its children, and of children that ended."""
    ticks, parents = {}, {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(member, 0) for member in family) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(directory: Path) -> Iterator[tuple[int, int]]:
    """Run the pipeline with its HTTP API; lends its process and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (directory / "bench.yaml").write_text(FILE)
    (directory / "in").mkdir()
    command = [sys.executable, "-m", "holdfast.interfaces.cli", "run", "bench.yaml", "--http", f"127.0.0.1:{port}"]
    with (directory / "log").open("w") as log:
        child = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        yield child.pid, port
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def wait_for_answer(port: int, path: str, seconds: float = 120.0) -> None:
    """Wait until the pipeline answers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"the pipeline does not answer on {path}")


def measure(directory: Path, path: str, pairs: int, stretch: float, generator: random.Random) -> dict[str, Any]:
    """Compare stretches with requests to stretches without."""
    with running(directory) as (process, port):
        wait_for_answer(port, f"/v0/pipelines/{NAME}/checkpoints")  # From here on there is a store.
        measured, asking = Measured(directory, process, stretch), Asking(port, path)

        def with_requests() -> float:
            with asking.switched_on():
                return measured.cpu_per_epoch()

        measured.warm_up(30)
        began = time.monotonic()
        compared = compare(
            f"CPU per epoch, GET {path} {REQUESTS_PER_SECOND} times a second",
            with_requests,
            measured.cpu_per_epoch,
            pairs=pairs,
            generator=generator,
            target=TARGET,
            clock=lambda side: side(),
        )
        asking.close()
        return {
            **compared.to_json_value(),
            "epochs": measured.epochs,
            "epochs_per_second": round(measured.epochs / (time.monotonic() - began), 2),
            "requests": asking.answers,
            "answer_ms": round(1000 * statistics.median(asking.seconds), 2),
        }


def main() -> None:
    """Measure and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long a stretch is")
    parser.add_argument("--quick", action="store_true", help="two short pairs; does not touch the results")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    pairs, stretch = (2, 3.0) if arguments.quick else (arguments.pairs, arguments.seconds)
    base = Path(tempfile.mkdtemp(prefix=".bench-control-", dir="."))
    results = []
    try:
        facts = machine_facts(str(base))
        for number, path in enumerate((f"/v0/pipelines/{NAME}/checkpoint_status", f"/v0/pipelines/{NAME}/stats")):
            directory = base / str(number)
            directory.mkdir()
            results.append(measure(directory, path, pairs, stretch, random.Random(arguments.seed)))
            print(
                "{name}: {ratio:.3f} ({ratio_low:.3f} to {ratio_high:.3f}), target {target}: {verdict}; "
                "{epochs_per_second} epochs a second, answers in {answer_ms} ms".format(**results[-1])
            )
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if not arguments.quick:
        arguments.output.parent.mkdir(exist_ok=True)
        document = {"machine": facts, "seed": arguments.seed, "stretch_seconds": stretch, "comparisons": results}
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
