"""Each connector against the plain way to do the same (`make bench-connectors`), in pairs in one run.

A ratio is our rate over the plain way's: above 1 means that we are faster. Streams into a
sink take their rows in five epochs, on both sides: the first one of a run finds out how large they are. For whatever
runs on Spark its own time of the triggers counts, so neither starting a query nor recovery does.
"""

import argparse
import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from measuring import Comparison, compare, machine_facts, seconds_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from holdfast import sinks, sources
from holdfast.core.contracts import Sink
from holdfast.core.sources import SourceContext, SourceSpec
from holdfast.engine.startup import StartOptions
from holdfast.spark.pipeline import Pipeline
from holdfast.spark.session import local_session
from holdfast.stores.materials import open_materials

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from connectors import kafka_server, postgres_server
from connectors.kafka_jars import connector_jars

RESULTS = Path(__file__).parent / "results" / "connectors.json"
EPOCHS = 5
TABLE_FILES = 10
"""How often all rows are in the Delta table: less would be over before it can be measured."""
SCHEMA = "id long, name string, amount double, note string"


@dataclass
class Lab:
    """Servers, a session, rows, and a directory for everything that is written on the way."""

    spark: SparkSession
    postgres: postgres_server.Server
    kafka: kafka_server.Broker
    base: Path
    rows: int
    pairs: int
    generator: random.Random
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def place(self) -> str:
        """Return a name that was never used."""
        return f"n{next(self._numbers)}"

    def table(self, rows: int | None = None) -> pa.Table:
        """Return rows of about a hundred bytes."""
        ids = range(rows or self.rows)
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "name": [f"customer {id % 1000}" for id in ids],
                "amount": [id * 0.37 for id in ids],
                "note": [f"{id:060d}" for id in ids],
            }
        )

    @property
    def epoch_rows(self) -> int:
        """How many rows an epoch takes, on both sides."""
        return self.rows // EPOCHS

    def input_files(self) -> Path:
        """Return a directory with the rows of an epoch in each of its files."""
        folder = self.base / "in"
        if not folder.exists():
            folder.mkdir()
            table = self.table()
            for number in range(EPOCHS):
                part = table.slice(number * self.epoch_rows, self.epoch_rows)
                pq.write_table(part, folder / f"{number}.parquet")
        return folder

    def files(self) -> SourceSpec:
        """Return our source over those files."""
        return sources.files(str(self.input_files()), format="parquet", schema=SCHEMA, max_files=1)

    def plain_files(self) -> DataFrame:
        """Return Spark's own stream over those files."""
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return stream.parquet(str(self.input_files()))

    def holdfast(self, spec: SourceSpec, sink: Sink, query: str = "SELECT * FROM input") -> float:
        """Run a pipeline from an empty store to the end of its source; return Spark's seconds."""
        name = self.place()  # Ledgers in databases know pipelines by their names.
        pipeline = Pipeline(name, store=self.base / name, spark=self.spark)
        pipeline.source("input", spec)
        pipeline.sink("output", pipeline.view("rows", query), sink)
        runner = pipeline.runner(StartOptions())
        try:
            runner.prepare()
            streaming = runner.start_query(once=True, interval=None)
            streaming.awaitTermination()
        finally:
            runner.close()
        return trigger_seconds(streaming)

    def plain(self, writer: Any) -> float:
        """Run a plain streaming query to the end of its source; return Spark's seconds."""
        place = str(self.base / self.place())
        streaming = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        streaming.awaitTermination()
        return trigger_seconds(streaming)

    def compared(self, name: str, ours: Callable[[], float], plain: Callable[[], float]) -> Comparison:
        """Run both sides in pairs; each returns its seconds."""
        print(f"  {name}", flush=True)
        return compare(
            name, ours, plain, pairs=self.pairs, generator=self.generator, rates=True, clock=lambda side: side()
        )


def trigger_seconds(query: StreamingQuery) -> float:
    """Return how long Spark was busy with batches."""
    progress = (json.loads(entry.json) for entry in query.recentProgress)
    return sum(entry["durationMs"]["triggerExecution"] for entry in progress if entry["numInputRows"] > 0) / 1000


def kafka_source(lab: Lab) -> Comparison:
    """Read a topic into a Delta table; plain: foreachBatch with one collect and deltalake's writer."""
    return _kafka_source(lab, "Kafka source into Delta / Spark's Kafka source into Delta", {})


