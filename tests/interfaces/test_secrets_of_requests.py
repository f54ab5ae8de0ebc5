"""What a failed checkpoint says may hold a secret: neither of the two answers that show it does."""

import threading
from pathlib import Path

import pytest

from holdfast import CheckpointManifest
from holdfast.errors import TransientStoreError
from interfaces.http_client import served, until


@pytest.mark.parametrize(
    ("page", "shown"),
    [("/checkpoint_status", "failure"), ("/api/v1/pipelines/shop/checkpoint_requests", "error")],
)
def test_the_error_of_a_failed_checkpoint_is_told_without_secrets(tmp_path: Path, page: str, shown: str) -> None:
    """Goal: no password leaves by HTTP. Method: storage that repeats one in its error, as some do."""

    def seal() -> CheckpointManifest:
        raise TransientStoreError("cannot seal at storage://app:hunter2: no answer for hunter2")

    def without_it(text: str) -> str:
        return text.replace("hunter2", "${PASSWORD}")

    with served(tmp_path / "store", start=False, redact=without_it) as shop:
        shop.pipeline.requests.serve(seal, threading.Lock())
        shop.post("/checkpoint")
        until(lambda: shop.get("/checkpoint_status")["failure"] is not None)
        answer = shop.client.get(page)
        shop.pipeline.requests.close()
        assert answer.is_success
        assert shown in answer.text
        assert "no answer for ${PASSWORD}" in answer.text
        assert "hunter2" not in answer.text
