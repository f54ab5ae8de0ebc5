"""How much memory a large sidecar takes: a process of its own is measured while it saves one.

VmHWM is the peak of the process itself; ru_maxrss would start with what its parent had.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from stores.places import BUCKET, S3_OPTIONS

MEBIBYTE = 1024 * 1024

PROGRAM = """
import json, sys, time
from holdfast import CheckpointManifest, open_store
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
url, call, count, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
store = open_store(url, options=options)
chunks = [bytes(range(256)) * 4096] * count
store.save_with_state(CheckpointManifest.new(1, 1), chunks[:16])   # warm up: threads, connections
before, start = peak(), time.monotonic()
if call == "save_with_state":
    store.save_with_state(CheckpointManifest.new(2, 2), chunks)
elif call == "save_state_data":
    store.save_state_data(2, chunks)
else:
    store.save_with_state(CheckpointManifest.new(2, 2), chunks)
    before = peak()
    assert store.validate_checkpoint(2).valid
print(json.dumps({"extra": peak() - before, "seconds": time.monotonic() - start}))
"""


def extra_bytes(url: str, call: str, mebibytes: int, options: dict[str, str] | None = None) -> int:
    """Return by how much the peak memory of a process grows while it saves that much."""
    command = [sys.executable, "-c", PROGRAM, url, call, str(mebibytes), json.dumps(options or {})]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    return int(json.loads(run.stdout)["extra"])


@pytest.mark.parametrize(("call", "mebibytes"), [("save_with_state", 1024), ("save_state_data", 256)])
def test_a_gibibyte_goes_to_disk_in_less_than_64_mebibytes(tmp_path: Path, call: str, mebibytes: int) -> None:
    assert extra_bytes(str(tmp_path), call, mebibytes) < 64 * MEBIBYTE


def test_a_large_checkpoint_is_verified_piece_by_piece(tmp_path: Path) -> None:
    assert extra_bytes(str(tmp_path), "validate", 256) < 64 * MEBIBYTE


@pytest.fixture(scope="module")
def distant_s3() -> Iterator[str]:
    """Start moto in a process of its own, so that what it holds is not counted as ours."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    with server:
        try:
            wait_for(endpoint)
            client = boto3.client(
                "s3",
                endpoint_url=endpoint,
                region_name="us-east-1",
                aws_access_key_id="testing",
                aws_secret_access_key="testing",
            )
            client.create_bucket(Bucket=BUCKET)
            yield endpoint
        finally:
            server.kill()


def wait_for(endpoint: str) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(f"{endpoint}/moto-api/"):
                return
        except OSError:
            assert time.monotonic() < deadline, "moto did not start"
            time.sleep(0.05)


@pytest.mark.parametrize("call", ["save_with_state", "save_state_data"])
def test_what_a_bucket_takes_is_bounded_by_the_size_of_its_parts(distant_s3: str, call: str) -> None:
    options = {**S3_OPTIONS, "endpoint": distant_s3, "allow_http": "true"}
    mebibytes = 256 if call == "save_with_state" else 176
    assert extra_bytes(f"s3://{BUCKET}/{call}", call, mebibytes, options) < 150 * MEBIBYTE
