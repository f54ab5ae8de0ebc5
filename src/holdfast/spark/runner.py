"""Runs a pipeline's query: every start goes through recovery, every batch through the protocol."""

import contextlib
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.clock import Clock
from holdfast.core.contracts import Sink
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Materials, Offsets
from holdfast.core.spelling import Names
from holdfast.engine.checkpoints import CheckpointWriter
from holdfast.engine.coordinator import Coordinator, PipelineFacts, RecordedEpoch
from holdfast.engine.delivery import Delivery, DeliverySettings
from holdfast.engine.events import Observer, Observers, Recovered, Stopped, step
from holdfast.engine.history import HistoryObserver
from holdfast.engine.housekeeping import Housekeeping
from holdfast.engine.places import SpoolRoot
from holdfast.engine.preview import preview
from holdfast.engine.records import FoundRange, passed_over
from holdfast.engine.requests import CheckpointRequests, SealAgain
from holdfast.engine.startup import Intent, Start, StartOptions, Startup
from holdfast.engine.sync.service import open_sync
from holdfast.engine.sync.settings import SyncSettings
from holdfast.engine.upstream import Upstream
from holdfast.engine.verifying import BackgroundVerification, VerificationSettings
from holdfast.engine.witness import NO_WITNESS, Witness
from holdfast.engine.work_places import WorkRoot
from holdfast.errors import CheckpointStoreError, Fenced, PipelineError, ReplayMismatch
from holdfast.spark.batch import BatchReader, MicroBatch
from holdfast.spark.binding import bind_sinks, fit_to, inputs_without_return
from holdfast.spark.building import BuiltQuery, build_query
from holdfast.spark.definition import Definition
from holdfast.spark.inside import Inside
from holdfast.spark.lines import OffsetLines
from holdfast.spark.moved_lines import MovedLines, refuse_other_lines
from holdfast.spark.query import QueryLife
from holdfast.spark.restoring import Restoring
from holdfast.spark.session import own_session
from holdfast.spark.settings import apply_settings
from holdfast.spark.source_files import refuse_lost_files, spark_exists
from holdfast.spark.tables import EpochTables
from holdfast.spark.trial import Trial
from holdfast.spark.workdir import WorkingDirectory
from holdfast.stores.store import DurableCheckpointStore


