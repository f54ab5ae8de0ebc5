"""One micro-batch, as the engine sees it: an epoch with rows to compute and facts to capture."""

from collections.abc import Mapping
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.core.contracts import Rows
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Lag, Offsets
from holdfast.core.spelling import respelled
from holdfast.core.tables import TABLES_PART, pins_to_part
from holdfast.engine.coordinator import CapturedEpoch
from holdfast.engine.upstream import Upstream
from holdfast.errors import PipelineError
from holdfast.spark.building import BuiltQuery
from holdfast.spark.definition import Definition
from holdfast.spark.event_time import EventTime
from holdfast.spark.fan_out import FanOut
from holdfast.spark.forecast import Reads, SizeForecast
from holdfast.spark.lines import OffsetLines, earlier
from holdfast.spark.plan_facts import PlanFacts, PlanReader
from holdfast.spark.rows import ComputedBatch, tagged_union, without_stale_order
from holdfast.spark.tables import EpochTables
from holdfast.spark.workdir import WorkingDirectory


class BatchReader:
    """What the batches of one query run have in common."""

    def __init__(
        self,
        definition: Definition,
        built: BuiltQuery,
        spark: SparkSession,
        directory: WorkingDirectory,
        event_time: EventTime,
        chosen: CheckpointManifest | None,
        schema_parts: Mapping[str, bytes],
        upstream: Upstream,
        tables: EpochTables,
    ) -> None:
        self.definition, self.built, self.directory = definition, built, directory
        self._upstream, self.tables = upstream, tables
        self.schema_parts = schema_parts
        self._spark = spark
        self.event_time = event_time
        """Where event time stands after the newest epoch that is sealed."""
        self._source_watermarks = respelled(chosen.source_watermarks, definition.sources) if chosen else {}
        self._plans = PlanReader(spark)
        self._java_query: Any = None
        self.forecast = SizeForecast()

    @property
    def lines(self) -> OffsetLines:
        """What each line of the offset log is."""
        return self.directory.lines

    @property
    def another_batch(self) -> bool:
        """Whether a batch without data is due; where there is no state, nothing is."""
        return self.event_time.another_batch and self.directory.has_state

    def query_starts(self) -> None:
        """Hear that another query of Spark's runs the batches from here on."""
        self._java_query = None
        self.tables.query_starts()

    def check_watermark(self, batch: int, *, replayed: bool) -> None:
        """Stop if Spark runs a batch with another watermark than the one we sealed for it.

        Then a restart from our checkpoint would close windows at another time. A recorded range brings its own,
        which may be ahead: versions before forgot at a restart how far each input had come.
        """
        theirs, ours = self.directory.offsets(batch).watermark_ms, self.event_time.next_watermark_ms
        if theirs < ours or (theirs > ours and not replayed):
            raise PipelineError(
                f"Spark runs epoch {batch + 1} with watermark {theirs}, the checkpoint before it says {ours}: "
                "stopping before any harm. This is a fault in Holdfast, please report it"
            )

    def source_watermarks(self, facts: PlanFacts) -> dict[str, int]:
        """Return how far each source has come in event time; one that was idle stays where it was."""
        for operator in facts.watermarks:
            below = {self.lines.source_of[directory] for directory in operator.directories}
            if operator.far_ms is not None and len(below) == 1:
                name = below.pop()
                self._source_watermarks[name] = max(
                    operator.far_ms, self._source_watermarks.get(name, operator.far_ms)
                )
        return dict(self._source_watermarks)

    def rows_in(self, facts: PlanFacts) -> int:
        """Return how many rows came from all sources, each counted once, however many streams read it."""
        found: dict[str, int] = {}
        for directory, name in self.lines.source_of.items():
            found[name] = max(found.get(name, 0), facts.rows_read[directory])
        return sum(found.values())

    def reads(self, batch: int) -> Reads:
        """Return how much of each input a batch reads, as far as that can be told before it is read."""
        files = self.directory.files_read(batch)
        starts, ends = map(self.lines.by_directory, self.directory.range(batch))
        found: dict[str, Lag | None] = {}
        for directory, name in self.lines.source_of.items():
            if name in files:
                found[name] = Lag(files[name], "files")
            elif directory in ends:
                found[name] = self._between(name, starts.get(directory), ends[directory])
        return found

    def _between(self, name: str, start: str | None, end: str) -> Lag | None:
        source = self.definition.sources.get(name)
        if source is None or source.spec.control is None or start in (None, "-") or end == "-":
            return None
        read = source.spec.read_offsets
        return source.spec.control.lag(read(start), read(end))

    def plan_facts(self) -> PlanFacts:
        """Return what Spark knows of the batch that was computed on this thread."""
        if self._java_query is not None:
            return self._plans.read(self._java_query)
        id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert id is not None
        query = self._spark.streams.get(id)
        assert query is not None
        self._java_query = query._jsq.streamingQuery()
        known = self._plans.streams(self._java_query)
        if known.log_directories != self.lines.directories:
            raise PipelineError(
                f"Spark's streams are {known.log_directories}, the plan said {self.lines.directories}: stopping "
                "before any harm. This is a fault in Holdfast, please report it"
            )
        remembered = self.event_time.remembered(known.watermarks, self.lines.source_of)
        return self._plans.read(self._java_query, remembered)

    def source_offsets(self, lines: tuple[str, ...], epoch: int) -> dict[str, ConnectorCheckpoint]:
        """Return each source's position in its own terms; of one that several streams read, the earliest."""
        found = {}
        for name, of_streams in self.lines.by_source(lines).items():
            if name in self.definition.sources:
                spec = self.definition.sources[name].spec
                positions = [spec.read_offsets(line) for line in of_streams]
                position = reduce(partial(earlier, spec.control), positions)
                found[name] = self._checkpoint_of(name, position, epoch)
        return found

    def _checkpoint_of(self, name: str, position: Offsets, epoch: int) -> ConnectorCheckpoint:
        spec = self.definition.sources[name].spec
        notes = {"connector": spec.connector or spec.format, **spec.metadata}
        return ConnectorCheckpoint(
            offsets=dict(position), epoch=epoch, metadata={**notes, **self._upstream.notes(name, position)}
        )


