"""The life of Spark's query: started once per replay and once for good, held, ended between batches."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import PipelineError
from holdfast.spark.failures import error_in, spark_message
from holdfast.spark.inside import Inside

_PATIENCE_MS = 30_000
_IDLE_PATIENCE_MS = 1_000
"""For a query that runs nothing: it may be asleep until its next trigger."""
_LOOKING_SECONDS = 0.02


class QueryLife:
    """Runs `on_batch` for every batch, one at a time, and remembers why that failed."""

    def __init__(self, spark: SparkSession, on_batch: Callable[[DataFrame, int], None], inside: Inside) -> None:
        self._spark, self._work, self._inside = spark, on_batch, inside
        self.turn = threading.Lock()
        """Held while a batch runs: whoever has it stands between two batches."""
        self.streaming: StreamingQuery | None = None
        """Spark's own query; None before the first start."""
        self._failure: BaseException | None = None
        self._going = threading.Event()
        self._going.set()
        self._stopping = threading.Event()
        self._began = threading.Event()
        self._ended = False

    def start(self, frame: DataFrame, output_mode: str, directory: str, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Start; batches arrive on a thread of Spark's. After `stop` or `fail` it ends at once."""
        if not self._stopping.is_set():
            self._failure, self._ended = None, False
        self._began.clear()
        self.streaming = (
            frame.writeStream.foreachBatch(self._on_batch)
            .outputMode(output_mode)
            .option("checkpointLocation", directory)
            .trigger(**trigger)
            .start()
        )
        if self._stopping.is_set():
            self.stop()
        return self.streaming

    def finds_nothing(self) -> bool:
        """Wait until Spark has looked for new rows. If there are none, end the query, which ran nothing: True."""
        assert self.streaming is not None
        running = self.streaming._jsq.streamingQuery()
        while self.active and not self._began.is_set() and not running.noNewData():
            self._began.wait(_LOOKING_SECONDS)
        with self.turn:
            if self._began.is_set() or self._stopping.is_set() or self.streaming.exception() is not None:
                return False
            self._ended = True
            _begin_no_more(self.streaming, self._spark)
        _end(self.streaming, _IDLE_PATIENCE_MS)
        return True

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        self._began.set()
        self._going.wait()
        with self._inside.entered(), self.turn:
            if self._ended:  # Spark was about to begin it when the query was ended: it is for the next start.
                raise PipelineError("the query was ended before the batch began")
            self._run(frame, batch)

    def _run(self, frame: DataFrame, batch: int) -> None:
        try:
            self._work(frame, batch)
        except BaseException as error:
            # Spark wraps what we raise into text; the original is what the caller gets to see. What is no Exception
            # would end this thread without an answer to Spark, which would wait for ever.
            self._failure = (error_in(error) if isinstance(error, PySparkException) else None) or error
            if isinstance(error, Exception):
                raise
            raise PipelineError(f"stopped by {type(error).__name__}") from error

    def wait(self) -> None:
        """Block until the query ends; raise what ended it."""
        assert self.streaming is not None
        try:
            self.streaming.awaitTermination()
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
            raise failure

    @property
    def active(self) -> bool:
        """Whether the query runs."""
        return self.streaming is not None and self.streaming.isActive

    def pause(self) -> None:
        """Hold before the next batch."""
        self._going.clear()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    @property
    def paused(self) -> bool:
        """Whether batches are held."""
        return not self._going.is_set()

    def stop(self) -> None:
        """Finish the running batch, then end. Nothing is cut off: recovery is for crashes."""
        self._stopping.set()
        self._going.set()
        if not self.active:
            return
        assert self.streaming is not None
        with self.turn:
            self._ended = True
            _begin_no_more(self.streaming, self._spark)
        _end(self.streaming, _PATIENCE_MS)

    @property
    def failure(self) -> BaseException | None:
        """Why the query ended, as long as nobody has heard it from `wait`."""
        return self._failure

    def fail(self, failure: BaseException) -> None:
        """End because of something that no batch met; `wait` raises it. Comes back before the query has ended."""
        self._failure = failure
        threading.Thread(target=self.stop, name="holdfast-failing", daemon=True).start()


def _begin_no_more(query: StreamingQuery, spark: SparkSession) -> None:
    """Let Spark end after the batch that it is about to commit."""
    # Private parts of Spark: without them its own stop does, and recovery completes the rest.
    with contextlib.suppress(Py4JError):
        runtime = spark._jvm.org.apache.spark.sql.execution.streaming.runtime  # type: ignore[union-attr]
        query._jsq.streamingQuery().state().set(getattr(getattr(runtime, "TERMINATED$"), "MODULE$"))


def _end(query: StreamingQuery, patience_ms: int) -> None:
    """End between two batches. Spark's own stop interrupts its thread, which can cut a batch's commit off."""
    with contextlib.suppress(Py4JError):
        query._jsq.streamingQuery().queryExecutionThread().join(patience_ms)
    query.stop()
