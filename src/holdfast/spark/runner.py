"""Runs a pipeline's query: every start goes through recovery, every batch through the protocol."""

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark import inheritable_thread_target
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.clock import Clock
from holdfast.core.contracts import SinkContext
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Materials
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.coordinator import SCHEMA_PARTS, Coordinator, PipelineFacts, RecordedEpoch
from holdfast.engine.delivery import Delivery, DeliverySettings
from holdfast.engine.events import Observer, Observers, Recovered, Stopped, step
from holdfast.engine.history import HistoryObserver
from holdfast.engine.identity import fingerprint
from holdfast.engine.startup import Start, StartOptions, Startup
from holdfast.engine.upstream import Upstream
from holdfast.errors import CheckpointStoreError, Fenced, PipelineError, ReplayMismatch
from holdfast.spark.batch import BatchReader, MicroBatch
from holdfast.spark.definition import BuiltQuery, Definition, build_query, definition_identity
from holdfast.spark.failures import error_in, spark_message
from holdfast.spark.session import configure
from holdfast.spark.source_log import COMPACT_INTERVAL
from holdfast.spark.tables import EpochTables
from holdfast.spark.workdir import WorkingDirectory, check_parts, remove_directories, restore
from holdfast.stores.store import DurableCheckpointStore

_PATIENCE_MS = 30_000
_log = logging.getLogger(__name__)


