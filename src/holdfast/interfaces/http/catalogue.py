"""Checkpoints and pipelines in the form of the checkpoint API."""

from datetime import datetime
from typing import Any

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.status import CheckpointMetadata, DeploymentStatus
from holdfast.interfaces.control import PipelineDescription
from holdfast.interfaces.inspection import own_bytes
from holdfast.interfaces.service import CheckpointService


def checkpoint_metadata(service: CheckpointService) -> list[CheckpointMetadata]:
    """Return what a start could go on from, oldest first. What has no UUID another system wrote; it is left out."""
    sizes = service.store.sidecars()
    return [_metadata(manifest, own_bytes(manifest, sizes)) for manifest in service.restorable() if manifest.uuid]


class Catalogue:
    """What can be restored, by name, looked at again when other ids are there: clients ask ten times a second."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[list[int], list[CheckpointMetadata]]] = {}

    def of(self, name: str, service: CheckpointService) -> list[CheckpointMetadata]:
        """Return the checkpoints of a store, as they were when one of them was new."""
        ids, known = service.store.list_ids(), self._known.get(name)
        if known is None or known[0] != ids:
            self._known[name] = known = (ids, checkpoint_metadata(service))
        return known[1]


def _metadata(manifest: CheckpointManifest, size: int) -> CheckpointMetadata:
    assert manifest.uuid is not None
    return CheckpointMetadata(
        uuid=manifest.uuid,
        identifier=manifest.identifier,
        fingerprint=manifest.fingerprint or manifest.pipeline_hash or 0,
        size=size,
        steps=manifest.steps,
        processed_records=manifest.processed_records,
    )


def pipeline_object(description: PipelineDescription, checkpoints: list[CheckpointMetadata] | None) -> dict[str, Any]:
    """Return a pipeline as the client reads it; `checkpoints` None means that the store cannot be looked at."""
    since = _text(description.status_since)
    runtime = None if description.runtime_status is None else description.runtime_status.value
    stored = None if checkpoints is None else [each.model_dump(mode="json") for each in checkpoints]
    return {
        "id": str(description.id),
        "name": description.name,
        "description": "",
        "created_at": _text(description.created_at),
        "version": 1,
        "platform_version": "holdfast",
        "runtime_config": dict(description.runtime_config),
        "program_code": description.program_code,
        "udf_rust": "",
        "udf_toml": "",
        "program_config": {},
        "program_version": 1,
        "program_status": "Success",
        "program_status_since": _text(description.created_at),
        "program_error": None,
        "program_info": None,
        "storage_status": description.storage_status,
        "storage_status_details": None if stored is None else {"checkpoints": stored},
        "deployment_id": None if description.incarnation_uuid is None else str(description.incarnation_uuid),
        "deployment_status": description.status.value,
        "deployment_status_since": since,
        "deployment_desired_status": description.desired_status.value,
        "deployment_desired_status_since": since,
        "deployment_error": None if description.error is None else dict(description.error),
        "deployment_runtime_status": runtime,
        "deployment_runtime_status_since": None if runtime is None else since,
        "deployment_runtime_status_details": dict(description.runtime_status_details or {}),
        "deployment_runtime_desired_status": description.desired_status.value if runtime else None,
        "deployment_resources_status": _resources(description.status),
        "deployment_resources_desired_status": _resources(description.desired_status),
        "deployment_config": None,
        "deployment_location": None,
        "bootstrap_policy": None,
    }


def _resources(status: DeploymentStatus) -> str:
    """Return what a status means for the process alone."""
    without_process = (DeploymentStatus.STOPPED, DeploymentStatus.PROVISIONING, DeploymentStatus.STOPPING)
    return status.value if status in without_process else "Provisioned"


def _text(moment: datetime) -> str:
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
