"""The Delta source: every version once, in any portions, and the same again whenever it is read again."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from connectors.delta_tables import Table, numbered, position, reading
from connectors.targets import BY_NAME, Writer, orders
from holdfast import sources, tables
from holdfast.connectors.delta.changes import PlannedFile
from holdfast.connectors.delta.reader import grouped
from holdfast.core.sources import Lag
from holdfast.errors import PipelineDefinitionError, SourceError, SourceHistoryLost


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Return a table of four versions, 0 to 3, with one row each."""
    found = Table(tmp_path / "table")
    for number in range(4):
        found.append(numbered(number))
    return found


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["id"] for row in rows)


# --- where a pipeline begins


@pytest.mark.parametrize(
    ("starting", "begins", "found"),
    [
        ("snapshot", position(3, snapshot=0), [0, 1, 2, 3, 9]),
        ("latest", position(4), [9]),
        (2, position(2), [2, 3, 9]),
        ("2", position(2), [2, 3, 9]),
        (0, position(0), [0, 1, 2, 3, 9]),
        (4, position(4), [9]),
    ],
)
def test_a_pipeline_begins_where_it_is_told(
    table: Table, tmp_path: Path, starting: str | int, begins: dict[str, str], found: list[int]
) -> None:
    read = reading(table, tmp_path, starting=starting)
    start = read.begin()
    assert start == begins
    table.append(numbered(9))
    assert ids(read.everything(start)) == found