class Runner:
    """One run of a pipeline: start, epochs, stop."""

    def __init__(
        self,
        definition: Definition,
        spark: SparkSession,
        store: DurableCheckpointStore,
        work_root: str,
        spool_root: str,
        materials: Materials,
        *,
        options: StartOptions,
        delivery: DeliverySettings,
        observer: Observer,
        clock: Clock,
        inline_threshold: int,
        retain: int | None,
    ) -> None:
        self.definition = definition
        self._spark, self._store, self._work_root, self._spool_root = spark, store, work_root, spool_root
        self._materials = materials
        self._options, self._settings, self._clock = options, delivery, clock
        self._history = HistoryObserver(store.history, clock)
        self._observer: Observer = Observers([self._history, observer])
        self._inline_threshold, self._retain = inline_threshold, retain
        specs = {name: source.spec for name, source in definition.sources.items()}
        controls = {name: spec.control for name, spec in specs.items() if spec.control is not None}
        self._upstream = Upstream(controls, store, self._observer, clock)
        self._tables = EpochTables(definition, materials, work_root, clock)
        configure(spark, state=definition.state, state_partitions=definition.state_partitions)
        self.built: BuiltQuery = build_query(definition, spark)
        self._batches: BatchReader
        self._schema_parts: dict[str, bytes] = {}
        self._coordinator: Coordinator
        self._writer: CheckpointWriter
        self._query: StreamingQuery | None = None
        self._expected_batch = 0
        self._replaying: RecordedEpoch | None = None
        self._failure: BaseException | None = None
        self._epochs = threading.Lock()
        self._running = threading.Event()
        self._running.set()
        self._stopping = threading.Event()
        self._housekeeping = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-housekeeping")
        self._pruning: Future[None] | None = None

    # start

    def prepare(self) -> Start:
        """Recover: decide, fence, settle the sinks, restore the working directory, replay what has to be."""
        began = self._clock.monotonic()
        sinks = {name: entry.sink for name, entry in self.definition.sinks.items()}
        self._bind_sinks()
        delivery = Delivery(sinks, self._settings, self._observer, self._clock, wrap=self._with_spark_properties)
        facts = self._facts()
        startup = Startup(
            self.definition.name,
            self._store,
            sinks,
            facts,
            self._options,
            delivery,
            self._settings,
            self._observer,
            self._clock,
        )
        old = self._old_directories()
        start = startup.run(lambda epoch: self._range_in(old, epoch))
        self._tables.taken_over(start.owner, start.chosen)
        with step(self._observer, self._clock, start.epoch, "recovery.sources"):
            self._locate_sources(start)
        with step(self._observer, self._clock, start.epoch, "recovery.restore"):
            directory = self._restore(start, old)
        self._batches = BatchReader(
            self.definition,
            self.built,
            self._spark,
            directory,
            start.chosen,
            self._schema_parts,
            self._upstream,
            self._tables,
        )
        self._writer = CheckpointWriter(
            self._store, start.owner, start.fence, self._clock, inline_threshold=self._inline_threshold
        )
        self._coordinator = Coordinator(
            self._store,
            sinks,
            start.positions,
            facts,
            start.owner,
            self._writer,
            delivery,
            self._settings,
            self._observer,
            self._clock,
        )
        self._delivery = delivery
        when = {"at_ms": self._clock.now_ms(), "seconds": round(self._clock.monotonic() - began, 4)}
        start = replace(start, report={**start.report, **when})
        self._observer.on_event(Recovered(start.report))
        for record in start.replays:
            self._replay(record)
        self._add_closing_batch()
        remove_directories(self._work_root, before=start.owner.generation)
        self._upstream.start()
        return start

    def _locate_sources(self, start: Start) -> None:
        """Find out where sources begin that were never read, and whether the others still have what comes next."""
        self._upstream.bind(self.definition.name, start.owner.timeline, self._materials)
        known = start.chosen.source_offsets if start.chosen else {}
        options = self._upstream.locate({name: position.offsets for name, position in known.items()})
        if options:
            self.built = build_query(self.definition, self._spark, options)

    def _facts(self) -> PipelineFacts:
        identity = definition_identity(self.definition, self.built)
        return PipelineFacts(
            source_names=tuple(sorted(self.definition.sources)),
            sink_names=tuple(sorted(self.definition.sinks)),
            fingerprint=fingerprint(identity),
            vnode_count=self.definition.state_partitions,
            identity=identity,
        )

    def _bind_sinks(self) -> None:
        for name, columns in self._tables.bind(self._store, self.built.schemas, self._spark).items():
            schema = self._spark.createDataFrame([], columns).toArrow().schema
            spool = os.path.join(self._spool_root, name)
            context = SinkContext(name, self.definition.name, schema, self.definition.output_mode, spool)
            self.definition.sinks[name].sink.bind(context)
            self._schema_parts[f"{SCHEMA_PARTS}{name}"] = schema.serialize().to_pybytes()

    def _old_directories(self) -> list[str]:
        """Return what earlier generations left, newest first."""
        with contextlib.suppress(FileNotFoundError):
            numbers = sorted((int(name) for name in os.listdir(self._work_root) if name.isdigit()), reverse=True)
            return [os.path.join(self._work_root, str(number)) for number in numbers]
        return []

    def _range_in(self, directories: list[str], epoch: int) -> dict[str, bytes] | None:
        for path in directories:
            parts = WorkingDirectory(path, self.built.inputs).recorded_parts(epoch - 1)
            if parts is not None:
                return parts
        return None

    def _restore(self, start: Start, old: list[str]) -> WorkingDirectory:
        target = os.path.join(self._work_root, str(start.owner.generation))
        shutil.rmtree(target, ignore_errors=True)  # Left by a pipeline whose store is gone: this generation is new.
        os.makedirs(self._work_root, exist_ok=True)
        if start.chosen is None:
            os.makedirs(target)
            return WorkingDirectory(target, self.built.inputs)
        assert start.chosen.sidecar is not None
        reader = self._store.state_reader
        parts = dict(reader.progress(start.chosen.sidecar).parts)
        batch = start.epoch - 1
        check_parts(parts, batch)
        files = reader.catalog(start.chosen).files
        setting, default = COMPACT_INTERVAL
        interval = int(self._spark.conf.get(setting) or default)
        directory = restore(target, parts, files, reader, old, self.built.inputs, interval)
        self._expected_batch = batch + 1
        return directory

    def _add_closing_batch(self) -> None:
        """Make up for what every query start forgets: that a batch without data is due, to close windows."""
        if self._expected_batch > 0:
            self._directory.add_closing_batch(self._expected_batch - 1, self._writer.last.watermark or 0)

    @property
    def _directory(self) -> WorkingDirectory:
        return self._batches.directory

    # run

    def start_query(self, *, once: bool, interval: str | None) -> StreamingQuery:
        """Start Spark's query; batches arrive in `_on_batch` on a thread of Spark's."""
        return self._start({"availableNow": True} if once else {"processingTime": interval or "0 seconds"})

    def _start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        self._failure = None
        self._batches.query_starts()
        self._query = (
            self.built.frame.writeStream.foreachBatch(self._on_batch)
            .outputMode(self.definition.output_mode)
            .option("checkpointLocation", self._directory.path)
            .trigger(**trigger)
            .start()
        )
        return self._query

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        self._running.wait()
        try:
            with self._epochs:
                self._run_batch(frame, batch)
        except BaseException as error:
            # Spark wraps what we raise into text; the original is what the caller gets to see. What is no Exception
            # would end this thread without an answer to Spark, which would wait for ever.
            self._failure = (error_in(error) if isinstance(error, PySparkException) else None) or error
            if isinstance(error, Exception):
                raise
            raise PipelineError(f"stopped by {type(error).__name__}") from error

    def _run_batch(self, frame: DataFrame, batch: int) -> None:
        if batch != self._expected_batch:
            raise PipelineError(
                f"Spark runs batch {batch}, expected {self._expected_batch}: stopping before any harm"
            )
        recorded = self._recorded(batch)
        self._batches.check_watermark(batch, replayed=recorded is not None)
        if self.definition.tables:
            with step(self._observer, self._clock, batch + 1, "tables"):
                self._tables.begin(batch + 1, recorded)
        work = MicroBatch(self._batches, frame, batch)
        try:
            self._coordinator.run_epoch(work, recorded)
        finally:
            work.release()
        self._expected_batch = batch + 1
        self._upstream.delivered(self._writer.last)
        if recorded is None:  # What is still to be replayed may stand in what a prune takes away.
            self._prune_now_and_then(batch)

    def _prune_now_and_then(self, batch: int) -> None:
        """Prune beside the work: nothing waits for it, and it is safe beside a writer."""
        due = self._retain is not None and batch % max(self._retain // 2, 1) == 0
        if due and (self._pruning is None or self._pruning.done()):
            self._pruning = self._housekeeping.submit(self._prune)

    def _prune(self) -> None:
        try:
            self._store.prune(self._retain or 0)
            self._tables.remove_unneeded(self._store)
        except CheckpointStoreError as error:
            _log.warning("pruning failed, will be tried again: %s", error)

    # replay

    def _replay(self, record: RecordedEpoch) -> None:
        """Run exactly one recorded range: with two of them present, Spark would run only the last."""
        batch = record.epoch - 1
        logs = {name: text for name, text in record.parts.items() if name.startswith("sources/")}
        self._directory.write_offsets(batch, record.parts[f"offsets/{batch}"], logs)
        self._replaying = record
        try:
            query = self._start({"once": True})
            self._await(query)
        finally:
            self._replaying = None
        if self._expected_batch != batch + 1:
            raise ReplayMismatch(f"epoch {record.epoch} was to be replayed, but Spark did not run it")

    def _recorded(self, batch: int) -> RecordedEpoch | None:
        if self._replaying is None:
            return None
        expected = self._replaying.parts[f"offsets/{batch}"].decode().split("\n")[2:]
        if list(self._directory.offsets(batch).sources) != expected:
            raise ReplayMismatch(f"Spark reads another range for epoch {batch + 1} than the recorded one")
        return self._replaying

    # end

    def wait(self) -> None:
        """Block until the query ends; raise what ended it."""
        assert self._query is not None
        self._await(self._query)

    def _await(self, query: StreamingQuery) -> None:
        try:
            query.awaitTermination()
        except PySparkException as error:
            self._raise_failure(error)
        if self._failure is not None:
            self._raise_failure(None)

    def _raise_failure(self, error: PySparkException | None) -> None:
        failure, self._failure = self._failure, None
        if failure is None and error is not None and not self._stopping.is_set():
            failure = error_in(error) or PipelineError(f"Spark stopped the query: {spark_message(error)}")
            failure.__cause__ = error
        if failure is not None:
            raise self.replaced_by(failure) or failure

    def replaced_by(self, failure: BaseException) -> Fenced | None:
        """Whoever takes over removes our working directory: whatever failed then, this is why."""
        if isinstance(failure, Fenced) or not isinstance(failure, Exception) or not hasattr(self, "_writer"):
            return None
        with contextlib.suppress(CheckpointStoreError):
            if (fenced := self._writer.replaced()) is not None:
                fenced.__cause__ = failure
                return fenced
        return None

    def stop(self) -> None:
        """Finish the running epoch, then end. Nothing is cut off: recovery is for crashes."""
        self._stopping.set()
        self._running.set()
        query = self._query
        if query is None or not query.isActive:
            return
        with self._epochs:
            pass
        _end_after_batch(query, self._spark)

    def pause(self) -> None:
        """Hold before the next epoch."""
        self._running.clear()

    def resume(self) -> None:
        """Go on."""
        self._running.set()

    @property
    def paused(self) -> bool:
        """Whether epochs are held."""
        return not self._running.is_set()

    def checkpoint(self) -> CheckpointManifest:
        """Seal a checkpoint of where we are now; with no data flowing it repeats the last epoch."""
        with self._epochs:
            return self._writer.seal_again()

    def status(self) -> dict[str, Any]:
        """Return where the pipeline is."""
        last = self._writer.last
        active = self._query is not None and self._query.isActive
        return {
            "pipeline": self.definition.name,
            "state": "paused" if active and self.paused else "running" if active else "stopped",
            "epoch": last.epoch,
            "checkpoint_id": last.checkpoint_id,
            "checkpoint_age_seconds": max(0, self._clock.now_ms() - last.timestamp_ms) / 1000,
            "generation": last.generation,
            "timeline": str(last.timeline),
            "processed_records": last.processed_records or 0,
            "sinks": {name: str(status) for name, status in sorted(last.sink_commit_statuses.items())},
        }

    def close(self, error: BaseException | None = None) -> None:
        """Let sources, sinks and threads go."""
        self._upstream.close()
        self._observer.on_event(Stopped(self._expected_batch, None if error is None else str(error)))
        for entry in self.definition.sinks.values():
            with contextlib.suppress(Exception):  # Nothing depends on a tidy goodbye.
                entry.sink.close()
        if hasattr(self, "_delivery"):
            self._delivery.close()
        self._housekeeping.shutdown(wait=True)
        self._tables.close()
        self._history.close()

    def _with_spark_properties(self, work: Callable[[], object]) -> Callable[[], object]:
        """Plain threads lose what Spark keeps per thread: the query a job belongs to."""
        wrapped: Callable[[], object] = inheritable_thread_target(self._spark)(work)
        return wrapped


def _end_after_batch(query: StreamingQuery, spark: SparkSession) -> None:
    """End between two batches. Spark's own stop interrupts its thread, which can cut a batch's commit off."""
    java = query._jsq.streamingQuery()
    try:
        runtime = spark._jvm.org.apache.spark.sql.execution.streaming.runtime  # type: ignore[union-attr]
        java.state().set(getattr(getattr(runtime, "TERMINATED$"), "MODULE$"))
        java.queryExecutionThread().join(_PATIENCE_MS)
    except Py4JError:
        pass  # Private parts of Spark: without them its own stop does, and recovery completes the rest.
    query.stop()
