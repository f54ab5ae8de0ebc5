"""What plain Spark makes of a case: the same views over the same files, as one query, in one run without disturbance.

One query, since watermarks are those of a query: two of them would go by other watermarks than one that does both.
Nothing of Holdfast is used here.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fuzz.described import Case, Row, Source
from fuzz.judge import Values, normal
from fuzz.operators import query_of

BEGINNING = datetime(2024, 1, 1, tzinfo=UTC)
_TYPES = ("string", "long", "double", "timestamp")
_STATE_STORES = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}


def write_input(case: Case, base: Path) -> None:
    """Write the files of all sources; Spark reads them in the order of their times."""
    for source in case.sources:
        folder = base / "in" / source.name
        folder.mkdir(parents=True)
        for number, rows in enumerate(source.files):
            path = folder / f"{number:03d}.json"
            path.write_text("\n".join(json.dumps(_as_json(source, row), ensure_ascii=False) for row in rows))
            os.utime(path, (1_700_000_000 + number,) * 2)


def _as_json(source: Source, row: Row) -> dict[str, Any]:
    *values, at = row
    moment = None if at is None else BEGINNING + timedelta(seconds=at)
    told = None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return dict(zip(source.columns, (*values, told), strict=True))


def schema_of(source: Source) -> str:
    return ", ".join(f"`{name}` {type_}" for name, type_ in zip(source.columns, _TYPES, strict=True))


@dataclass
class Undisturbed:
    """What came of the run: rows by output with the batch they came in, or why there are none."""

    rows: dict[str, list[tuple[int, Values]]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)
    refused: str | None = None
    """Why Spark did not start."""
    failed: str | None = None
    """Why it stopped in the middle."""

    def of(self, output: str, after: int = 0) -> list[Values]:
        """Return the rows of an output that came later than so many epochs."""
        return [row for batch, row in self.rows[output] if batch >= after]


def prepared(case: Case, spark: SparkSession) -> SparkSession:
    """Return a session of its own with the settings of a case."""
    session = spark.newSession()
    for key, value in case.settings:
        session.conf.set(key, value)
    return session


def undisturbed(case: Case, base: Path, spark: SparkSession, place: str = "plain") -> Undisturbed:
    """Run the case on plain Spark; `place` is where in `base` it may work."""
    session = prepared(case, spark)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.streaming.stateStore.providerClass", _STATE_STORES[case.state])
    session.conf.set("spark.sql.exchange.reuse", "false")  # See KNOWN_DIFFERENCES.
    session._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    found = Undisturbed({output: [] for output in case.outputs})
    try:
        frames = _frames(case, base, session)
        found.columns = {output: frames[output.lower()].columns for output in case.outputs}
        # Spark looks at one output alone as well: it must not run with others what it does not run by itself.
        for output in case.outputs:
            _check(frames[output.lower()], case.mode)
        query = _united([frames[output.lower()] for output in case.outputs])

        def collect(batch: DataFrame, number: int) -> None:
            for place, *structs in batch.collect():
                found.rows[case.outputs[place]].append((number, normal(tuple(structs[place]))))

        writer = query.writeStream.foreachBatch(collect).outputMode(case.mode)
        running = writer.option("checkpointLocation", str(base / place)).trigger(availableNow=True).start()
    except PySparkException as error:
        found.refused = f"{type(error).__name__}: {error}"
        return found
    except Exception as error:
        found.refused = f"{type(error).__name__}: {str(error)[:500]}"
        return found
    try:
        running.awaitTermination()
    except PySparkException as error:
        found.failed = f"{type(error).__name__}: {error}"
    return found


def _frames(case: Case, base: Path, session: SparkSession) -> dict[str, DataFrame]:
    """Return every source and view, by its name in small letters."""
    frames = {}
    for source in case.sources:
        reader = session.readStream.format("json").schema(schema_of(source))
        reader = reader.option("maxFilesPerTrigger", str(source.max_files))
        frame = reader.load(str(base / "in" / source.name))
        if source.delay is not None:
            frame = frame.withWatermark(source.columns[3], source.delay)
        frame.createOrReplaceTempView(source.name)
        frames[source.name.lower()] = frame
    for view in case.views:
        query = query_of(view, case.mode)
        frame = session.sql(query) if isinstance(query, str) else query(*[frames[name.lower()] for name in view.over])
        frame.createOrReplaceTempView(view.name)
        frames[view.name.lower()] = frame
    return frames


def _check(frame: DataFrame, mode: str) -> None:
    """Raise what Spark would raise if this were the whole query."""
    session: Any = frame.sparkSession
    sql = session._jvm.org.apache.spark.sql
    checker = getattr(getattr(sql.catalyst.analysis, "UnsupportedOperationChecker$"), "MODULE$")
    output_mode = getattr(sql.streaming.OutputMode, mode.capitalize())()
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), output_mode)


def _united(frames: list[DataFrame]) -> DataFrame:
    """Unite outputs of any columns: a number, and one struct for each output of which all others are NULL."""
    branches = list(_branches(frames))
    united = branches[0]
    for branch in branches[1:]:
        united = united.union(branch)
    return united


def _branches(frames: list[DataFrame]) -> Iterator[DataFrame]:
    """Columns go by their places: two may have one name."""
    numbered = [frame.toDF(*[f"c{number}" for number in range(len(frame.columns))]) for frame in frames]
    for place, frame in enumerate(numbered):
        structs = [
            F.struct(*frame.columns) if other is frame else F.lit(None).cast(other.schema) for other in numbered
        ]
        yield frame.select(F.lit(place), *structs).toDF("place", *[f"o{number}" for number in range(len(frames))])
