"""Everything the published client can do with checkpoints, against a server; run by a Python that has the client.

    python published_client_session.py URL TOKEN PIPELINE

Nothing of the client is changed or patched. It prints what it saw, as one JSON document.
"""

import json
import sys
import time
import urllib.request
from typing import Any

from feldera import FelderaClient, Pipeline
from feldera.enums import BootstrapPolicy, CheckpointStatus, PipelineStatus, StorageStatus

PATIENCE = 300.0


def main(url: str, token: str, name: str) -> dict[str, Any]:
    client = FelderaClient(url, api_key=token)
    pipeline = Pipeline.get(name, client)
    assert pipeline.status() == PipelineStatus.STOPPED
    assert pipeline.storage_status() == StorageStatus.CLEARED
    seen: dict[str, Any] = {"pipelines": [each.name for each in Pipeline.all(client)]}

    pipeline.start(timeout_s=PATIENCE)
    assert pipeline.status() == PipelineStatus.RUNNING
    wait_for_records(pipeline)
    seen["checkpoints"] = checkpoints_of(pipeline)
    seen["stats"] = {
        "state": pipeline.stats().global_metrics.state.name,
        "records": pipeline.stats().global_metrics.total_processed_records,
        "activity": client.get_pipeline_stats(name)["checkpoint_activity"]["status"],
    }
    assert "holdfast_" in pipeline.metrics()

    pipeline.pause(timeout_s=PATIENCE)
    assert pipeline.status() == PipelineStatus.PAUSED
    seen["checkpoint while paused"] = pipeline.checkpoint(wait=True, timeout_s=PATIENCE)
    pipeline.resume(timeout_s=PATIENCE)
    assert pipeline.status() == PipelineStatus.RUNNING

    seen["synced"] = copies_of(pipeline)

    pipeline.stop(force=False, timeout_s=PATIENCE)
    assert pipeline.status() == PipelineStatus.STOPPED
    assert not pipeline.deployment_error()
    seen["listed when stopped"] = len(pipeline.checkpoints())

    pipeline.start_paused(bootstrap_policy=BootstrapPolicy.AWAIT_APPROVAL, timeout_s=PATIENCE)
    assert pipeline.status() == PipelineStatus.PAUSED
    pipeline.resume(timeout_s=PATIENCE)
    pipeline.stop(force=True, timeout_s=PATIENCE)
    assert pipeline.status() == PipelineStatus.STOPPED

    pipeline.restart(timeout_s=PATIENCE)
    seen["after a restart"] = pipeline.checkpoint(wait=True, timeout_s=PATIENCE)
    pipeline.stop(force=False, timeout_s=PATIENCE)
    seen["log"] = first_lines(url, token, name)

    pipeline.clear_storage(timeout_s=PATIENCE)
    assert pipeline.storage_status() == StorageStatus.CLEARED
    assert pipeline.checkpoints() == []
    return seen


def wait_for_records(pipeline: Pipeline) -> None:
    """Wait for the first epoch: before it there is nothing that a checkpoint could hold."""
    deadline = time.monotonic() + PATIENCE
    while not pipeline.stats().global_metrics.total_processed_records:
        assert time.monotonic() < deadline, "no epoch was completed"
        time.sleep(0.2)


def checkpoints_of(pipeline: Pipeline) -> dict[str, Any]:
    """Ask for checkpoints, wait for them, and list what there is."""
    first = pipeline.checkpoint(wait=True, timeout_s=PATIENCE)
    asked = pipeline.checkpoint_response(wait=True, timeout_s=PATIENCE)
    number, incarnation = asked["checkpoint_sequence_number"], asked["incarnation_uuid"]
    assert pipeline.checkpoint_status(number, incarnation) == CheckpointStatus.Success
    listed = pipeline.checkpoints()
    assert [each.uuid for each in listed] == sorted(each.uuid for each in listed)
    assert all(each.fingerprint == listed[0].fingerprint for each in listed)
    details = pipeline.storage_status_details()["checkpoints"]
    assert [each["uuid"] for each in details][-1] == str(listed[-1].uuid)
    return {"numbers": [first, number], "records": listed[-1].processed_records}


def copies_of(pipeline: Pipeline) -> bool:
    """Have the newest checkpoint copied to the bucket, and find it there."""
    uuid = pipeline.sync_checkpoint(wait=True, timeout_s=PATIENCE)
    assert pipeline.sync_checkpoint_status(uuid) == CheckpointStatus.Success
    assert str(pipeline.last_successful_checkpoint_sync()) >= uuid
    return uuid in [each["uuid"] for each in pipeline.remote_checkpoints()]


def first_lines(url: str, token: str, name: str) -> str:
    address = f"{url}/api/v1/pipelines/{name}/logs?lines=5"
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        text: str = answer.read().decode()
        return text


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