def test_a_snapshot_of_an_empty_table_is_no_snapshot(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.append(numbered())
    assert reading(table, tmp_path).begin() == position(1)


def written_at(table: Table, version: int) -> datetime:
    [info] = [action["commitInfo"] for action in table.actions(version) if "commitInfo" in action]
    return datetime.fromtimestamp(info["timestamp"] / 1000, UTC)


def set_times(table: Table, *seconds: int) -> None:
    """Write versions that were written at these seconds, whatever order they have."""
    for second in seconds:
        version = table.version + 1
        lines = [{"commitInfo": {"timestamp": second * 1000, "operation": "TEST"}}]
        table.entry(version).write_text("\n".join(json.dumps(line) for line in lines))


@pytest.mark.parametrize(("second", "version"), [(2**31, 4), (2**31 + 1, 5), (2**31 + 5, 5), (2**31 + 6, 7)])
def test_a_time_means_the_first_version_written_then_or_later(
    table: Table, tmp_path: Path, second: int, version: int
) -> None:
    """Clocks of writers may disagree: version 6 was written with a clock that is behind."""
    set_times(table, 2**31, 2**31 + 5, 2**31 + 1, 2**31 + 9)
    starting = datetime.fromtimestamp(second, UTC)
    for said in (starting, starting.isoformat()):
        assert reading(table, tmp_path, starting=said).begin() == position(version)


def test_a_time_in_the_future_is_refused(table: Table, tmp_path: Path) -> None:
    later = written_at(table, 3) + timedelta(hours=1)
    with pytest.raises(SourceError, match="the newest one is 3: start at 'latest'"):
        reading(table, tmp_path, starting=later).begin()


def test_a_time_of_which_the_log_may_know_no_more_is_refused(table: Table, tmp_path: Path) -> None:
    table.clean_up(2)
    with pytest.raises(SourceHistoryLost, match="the first one there is 2"):
        reading(table, tmp_path, starting="2001-01-01T00:00:00Z").begin()
    going_on = reading(table, tmp_path, starting="2001-01-01T00:00:00Z", on_history_lost="continue")
    assert going_on.begin() == position(2)


def test_a_version_that_is_not_there_yet_is_refused(table: Table, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"table is at version 3, starting says 5"):
        reading(table, tmp_path, starting=5).begin()


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    read = reading(Table(tmp_path / "nothing"), tmp_path)
    with pytest.raises(SourceError, match=r"there is no Delta table at .*/nothing"):
        read.begin()


# --- every version once


@pytest.mark.parametrize("seed", range(8))
def test_every_row_comes_once_whatever_the_limits(tmp_path: Path, seed: int) -> None:
    """Goal: no row is lost or repeated, and any range gives the same rows again. Method: random tables and limits."""
    chance = random.Random(seed)
    table = Table(tmp_path / "table")
    written: list[int] = []
    for _ in range(chance.randint(3, 9)):
        new = list(range(len(written), len(written) + chance.randint(1, 40)))
        parts = pa.array([number % chance.randint(1, 5) for number in new])
        table.append(numbered(*new).append_column("part", parts), partition_by=["part"])
        written += new
    limits = {
        name: chance.choice([None, *choices])
        for name, choices in {
            "max_files": [1, 2, 5],
            "max_versions": [1, 2],
            "max_bytes": [1, 1500, 5000],
        }.items()
    }
    read = reading(table, tmp_path, starting=chance.choice(["snapshot", 0]), **limits)
    start = read.begin()
    ranges = list(read.epochs(start))
    assert ids([row for first, last in ranges for row in read.rows(first, last)]) == written
    again = reading(table, tmp_path, starting=0)
    again.start(start)
    for _ in range(10):
        first = chance.randrange(len(ranges))
        last = chance.randrange(first, len(ranges))
        once = [row for pair in ranges[first : last + 1] for row in read.rows(*pair)]
        assert ids(again.rows(ranges[first][0], ranges[last][1])) == ids(once)


def test_limits_bound_an_epoch(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    for number in range(3):
        rows = numbered(*range(4 * number, 4 * number + 4))
        table.append(rows.append_column("part", pa.array([0, 1, 2, 3])), partition_by=["part"])
    for settings, ends in [
        ({"max_files": 3}, [position(0, file=3), position(1, file=2), position(2, file=1), position(3)]),
        ({"max_files": 4}, [position(1), position(2), position(3)]),
        ({"max_files": 6}, [position(1, file=2), position(3)]),
        ({"max_versions": 2}, [position(2), position(3)]),
        (
            {"max_bytes": 1},
            [position(v, file=f) if f < 4 else position(v + 1) for v in range(3) for f in range(1, 5)],
        ),
        ({"max_files": None}, [position(3)]),
    ]:
        read = reading(table, tmp_path, starting=0, **settings)
        assert [end for _, end in read.epochs(read.begin())] == ends, settings


def test_a_snapshot_is_read_in_bounded_epochs_and_then_the_versions_that_follow(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, max_files=3)
    start = read.begin()
    table.append(numbered(4))
    table.append(numbered(5))
    assert [end for _, end in read.epochs(start)] == [position(3, snapshot=3), position(6)]
    assert ids(read.everything(start)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("starting", "counted"), [("snapshot", "snapshot"), (0, "file")])
def test_files_are_counted_in_the_order_of_their_paths(tmp_path: Path, starting: str | int, counted: str) -> None:
    """An offset from before a crash must mean the same files after it, whoever lists them."""
    table = Table(tmp_path / "table")
    table.append(numbered(*range(12)).append_column("part", pa.array(range(12))), partition_by=["part"])
    read = reading(table, tmp_path, starting=starting, max_files=1)
    ranges = list(read.epochs(read.begin()))
    assert [end.get(counted) for _, end in ranges] == [str(n) for n in range(1, 12)] + [None]
    parts = [row["part"] for first, last in ranges for row in read.rows(first, last)]
    assert parts == sorted(range(12), key=lambda part: f"part={part}/")


def test_a_snapshot_stays_what_it_was_when_the_table_is_rewritten_meanwhile(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, max_files=3)
    start = read.begin()
    first = read.latest(start)
    table.delta.optimize.compact()
    assert ids(read.everything(start)) == [0, 1, 2, 3]
    again = reading(table, tmp_path, max_files=1)
    again.start(start)
    assert again.rows(start, first) == read.rows(start, first)


def test_spark_may_ask_for_all_there_is(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=0, max_files=1)
    assert read.latest(read.begin(), unlimited=True) == position(4)
    assert read.reader.getDefaultReadLimit() == ReadMaxFiles(1)
    unlimited = reading(table, tmp_path, starting=0, max_files=None)
    unlimited.begin()
    assert unlimited.reader.getDefaultReadLimit() == ReadAllAvailable()


def test_a_run_of_what_is_there_now_ends_although_more_comes(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=0, max_files=3)
    start = read.begin()
    read.reader.prepareForTriggerAvailableNow()
    table.append(numbered(4))
    assert [end for _, end in read.epochs(start)] == [position(3), position(4)]


def test_a_version_without_rows_is_passed(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting="latest")
    start = read.begin()
    table.commit({"txn": {"appId": "somebody", "version": 1}})
    end = read.latest(start)
    assert end == position(5)
    assert read.reader.partitions(start, end) == []


def test_nothing_new_is_no_epoch(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting="latest")
    start = read.begin()
    assert json.dumps(read.latest(start)) == json.dumps(start)


# --- versions that do not only add rows


def test_rows_that_are_only_stored_anew_do_not_come_again(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=0)
    start = read.begin()
    table.delta.optimize.compact()
    table.delta.optimize.z_order(["id"])
    assert table.version > 3
    assert ids(read.everything(start)) == [0, 1, 2, 3]


def rewrite(table: Table, how: str) -> int:
    """Remove or change rows; return the version."""
    match how:
        case "delete":
            table.delta.delete("id = 1")
        case "update":
            table.delta.update({"id": "11"}, predicate="id = 1")
        case "overwrite":
            write_deltalake(table.uri, numbered(7, 8), mode="overwrite")
        case "merge":
            source = numbered(1, 9)
            merge = table.delta.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_delete().when_not_matched_insert_all().execute()
    return table.version


@pytest.mark.parametrize("how", ["delete", "update", "overwrite", "merge"])
def test_a_version_that_removes_rows_stops_a_reader_of_added_rows(table: Table, tmp_path: Path, how: str) -> None:
    read = reading(table, tmp_path, starting=0, max_files=1)
    start = read.begin()
    version = rewrite(table, how)
    operation = "WRITE" if how == "overwrite" else how.upper()
    with pytest.raises(SourceError, match=rf"version {version} \({operation}\) removes or rewrites rows"):
        read.everything(start)


def test_such_a_version_can_be_skipped(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=0, on_rewrite="skip")
    start = read.begin()
    rewrite(table, "overwrite")
    table.append(numbered(5))
    assert ids(read.everything(start)) == [0, 1, 2, 3, 5]


def test_or_the_rows_it_adds_can_be_read(table: Table, tmp_path: Path) -> None:
    read = reading(table, tmp_path, starting=0, on_rewrite="read_added")
    start = read.begin()
    rewrite(table, "overwrite")
    table.append(numbered(5))
    assert ids(read.everything(start)) == [0, 1, 2, 3, 5, 7, 8]


# --- a table that our own sink writes


def test_the_epochs_of_a_sink_come_once_each(tmp_path: Path) -> None:
    writer = Writer(BY_NAME["delta-append"], tmp_path)
    writer.write(1, orders(1, 2))
    read = reading(Table(tmp_path / "target"), tmp_path)
    start = read.begin()
    writer.write(2, orders(3))
    assert ids(read.everything(start)) == [1, 2, 3]
    writer.rewind(1)
    with pytest.raises(SourceError, match="removes or rewrites rows"):
        read.everything(start)


# --- what the engine asks


def test_lag_is_counted_in_versions(table: Table, tmp_path: Path) -> None:
    control = reading(table, tmp_path).control
    assert control.head() == position(4)
    assert control.lag(position(1), control.head()) == Lag(3, "versions")
    table.append(numbered(4))
    assert control.head() == position(5)
    assert control.lag(position(4, snapshot=2), control.head()) == Lag(1, "versions")
    assert control.lag(position(9), control.head()) == Lag(0, "versions")


def test_acknowledging_does_nothing_to_the_table(table: Table, tmp_path: Path) -> None:
    before = sorted(table.path.rglob("*"))
    control = reading(table, tmp_path).control
    control.committed(position(4))
    control.acknowledge(position(4))
    control.close()
    assert sorted(table.path.rglob("*")) == before


# --- tasks


def planned(*sizes: int) -> list[PlannedFile]:
    return [PlannedFile(f"{number}", size, {}, 0) for number, size in enumerate(sizes)]


def test_files_are_spread_over_tasks_by_size() -> None:
    mega = 1024 * 1024
    groups = grouped(planned(8 * mega, 8 * mega, 16 * mega, 1, 1), 2)
    assert sorted(sum(file.size for file in group) for group in groups) == [16 * mega + 1, 16 * mega + 1]
    assert len(grouped(planned(*[10] * 50), 8)) == 1
    assert len(grouped(planned(*[5 * mega] * 3), 8)) == 3
    assert grouped([], 8) == []


# --- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"starting": "tomorrow"}, "starting is 'tomorrow', expected snapshot, latest, a version, or a time"),
        ({"starting": -1}, "starting is '-1', expected"),
        ({"starting": "2026-01-31T12:00:00"}, "say in which time zone, as in 2026-01-31T12:00:00Z"),
        ({"on_rewrite": "panic"}, "on_rewrite of a delta source is one of stop, skip, read_added, not 'panic'"),
        ({"on_history_lost": "panic"}, "on_history_lost of a delta source is one of stop, continue, not 'panic'"),
        ({"on_rewrite": "skip", "change_feed": True}, "on_rewrite is for append-only reading"),
        ({"max_files": 0}, "max_files of a delta source is at least 1, not 0"),
        ({"partitions": 0}, "partitions of a delta source is at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        sources.delta("table", **settings)


def test_credentials_stay_out_of_what_a_source_is() -> None:
    options = {"AWS_SECRET_ACCESS_KEY": "hunter2"}
    spec = sources.delta("s3://lake/orders", storage_options=options, max_files=7)
    assert "hunter2" not in json.dumps([spec.identity(), dict(spec.metadata)])
    assert spec.identity() == sources.delta("s3://lake/orders", max_files=8).identity()
    with pytest.raises(PipelineDefinitionError, match="has credentials in it") as caught:
        sources.delta("s3://key:hunter2@lake/orders")
    assert "hunter2" not in str(caught.value)


def test_a_manifest_shows_the_offsets_as_they_are() -> None:
    spec = sources.delta("orders")
    assert spec.read_offsets('{"version": "42", "file": "3"}') == position(42, file=3)
    assert (spec.connector, spec.replayable) == ("delta", True)


@pytest.mark.parametrize("name", ["a%20b", "feature%2Fx", "a\\b"])
def test_a_folder_that_deltalake_takes_for_another_one_is_refused(tmp_path: Path, name: str) -> None:
    """Otherwise the log of one table is read with the files of the other."""
    path = tmp_path / name / "table"
    path.mkdir(parents=True)
    with pytest.raises(PipelineDefinitionError, match="takes for another folder"):
        reading(Table(path), tmp_path).begin()
    with pytest.raises(PipelineDefinitionError, match="takes for another folder"):
        tables.delta(str(path))
