"""Goal: a person copies checkpoints and sees how things stand, without Spark and without a running pipeline."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.worlds import PARTITIONS
from holdfast.engine.fencing import take_over
from holdfast.interfaces.cli import app
from holdfast.stores.urls import open_store
from sync.chains import chain_in

PIPELINE = """
name: orders
store: ./store
sources:
  orders: {rate: {rows_per_second: 1}}
views:
  all: SELECT * FROM orders
sinks:
  lake: {takes: all, delta: {path: ./lake}}
sync:
  bucket: BUCKET
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a folder with a pipeline file, a store of three checkpoints, and an empty bucket."""
    bucket = f"file://{tmp_path}/bucket"
    (tmp_path / "orders.yaml").write_text(PIPELINE.replace("BUCKET", bucket))
    seal_epochs(tmp_path / "store", 3)
    return tmp_path


def seal_epochs(path: Path, count: int) -> None:
    """Seal epochs in a store, each on top of the one before."""
    seal = chain_in(open_store(path, retain=None, vnode_count=PARTITIONS), base_bytes=4000, epoch_bytes=500)
    for _ in range(count):
        seal()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def answer(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


def test_a_push_says_what_it_moved_and_the_next_one_that_nothing_was_missing(base: Path) -> None:
    file = str(base / "orders.yaml")
    first = run("sync", "push", file)
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith(f"pushed checkpoint 4 (epoch 3) to {base}/bucket: ")
    again = run("sync", "push", file)
    assert again.stdout == f"pushed checkpoint 4 (epoch 3) to {base}/bucket: everything was there\n"
    assert run("list", str(base / "bucket")).exit_code == 0


def test_the_json_of_a_push_counts_objects_and_bytes(base: Path) -> None:
    receipt = answer("sync", "push", str(base / "orders.yaml"))
    assert (receipt["checkpoint_id"], receipt["epoch"]) == (4, 3)
    assert receipt["objects"] == 4
    assert receipt["bytes"] > 5000
    assert receipt["bucket"] == f"{base}/bucket"


def test_a_pull_brings_a_lost_store_back(base: Path) -> None:
    file = str(base / "orders.yaml")
    uuid = answer("sync", "push", file)["uuid"]
    shutil.rmtree(base / "store")
    pulled = answer("sync", "pull", file)
    assert (pulled["checkpoint_id"], pulled["uuid"]) == (4, uuid)
    assert run("verify", str(base / "store"), "4").exit_code == 0
    assert run("sync", "pull", file).stdout.endswith("everything was there\n")


def test_one_checkpoint_can_be_named(base: Path) -> None:
    file = str(base / "orders.yaml")
    first = answer("sync", "push", file)
    shutil.rmtree(base / "store")
    assert answer("sync", "pull", file, "--checkpoint", first["uuid"])["checkpoint_id"] == first["checkpoint_id"]
    missing = run("sync", "pull", file, "--checkpoint", "0196a6b0-0000-7000-8000-000000000005")
    assert (missing.exit_code, "not found" in missing.stderr) == (2, True)
    assert run("sync", "pull", file, "--checkpoint", "4").exit_code == 2


def test_a_store_and_a_bucket_will_do(base: Path) -> None:
    bucket = f"file://{base}/elsewhere"
    assert run("sync", "push", str(base / "store"), "--bucket", bucket).exit_code == 0
    refused = run("sync", "push", str(base / "store"))
    assert (refused.exit_code, "--bucket" in refused.stderr) == (2, True)


def test_the_status_says_whether_the_copies_are_in_order(base: Path) -> None:
    file = str(base / "orders.yaml")
    before = run("sync", "status", file)
    assert before.exit_code == 1
    assert "nothing was ever copied there" in before.stdout
    run("sync", "push", file)
    after = run("sync", "status", file)
    assert after.exit_code == 0, after.stdout
    assert after.stdout.startswith("are the copies in order: yes\n")
    report = answer("sync", "status", file)
    assert (report["standing"], report["in_order"]) == ("ours", True)
    assert report["local"]["checkpoint_id"] == report["remote"]["checkpoint_id"] == 4
    assert report["owner"].startswith("generation 1 of pipeline 'orders' on ")


def test_the_status_writes_nothing(base: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in base.rglob("*")}
    run("sync", "status", str(base / "orders.yaml"))
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*")} == before


def test_a_store_that_was_replaced_is_refused_with_the_code_of_a_fence(base: Path) -> None:
    file = str(base / "orders.yaml")
    run("sync", "push", file)
    shutil.copytree(base / "store", base / "other")
    other = open_store(base / "other", retain=None, vnode_count=PARTITIONS)
    take_over(other)
    (base / "other" / "sync.json").unlink()
    (base / "other.yaml").write_text((base / "orders.yaml").read_text().replace("./store", "./other"))
    assert run("sync", "push", str(base / "other.yaml")).exit_code == 0
    take_over(open_store(base / "store", retain=None, vnode_count=PARTITIONS), fresh=False)
    refused = run("sync", "push", file)
    assert refused.exit_code in (2, 5), refused.output


def test_a_bucket_of_another_pipeline_is_refused(base: Path) -> None:
    run("sync", "push", str(base / "orders.yaml"))
    seal_epochs(base / "stranger", 2)
    refused = run("sync", "push", str(base / "stranger"), "--bucket", f"file://{base}/bucket")
    assert refused.exit_code == 2
    assert "belongs to pipeline 'orders'" in refused.stderr


def test_a_file_without_a_bucket_says_so(base: Path) -> None:
    text = (base / "orders.yaml").read_text().split("sync:")[0]
    (base / "plain.yaml").write_text(text)
    refused = run("sync", "status", str(base / "plain.yaml"))
    assert refused.exit_code == 2
    assert "has no section 'sync'" in refused.stderr
