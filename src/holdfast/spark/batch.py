"""One micro-batch, as the engine sees it: an epoch with rows to compute and facts to capture."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.core.contracts import Rows
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.sources import Lag
from holdfast.core.tables import TABLES_PART, pins_to_part
from holdfast.engine.coordinator import CapturedEpoch
from holdfast.engine.upstream import Upstream
from holdfast.errors import PipelineError
from holdfast.spark.definition import BuiltQuery, Definition, evaluate_views
from holdfast.spark.forecast import Reads, SizeForecast
from holdfast.spark.plan_facts import PlanFacts, PlanReader, WatermarkTracker
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
        chosen: CheckpointManifest | None,
        schema_parts: Mapping[str, bytes],
        upstream: Upstream,
        tables: EpochTables,
    ) -> None:
        self.definition, self.built, self.directory = definition, built, directory
        self._upstream, self.tables = upstream, tables
        self.schema_parts = schema_parts
        self._spark = spark
        self._watermarks = WatermarkTracker((chosen.watermark or 0) if chosen else 0)
        self._source_watermarks = dict(chosen.source_watermarks) if chosen else {}
        self._plans = PlanReader(spark)
        self._java_query: Any = None
        self.forecast = SizeForecast()

    @property
    def watermarked_inputs(self) -> tuple[str, ...]:
        """The inputs of the query that carry a watermark, in plan order."""
        sources = self.definition.sources
        return tuple(name for name in self.built.inputs if name in sources and sources[name].watermark)

    def query_starts(self) -> None:
        """Forget what Spark forgets when a query starts: how far each watermarked input had come."""
        self._watermarks = WatermarkTracker(self._watermarks.current_ms)
        self._java_query = None
        self.tables.query_starts()

    def check_watermark(self, batch: int, *, replayed: bool) -> None:
        """Stop if Spark runs a batch with another watermark than the one we sealed for it.

        Then a restart from our checkpoint would close windows at another time. A recorded range brings its own,
        which may be ahead: the run that recorded it remembered more about its inputs than a replay can.
        """
        theirs, ours = self.directory.offsets(batch).watermark_ms, self._watermarks.current_ms
        if theirs < ours or (theirs > ours and not replayed):
            raise PipelineError(
                f"Spark runs epoch {batch + 1} with watermark {theirs}, the checkpoint before it says {ours}: "
                "stopping before any harm. This is a fault in Holdfast, please report it"
            )
        self._watermarks.begin(theirs)

    def next_watermark(self, batch: int, observed_ms: tuple[int | None, ...]) -> int:
        """Take what a batch saw, return the watermark of the next."""
        return self._watermarks.advance(observed_ms, self.directory.offsets(batch).watermark_policy)

    def source_watermarks(self, observed_ms: tuple[int | None, ...]) -> dict[str, int]:
        """Return how far each source has come in event time; one that was idle stays where it was."""
        for name, value in zip(self.watermarked_inputs, observed_ms, strict=False):
            if value is not None:
                self._source_watermarks[name] = max(value, self._source_watermarks.get(name, value))
        return dict(self._source_watermarks)

    def reads(self, batch: int) -> Reads:
        """Return how much of each input a batch reads, as far as that can be told before it is read."""
        files = self.directory.files_read(batch)
        starts, ends = (dict(zip(self.built.inputs, lines, strict=False)) for lines in self.directory.range(batch))
        return {
            name: Lag(files[name], "files") if name in files else self._between(name, starts.get(name), end)
            for name, end in ends.items()
        }

    def _between(self, name: str, start: str | None, end: str) -> Lag | None:
        source = self.definition.sources.get(name)
        if source is None or source.spec.control is None or start in (None, "-") or end == "-":
            return None
        read = source.spec.read_offsets
        return source.spec.control.lag(read(start), read(end))

    def plan_facts(self) -> PlanFacts:
        """Return what the plan of the batch knows that was computed on this thread."""
        if self._java_query is None:
            id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
            assert id is not None
            query = self._spark.streams.get(id)
            assert query is not None
            self._java_query = query._jsq.streamingQuery()
        return self._plans.read(self._java_query)

    def source_offsets(self, lines: tuple[str, ...], epoch: int) -> dict[str, ConnectorCheckpoint]:
        """Return each source's position in its own terms. A source used twice has the same line twice."""
        offsets = {}
        for name, line in zip(self.built.inputs, lines, strict=False):
            if line != "-" and name in self.definition.sources:
                spec = self.definition.sources[name].spec
                position = dict(spec.read_offsets(line))
                notes = {"connector": spec.connector or spec.format, **spec.metadata}
                offsets[name] = ConnectorCheckpoint(
                    offsets=position, epoch=epoch, metadata={**notes, **self._upstream.notes(name, position)}
                )
        return offsets