class MicroBatch:
    """One call of foreachBatch. Implements the engine's `EpochWork`."""

    def __init__(self, reader: BatchReader, frame: DataFrame, batch: int) -> None:
        self._reader, self._frame, self._batch = reader, frame, batch
        self.epoch = batch + 1
        self._computed: ComputedBatch | None = None
        self._base: DataFrame | None = None
        self._event_time: EventTime

    def range_digest(self) -> str:
        """Return the digest of the range that Spark wrote down before it called us."""
        return self._reader.directory.range_digest(self._batch)

    def rows(self) -> Mapping[str, Rows]:
        """Compute the batch, once."""
        reader = self._reader
        fan_out, schemas = reader.built.fan_out, reader.built.schemas
        frame = without_stale_order(self._frame) if fan_out is None else self._fanned_out(fan_out)
        reads = reader.reads(self._batch)
        self._computed = ComputedBatch(
            frame,
            schemas,
            expected_bytes=reader.forecast.expected_bytes(reads),
            collect_bytes=reader.definition.collect_bytes,
        )
        reader.forecast.learn(reads, self._computed.bytes)
        by_output = {output: self._computed.rows(output) for output in schemas}
        found = {sink.name: by_output[sink.output] for sink in reader.definition.sinks.values()}
        return reader.tables.selected({name: rows for name, rows in found.items() if rows is not None})

    def _fanned_out(self, fan_out: FanOut) -> DataFrame:
        """Make all outputs of the rows of this batch, so that the source is read once for all of them."""
        self._base = self._frame.persist()
        return tagged_union(fan_out.of(self._base))

    def capture(self) -> CapturedEpoch:
        """Read what Spark left in the working directory and in its plan."""
        reader = self._reader
        facts = reader.plan_facts()
        self._event_time = EventTime.after(facts, reader.lines.source_of)
        capture = reader.directory.capture(self._batch, self._event_time, facts)
        tables = reader.tables.positions(self.epoch)
        pins = {TABLES_PART: pins_to_part(tables)} if tables else {}
        return CapturedEpoch(
            parts={**capture.parts, **reader.schema_parts, **pins},
            operators=capture.operators,
            source_offsets=reader.source_offsets(capture.offsets.sources, self.epoch),
            source_watermarks=reader.source_watermarks(facts),
            watermark_ms=facts.next_watermark_ms if facts.watermarks else None,
            rows_in=reader.rows_in(facts),
            table_offsets=tables,
            tables_path=reader.tables.path,
        )

    def sealed(self) -> None:
        """Hear that the range of the next epoch begins here."""
        self._reader.directory.captured()
        self._reader.event_time = self._event_time

    def release(self) -> None:
        """Let cached rows go."""
        self._reader.tables.release()
        if self._computed is not None:
            self._computed.release()
        if self._base is not None:
            self._base.unpersist()
