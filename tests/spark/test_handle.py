"""A handle may be used from anywhere: by observers in the middle of an epoch, and by functions of sinks."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast import sinks, sources
from holdfast.engine.events import Event
from holdfast.errors import PipelineError
from holdfast.spark.pipeline import Handle, Pipeline
from spark.orders import SCHEMA, write_orders
from spark.test_running import wait_for_epochs

CALLS: dict[str, Callable[[Handle], object]] = {
    "name": lambda handle: handle.name,
    "store": lambda handle: handle.store.list_ids(),
    "newest": lambda handle: handle.newest,
    "paused": lambda handle: handle.paused,
    "requests": lambda handle: handle.requests.request(),
    "sync": lambda handle: handle.sync,
    "recovery": lambda handle: handle.recovery,
    "status": lambda handle: handle.status(),
    "pause": lambda handle: (handle.pause(), handle.resume()),
    "resume": lambda handle: handle.resume(),
    "watch": lambda handle: handle.watch(Heeds({}, "", None)),
    "checkpoint": lambda handle: handle.checkpoint(),
    "wait": lambda handle: handle.wait(),
    "stop": lambda handle: handle.stop(),
}
WOULD_WAIT = {"checkpoint", "wait"}


class Heeds:
    """Calls a method of a handle from the first event of each kind that comes once the handle is there."""

    def __init__(self, called: dict[str, str], method: str, handle: Handle | None) -> None:
        self.called, self.method, self.handle = called, method, handle

    def on_event(self, event: Event) -> None:
        kind = f"{type(event).__name__} {getattr(event, 'step', '')}"
        if self.handle is None or kind in self.called:
            return
        self.called[kind] = "called"
        try:
            CALLS[self.method](self.handle)
        except PipelineError as error:
            self.called[kind] = str(error)
        else:
            self.called[kind] = "done"


def test_every_method_of_a_handle_is_called_here() -> None:
    assert {name for name in vars(Handle) if not name.startswith("_")} == set(CALLS)


@pytest.mark.parametrize("method", CALLS)
def test_every_method_may_be_called_from_every_event(method: str, tmp_path: Path, spark: SparkSession) -> None:
    """Goal: no call waits for itself, on whatever thread. Method: every kind of event calls, until the end."""
    called: dict[str, str] = {}
    write_orders(tmp_path, 0, 2)
    heeds = Heeds(called, method, None)
    pipeline = Pipeline("called", store=tmp_path / "store", spark=spark)
    pipeline.source("orders", sources.files(str(tmp_path / "in"), schema=SCHEMA, max_files=1))
    pipeline.sink("raw", "orders", sinks.files(str(tmp_path / "raw")))
    handle = pipeline.start(paused=True, observers=[heeds])
    heeds.handle = handle
    handle.resume()
    ended = threading.Thread(target=handle.wait, daemon=True)
    ended.start()
    if method != "stop":
        wait_for_epochs(handle, 2)
        handle.checkpoint()
        handle.stop()
    ended.join(60)
    assert not ended.is_alive()
    assert handle.status()["state"] == "stopped"
    assert {"StepStarted prepare", "StepFinished commit", "EpochCommitted ", "Stopped "} <= called.keys()
    assert method == "stop" or "CheckpointTaken " in called
    expected = "an observer cannot wait" if method in WOULD_WAIT else "done"
    assert all(answer.startswith(expected) for answer in called.values()), called


def test_a_function_of_a_sink_may_stop_its_pipeline(tmp_path: Path, spark: SparkSession) -> None:
    """It runs on a thread that the batch waits for, and no observer is asked."""
    handles: list[Handle] = []
    write_orders(tmp_path, 0, 2)
    pipeline = Pipeline("stops", store=tmp_path / "store", spark=spark, guarantee="at-least-once")
    pipeline.source("orders", sources.files(str(tmp_path / "in"), schema=SCHEMA, max_files=1))
    pipeline.sink("hook", "orders", sinks.foreach_batch(lambda rows, epoch: handles[0].stop()))
    handles.append(pipeline.start(paused=True))
    handles[0].resume()
    handles[0].wait()
    assert handles[0].status()["state"] == "stopped"
    assert handles[0].newest.epoch >= 1
