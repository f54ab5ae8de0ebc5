"""Goal: machines are lost with their disks, and whoever goes on from the bucket shows every row once.

The sinks are those whose targets cannot keep rows unseen: what waits for them must not be on the lost disk only.
"""

import json
import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from connectors.kafka_server import Broker
from marks import long
from spark.orders import ROWS_PER_FILE, write_orders
from stores.places import BUCKET, S3_OPTIONS

FILES = 5


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "moments",
    [
        "2:after:seal 4:after:commit:topic",
        *long(
            "1:after:prepare 2:before:commit:topic 3:after:commit:user 4:before:record 5:committed",
            "1:after:seal 0:before:recovery.settle 0:after:recovery.settle 3:after:seal",
        ),
    ],
)
def test_every_row_is_shown_once_though_each_machine_is_lost(
    tmp_path: Path, kafka: Broker, s3_endpoint: str, moments: str
) -> None:
    write_orders(tmp_path, 0, FILES)
    with (tmp_path / "in" / "0002.json").open("a") as larger:
        larger.writelines(json.dumps({"id": -1 - id, "customer": "many"}) + "\n" for id in range(20_000))
    topic, store = f"found-{uuid.uuid4().hex}", f"s3://{BUCKET}/lost/{uuid.uuid4().hex}"
    for number, moment in enumerate([*moments.split(), "never"]):
        run_on(tmp_path / f"machine{number}", tmp_path, store, kafka, topic, moment, s3_endpoint)
    expected = [*range(-20_000, 0), *range(FILES * ROWS_PER_FILE)]
    assert sorted(json.loads(record.value or b"null")["id"] for record in kafka.consume(topic)) == expected
    with closing(sqlite3.connect(tmp_path / "found.db")) as database:
        assert sorted(id for (id,) in database.execute("SELECT id FROM found")) == expected


def run_on(disk: Path, base: Path, store: str, kafka: Broker, topic: str, moment: str, s3_endpoint: str) -> None:
    """Run a process on an empty disk until it kills itself at `moment`, or to the end with `never`."""
    disk.mkdir()
    storage = {f"AWS_{key.upper()}": value for key, value in S3_OPTIONS.items()}
    environment = {
        **os.environ,
        **storage,
        "AWS_ENDPOINT": s3_endpoint,
        "AWS_ALLOW_HTTP": "true",
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }
    command = [sys.executable, "-m", "spark.lost_machine", str(base), store, kafka.bootstrap, topic, moment]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=disk, timeout=300)
    expected = 0 if moment == "never" else -9
    assert done.returncode == expected, f"{moment}: exit {done.returncode}\n{done.stdout}\n{done.stderr[-5000:]}"
