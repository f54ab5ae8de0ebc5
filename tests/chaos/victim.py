"""The pipeline that chaos is done to, in a process of its own: Delta, PostgreSQL and files at once."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.sequence import SCHEMA
from holdfast import sinks, sources
from holdfast.clock import SystemClock
from holdfast.engine.delivery import DeliverySettings
from holdfast.engine.events import EpochCommitted, Event, Recovered
from holdfast.errors import Fenced
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.session import local_session
from spark.killed_pipeline import quick_start

FENCED, STOPPED = 5, 7


class JumpedClock(SystemClock):
    """A machine whose clock is off."""

    def __init__(self, seconds: float) -> None:
        self._shift_ms = int(seconds * 1000)

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms


class Tell:
    """Tells the parent what happens, one line each."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, Recovered):
            print("recovered", json.dumps(event.report), flush=True)
        elif isinstance(event, EpochCommitted):
            print("epoch", event.epoch, flush=True)


def build(base: Path, url: str, clock: JumpedClock) -> Pipeline:
    pipeline = Pipeline(
        "chaos",
        store=base / "store",
        work_dir=base / "work",
        spark=local_session("chaos", master="local[2]", conf=quick_start(base.parent / "spark")),
        delivery=DeliverySettings(attempts=4, commit_seconds=20, prepare_seconds=30),
        retain=6,
        clock=clock,
    )
    spec = sources.files(str(base / "in"), schema=SCHEMA, max_files=2)
    pipeline.source("orders", spec, watermark=("ts", "1 minute"))
    raw = pipeline.view("raw", "SELECT id, customer, amount FROM orders")
    revenue = pipeline.view(
        "revenue",
        "SELECT window(ts, '1 minute').start AS begin, customer, sum(amount) total FROM orders "
        "GROUP BY window(ts, '1 minute'), customer",
    )
    pipeline.sink("lake", raw, sinks.delta(str(base / "lake")))
    pipeline.sink("files", raw, sinks.files(str(base / "files")))
    pipeline.sink("table", raw, sinks.postgres(url, table="raw", epoch_column=True))
    pipeline.sink("windows", revenue, sinks.postgres(url, table="windows", epoch_column=True))
    return pipeline


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("base", type=Path)
    parser.add_argument("url")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--clock-offset", type=float, default=0.0)
    arguments = parser.parse_args()
    pipeline = build(arguments.base, arguments.url, JumpedClock(arguments.clock_offset))
    try:
        pipeline.run(once=arguments.once, observers=[Tell()])
    except Fenced as error:
        print("fenced", error, flush=True)
        return FENCED
    except Exception as error:  # A full disk comes out of Spark, of pyarrow, of the store, each in its own words.
        print("stopped", type(error).__name__, " ".join(str(error).split())[:500], flush=True)
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