class MicroBatch:
    """One call of foreachBatch. Implements the engine's `EpochWork`."""

    def __init__(self, reader: BatchReader, frame: DataFrame, batch: int) -> None:
        self._reader, self._frame, self._batch = reader, frame, batch
        self.epoch = batch + 1
        self._computed: ComputedBatch | None = None
        self._base: DataFrame | None = None

    def range_digest(self) -> str:
        """Return the digest of the range that Spark wrote down before it called us."""
        return self._reader.directory.range_digest(self._batch)

    def rows(self) -> Mapping[str, Rows]:
        """Compute the batch, once."""
        reader = self._reader
        frame = self._fanned_out() if reader.built.fan_out else without_stale_order(self._frame)
        outputs = reader.definition.outputs
        schemas = {output: reader.built.schemas[output] for output in outputs}
        reads = reader.reads(self._batch)
        self._computed = ComputedBatch(
            frame,
            schemas,
            expected_bytes=reader.forecast.expected_bytes(reads),
            collect_bytes=reader.definition.collect_bytes,
        )
        reader.forecast.learn(reads, self._computed.bytes)
        by_output = {output: self._computed.rows(output) for output in outputs}
        found = {sink.name: by_output[sink.output] for sink in reader.definition.sinks.values()}
        return reader.tables.selected({name: rows for name, rows in found.items() if rows is not None})

    def _fanned_out(self) -> DataFrame:
        """Apply stateless views to the rows of this batch, so that the source is read once for all of them."""
        self._base = self._frame.persist()
        definition, source = self._reader.definition, self._reader.built.inputs[0]
        frames = evaluate_views(definition, self._base.sparkSession, {source: self._base})
        return tagged_union({name: frames[name] for name in definition.outputs})

    def capture(self) -> CapturedEpoch:
        """Read what Spark left in the working directory and in its plan."""
        reader = self._reader
        facts = reader.plan_facts()
        watermark = reader.next_watermark(self._batch, facts.watermarks_ms)
        capture = reader.directory.capture(self._batch, watermark, facts)
        rows_in = dict(zip(reader.built.inputs, facts.rows_read, strict=False))
        tables = reader.tables.positions(self.epoch)
        pins = {TABLES_PART: pins_to_part(tables)} if tables else {}
        return CapturedEpoch(
            parts={**capture.parts, **reader.schema_parts, **pins},
            operators=capture.operators,
            source_offsets=reader.source_offsets(capture.offsets.sources, self.epoch),
            source_watermarks=reader.source_watermarks(facts.watermarks_ms),
            watermark_ms=watermark if facts.watermarks_ms else None,
            rows_in=sum(rows_in.values()),
            table_offsets=tables,
            tables_path=reader.tables.path,
        )

    def sealed(self) -> None:
        """Hear that the range of the next epoch begins here."""
        self._reader.directory.captured()

    def release(self) -> None:
        """Let cached rows go."""
        self._reader.tables.release()
        if self._computed is not None:
            self._computed.release()
        if self._base is not None:
            self._base.unpersist()
