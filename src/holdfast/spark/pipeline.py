"""The public way to write and run a pipeline."""

import os
import threading
from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.contracts import OnForeign, Sink
from holdfast.core.intervals import interval_seconds
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import SourceSpec, packages_of
from holdfast.core.tables import TableSpec
from holdfast.engine.delivery import DeliverySettings
from holdfast.engine.events import LogObserver, Observer, Observers
from holdfast.engine.identity import OnChange
from holdfast.engine.places import materials_of, spool_root
from holdfast.engine.requests import CheckpointRequests
from holdfast.engine.startup import Start, StartOptions
from holdfast.engine.sync.link import open_link, refuse_unfenced
from holdfast.engine.sync.service import SyncService
from holdfast.engine.sync.settings import SyncSettings
from holdfast.engine.sync.standby import Standby
from holdfast.engine.verifying import VerificationSettings
from holdfast.engine.work_places import WorkRoot, work_root
from holdfast.errors import PipelineDefinitionError
from holdfast.spark.definition import Definition, Query
from holdfast.spark.rows import COLLECT_BYTES
from holdfast.spark.runner import Runner
from holdfast.spark.session import check_session, local_session
from holdfast.spark.settings import STATE_STORES
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.urls import open_store, open_to_ask

_MODES = ("append", "update")
_GUARANTEES = ("exactly-once", "at-least-once")
_BUCKET_NOT_ASKED = (
    "the bucket of its sync was not asked: a start looks there first, and brings here what is newer "
    "('holdfast sync status' compares the two)"
)


