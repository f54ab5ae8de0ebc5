"""No lock-in: any checkpoint as a plain Spark checkpoint directory."""

import os
import shutil

from holdfast.core.manifest import CheckpointManifest
from holdfast.errors import InvalidRequest
from holdfast.spark.log_segments import LOG
from holdfast.spark.workdir import WorkingDirectory, check_parts, restore
from holdfast.stores.store import DurableCheckpointStore


def export_spark(store: DurableCheckpointStore, manifest: CheckpointManifest, target: str) -> WorkingDirectory:
    """Write a checkpointLocation from which plain Spark goes on after the checkpoint's epoch.

    The directory must not exist. The query must be the same one: one query with the outputs of the pipeline.
    """
    if os.path.exists(target):
        raise InvalidRequest(f"{target} exists already; a Spark checkpoint is only written to a new directory")
    if manifest.sidecar is None or manifest.epoch == 0:
        raise InvalidRequest(f"checkpoint {manifest.checkpoint_id} holds nothing that Spark could go on from")
    reader = store.state_reader
    parts = dict(reader.progress(manifest.sidecar).parts)
    check_parts(parts, manifest.epoch - 1)
    os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
    directory = restore(os.path.abspath(target), parts, reader.catalog(manifest).files, reader)
    shutil.rmtree(os.path.join(directory.path, LOG), ignore_errors=True)  # Spark's own log was made of it.
    return directory
