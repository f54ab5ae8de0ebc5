"""A pipeline without Spark for tests of the manager: real store, real seals, real HTTP API, called as `holdfast run`.

    python managed_child.py run FILE --http 127.0.0.1:0 [--paused] [--on-change X] [--sinks X]

It seals a few epochs a second unless it is paused. A file `fail` beside FILE makes it fail with what is
written there (exit code, error, details as JSON); a file `deaf` makes it ignore that it is asked to end.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.contracts import Owner
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.events import EpochCommitted, StepStarted, Stopped
from holdfast.engine.fencing import take_over
from holdfast.engine.requests import CheckpointRequests
from holdfast.interfaces.http.addresses import Address
from holdfast.interfaces.http.security import Security, Tokens
from holdfast.interfaces.http.serving import HttpSettings, serve_directory
from holdfast.interfaces.local import LocalPipeline, OnePipeline
from holdfast.interfaces.manager.tether import Failure, Tether
from holdfast.interfaces.pipeline_file import read_pipeline_file
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store

EPOCH_SECONDS = 0.2


class TinyPipeline:
    """Seals one epoch after the other."""

    def __init__(self, store: DurableCheckpointStore, pipeline: str, *, paused: bool) -> None:
        fence = take_over(store).fence
        assert fence.timeline is not None
        assert fence.generation is not None
        owner = Owner(pipeline, fence.timeline, fence.generation)
        self.writer = CheckpointWriter(store, owner, fence, SYSTEM_CLOCK, inline_threshold=4096)
        self.store, self.turn, self.paused, self.sync = store, threading.Lock(), paused, None

    @property
    def newest(self) -> CheckpointManifest:
        return self.writer.last

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def epoch(self, local: LocalPipeline, requests: CheckpointRequests) -> None:
        last = self.newest
        epoch = last.epoch + 1
        for observer in (local, requests):
            observer.on_event(StepStarted(epoch, "capture"))
        draft = CheckpointManifest.new_with_vnode_count(self.writer.next_id, epoch, 4)
        draft = draft.model_copy(update={"fingerprint": 7, "steps": epoch, "processed_records": 10 * epoch})
        record = ProgressRecord(last.timeline, self.writer.next_id, epoch, last.generation or 1, parts={"n": b"1"})
        sealed = self.writer.seal(draft, record.to_bytes(), {}).manifest
        for observer in (local, requests):
            observer.on_event(EpochCommitted(epoch, sealed.checkpoint_id, 10, {}, 0, 0, None, 0.0))
        if epoch % 10 == 0:
            self.store.prune(5)


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("command")
    given.add_argument("file")
    for option in ("--http", "--on-change", "--sinks"):
        given.add_argument(option)
    given.add_argument("--paused", action="store_true")
    given.add_argument("--standby", action="store_true")
    options = given.parse_args()
    folder = Path(options.file).parent
    tether = Tether.of_environment()
    assert tether is not None
    tether.watch()
    with open(folder / "launches", "a") as launches:
        print(json.dumps([os.getpid(), *sys.argv[3:]]), file=launches)
    if (folder / "fail").exists():
        code, error, details = json.loads((folder / "fail").read_text())
        print(f"holdfast: {error}", flush=True)
        tether.failed(Failure(error, "PipelineError", details))
        sys.exit(code)
    run(tether, options, folder)


def run(tether: Tether, options: argparse.Namespace, folder: Path) -> None:
    ending = threading.Event()
    if not (folder / "deaf").exists():
        signal.signal(signal.SIGTERM, lambda *_: ending.set())
    file = read_pipeline_file(options.file)
    requests = CheckpointRequests()
    local = LocalPipeline(file.name, requests, lambda force: None if (folder / "deaf").exists() else ending.set())
    settings = HttpSettings(Address("127.0.0.1", 0), Security(Tokens(tether.token), requests_per_second=10_000))
    server = serve_directory(OnePipeline(local), settings, settings.listen())
    tether.listening(str(server.address))
    store = open_store(file.store, retain=None, vnode_count=4)
    local.opened(store)
    pipeline = TinyPipeline(store, file.name, paused=options.paused)
    requests.serve(pipeline.writer.seal_again, pipeline.turn)
    local.started(pipeline)
    print(f"running in process {os.getpid()}", flush=True)
    while not ending.is_set():
        if not pipeline.paused:
            with pipeline.turn:
                pipeline.epoch(local, requests)
        time.sleep(EPOCH_SECONDS)
    local.on_event(Stopped(pipeline.newest.epoch, None))
    requests.close()
    print("stopped", flush=True)
    server.stop()


if __name__ == "__main__":
    main()
