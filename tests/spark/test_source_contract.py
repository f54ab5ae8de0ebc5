"""What every source does alike. A new connector is one line in `upstreams.UPSTREAMS`."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors import mariadb_server, postgres_server
from connectors.kafka_server import Broker
from holdfast import open_store, sinks
from holdfast.engine.events import EpochCommitted, EpochReplayed, Event, Recovered, StepStarted
from holdfast.errors import SourceHistoryLost
from holdfast.spark.pipeline import Pipeline
from spark.conftest import Crash, CrashAt, Moment, flip
from spark.upstreams import UPSTREAMS, Log, Upstream


@pytest.fixture(scope="module")
def postgres() -> Iterator[postgres_server.Server]:
    with postgres_server.running() as server:
        yield server


@pytest.fixture(scope="module")
def maria() -> Iterator[mariadb_server.Server]:
    with mariadb_server.running() as server:
        yield server


@pytest.fixture(scope="module")
def kafka_in_spark(kafka: Broker, kafka_connector: str, spark: SparkSession) -> Broker:
    """Return the broker of all tests, for a session that learns of Spark's connector only now."""
    for jar in kafka_connector.split(","):
        spark.sql(f"ADD JAR '{jar}'")
    return kafka


with_history = pytest.mark.parametrize(
    "upstream",
    [(kind, place) for kind, place in UPSTREAMS if issubclass(kind, Log)],
    indirect=True,
    ids=lambda chosen: chosen[0].name,
)


@pytest.fixture(params=UPSTREAMS, ids=lambda chosen: chosen[0].name)
def upstream(request: pytest.FixtureRequest) -> Upstream:
    kind, place = request.param
    found: Upstream = kind(request.getfixturevalue(place))
    return found


class Reader:
    """A pipeline that writes down the numbers it reads, and what it said on the way."""

    def __init__(self, base: Path, upstream: Upstream, spark: SparkSession) -> None:
        self._base, self._upstream, self._spark = base, upstream, spark
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def run(
        self, settings: Mapping[str, Any] | None = None, *, most: int = 4, crash: Moment | None = None, **options: Any
    ) -> None:
        """Read all there is, in epochs of at most so many rows, or until it crashes where it is told to."""
        self.events = []
        pipeline = Pipeline("numbers", store=self._base / "store", spark=self._spark, retain=3)
        pipeline.source("input", self._upstream.spec(most, **(settings or {})))
        pipeline.view("numbers", self._upstream.query)
        pipeline.sink("db", "numbers", sinks.sqlite(str(self._base / "app.db"), table="numbers", epoch_column=True))
        pipeline.run(once=True, observers=[self, CrashAt(crash)], **options)

    @property
    def epochs(self) -> list[int]:
        """How many rows the epochs of the last run had."""
        return [event.rows_in for event in self.events if isinstance(event, EpochCommitted)]

    @property
    def report(self) -> dict[str, Any]:
        """What the last start found and did."""
        [report] = [event.report for event in self.events if isinstance(event, Recovered)]
        return dict(report)

    @property
    def numbers(self) -> list[int]:
        """What arrived in the sink."""
        with closing(sqlite3.connect(self._base / "app.db")) as connection:
            return [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY n")]


@pytest.fixture
def reader(tmp_path: Path, upstream: Upstream, spark: SparkSession) -> Reader:
    return Reader(tmp_path, upstream, spark)


def test_everything_arrives_once_in_epochs_of_bounded_size(
    tmp_path: Path, upstream: Upstream, reader: Reader
) -> None:
    upstream.add(0, 1, 2)
    reader.run()
    assert reader.numbers == [0, 1, 2]
    upstream.add(*range(3, 13))
    reader.run()
    assert reader.numbers == list(range(13))
    assert sum(reader.epochs) == 10
    assert max(reader.epochs) <= 4
    reader.run()
    assert reader.epochs == [], "nothing new is no epoch"
    upstream.add(13, 14)
    reader.run(most=1)
    assert reader.epochs == [1, 1], "how much is read at once may change at any time"
    assert reader.numbers == list(range(15))
    newest = open_store(tmp_path / "store").load_latest()
    assert newest is not None
    position = newest.source_offsets["input"]
    assert position.offsets.keys() == upstream.offsets.keys()
    for name, form in upstream.offsets.items():
        assert re.fullmatch(form, position.offsets[name]), position.offsets
    assert position.metadata["connector"] == upstream.name


@with_history
def test_where_it_begins_is_decided_once(upstream: Log, reader: Reader) -> None:
    """Goal: what arrives after the first start is read. Method: a first life that leaves no checkpoint."""
    upstream.add(0, 1)
    with pytest.raises(Crash):
        reader.run(upstream.from_now_on, crash=(1, StepStarted, "seal", None))
    upstream.add(2, 3)
    reader.run(upstream.from_now_on)
    assert reader.numbers == [2, 3]


def test_a_range_that_was_read_is_read_again_exactly(tmp_path: Path, upstream: Upstream, reader: Reader) -> None:
    """Goal: a lost checkpoint is made up for. Method: damage the newest one after its sink committed."""
    for first in (0, 3):
        upstream.add(*range(first, first + 3))
        reader.run()
    newest = max((tmp_path / "store" / "checkpoints").glob("checkpoint_*"))
    flip(newest / "manifest.json", 300)
    upstream.add(6)
    reader.run()
    assert [skipped["checkpoint_id"] for skipped in reader.report["skipped"]] == [int(newest.name[-6:])]
    assert [event.epoch for event in reader.events if isinstance(event, EpochReplayed)] == [2]
    assert reader.numbers == list(range(7))


def test_every_checkpoint_that_is_kept_can_be_gone_back_to(
    tmp_path: Path, upstream: Upstream, reader: Reader
) -> None:
    """Goal: upstream is told late to let go. Method: more epochs than are kept, then the oldest that is left."""
    upstream.add(0, 1)
    reader.run()
    upstream.add(*range(2, 14))
    reader.run(most=2)
    store = open_store(tmp_path / "store")
    kept = [manifest for id in store.list_ids() if (manifest := store.load_by_id(id)) is not None]
    oldest = kept[0]
    assert 1 < oldest.epoch < kept[-1].epoch
    reader.run(from_id=oldest.checkpoint_id, sinks="rewind")
    assert sum(reader.epochs) == 14 - (oldest.processed_records or 0)
    assert reader.numbers == list(range(14))


@with_history
def test_history_that_is_gone_stops_it_unless_told_otherwise(upstream: Log, reader: Reader) -> None:
    upstream.add(0, 1)
    reader.run()
    upstream.add(2, 3)
    upstream.forget()
    with pytest.raises(SourceHistoryLost, match=r"\d"):
        reader.run()
    assert reader.numbers == [0, 1]
    reader.run({"on_history_lost": "continue"})
    upstream.add(4)
    reader.run({"on_history_lost": "continue"})
    assert reader.numbers == [0, 1, 4]
