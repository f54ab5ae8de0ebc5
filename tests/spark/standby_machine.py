"""A machine in a process of its own: it runs a pipeline with copies in a bucket, or stands by. See test_standby.py.

The folder of the machine is its disk; input and targets are shared. A line on stdin activates a standby.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast import HoldfastError, SyncSettings
from holdfast.engine.events import EpochCommitted, EpochReplayed, Event, Recovered, SyncPulled, SyncPushed
from holdfast.spark.session import local_session
from spark.killed_pipeline import quick_start
from spark.pipelines import PIPELINES


class Told:
    """Prints what happens, a line each."""

    def on_event(self, event: Event) -> None:
        match event:
            case EpochCommitted() | EpochReplayed():
                print(type(event).__name__, event.epoch, flush=True)
            case SyncPushed() | SyncPulled() | Recovered():
                print(type(event).__name__, json.dumps(event.to_json_value()), flush=True)


def main(base: Path, disk: Path, role: str, settings: dict[str, Any]) -> None:
    spark = local_session("machine", master="local[2]", conf=quick_start(disk / "spark"))
    pipeline = PIPELINES[settings.pop("kind")](
        base,
        spark=spark,
        store=disk / "store",
        work_dir=disk / "work",
        sync=SyncSettings(**settings),
    )
    if role == "standby":
        standby = pipeline.stand_by([Told()])
        threading.Thread(target=lambda: (sys.stdin.readline(), standby.request_activation()), daemon=True).start()
        print("standing by", flush=True)
        assert standby.wait()
    pipeline.run(once=role != "forever", observers=[Told()])
    print("finished", flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
    except HoldfastError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(5)
