"""Whether the files of a recorded range are still there: asked before it is replayed, for Spark would not say."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import SourceHistoryLost, SourceUnavailable
from holdfast.spark.source_files import refuse_lost_files, spark_exists


def offsets(*lines: str) -> bytes:
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *lines]).encode()


def log(files: Mapping[str, int]) -> bytes:
    """Return a batch of a file source's log, as Spark writes it."""
    entries = [json.dumps({"path": url, "timestamp": 1, "batchId": batch}) for url, batch in files.items()]
    return "\n".join(["v1", *entries]).encode()


def files(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).write_text("x")
    return [(folder / name).as_uri() for name in names]


def at(number: int) -> str:
    return f'{{"logOffset":{number}}}'


def test_a_range_whose_files_are_gone_is_refused_by_their_names(tmp_path: Path) -> None:
    """Goal: no replay gives less than the epoch had. Method: remove files one after the other."""
    urls = files(tmp_path, "a.json", "b c%20.json", "d.json", "e.json", "f.json")
    parts = {
        "offsets/3": offsets(at(6)),
        "offsets/4": offsets(at(8)),
        "sources/0/7": log(dict.fromkeys(urls[:2], 7)),
        "sources/0/8.compact": log(dict.fromkeys(urls[2:], 8)),
    }
    refuse_lost_files(parts, ("in",))
    (tmp_path / "b c%20.json").unlink()
    with pytest.raises(SourceHistoryLost, match=r"1 of the 5 files that epoch 5 .*b%20c%2520\.json\. Bri"):
        refuse_lost_files(parts, ("in",))
    for name in ("a.json", "d.json", "e.json"):
        (tmp_path / name).unlink()
    with pytest.raises(SourceHistoryLost, match=r"4 of the 5 .*a\.json, .*c%2520\.json, .*d\.json, \.\.\.\. Bri"):
        refuse_lost_files(parts, ("in",))


def test_a_folder_that_became_a_file_has_no_files(tmp_path: Path) -> None:
    [url] = files(tmp_path, "gone")
    parts = {"offsets/0": offsets(at(0)), "sources/0/0": log({f"{url}/a.json": 0})}
    with pytest.raises(SourceHistoryLost, match="1 of the 1 files that epoch 1 read"):
        refuse_lost_files(parts, ("in",))


def test_files_of_other_ranges_may_be_gone(tmp_path: Path) -> None:
    """Goal: whoever tidies up what was read is not stopped. Method: the log of an old working directory."""
    [here] = files(tmp_path, "now.json")
    before, after = ((tmp_path / name).as_uri() for name in ("before.json", "after.json"))
    parts = {
        "offsets/8": offsets(at(3)),
        "offsets/9": offsets(at(4)),
        "sources/0/3": log({before: 3}),
        "sources/0/4": log({here: 4}),
        "sources/0/5": log({after: 5}),
    }
    refuse_lost_files(parts, ("in",))
    with pytest.raises(SourceHistoryLost, match="2 of the 3"):  # Nobody knows which line is whose.
        refuse_lost_files(parts, ("in", "other"))


def test_each_log_is_compared_with_the_line_of_its_source(tmp_path: Path) -> None:
    """Goal: no file is taken for one of another range. Method: one source is read twice, its lines come first."""
    lost = (tmp_path / "lost.json").as_uri()
    lines = [(at(9), at(9), at(0), '{"orders":{"0":5}}'), (at(9), at(9), at(1), '{"orders":{"0":6}}')]
    parts = {
        "offsets/1": offsets(*lines[0]),
        "offsets/2": offsets(*lines[1]),
        "sources/0/9": log({lost: 9}),
        "sources/2/0": b'\x00v1\n{"orders":{"0":5,"1":0}}',
    }
    inputs = ("twice", "twice", "once", "kafka")
    refuse_lost_files(parts, inputs)
    with pytest.raises(SourceHistoryLost, match=r"lost\.json"):
        refuse_lost_files({**parts, "sources/1/1": log({lost: 1})}, inputs)


def test_a_range_of_other_sources_has_no_files() -> None:
    refuse_lost_files({"offsets/0": offsets('{"orders":{"0":5}}'), "sources/0/0": b"v1\n1789000000000"}, ("rate",))
    refuse_lost_files({}, ())


def test_a_file_that_cannot_be_looked_for_is_not_said_to_be_gone(tmp_path: Path) -> None:
    url = (tmp_path / ("x" * 300)).as_uri()
    parts = {"offsets/0": offsets(at(0)), "sources/0/0": log({url: 0})}
    with pytest.raises(SourceUnavailable, match=r"cannot find out whether .* is there: File name too long"):
        refuse_lost_files(parts, ("in",))
    there_perhaps = {"offsets/0": offsets(at(0)), "sources/0/0": log({"s3a://bucket/a.json": 0})}
    refuse_lost_files(there_perhaps, ("in",))


def test_other_file_systems_are_asked_as_spark_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    """Method: Hadoop's view file system, which shows a local folder under a name of its own."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    settings.set("fs.viewfs.mounttable.holdfast.link./in", tmp_path.as_uri())
    [there] = files(tmp_path, "a b.json")
    seen = "viewfs://holdfast/in/a%20b.json"
    parts = {"offsets/0": offsets(at(0)), "sources/0/0": log({seen: 0, there: 0})}
    refuse_lost_files(parts, ("in",), spark_exists(spark))
    (tmp_path / "a b.json").unlink()
    with pytest.raises(SourceHistoryLost, match=r"2 of the 2 files .*viewfs://holdfast/in/a%20b\.json"):
        refuse_lost_files(parts, ("in",), spark_exists(spark))
    unknown = {"offsets/0": offsets(at(0)), "sources/0/0": log({"nowhere://x/a.json": 0})}
    with pytest.raises(SourceUnavailable, match=r"whether nowhere://x/a\.json is there"):
        refuse_lost_files(unknown, ("in",), spark_exists(spark))
