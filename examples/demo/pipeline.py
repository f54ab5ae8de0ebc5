"""The demo's pipeline, in a process of its own that can be told to stand still at a moment, to be killed there."""

import json
import sys
import threading
from pathlib import Path

from orders import SCHEMA

import holdfast as hf
from holdfast.engine.events import EpochCommitted, Event, Recovered, StepStarted


class Reporter:
    """Prints what happens as JSON lines; at the chosen moment says so and stands still until it is killed."""

    def __init__(self, moment: str) -> None:
        self._epoch, _, self._step = moment.partition(":")

    def on_event(self, event: Event) -> None:
        """Print what the demo shows."""
        if isinstance(event, EpochCommitted | Recovered):
            print(json.dumps(event.to_json_value()), flush=True)
        at = f"{event.step}:{event.sink}" if isinstance(event, StepStarted) and event.sink else None
        if self._step and at == self._step and event.epoch >= int(self._epoch):  # type: ignore[attr-defined]
            print(json.dumps({"event": "Standing", "at": at, "epoch": event.epoch}), flush=True)  # type: ignore[attr-defined]
            threading.Event().wait()


def build(base: Path) -> "hf.Pipeline":
    """Windowed revenue into Delta and SQLite, raw orders into Parquet."""
    pipeline = hf.Pipeline("orders", store=base / "checkpoints")
    orders = pipeline.source(
        "orders",
        hf.sources.files(str(base / "in"), schema=SCHEMA, max_files=1),
        watermark=("ts", "1 minute"),
    )
    revenue = pipeline.view(
        "revenue", "SELECT window(ts, '1 minute') w, customer, sum(amount) total FROM orders GROUP BY ALL"
    )
    pipeline.sink("lake", revenue, hf.sinks.delta(str(base / "lake")))
    pipeline.sink("db", revenue, hf.sinks.sqlite(str(base / "app.db"), table="revenue", epoch_column=True))
    pipeline.sink("raw", orders, hf.sinks.files(str(base / "raw")))
    return pipeline


if __name__ == "__main__":
    build(Path(sys.argv[1])).run(once=True, observers=[Reporter(sys.argv[2])])
