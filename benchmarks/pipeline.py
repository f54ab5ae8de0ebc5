"""Holdfast against plain Structured Streaming (`make bench-pipeline`): the same query, source and sinks.

Four modes take turns in one process: every round gives each of them the same next input files, in changing order.
What is compared is Spark's own time of each trigger; starting and stopping queries, recovery included, does not
count, nor does the first epoch after a start. A ratio is the median over the rounds, with an interval from
resampling them.
"""

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from measuring import Target, interval, machine_facts
from pipeline_checkpoints import checkpoint_figures
from pipeline_modes import Careful, Holdfast, Mode, PlainDefaults, PlainTuned
from pipeline_plot import plot
from pipeline_workloads import Input, Workload
from pyspark.sql import SparkSession

from holdfast.spark.session import local_session

RESULTS = Path(__file__).parent / "results"
THREE = ("lake", "db", "files")
MODES: tuple[type[Mode], ...] = (PlainDefaults, PlainTuned, Careful, Holdfast)
TARGETS = {PlainDefaults.name: Target(1.0, at_most=False), PlainTuned.name: Target(0.95, at_most=False)}
TARGETS[Careful.name] = Target(0.95, at_most=False)
OWN_TARGET = Target(25.0)
FULL_SPEED = 1_000_000
WORKLOADS = (
    Workload("tiny epochs, stateless, one sink", "stateless", 100, ("lake",), rounds=10, epochs=10),
    Workload("tiny epochs, stateless, three sinks", "stateless", 100, THREE, rounds=10, epochs=10),
    Workload("tiny epochs, windows, one sink", "windows", 100, ("lake",), rounds=10, epochs=10),
    Workload("tiny epochs, windows, three sinks", "windows", 100, THREE, rounds=10, epochs=10),
    Workload(
        "tiny epochs, windows, three sinks, store on S3", "windows", 100, THREE, rounds=6, epochs=10, store="s3"
    ),
    Workload("1,000 rows, 10 MB of state", "keyed", 1_000, ("db",), 8, 10, keys=10_000, payload=1_000, preload=True),
    Workload("1,000 rows, 1 GB of state", "keyed", 1_000, ("db",), 5, 8, keys=1_000_000, payload=1_000, preload=True),
    Workload("1,000,000 rows, stateless, one sink", "stateless", FULL_SPEED, ("lake",), rounds=5, epochs=4),
    Workload("1,000,000 rows, stateless, three sinks", "stateless", FULL_SPEED, THREE, rounds=5, epochs=4),
    Workload("1,000,000 rows, windows, three sinks", "windows", FULL_SPEED, THREE, rounds=5, epochs=4),
)


@dataclass
class Result:
    """One workload, measured."""

    workload: Workload
    seconds: dict[str, list[list[float]]] = field(default_factory=dict)
    """Mode -> round -> seconds of each epoch."""
    steps: Sequence[Mapping[str, float]] = ()
    checkpoints: dict[str, Any] = field(default_factory=dict)

    def ratios(self, generator: random.Random) -> dict[str, dict[str, Any]]:
        """Return, for each plain mode, its time over ours: above 1 means that we are faster."""
        ours = [statistics.median(epochs) for epochs in self.seconds[Holdfast.name]]
        found = {}
        for name in self.seconds:
            if name != Holdfast.name:
                theirs = [statistics.median(epochs) for epochs in self.seconds[name]]
                pairs = [b / a for a, b in zip(ours, theirs, strict=True)]
                low, high = interval(pairs, generator)
                ratio, target = statistics.median(pairs), TARGETS[name]
                found[name] = {
                    "ratio": round(ratio, 3),
                    "low": round(low, 3),
                    "high": round(high, 3),
                    "added_ms": round(1000 * statistics.median(a - b for a, b in zip(ours, theirs, strict=True)), 1),
                    "target": str(target),
                    "verdict": "met" if target.met_by(ratio) else "MISSED",
                }
        return found

    def epoch_ms(self) -> dict[str, dict[str, float]]:
        """Return median and 95th percentile of each mode, in milliseconds."""
        return {name: _quantiles([s for epochs in rounds for s in epochs]) for name, rounds in self.seconds.items()}

    def step_ms(self) -> dict[str, dict[str, float]]:
        """Return the protocol's steps, and `own`: everything except the query and the sinks' own work."""
        names = dict.fromkeys(name for steps in self.steps for name in steps if name != "new_bytes")
        found = {name: _quantiles([steps[name] for steps in self.steps if name in steps]) for name in names}
        return found | {"own": _quantiles([own_seconds(steps) for steps in self.steps])}

    def to_json_value(self, generator: random.Random) -> dict[str, Any]:
        """Return plain values."""
        return {
            "workload": asdict(self.workload),
            "ratios": self.ratios(generator),
            "epoch_ms": self.epoch_ms(),
            "step_ms": self.step_ms(),
            "checkpoints": self.checkpoints,
        }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(1000 * value for value in seconds)
    return {
        "median": round(statistics.median(ordered), 2),
        "p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2),
    }


