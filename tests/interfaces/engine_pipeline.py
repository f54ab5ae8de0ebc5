"""A running pipeline without Spark, as `Pipeline.start` would return it: real store, protocol, sinks and requests."""

import threading
from typing import Any

from engine.worlds import Process, World
from holdfast import CheckpointManifest
from holdfast.clock import SYSTEM_CLOCK
from holdfast.engine.events import Event, Observer, Recovered, StepStarted, Stopped
from holdfast.engine.history import HistoryObserver
from holdfast.engine.requests import CheckpointRequests
from holdfast.stores.store import DurableCheckpointStore

PATIENCE = 120.0


class Hold:
    """An observer that stops an epoch at a step until it is let go."""

    def __init__(self, step: str = "compute") -> None:
        self._step = step
        self.reached, self.released = threading.Event(), threading.Event()

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepStarted) and event.step == self._step and event.sink is None:
            self.reached.set()
            assert self.released.wait(PATIENCE)


class EnginePipeline:
    """Runs an epoch whenever there are records, on a thread of its own, in turn with requested checkpoints."""

    name = "shop"
    sync = None

    def __init__(self, store: DurableCheckpointStore, *observers: Observer) -> None:
        self.store = store
        self.requests = CheckpointRequests()
        self._history = HistoryObserver(store.history, SYSTEM_CLOCK)
        self.world = World(0)
        self.world.clock = SYSTEM_CLOCK  # type: ignore[assignment]
        self._process = Process(
            self.world, store=store, in_turn=False, observers=[self._history, self.requests, *observers]
        )
        self.turn = threading.Lock()
        self._changed = threading.Condition()
        self._held = self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine-pipeline", daemon=True)

    def start(self) -> "EnginePipeline":
        started = self._process.start()
        self._process.observer.on_event(Recovered({**started.report, "at_ms": SYSTEM_CLOCK.now_ms(), "seconds": 0.0}))
        self.requests.serve(lambda: self._process.writer.seal_again(), self.turn)
        self._thread.start()
        return self

    def feed(self, count: int) -> None:
        """Give it so many records; an epoch takes two."""
        with self._changed:
            known = len(self.world.source.records)
            self.world.source.records += [{"id": known + number} for number in range(1, count + 1)]
            self._changed.notify_all()

    def feed_and_wait(self, count: int) -> None:
        """Give it records, and wait until the sinks show them."""
        self.feed(count)
        self.until(lambda: self._process.position == len(self.world.source.records))

    def until(self, condition: Any) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE)

    def _run(self) -> None:
        while self._wait_for_work():
            with self.turn:
                self._process.next_epoch()
            with self._changed:
                self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (not self._held and self._has_records()))
            return not self._stopping

    def _has_records(self) -> bool:
        return len(self.world.source.records) > self._process.position

    # as a handle

    @property
    def newest(self) -> CheckpointManifest:
        return self._process.writer.last

    @property
    def paused(self) -> bool:
        return self._held

    def pause(self) -> None:
        with self._changed:
            self._held = True

    def resume(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def happened(self, event: Event) -> None:
        """Tell everybody of something that went wrong."""
        self._process.observer.on_event(event)

    def watch(self, observer: Observer) -> None:
        self._process.observer.add(observer)

    def stop(self) -> None:
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(PATIENCE)
        self.requests.close()
        self._process.observer.on_event(Stopped(self._process.epoch, None))
        self._process.delivery.close()
        self._history.close()