def kafka_source_tuned(lab: Lab) -> Comparison:
    """Compare with a user who knows how Spark's consumers should fetch."""
    options = sources.kafka(lab.kafka.bootstrap, topics="any").options
    fetching = {key: options[key] for key in ("kafka.fetch.max.wait.ms", "kafka.max.poll.records")}
    return _kafka_source(lab, "Kafka source into Delta / Spark's with our consumer settings", fetching)


def _kafka_source(lab: Lab, name: str, fetching: Mapping[str, str]) -> Comparison:
    topic = lab.place()
    lab.kafka.create_topic(topic, 2)
    lab.kafka.produce(topic, [json.dumps(row).encode() for row in lab.table().to_pylist()])
    query = "SELECT CAST(value AS STRING) AS value, partition, offset FROM input"

    def ours() -> float:
        spec = sources.kafka(lab.kafka.bootstrap, topics=topic, max_records=lab.epoch_rows)
        return lab.holdfast(spec, sinks.delta(str(lab.base / lab.place())), query)

    def plain() -> float:
        where = {"kafka.bootstrap.servers": lab.kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        options = {**where, **fetching, "maxOffsetsPerTrigger": str(lab.epoch_rows)}
        stream = lab.spark.readStream.format("kafka").options(**options).load()
        target = str(lab.base / lab.place())
        rows = stream.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
        return lab.plain(rows.writeStream.foreachBatch(append_to(target)))

    return lab.compared(name, ours, plain)


def append_to(path: str) -> Callable[[DataFrame, int], None]:
    """Return what a careful user hands to foreachBatch."""

    def append(frame: DataFrame, batch: int) -> None:
        mark = CommitProperties(app_transactions=[Transaction("bench", batch)])
        write_deltalake(path, frame.toArrow(), mode="append", commit_properties=mark)

    return append


def kafka_sink(lab: Lab) -> Comparison:
    """Write rows into a topic; plain: Spark's Kafka sink, which repeats rows after a crash."""

    def ours() -> float:
        return lab.holdfast(lab.files(), sinks.kafka(lab.kafka.bootstrap, topic=lab.place()))

    def plain() -> float:
        topic = lab.place()
        lab.kafka.create_topic(topic)
        values = lab.plain_files().selectExpr("TO_JSON(STRUCT(*)) AS value")
        options = {"kafka.bootstrap.servers": lab.kafka.bootstrap, "topic": topic}
        return lab.plain(values.writeStream.format("kafka").options(**options))

    return lab.compared("Kafka sink / Spark's Kafka sink (at least once)", ours, plain)


def postgres_sink(lab: Lab) -> Comparison:
    """Write rows into a table; plain: psql copies the same rows from a CSV file, which it has on disk already."""
    path = lab.base / "rows.csv"
    pyarrow.csv.write_csv(lab.table(), path)
    columns = "id BIGINT, name TEXT, amount DOUBLE PRECISION, note TEXT"

    def ours() -> float:
        return lab.holdfast(lab.files(), sinks.postgres(lab.postgres.url, table=lab.place()))

    def plain() -> float:
        table = lab.place()
        with psycopg.connect(lab.postgres.url) as connection:
            connection.execute(f"CREATE TABLE {table} ({columns})")
        command = f"\\copy {table} FROM '{path}' WITH (FORMAT csv, HEADER)"
        return seconds_of(lambda: _program(lab, "psql", lab.postgres.url, "-q", "-c", command))

    return lab.compared("PostgreSQL sink / psql's \\copy", ours, plain)


def postgres_cdc(lab: Lab) -> Comparison:
    """Read a range of changes again and again; plain: pg_recvlogical, which writes them to a file undecoded."""
    with psycopg.connect(lab.postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE changes (id BIGINT PRIMARY KEY, name TEXT, amount FLOAT8, note TEXT)")
        spec = sources.postgres_cdc(lab.postgres.url, table="changes", slot="bench", snapshot=False)
        assert spec.control is not None
        spec.control.bind(SourceContext("input", "bench", open_materials(str(lab.base / "materials"))))
        start = dict(spec.control.begin())
        for first in range(0, lab.rows, 1000):
            connection.execute(
                "INSERT INTO changes SELECT n, 'customer ' || n %% 1000, n * 0.37, lpad(n::text, 60, '0') "
                "FROM generate_series(%s::bigint, %s::bigint) AS n",
                (first, first + 999),
            )
        end = connection.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        publication = connection.execute("SELECT pubname FROM pg_publication").fetchone()
    assert end is not None
    assert publication is not None
    options = {**spec.options, **spec.control.start_options(start)}

    def ours() -> float:
        return lab.plain(stream_of(lab.spark, spec, options).writeStream.format("noop"))

    def plain() -> float:
        slot = lab.place()
        with psycopg.connect(lab.postgres.url, autocommit=True) as connection:
            connection.execute("SELECT pg_copy_logical_replication_slot('bench', %s)", (slot,))
        decoding = ["-o", "proto_version=1", "-o", f"publication_names={publication[0]}"]
        reading = ["-S", slot, "--start", "--endpos", end[0], "--no-loop", "-f", str(lab.base / slot)]
        seconds = seconds_of(lambda: _program(lab, "pg_recvlogical", *_address(lab), *decoding, *reading))
        with psycopg.connect(lab.postgres.url, autocommit=True) as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        return seconds

    return lab.compared("PostgreSQL CDC into typed rows in Spark / pg_recvlogical into a file", ours, plain)


def delta_source(lab: Lab) -> Comparison:
    """Read a table of some files into Spark; plain: deltalake's own reader into memory."""
    path = str(lab.base / "table")
    for _ in range(TABLE_FILES):
        write_deltalake(path, lab.table(), mode="append")
    spec = sources.delta(path, max_files=None)
    assert spec.control is not None
    spec.control.bind(SourceContext("input", "bench", open_materials(str(lab.base / "materials"))))
    options = {**spec.options, **spec.control.start_options(spec.control.begin())}

    def ours() -> float:
        return lab.plain(stream_of(lab.spark, spec, options).writeStream.format("noop"))

    def plain() -> float:
        return seconds_of(lambda: DeltaTable(path).to_pyarrow_table())

    return lab.compared("Delta source into Spark / deltalake's to_pyarrow_table", ours, plain)


def stream_of(spark: SparkSession, spec: SourceSpec, options: Mapping[str, str]) -> DataFrame:
    """Return a source of ours as a stream of Spark's, without a pipeline."""
    assert spec.data_source is not None
    spark.dataSource.register(spec.data_source())
    return spark.readStream.format(spec.format).options(**options).load()


def _program(lab: Lab, name: str, *arguments: str) -> None:
    """Run one of the server's own programs."""
    installation = postgres_server._installation() / "bin" / name
    subprocess.run([str(installation), *arguments], check=True, cwd=lab.base)


def _address(lab: Lab) -> list[str]:
    parts = urlsplit(lab.postgres.url)
    return ["-h", str(parts.hostname), "-p", str(parts.port), "-U", str(parts.username), "-d", parts.path.strip("/")]


BENCHMARKS = (kafka_source, kafka_source_tuned, kafka_sink, postgres_sink, postgres_cdc, delta_source)


@contextmanager
def laboratory(rows: int, pairs: int, seed: int) -> Iterator[Lab]:
    """Start everything, and leave nothing of it behind."""
    base = Path(tempfile.mkdtemp(prefix=".bench-connectors-", dir=".")).absolute()
    conf = {"spark.driver.memory": "6g", "spark.driver.maxResultSize": "4g", "spark.jars": connector_jars()}
    spark = local_session("bench", master="local[2]", conf=conf)
    try:
        with postgres_server.running() as postgres, kafka_server.running() as kafka:
            yield Lab(spark, postgres, kafka, base, rows, pairs, random.Random(seed))
    finally:
        spark.stop()
        shutil.rmtree(base, ignore_errors=True)


def main() -> None:
    """Measure what was asked for and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="benchmarks whose name contains this")
    parser.add_argument("--quick", action="store_true", help="few rows and pairs; does not touch the results")
    arguments = parser.parse_args()
    chosen = [run for run in BENCHMARKS if not arguments.only or arguments.only in run.__name__]
    rows, pairs = (20_000, 1) if arguments.quick else (500_000, 5)
    with laboratory(rows, pairs, arguments.seed) as lab:
        facts = {"machine": machine_facts(str(lab.base)), "seed": arguments.seed}
        for run in chosen:
            found = run(lab)
            moved = rows * TABLE_FILES if run is delta_source else rows
            print(
                f"    {moved / found.store_seconds:12,.0f} against {moved / found.floor_seconds:12,.0f} rows/s: "
                f"{found.ratio:.2f} ({found.ratio_low:.2f} to {found.ratio_high:.2f})"
            )
            if not arguments.quick:
                keep({"benchmark": run.__name__, "rows": moved, **found.to_json_value(), **facts})


def keep(result: dict[str, Any]) -> None:
    """Write a result down, beside those of the others that were measured before."""
    RESULTS.parent.mkdir(exist_ok=True)
    before = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else []
    known = {each["benchmark"]: each for each in [*before, result]}
    ordered = [known[run.__name__] for run in BENCHMARKS if run.__name__ in known]
    RESULTS.write_text(json.dumps({"results": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
