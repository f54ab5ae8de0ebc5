"""Pipelines beside one another, on one machine and in one process: nothing of one is the other's."""

import os
from pathlib import Path

from pyspark.sql import SparkSession

from spark.orders import contents, write_orders
from spark.pipelines import windows
from spark.test_running import Labs, Undisturbed, wait_for_epochs


def test_staging_beside_prod_leaves_the_directory_of_prod_alone(
    lab: Labs, undisturbed: Undisturbed, tmp_path: Path, spark: SparkSession
) -> None:
    """Goal: a pipeline of the same name with the same work_dir, on another store, disturbs nobody."""
    prod, staging = lab("windows"), tmp_path / "staging"
    prod.add(0, 2)
    write_orders(staging, 0, 3)
    handle = prod.pipeline().start()
    wait_for_epochs(handle, 2)
    windows(staging, spark=spark, work_dir=prod.base / "work").run(once=True)
    prod.add(2, 4)
    wait_for_epochs(handle, 4)
    handle.stop()
    assert prod.run()
    assert prod.contents() == undisturbed("windows", 4)
    assert contents(staging) == undisturbed("windows", 3)


def test_a_range_of_before_is_found_where_all_pipelines_were(lab: Labs, undisturbed: Undisturbed) -> None:
    """Older versions put generations into `work_dir` itself, whosever they were: ours is known by its query id."""
    here = lab("fan_out")
    here.add(0, 3)
    assert here.run()
    newest = here.checkpoints[-1]
    for name, position in (("manifest.json", 300), ("state.bin", 100)):
        data = bytearray((newest / name).read_bytes())
        data[position] ^= 1
        (newest / name).write_bytes(data)
    here.newest_work.rename(here.base / "work" / "1")
    foreign = here.base / "work" / "7"
    (foreign / "offsets").mkdir(parents=True)
    (foreign / "metadata").write_text('{"id":"another"}')
    for batch in range(3):
        (foreign / "offsets" / str(batch)).write_text("v1\n{}\n{}")
    assert here.run()
    assert here.last_report["replays"] == [{"epoch": 3, "found_in": "the old working directory"}]
    assert here.contents() == undisturbed("fan_out", 3)
    assert sorted(name for name in os.listdir(here.base / "work") if name.isdigit()) == ["1", "7"]