def own_seconds(steps: Mapping[str, float]) -> float:
    """Return what an epoch took beside the query and the sinks' own work."""
    slowest = [
        max((v for k, v in steps.items() if k.startswith(f"{step}:")), default=0.0) for step in ("prepare", "commit")
    ]
    return steps["total"] - steps["compute"] - sum(slowest)


def measure(workload: Workload, spark: SparkSession, directory: Path, generator: random.Random) -> Result:
    """Run every mode round by round."""
    source = Input(workload, directory / "input", generator.randrange(2**31))
    modes = [mode(workload, spark, directory / mode.__name__) for mode in MODES]
    result = Result(workload, {mode.name: [] for mode in modes})
    for number in range(-1, workload.rounds):
        generator.shuffle(modes)
        for mode in modes:
            before = len(mode.steps)
            os.sync()  # Nobody pays for what another mode wrote and left to the disk.
            seconds = mode.run(source, workload.epochs + 1)
            if number < 0:
                del mode.steps[:]  # The first round warms up: classes are loaded, tables are created.
                continue
            result.seconds[mode.name].append(seconds[1:])
            del mode.steps[before : before + 1]
        print(f"\r  {workload.name}: round {number + 1} of {workload.rounds}", end="", flush=True)
    print()
    ours = next(mode for mode in modes if isinstance(mode, Holdfast))
    result.steps = ours.steps
    if workload.store == "disk":
        result.checkpoints = checkpoint_figures(ours.directory, generator)
    return result


@contextmanager
def s3_store() -> Iterator[str]:
    """Serve a bucket from a process of its own: in ours it would take turns with what is measured."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    names = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    os.environ.update(names | {"AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true"})
    patient = Config(retries={"max_attempts": 10, "mode": "standard"})
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=patient)
    with server:
        try:
            client.create_bucket(Bucket="bench")
            yield "s3://bench/store"
        finally:
            server.kill()


def print_table(results: Sequence[dict[str, Any]]) -> None:
    """Print one block per workload."""
    for result in results:
        print(f"\n{result['workload']['name']}")
        for mode, ms in result["epoch_ms"].items():
            ratio = result["ratios"].get(mode)
            text = (
                f"   holdfast is {ratio['ratio']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f}) times as fast, "
                f"{ratio['added_ms']:+.0f} ms, target {ratio['target']}: {ratio['verdict']}"
                if ratio
                else ""
            )
            print(f"  {mode:22} {ms['median']:8.1f} ms   p95 {ms['p95']:8.1f} ms{text}")
        steps = ", ".join(f"{name} {value['median']:.1f}" for name, value in result["step_ms"].items())
        own = result["step_ms"]["own"]["median"]
        print(f"  steps, ms: {steps}")
        verdict = "met" if OWN_TARGET.met_by(own) else "MISSED"
        print(f"  own work per epoch: {own:.1f} ms, target {OWN_TARGET}: {verdict}")
        if result["checkpoints"]:
            print(f"  checkpoints: {json.dumps(result['checkpoints'])}")


def main() -> None:
    """Measure what was asked for and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="workloads whose name contains this; the results of the others stay")
    parser.add_argument("--quick", action="store_true", help="few rounds; does not touch the results")
    arguments = parser.parse_args()
    chosen = [w for w in WORKLOADS if not arguments.only or arguments.only in w.name]
    if arguments.quick:
        chosen = [replace(workload, rounds=2, epochs=min(workload.epochs, 5)) for workload in chosen]
    generator = random.Random(arguments.seed)
    conf = {"spark.driver.memory": "8g", "spark.sql.streaming.numRecentProgressUpdates": "100"}
    spark = local_session("bench", master="local[2]", conf=conf)
    base = Path(tempfile.mkdtemp(prefix=".bench-pipeline-", dir="."))
    results = []
    try:
        facts = machine_facts(str(base))
        for number, workload in enumerate(chosen):
            with ExitStack() as stack:
                url = stack.enter_context(s3_store()) if workload.store == "s3" else None
                Holdfast.open_store = staticmethod(lambda path, url=url: url or str(path))
                result = measure(workload, spark, base / str(number), generator)
            results.append(result.to_json_value(generator))
            print_table(results[-1:])
            # Spark still tidies up in there now and then.
            shutil.rmtree(base / str(number), ignore_errors=True)
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)
    if not arguments.quick:
        keep(results, {"machine": facts, "seed": arguments.seed})


def keep(results: Sequence[dict[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write results down, each beside those of the other workloads that were measured before."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "pipeline.json"
    before = json.loads(path.read_text())["results"] if path.exists() else []
    known = {result["workload"]["name"]: result for result in [*before, *({**r, **facts} for r in results)]}
    ordered = [known[workload.name] for workload in WORKLOADS if workload.name in known]
    path.write_text(json.dumps({"results": ordered}, indent=1) + "\n")
    plot(ordered, RESULTS / "pipeline.svg")


if __name__ == "__main__":
    main()
