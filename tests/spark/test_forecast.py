"""Large epochs do not come as a surprise: whoever reads much more than before gives much more than before."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast import sources
from holdfast.core.contracts import EpochRef, Prepared, Rows
from holdfast.core.sources import Lag
from holdfast.spark.forecast import Reads, SizeForecast
from holdfast.spark.pipeline import Pipeline
from holdfast.testing import RecordedTarget, RecordingSink


def records(amount: int) -> Reads:
    return {"orders": Lag(amount, "records")}


def test_nothing_is_expected_before_the_first_epoch() -> None:
    """A wrong guess could fail the run, and would be the same after every restart."""
    assert SizeForecast().expected_bytes(records(10)) is None


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        pytest.param(records(10), 50_000, id="as much"),
        pytest.param(records(1), 50_000, id="less, and it is not relied upon"),
        pytest.param(records(10_000), 50_000_000, id="a thousand times as much"),
        pytest.param({"orders": None}, 50_000, id="nobody knows"),
        pytest.param({"orders": Lag(10_000, "bytes")}, 50_000, id="counted otherwise"),
        pytest.param({**records(10), "new": Lag(10_000, "records")}, 50_000, id="another input"),
    ],
)
def test_what_is_expected_grows_with_what_is_read(reads: Reads, expected: float) -> None:
    forecast = SizeForecast()
    forecast.learn(records(10), 50_000)
    assert forecast.expected_bytes(reads) == expected


def test_an_epoch_without_rows_promises_nothing() -> None:
    forecast = SizeForecast()
    forecast.learn(records(10), 0)
    assert forecast.expected_bytes(records(10_000_000)) == pytest.approx(1024 * 1_000_000)


def test_an_epoch_that_reads_nothing_says_nothing_about_those_that_do() -> None:
    """The batch that closes windows may give many rows."""
    forecast = SizeForecast()
    forecast.learn(records(100), 5_000)
    forecast.learn(records(0), 80_000)
    assert forecast.expected_bytes(records(200)) == 10_000


class NotingSink(RecordingSink):
    """Notes which way the rows of each epoch came."""

    def __init__(self, target: RecordedTarget) -> None:
        super().__init__(target)
        self.came_here: dict[int, bool] = {}

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        self.came_here[ref.epoch] = rows.small
        return super().prepare(rows, ref)


def test_a_flood_after_a_trickle_stays_with_spark(tmp_path: Path, spark: SparkSession) -> None:
    """Brought here like the epochs before it, it would fill the memory of this process."""
    folder, target = tmp_path / "in", RecordedTarget()
    folder.mkdir()

    def write(numbers: range) -> None:
        """Make some files visible, all at once."""
        aside = tmp_path / f"aside-{numbers.start}"
        aside.mkdir()
        for number in numbers:
            rows = (f'{{"id": {id}}}\n' for id in range(number * 50, number * 50 + 50))
            (aside / f"{number}.json").write_text("".join(rows))
        aside.rename(folder / f"{numbers.start}")

    sink = NotingSink(target)
    pipeline = Pipeline("flood", store=tmp_path / "store", spark=spark, collect_bytes=8_000, verify_interval=None)
    pipeline.source("numbers", sources.files(f"{folder}/*", format="json", schema="id long"))
    pipeline.sink("noted", "numbers", sink)
    handle = pipeline.start()
    for numbers in (range(1), range(1, 2), range(2, 62)):
        write(numbers)
        handle._runner._spark.streams.active[0].processAllAvailable()
    handle.stop()
    assert sink.came_here == {1: True, 2: True, 3: False}
    assert sorted(row["id"] for row in target.rows) == list(range(62 * 50))