class Runner:
    """One run of a pipeline: start, epochs, stop."""

    def __init__(
        self,
        definition: Definition,
        spark: SparkSession,
        store: DurableCheckpointStore,
        work_root: WorkRoot,
        spools: SpoolRoot,
        materials: Materials,
        *,
        options: StartOptions,
        delivery: DeliverySettings,
        observer: Observer,
        clock: Clock,
        inline_threshold: int,
        retain: int | None,
        verification: VerificationSettings,
        requests: CheckpointRequests,
        sync: SyncSettings | None = None,
    ) -> None:
        self.definition, self.store, self.requests = definition, store, requests
        spark = own_session(spark)  # What we set and register there is nobody else's.
        self._spark, self._spools = spark, spools
        self._restoring = Restoring(work_root, store, spark, clock)
        self._materials = materials
        self._options, self._settings, self._clock = options, delivery, clock
        self._inside = Inside()
        self._history = HistoryObserver(store.history, clock)
        self._observer = Observers([self._history, requests, self._inside.telling(observer)])
        self._trial = Trial(work_root, store, spark, self._observer, clock)
        self._inline_threshold = inline_threshold
        self.sync = None if sync is None else open_sync(sync, store, definition.name, self._observer, clock)
        if self.sync is not None:
            self._observer.add(self.sync)
        specs = {name: source.spec for name, source in definition.sources.items()}
        controls = {name: spec.control for name, spec in specs.items() if spec.control is not None}
        self._upstream = Upstream(controls, store, self._observer, clock)
        self._tables = EpochTables(definition, materials, work_root.path, clock)
        apply_settings(spark, state=definition.state, state_partitions=definition.state_partitions)
        self.built: BuiltQuery
        self._lines: OffsetLines
        self._moved: MovedLines
        self._build()
        self._batches: BatchReader
        self._schema_parts: dict[str, bytes] = {}
        self._sinks: dict[str, Sink] = {}
        self._facts: PipelineFacts
        self._asked: Mapping[str, Offsets | None] = {}
        self._coordinator: Coordinator
        self._writer: CheckpointWriter
        self._query = QueryLife(spark, self._run_batch, self._inside)
        self._expected_batch = 0
        self._replaying: RecordedEpoch | None = None
        self._recording = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-recording")
        self._verification = BackgroundVerification(
            store, self._observer, clock, verification, on_damage=lambda *damage: self._writer.distrust(*damage)
        )
        self._housekeeping = Housekeeping(store, retain, also=lambda: self._tables.remove_unneeded(store))

    def _build(
        self, start_options: Mapping[str, Mapping[str, str]] | None = None, order: Sequence[str] | None = None
    ) -> None:
        self.built = build_query(self.definition, self._spark, start_options, order)
        self._lines = OffsetLines.of(self.built.frame, self.built.inputs)

    # start

    def prepare(self) -> Start:
        """Recover: decide, fence, settle the sinks, restore the working directory, replay what has to be."""
        began = self._clock.monotonic()
        start = self._take_over()
        when = {"at_ms": self._clock.now_ms(), "seconds": round(self._clock.monotonic() - began, 4)}
        start = replace(start, report={**start.report, **when})
        self._observer.on_event(Recovered(start.report))
        for record in start.replays:
            self._replay(record)
        self._restoring.remove_old(start)
        self._trial.remove_leftovers()
        self._begin_beside()
        return start

    def plan(self) -> dict[str, Any]:
        """Return what `prepare` would do now, or raise what it would raise, having asked everybody; then close.

        Nothing is changed: neither in the store, its history included, nor in a target or source. What of tables has
        to be read goes to a folder that is gone afterwards. The bucket of `sync` is not asked.
        """
        with tempfile.TemporaryDirectory(prefix="holdfast-plan-") as scratch:
            self._tables = EpochTables(self.definition, self._materials, scratch, self._clock)
            try:
                intent = self._startup(self._options).ask(self._recorded_ranges, self._ask_others)
            finally:
                self._end_beside()
                self._let_go()
        known = _offsets_of(intent.decision.chosen)
        sources = {name: self._asked.get(name, known.get(name)) for name in self.definition.sources}
        return preview(intent, self._options.on_foreign, sources, self._asked)

    def _take_over(self) -> Start:
        """Own the store and the sinks, and bring back what the chosen checkpoint holds."""
        options = self._options if self.sync is None else self.sync.begin(self._options)
        witness: Witness = NO_WITNESS if self.sync is None else self.sync.witness
        start = self._startup(options, witness).run(self._recorded_ranges, self._ask_others)
        self._restore(start)
        settings, observer, clock = self._settings, self._observer, self._clock
        self._writer = CheckpointWriter(
            self.store,
            start.owner,
            start.fence,
            clock,
            inline_threshold=self._inline_threshold,
            beside=self._recording,
            witness=witness,
        )
        facts, writer, delivery = self._facts, self._writer, self._delivery
        self._coordinator = Coordinator(
            self.store, self._sinks, start.positions, facts, start.owner, writer, delivery, settings, observer, clock
        )
        return start

    def _startup(self, options: StartOptions, witness: Witness = NO_WITNESS) -> Startup:
        """Tell the sinks what they are to get, and return the start that is about to be made with them."""
        columns = self._tables.bind(self.store, self.built.schemas, self._spark)
        self._schema_parts = bind_sinks(self.definition, columns, self._spark, self._spools)
        sinks = self._sinks = {name: entry.sink for name, entry in self.definition.sinks.items()}
        facts = self._fit(None)
        settings, observer, clock = self._settings, self._observer, self._clock
        delivery = self._delivery = Delivery(sinks, settings, observer, clock, wrap=self._with_spark_properties)
        name, store = self.definition.name, self.store
        return Startup(name, store, sinks, facts, options, delivery, settings, observer, clock, witness, self._fit)

    def _fit(self, chosen: CheckpointManifest | None) -> PipelineFacts:
        """Build the query as the state and the offsets of a checkpoint need it; return what its manifests say."""
        sealed = chosen.identity if chosen is not None else None
        fitted = fit_to(sealed, self.definition, self.built, self._spark)
        self.built, self._moved, self._facts = fitted.built, fitted.lines, fitted.facts
        self._lines = OffsetLines.of(self.built.frame, self.built.inputs)
        return self._facts

    def _recorded_ranges(self, epoch: int) -> list[FoundRange]:
        return self._restoring.recorded_ranges(epoch, self._lines)

    def _ask_others(self, intent: Intent) -> None:
        """Refuse a start that could not read what comes next or has to be read again, or not start with its state.

        Changes nothing.
        """
        self._restoring.check_writable()
        self._restoring.check_lines(intent.decision.chosen, self._moved)
        with step(self._observer, self._clock, intent.epoch, "recovery.ask_sources"):
            known = _offsets_of(intent.decision.chosen)
            self._asked = self._upstream.ask(self.definition.name, intent.owner.timeline, self._materials, known)
            exists, replay = spark_exists(self._spark), intent.settling.replay
            refuse_other_lines(replay.epochs, self.built.inputs)
            for record in [*replay.epochs, *passed_over(self.store, intent.decision, replay.reached)]:
                refuse_lost_files(record.parts, self._lines.directories, exists)
            self._tables.ask(intent.decision.chosen, replay.epochs)
        chosen, mode = intent.decision.chosen, self.definition.output_mode
        self._trial.ask(chosen, self._facts.identity, self.built.frame, mode, self._moved)

    def _restore(self, start: Start) -> None:
        self._tables.taken_over(start.owner, start.chosen)
        with step(self._observer, self._clock, start.epoch, "recovery.sources"):
            self._locate_sources(start)
        with step(self._observer, self._clock, start.epoch, "recovery.restore"):
            directory, event_time = self._restoring.restore(start, self._lines, self._moved)
        self._expected_batch = start.epoch
        self._batches = BatchReader(
            self.definition,
            self.built,
            self._spark,
            directory,
            event_time,
            start.chosen,
            self._schema_parts,
            self._upstream,
            self._tables,
        )

    def _begin_beside(self) -> None:
        """Begin what goes on beside the epochs."""
        self._upstream.start()
        self._verification.start()
        seal = SealAgain(self._writer, self._observer, self._clock, on_fenced=self._query.fail)
        self.requests.serve(seal, self._query.turn, inputs_without_return(self.definition))
        if self.sync is not None:
            self.sync.started(self._query.fail)

    def _locate_sources(self, start: Start) -> None:
        """Find out where sources begin that were never read, and whether the others still have what comes next."""
        self._upstream.bind(self.definition.name, start.owner.timeline, self._materials)
        options = self._upstream.locate(_offsets_of(start.chosen))
        if options:
            self._build(options, self.built.order)

    @property
    def _directory(self) -> WorkingDirectory:
        return self._batches.directory

    # run

    def start_query(self, *, once: bool, interval: str | None) -> StreamingQuery:
        """Start Spark's query; batches arrive in `_run_batch`, on a thread of Spark's.

        Every query start forgets that a batch without data was due. Undisturbed, Spark would run it only if it finds
        nothing new: rows are late by the watermark of the batch before, and what expires is let go one batch earlier.
        So Spark looks for rows first.
        """
        trigger = {"availableNow": True} if once else {"processingTime": interval or "0 seconds"}
        due = self._batches.another_batch
        query = self._start(trigger)
        if due and self._query.finds_nothing():
            now_ms, watermark_ms = self._clock.now_ms(), self._batches.event_time.next_watermark_ms
            self._directory.add_closing_batch(self._expected_batch - 1, watermark_ms, now_ms)
            query = self._start(trigger)
        return query

    def _start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        self._batches.query_starts()
        return self._query.start(self.built.frame, self.definition.output_mode, self._directory.path, trigger)

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
            self._housekeeping.epoch_done(batch + 1)

    # replay

    def _replay(self, record: RecordedEpoch) -> None:
        """Run exactly one recorded range: with two of them present, Spark would run only the last."""
        batch = record.epoch - 1
        logs = {name: text for name, text in record.parts.items() if name.startswith("sources/")}
        self._directory.write_offsets(batch, record.parts[f"offsets/{batch}"], logs)
        self._replaying = record
        try:
            self._start({"once": True})
            self.wait()
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

    def refuse_inside(self, what: str) -> None:
        """Refuse to wait for what waits for us."""
        if self._inside:
            raise PipelineError(f"an observer cannot wait for {what}, which waits for the observer")

    def wait(self) -> None:
        """Block until the query ends; raise what ended it."""
        try:
            self._query.wait()
        except Exception as failure:
            fenced = self.replaced_by(failure)
            if fenced is None:
                raise
            raise fenced from failure

    def replaced_by(self, failure: BaseException) -> Fenced | None:
        """Whoever takes over changes what we work with: whatever failed then, this is why."""
        if isinstance(failure, Fenced) or not isinstance(failure, Exception) or not hasattr(self, "_writer"):
            return None
        with contextlib.suppress(CheckpointStoreError):
            if (fenced := self._writer.replaced()) is not None:
                return fenced
        return None

    def stop(self, closing: Callable[[BaseException | None], None]) -> None:
        """Finish the running epoch, then end and close. From inside an epoch, somebody else waits for that."""

        def stop() -> None:
            self._query.stop()
            closing(self._query.failure)

        if self._inside:
            threading.Thread(target=stop, name="holdfast-stopping", daemon=True).start()
        else:
            stop()

    def pause(self) -> None:
        """Hold before the next epoch."""
        self._query.pause()

    def resume(self) -> None:
        """Go on."""
        self._query.resume()

    @property
    def paused(self) -> bool:
        """Whether epochs are held."""
        return self._query.paused

    @property
    def newest(self) -> CheckpointManifest:
        """The newest checkpoint; before the first one, the fence of this start."""
        return self._writer.last

    def checkpoint(self) -> CheckpointManifest:
        """Seal a checkpoint of where we are now; with no data flowing it repeats the last epoch."""
        with self._query.turn:
            return self.requests.take()

    def watch(self, observer: Observer) -> None:
        """Pass events on to one more observer from now on."""
        self._observer.add(self._inside.telling(observer))

    def status(self) -> dict[str, Any]:
        """Return where the pipeline is."""
        last = self._writer.last
        state = "stopped" if not self._query.active else "paused" if self.paused else "running"
        return {
            "pipeline": self.definition.name,
            "state": state,
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
        self.requests.close(error)
        self._end_beside()
        self._observer.on_event(Stopped.by(self._expected_batch, error))
        self._let_go()

    def _end_beside(self) -> None:
        """End what goes on beside the epochs."""
        self._upstream.close()
        self._verification.close()
        if self.sync is not None:
            self.sync.close()

    def _let_go(self) -> None:
        for entry in self.definition.sinks.values():
            with contextlib.suppress(Exception):  # Nothing depends on a tidy goodbye.
                entry.sink.close()
        if hasattr(self, "_delivery"):
            self._delivery.close()
        self._recording.shutdown(wait=True)
        self._housekeeping.close()
        self._tables.close()
        self._history.close()
        self._restoring.close()

    def _with_spark_properties(self, work: Callable[[], object]) -> Callable[[], object]:
        """Plain threads lose what Spark keeps per thread: the query a job belongs to."""
        wrapped: Callable[[], object] = inheritable_thread_target(self._spark)(self._inside.marked(work))
        return wrapped


def _offsets_of(chosen: CheckpointManifest | None) -> Mapping[str, Mapping[str, str]]:
    """Return where each source stands in a checkpoint; nothing on a fresh start."""
    return Names((name, position.offsets) for name, position in chosen.source_offsets.items()) if chosen else {}
