"""A checkpoint as a plain Spark checkpoint directory."""

import os

from holdfast.interfaces import late
from holdfast.interfaces.run_reports import SparkExportReceipt
from holdfast.interfaces.service import CheckpointService


def export_to_spark(service: CheckpointService, reference: str, directory: str) -> SparkExportReceipt:
    """Write a checkpoint as a plain Spark checkpoint directory."""
    manifest = service.manifest(reference)
    written = late.spark("export").export_spark(service.store, manifest, directory)
    sizes = [os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(written.path) for name in names]
    return SparkExportReceipt(
        service.store.describe(), manifest.checkpoint_id, manifest.epoch, written.path, len(sizes), sum(sizes)
    )
