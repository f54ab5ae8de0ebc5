"""One micro-batch, as the engine sees it: an epoch with rows to compute and facts to capture."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.core.contracts import Rows
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.engine.coordinator import CapturedEpoch
from holdfast.spark.definition import BuiltQuery, Definition, evaluate_views
from holdfast.spark.plan_facts import WatermarkTracker, read_plan_facts
from holdfast.spark.rows import SMALL_ROWS, ComputedBatch, tagged_union
from holdfast.spark.workdir import WorkingDirectory


class BatchReader:
    """What the batches of one query run have in common."""

    def __init__(
        self,
        definition: Definition,
        built: BuiltQuery,
        spark: SparkSession,
        directory: WorkingDirectory,
        watermark_ms: int,
    ) -> None:
        self.definition, self.built, self.directory = definition, built, directory
        self._spark = spark
        self.watermarks = WatermarkTracker(watermark_ms)
        self.expect_small = False
        """Whether the batches before were small, so that the next one is brought here while it is computed."""

    @property
    def watermarked_inputs(self) -> tuple[str, ...]:
        """The inputs of the query that carry a watermark, in plan order."""
        sources = self.definition.sources
        return tuple(name for name in self.built.inputs if name in sources and sources[name].watermark)

    def java_query(self) -> Any:
        """Return Spark's own object for the query that runs on this thread."""
        id = self._spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert id is not None
        query = self._spark.streams.get(id)
        assert query is not None
        return query._jsq.streamingQuery()

    def source_offsets(self, lines: tuple[str, ...], epoch: int) -> dict[str, ConnectorCheckpoint]:
        """Return each source's position in its own terms. A source used twice has the same line twice."""
        offsets = {}
        for name, line in zip(self.built.inputs, lines, strict=False):
            if line != "-" and name in self.definition.sources:
                spec = self.definition.sources[name].spec
                offsets[name] = ConnectorCheckpoint(
                    offsets=dict(spec.read_offsets(line)), epoch=epoch, metadata={"connector": spec.format}
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
        frame = self._fanned_out() if reader.built.fan_out else self._frame
        outputs = reader.definition.outputs
        self._computed = ComputedBatch(frame, outputs, expect_small=reader.expect_small)
        reader.expect_small = self._computed.total <= SMALL_ROWS // 2
        by_output = {output: self._computed.rows(output) for output in outputs}
        found = {sink.name: by_output[sink.output] for sink in reader.definition.sinks.values()}
        return {name: rows for name, rows in found.items() if rows is not None}

    def _fanned_out(self) -> DataFrame:
        """Apply stateless views to the rows of this batch, so that the source is read once for all of them."""
        self._base = self._frame.persist()
        definition, source = self._reader.definition, self._reader.built.inputs[0]
        frames = evaluate_views(definition, self._base.sparkSession, {source: self._base})
        return tagged_union({name: frames[name] for name in definition.outputs})

    def capture(self) -> CapturedEpoch:
        """Read what Spark left in the working directory and in its plan."""
        reader = self._reader
        facts = read_plan_facts(reader.java_query())
        watermark = reader.watermarks.advance(facts.watermarks_ms)
        capture = reader.directory.capture(self._batch, watermark, facts.state_ids or None)
        rows_in = dict(zip(reader.built.inputs, facts.rows_read, strict=False))
        watermarked = reader.watermarked_inputs
        event_times = dict(zip(watermarked, facts.watermarks_ms, strict=False))
        return CapturedEpoch(
            parts=capture.parts,
            operators=capture.operators,
            source_offsets=reader.source_offsets(capture.offsets.sources, self.epoch),
            source_watermarks={name: value for name, value in event_times.items() if value is not None},
            watermark_ms=watermark if facts.watermarks_ms else None,
            rows_in=sum(rows_in.values()),
        )

    def sealed(self) -> None:
        """Hear that the range of the next epoch begins here."""
        self._reader.directory.captured()

    def release(self) -> None:
        """Let cached rows go."""
        if self._computed is not None:
            self._computed.release()
        if self._base is not None:
            self._base.unpersist()
