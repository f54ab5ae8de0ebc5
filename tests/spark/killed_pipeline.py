"""A pipeline in a process of its own that kills itself at a named moment. Run by test_kills.py."""

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.core.buffers import Buffer
from holdfast.engine.events import EpochCommitted, Event, Recovered, StepFinished, StepStarted
from holdfast.spark.session import local_session
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
from holdfast.stores.medium import Staged
from holdfast.stores.store import DurableCheckpointStore
from spark.pipelines import PIPELINES
from spark.quick_jvm import java_options
from spark.quick_workers import spark_home


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def quick_start(scratch: Path) -> dict[str, str]:
    """Prepare a Spark that lives shortly, with its scratch files where they go with the test; return settings."""
    scratch.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("SPARK_HOME", spark_home())
    java = f"{java_options()} -Djava.io.tmpdir={scratch}"
    return {"spark.driver.extraJavaOptions": java, "spark.local.dir": str(scratch)}


class KillAt:
    """Kills at `<epoch>:<before|after>:<step>[:<sink>]`, or at `<epoch>:committed`, before Spark's own commit."""

    def __init__(self, moment: str) -> None:
        self._parts = moment.split(":")

    def on_event(self, event: Event) -> None:
        if isinstance(event, Recovered):
            print("recovered", event.report, flush=True)
        if self._matches(event):
            print("killed at", event, flush=True)
            die()

    def _matches(self, event: Event) -> bool:
        epoch, when, *rest = self._parts
        if isinstance(event, EpochCommitted):
            return when == "committed" and event.epoch >= int(epoch)
        kinds = {"before": StepStarted, "after": StepFinished}
        if when not in kinds or not isinstance(event, kinds[when]):
            return False
        sink = rest[1] if len(rest) > 1 else None
        return event.epoch >= int(epoch) and event.step == rest[0] and event.sink == sink


class DiesBetweenSidecarAndManifest(DirectoryMedium):
    """Dies when the sidecar is durable and the manifest is not written."""

    def stage(self, checkpoint_id: int, chunks: Iterable[Buffer] | None, total: int) -> Staged:
        staged = super().stage(checkpoint_id, chunks, total)
        if chunks is not None:
            print("killed between sidecar and manifest", flush=True)
            die()
        return staged


def deadly_store(path: Path) -> DurableCheckpointStore:
    """Return a store whose first epoch kills the process."""
    medium = DiesBetweenSidecarAndManifest(str(path), LocalDisk())
    medium.prepare()
    return DurableCheckpointStore(medium, retain=None, vnode_count=2)


def main(base: Path, kind: str, state: str, moment: str) -> None:
    options: dict[str, Any] = {"state": state}
    if moment == "sidecar":
        options["store"] = deadly_store(base / "store")
    options["spark"] = local_session("killed", master="local[2]", conf=quick_start(base / "spark"))
    observers = [] if moment in ("never", "sidecar") else [KillAt(moment)]
    PIPELINES[kind](base, **options).run(once=True, observers=observers)
    print("finished", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
