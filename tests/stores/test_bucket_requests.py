"""What is asked of object storage: a condition goes with one request, and what may be large goes in parts."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from holdfast import CheckpointStoreError
from holdfast.stores.objects import Bucket
from holdfast.stores.urls import open_bucket
from stores.places import BUCKET, S3_OPTIONS

LARGE = bytes(6 * 1024 * 1024)
"""More than obstore would send at once by itself."""
Asked = list[tuple[str, str, str | None, str | None]]


@pytest.fixture
def asked() -> Asked:
    """Return the requests so far: method, path, and the two conditions."""
    return []


@pytest.fixture
def bucket(asked: Asked) -> Iterator[Bucket]:
    """Return a bucket on a server that refuses everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _refuse(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            conditions = self.headers.get("if-none-match"), self.headers.get("if-match")
            asked.append((self.command, self.path.rstrip("="), *conditions))
            self.send_response(403)
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _refuse

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        options = {**S3_OPTIONS, "endpoint": f"http://127.0.0.1:{server.server_port}", "allow_http": "true"}
        yield open_bucket(f"s3://{BUCKET}", options)[0]
        server.shutdown()
        thread.join()


def test_a_create_is_one_request_on_the_condition_that_nothing_is_there(bucket: Bucket, asked: Asked) -> None:
    with pytest.raises(CheckpointStoreError):
        bucket.create("a", LARGE)
    assert asked[:1] == [("PUT", f"/{BUCKET}/a", "*", None)]


def test_a_replacement_is_one_request_on_the_condition_that_nothing_changed(bucket: Bucket, asked: Asked) -> None:
    with pytest.raises(CheckpointStoreError):
        bucket.replace("a", LARGE, '"version"')
    assert asked[:1] == [("PUT", f"/{BUCKET}/a", None, '"version"')]


def test_an_upload_goes_in_parts(bucket: Bucket, asked: Asked) -> None:
    with pytest.raises(CheckpointStoreError):
        bucket.upload("a", iter([b"1"]))
    assert asked[:1] == [("POST", f"/{BUCKET}/a?uploads", None, None)]
