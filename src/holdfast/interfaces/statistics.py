"""A run in the form of `GET stats`. What nobody counts is null, never a guess."""

from collections.abc import Mapping
from typing import Any

from holdfast.core.manifest import CheckpointManifest
from holdfast.core.status import DeploymentStatus
from holdfast.engine.events import SourceProgress
from holdfast.interfaces.progress import SinkProgress, Snapshot


def pipeline_statistics(
    status: DeploymentStatus,
    run: Snapshot,
    newest: CheckpointManifest | None,
    sources: Mapping[str, SourceProgress],
) -> dict[str, Any]:
    """Return what the run counts; `newest` is its newest checkpoint, `sources` what was last heard of each."""
    names = sorted({*sources, *(newest.source_names if newest else ())})
    sinks = sorted({*run.sinks, *(newest.sink_names if newest else ())})
    paused = status is DeploymentStatus.PAUSED
    return {
        "global_metrics": _of_the_whole(status, run, newest),
        "inputs": [_input(name, sources.get(name), paused=paused) for name in names],
        "outputs": [_output(name, run.sinks.get(name, SinkProgress()), run.epoch) for name in sinks],
    }


def _of_the_whole(status: DeploymentStatus, run: Snapshot, newest: CheckpointManifest | None) -> dict[str, Any]:
    records = (newest.processed_records or 0) if newest else 0
    steps = (newest.steps or 0) if newest else 0
    return {
        "state": status.value,
        "bootstrap_in_progress": False,
        "transaction_status": "NoTransaction",
        "transaction_id": 0,
        "uptime_msecs": round(run.uptime_seconds * 1000),
        "storage_bytes": run.last.total_bytes if run.last else None,
        "total_input_records": records,
        "total_processed_records": records,
        "total_completed_records": records,
        "total_initiated_steps": steps + (1 if _epoch_runs(run) else 0),
        "total_completed_steps": steps,
        "pipeline_complete": False,
        "epoch": run.epoch,
        "epoch_step": run.step,
        "rows_per_second": round(run.rows_per_second, 3),
        "checkpoint_age_seconds": run.checkpoint_age_seconds,
        "watermark_lag_seconds": run.watermark_lag_seconds,
    }


def _epoch_runs(run: Snapshot) -> bool:
    return run.step is not None and not run.step.startswith("recovery.")


def _input(name: str, heard: SourceProgress | None, *, paused: bool) -> dict[str, Any]:
    return {
        "endpoint_name": name,
        "config": {},
        "metrics": {
            "total_records": None,
            "end_of_input": False,
            "lag": heard.lag if heard else None,
            "lag_unit": heard.unit if heard else None,
            "held_back": heard.held_back if heard else None,
        },
        "fatal_error": None,
        "paused": paused,
        "barrier": False,
    }


def _output(name: str, sink: SinkProgress, epoch: int) -> dict[str, Any]:
    healthy = sink.trouble is None
    return {
        "endpoint_name": name,
        "config": {},
        "metrics": {
            "transmitted_records": sink.rows,
            "total_processed_steps": epoch,
            "prepare_seconds": sink.prepare_seconds,
            "commit_seconds": sink.commit_seconds,
        },
        "fatal_error": None,
        "health": {"status": "Healthy" if healthy else "Unhealthy", "description": sink.trouble},
    }
