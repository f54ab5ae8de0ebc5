"""Goal: the section `sync` of a pipeline file says the same as `SyncSettings`, and what cannot work is refused."""

from pathlib import Path

import pytest

from holdfast import PipelineDefinitionError, SyncSettings
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file

PIPELINE = """
name: orders
store: ./store
guarantee: at-least-once
sources:
  orders: {rate: {rows_per_second: 1}}
sinks:
  out: {takes: orders, SINK}
sync:
"""
LAKE = "delta: {path: ./lake}"


def read(tmp_path: Path, *lines: str, sink: str = LAKE) -> PipelineFile:
    path = tmp_path / "orders.yaml"
    path.write_text(PIPELINE.replace("SINK", sink) + "".join(f"  {line}\n" for line in lines))
    return read_pipeline_file(str(path), {"SECRET": "hunter2"})


def test_every_setting_is_read(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        "bucket: s3://backups/orders",
        "start_from_checkpoint: 0196a6b0-0000-7000-8000-000000000005",
        "fail_if_no_checkpoint: true",
        "push_interval: 30 seconds",
        "pull_interval: 5 seconds",
        "standby: true",
        "read_bucket: gs://seed/orders",
        "retention_min_count: 3",
        "retention_min_age: 7 days",
        "storage_options: {region: eu-central-1, secret_access_key: '${SECRET}'}",
    )
    assert file.settings["sync"] == SyncSettings(
        "s3://backups/orders",
        start_from_checkpoint="0196a6b0-0000-7000-8000-000000000005",
        fail_if_no_checkpoint=True,
        push_interval="30 seconds",
        pull_interval="5 seconds",
        standby=True,
        read_bucket="gs://seed/orders",
        retention_min_count=3,
        retention_min_age="7 days",
        storage_options={"region": "eu-central-1", "secret_access_key": "hunter2"},
    )
    assert "hunter2" not in repr(file.settings["sync"])


def test_what_is_left_out_is_left_to_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "bucket: s3://b/p", "push_interval: never").settings["sync"] == SyncSettings(
        "s3://b/p", push_interval="never"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bucket: s3:/b", "expected a URL"),
        ("push_interval: sometimes", "a length of time such as '10 seconds', or never"),
        ("pull_interval: never", "a length of time"),
        ("retention_min_count: 0", "1 or more"),
        ("standby: maybe", "true or false"),
        ("start_from_checkpoint: newest", "expected 'latest' or the uuid"),
        ("push_intervall: 1 minute", "push_interval"),
    ],
)
def test_what_makes_no_sense_is_refused_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    lines = [line] if line.startswith("bucket") else ["bucket: s3://b/p", line]
    with pytest.raises(PipelineDefinitionError, match=message) as caught:
        read(tmp_path, *lines)
    assert "orders.yaml:" in str(caught.value)


@pytest.mark.parametrize("sink", ["console: {}", "memory: {}", "python: functions.py:write"])
def test_a_sink_that_would_let_two_machines_write_is_refused_for_a_standby(tmp_path: Path, sink: str) -> None:
    (tmp_path / "functions.py").write_text("def write(rows, key):\n    pass\n")
    assert read(tmp_path, "bucket: s3://b/p", sink=sink).settings["sync"].standby is False
    with pytest.raises(PipelineDefinitionError, match=r"sink 'out' cannot be used with 'standby'.*was replaced"):
        read(tmp_path, "bucket: s3://b/p", "standby: true", sink=sink)
