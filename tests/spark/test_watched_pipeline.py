"""A real pipeline is verified while it runs and counted as it runs; both end with it, and what was found stays."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import open_store
from holdfast.engine.events import CheckpointVerified, Event
from holdfast.errors import PipelineDefinitionError
from holdfast.interfaces.metrics import Metrics
from holdfast.interfaces.verdict import Recoverable, store_health
from interfaces.test_metrics import values
from spark.conftest import Lab, flip
from spark.test_running import wait_for_epochs

Labs = Callable[[str], Lab]
PATIENCE = 60.0


class Verified:
    """Waits for verifications."""

    def __init__(self) -> None:
        self.events: list[CheckpointVerified] = []
        self._came = threading.Condition()

    def on_event(self, event: Event) -> None:
        if isinstance(event, CheckpointVerified):
            with self._came:
                self.events.append(event)
                self._came.notify_all()

    def wait_for(self, wanted: Callable[[CheckpointVerified], object]) -> CheckpointVerified:
        with self._came:
            assert self._came.wait_for(lambda: any(map(wanted, self.events)), PATIENCE)
            return next(filter(wanted, self.events))


def test_a_running_pipeline_finds_damage_and_seals_nothing_more_on_top_of_it(lab: Labs) -> None:
    """Goal: damage is known and healed before a start needs the bytes. Method: flip a bit under a pipeline."""
    here = lab("windows")
    here.add(0, 2)
    verified = Verified()
    handle = here.pipeline(verify_interval="200 milliseconds").start(observers=[verified])
    wait_for_epochs(handle, 2)
    newest = handle.status()["checkpoint_id"]
    sound = verified.wait_for(lambda event: event.checkpoint_id == newest)
    assert (sound.problems, sound.epoch) == ((), handle.status()["epoch"])
    flip(here.base / "store" / "checkpoints" / f"checkpoint_{newest:06d}" / "state.bin", 5000)
    damaged = verified.wait_for(lambda event: event.problems)
    assert damaged.checkpoint_id == newest
    here.add(2, 3)
    wait_for_epochs(handle, 3)
    healed = verified.wait_for(lambda event: event.checkpoint_id > newest and not event.problems)
    handle.stop()
    assert "holdfast-verification" not in [thread.name for thread in threading.enumerate()]
    health = store_health(open_store(here.base / "store", read_only=True), healed.sealed_ms or 0)
    assert (health.recoverable, health.reasons) == (Recoverable.YES, ())
    assert newest in health.damaged
    assert here.run()
    assert here.last_report["chosen_id"] > newest


def test_metrics_of_a_real_pipeline(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 3)
    metrics = Metrics("orders")
    here.pipeline().run(once=True, observers=[metrics])
    found = values(metrics.render())
    store = open_store(here.base / "store", read_only=True)
    newest = store.load_latest()
    assert newest is not None
    assert found["epoch"] == newest.epoch
    assert found["checkpoints_completed_total"] == found["epochs_completed_total"] == newest.epoch
    assert found["rows_in_total"] == newest.processed_records
    assert found["checkpoint_duration_seconds_count"] == newest.epoch
    assert 0 < found["checkpoint_pipeline_stall_seconds_sum"] < found["epoch_duration_seconds_sum"]
    for sink in newest.sink_names:
        assert found[f'sink_commit_duration_seconds_count{{sink="{sink}"}}'] > 0
        assert found[f'rows_out_total{{sink="{sink}"}}'] > 0
        assert found[f'sink_in_doubt{{sink="{sink}"}}'] == 0
    assert found['recoveries_total{kind="fresh"}'] == 1
    assert found["pipeline_up"] == 0
    here.pipeline().run(once=True, observers=[metrics])
    assert values(metrics.render())['recoveries_total{kind="restore"}'] == 1


def test_a_start_tells_what_the_estimate_of_the_next_one_needs(lab: Labs) -> None:
    here = lab("windows")
    here.add(0, 2)
    assert here.run()
    assert (here.last_report["state_bytes"], here.last_report["sealed_ms"]) == (0, None)
    assert here.run()
    report: dict[str, Any] = here.last_report
    assert report["state_bytes"] > 0
    assert report["host"]
    assert report["process"] > 0
    store = open_store(here.base / "store", read_only=True)
    newest = store.load_latest()
    assert newest is not None
    health = store_health(store, newest.timestamp_ms)
    assert health.estimate.seconds is not None
    assert health.holder is not None
    assert (health.holder.process, health.holder.generation) == (report["process"], report["generation"])
    assert health.verified is not None
    assert health.verified.by == "recovery"


def test_an_interval_that_is_none_is_refused_where_it_is_written(lab: Labs) -> None:
    with pytest.raises(PipelineDefinitionError, match="is no length of time"):
        lab("windows").pipeline(verify_interval="often")