class Pipeline:
    """Sources, views, tables and sinks under one name; runs as ONE Spark query, exactly once for every sink.

    `store` is a path, a URL or an open store. Without `spark` a local session is used. `state` is where Spark
    keeps operator state: "rocksdb", or "memory" for small state. `work_dir` is where Spark's working directory
    goes; it is a cache, and may be deleted between runs. Epochs of up to about `collect_bytes` are brought into this
    process and written from here, larger ones by Spark's own writers. Every `verify_interval` the newest checkpoint
    is read again in the background, to find damage before it matters; None: never.
    `sync` copies checkpoints into a bucket, from which another machine can go on.
    """

    def __init__(
        self,
        name: str,
        *,
        store: str | os.PathLike[str] | DurableCheckpointStore,
        spark: SparkSession | None = None,
        guarantee: str = "exactly-once",
        output_mode: str = "append",
        state: str = "rocksdb",
        state_partitions: int = 2,
        retain: int = 10,
        inline_threshold: int = 4096,
        collect_bytes: int = COLLECT_BYTES,
        trigger: str | None = None,
        work_dir: str | os.PathLike[str] | None = None,
        on_change: str = "approve",
        delivery: DeliverySettings | None = None,
        verify_interval: str | None = "1 hour",
        sync: SyncSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        _one_of("guarantee", guarantee, _GUARANTEES)
        _one_of("output_mode", output_mode, _MODES)
        _one_of("state", state, tuple(STATE_STORES))
        _one_of("on_change", on_change, tuple(OnChange))
        self._definition = Definition(name, output_mode, state, state_partitions, collect_bytes)
        self._store = store
        self._spark = spark
        self._guarantee = guarantee
        self._retain, self._inline_threshold, self._trigger = retain, inline_threshold, trigger
        self._work_dir = None if work_dir is None else os.fspath(work_dir)
        self._on_change = OnChange(on_change)
        self._delivery = delivery or DeliverySettings()
        every = None if verify_interval is None else interval_seconds(verify_interval)
        self._verification = VerificationSettings(every)
        self._sync = sync
        self._clock = clock

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._definition.name

    def source(self, name: str, spec: SourceSpec, *, watermark: tuple[str, str] | None = None) -> str:
        """Add a source; `watermark` is (event-time column, how late rows may be). Returns its name, for views."""
        if self._guarantee == "exactly-once" and not spec.replayable:
            raise PipelineDefinitionError(
                f"source '{name}' ({spec.format}) cannot keep exactly-once: {spec.why_not_replayable}; "
                "say guarantee='at-least-once' if that is enough"
            )
        self._definition.add_source(name, spec, watermark)
        return name

    def table(self, name: str, spec: TableSpec, *, refresh: str | None = None) -> str:
        """Add a reference table for selects of sinks to join. An epoch has one version of it, and records which.

        `refresh` is how often to look for a newer version, such as "10 minutes"; without it, once when a run starts.
        """
        self._definition.add_table(name, spec, None if refresh is None else interval_seconds(refresh))
        return name

    def view(self, name: str, query: Query) -> str:
        """Add a view: SQL over sources and earlier views, or a function whose parameters are named after them."""
        self._definition.add_view(name, query)
        return name

    def sink(self, name: str, takes: str, sink: Sink, *, select: str | None = None) -> None:
        """Send the rows of a view or source to a sink.

        `select` is SQL over the rows of one epoch, which have the name of what the sink takes, and reference tables:
        the sink gets what it gives. It sees no state and no other epoch.
        """
        if self._guarantee == "exactly-once" and not sink.guarantee.exactly_once:
            raise PipelineDefinitionError(
                f"sink '{name}' cannot keep exactly-once: {sink.guarantee.how}; "
                "say guarantee='at-least-once' if that is enough"
            )
        self._definition.add_sink(name, takes, sink, select)

    def run(
        self,
        *,
        once: bool = False,
        fresh: bool = False,
        from_id: int | None = None,
        sinks: str = "refuse",
        observers: Iterable[Observer] = (),
    ) -> None:
        """Run and block: until there is nothing more to read with `once`, else until stopped."""
        handle = self.start(once=once, fresh=fresh, from_id=from_id, sinks=sinks, observers=observers)
        try:
            handle.wait()
        except KeyboardInterrupt:
            handle.stop()

    def start(
        self,
        *,
        once: bool = False,
        fresh: bool = False,
        from_id: int | None = None,
        sinks: str = "refuse",
        paused: bool = False,
        observers: Iterable[Observer] = (),
        requests: CheckpointRequests | None = None,
    ) -> "Handle":
        """Recover and start, and return at once; `fresh`, `from_id` and `sinks` are a person's word at recovery.

        With `paused` no epoch runs before `resume`, except those that recovery replays.
        `requests` is where checkpoints are asked for, for those who want to ask before recovery is done.
        """
        options = StartOptions(fresh, from_id, _on_foreign(sinks), self._on_change)
        runner = self.runner(options, observers, requests)
        try:
            start = runner.prepare()
            if paused:
                runner.pause()
            runner.start_query(once=once, interval=self._trigger)
        except BaseException as error:
            fenced = runner.replaced_by(error)
            runner.close(fenced or error)
            if fenced is not None:
                raise fenced from error
            raise
        return Handle(runner, start)

    def plan(
        self,
        *,
        fresh: bool = False,
        from_id: int | None = None,
        sinks: str = "refuse",
        observers: Iterable[Observer] = (),
    ) -> dict[str, Any]:
        """Return what `start` would do now, having asked every sink and source, or raise what it would raise.

        Changes nothing; a store that is not there is not made. The keys are explained in docs/recovery.md.
        """
        store, exists = self._store_to_ask()
        options = StartOptions(fresh, from_id, _on_foreign(sinks), self._on_change)
        plan = self._runner(options, observers, None, store, sync=None).plan()
        notes = [] if self._sync is None else [_BUCKET_NOT_ASKED]
        return {"pipeline": self.name, "store": store.describe(), "store_exists": exists, **plan, "notes": notes}

    def runner(
        self,
        options: StartOptions,
        observers: Iterable[Observer] = (),
        requests: CheckpointRequests | None = None,
    ) -> Runner:
        """Return what runs the pipeline, before recovery. For those who drive it step by step; others use `start`."""
        return self._runner(options, observers, requests, self.store, self._sync)

    def _runner(
        self,
        options: StartOptions,
        observers: Iterable[Observer],
        requests: CheckpointRequests | None,
        store: DurableCheckpointStore,
        sync: SyncSettings | None,
    ) -> Runner:
        if not self._definition.sinks:
            raise PipelineDefinitionError(f"pipeline '{self.name}' has no sink")
        if self._sync is not None and self._sync.standby:
            refuse_unfenced({name: entry.sink for name, entry in self._definition.sinks.items()})
        specs = [source.spec for source in self._definition.sources.values()]
        spark = self._spark or local_session(self.name, packages=packages_of(specs))
        check_session(spark)
        return Runner(
            self._definition,
            spark,
            store,
            self._work_root(store),
            spool_root(store, self.name),
            materials_of(store, self.name),
            options=options,
            delivery=self._delivery,
            observer=Observers([LogObserver(), *observers]),
            clock=self._clock,
            inline_threshold=self._inline_threshold,
            retain=self._retain,
            verification=self._verification,
            requests=requests or CheckpointRequests(self._clock),
            sync=sync,
        )

    def stand_by(self, observers: Iterable[Observer] = ()) -> Standby:
        """Return a standby of this pipeline: `wait` follows what runs elsewhere until `activate`; then `start`.

        With `sync` it follows the bucket, which must be set up for a standby. Without, the store is shared and there
        is nothing to follow.
        """
        if self._sync is not None and not self._sync.standby:
            raise PipelineDefinitionError(
                f"pipeline '{self.name}' cannot be followed: say 'standby' in its sync, here and where it runs, so "
                "that every seal is recorded in the bucket"
            )
        observer = Observers([LogObserver(), *observers])
        link = None if self._sync is None else open_link(self._sync, self.store, self.name, observer, self._clock)
        return Standby(self.store, link, observer, self._clock, retain=self._retain)

    @property
    def store(self) -> DurableCheckpointStore:
        """Where the checkpoints are; opened when it is first asked for."""
        if not isinstance(self._store, DurableCheckpointStore):
            # Pruning is the runner's: it happens between epochs, not inside a seal.
            self._store = open_store(self._store, retain=None, vnode_count=self._definition.state_partitions)
        return self._store

    def _store_to_ask(self) -> tuple[DurableCheckpointStore, bool]:
        """Return the store for whoever changes nothing, and whether it is there."""
        if isinstance(self._store, DurableCheckpointStore):
            return self._store, True
        return open_to_ask(self._store, vnode_count=self._definition.state_partitions)

    def _work_root(self, store: DurableCheckpointStore) -> WorkRoot:
        if self._work_dir is not None and "://" in self._work_dir:
            raise PipelineDefinitionError(f"work_dir '{self._work_dir}' is not a local directory")
        return work_root(store, self.name, self._work_dir)


class Handle:
    """A running pipeline."""

    def __init__(self, runner: Runner, start: Start) -> None:
        self._runner = runner
        self._start = start
        self._closed = threading.Lock()
        self._is_closed = False

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._runner.definition.name

    @property
    def store(self) -> DurableCheckpointStore:
        """Where the checkpoints are."""
        return self._runner.store

    @property
    def newest(self) -> CheckpointManifest:
        """The newest checkpoint; before the first one, the fence of this start."""
        return self._runner.newest

    @property
    def paused(self) -> bool:
        """Whether epochs are held."""
        return self._runner.paused

    @property
    def requests(self) -> CheckpointRequests:
        """Where checkpoints are asked for without waiting, and how that ended."""
        return self._runner.requests

    @property
    def sync(self) -> SyncService | None:
        """Copies in a bucket; None when the pipeline has none."""
        return self._runner.sync

    @property
    def recovery(self) -> dict[str, Any]:
        """What this start found and did."""
        return self._start.report

    def wait(self) -> None:
        """Block until the pipeline ends; raise what ended it."""
        self._runner.refuse_inside("the end of the pipeline")
        error: BaseException | None = None
        try:
            self._runner.wait()
        except BaseException as caught:
            error = caught
            raise
        finally:
            if not isinstance(error, KeyboardInterrupt):
                self._close(error)

    def stop(self) -> None:
        """Finish the running epoch and end. An observer does not wait for that: `wait` does."""
        self._runner.stop(self._close)

    def pause(self) -> None:
        """Hold before the next epoch."""
        self._runner.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._runner.resume()

    def checkpoint(self) -> CheckpointManifest:
        """Take a checkpoint now and return it; waits for a running epoch to end."""
        self._runner.refuse_inside("a checkpoint (ask with requests.request())")
        return self._runner.checkpoint()

    def status(self) -> dict[str, Any]:
        """Return where the pipeline is."""
        return self._runner.status()

    def watch(self, observer: Observer) -> None:
        """Pass events on to one more observer from now on."""
        self._runner.watch(observer)

    def _close(self, error: BaseException | None) -> None:
        with self._closed:
            if not self._is_closed:
                self._is_closed = True
                self._runner.close(error)


def _on_foreign(choice: str) -> OnForeign:
    _one_of("sinks", choice, tuple(OnForeign))
    return OnForeign(choice)


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PipelineDefinitionError(f"{what} is '{value}', expected one of {', '.join(allowed)}")
