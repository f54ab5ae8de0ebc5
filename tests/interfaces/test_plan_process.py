"""`holdfast plan` as a process with a real Spark: it says what the run then does, and leaves every file as it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from interfaces.test_cli_process import in_a_pipe
from interfaces.test_run_process import pipeline, put, rows
from spark.files import everything_in

__all__ = ["pipeline"]


def planned(file: Path, *said: object) -> Any:
    """Return how a plan ended; nothing may have changed meanwhile."""
    before = everything_in(file.parent)
    ran = in_a_pipe("plan", file, *said)
    assert everything_in(file.parent) == before
    return ran


@pytest.mark.long
def test_a_plan_says_what_the_run_then_does(pipeline: Path) -> None:
    folder = pipeline.parent
    pipeline.write_text(pipeline.read_text().replace("path: ./in,", "path: ./in, max_files: 1,"))
    put(folder, "1.json", 1, 2)
    put(folder, "2.json", 3)
    first = planned(pipeline)
    assert (first.returncode, first.stderr) == (0, "")
    lines = first.stdout.splitlines()
    assert [line.split(" ", 1)[1] for line in lines[:2]] == ["starting Spark", "asking sinks and sources"]
    assert lines[2] == f"a start would begin afresh and make the store, {folder}/store, which is not there yet"
    assert sorted(path.name for path in folder.iterdir()) == ["in", "orders.yaml"]
    assert in_a_pipe("run", pipeline, "--once").returncode == 0

    refused = planned(pipeline, "--from", "2")
    assert (refused.returncode, refused.stderr.count("\n")) == (7, 1)
    assert "sink 'db' shows epoch 2, " in refused.stderr
    assert "this sink cannot be rewound" in refused.stderr
    ran = in_a_pipe("run", pipeline, "--from", "2", "--once")
    assert (ran.returncode, ran.stderr) == (7, refused.stderr)

    document = json.loads(planned(pipeline, "--json").stdout)
    assert (document["chosen_id"], document["epoch"], document["fence_id"]) == (3, 2, 4)
    assert {sink["name"]: sink["what"] for sink in document["sinks"]} == {
        "copy": "shows epoch 2; has everything",
        "db": "shows epoch 2; has everything",
    }
    assert rows(folder, "SELECT id FROM seen ORDER BY id") == [(1,), (2,), (3,)]
