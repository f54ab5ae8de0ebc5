"""Holdfast: checkpoints you can trust, and exactly-once delivery into several sinks, for Spark through PySpark."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.dependencies import CheckpointDependencies, CheckpointDependenciesWrite, PSpineBatches
from holdfast.core.entries import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast.core.manifest import DEFAULT_VNODE_COUNT, CheckpointManifest, ManifestValidationError
from holdfast.core.snapshot_codec import CheckpointId, CheckpointState
from holdfast.core.snapshots import CheckpointManager, InMemoryCheckpointStore
from holdfast.core.status import (
    BootstrapPolicy,
    CheckpointActivity,
    CheckpointDelayed,
    CheckpointFailure,
    CheckpointIdle,
    CheckpointInProgress,
    CheckpointMetadata,
    CheckpointResponse,
    CheckpointStatus,
    CheckpointSyncFailure,
    CheckpointSyncMetrics,
    CheckpointSyncResponse,
    CheckpointSyncStatus,
    DeploymentStatus,
    PermanentSuspendError,
    RemoteCheckpoint,
    RuntimeDesiredStatus,
    RuntimeStatus,
    SuspendError,
    TemporarySuspendError,
)
from holdfast.core.validation import IntegrityFailure, ManifestWarning, RecoveryReport, ValidationResult
from holdfast.engine.sync.settings import SyncSettings
from holdfast.errors import (
    ApprovalNeeded,
    CheckpointNotFound,
    CheckpointStoreError,
    CorruptCheckpoint,
    DeserializationError,
    Fenced,
    ForeignTimeline,
    HoldfastError,
    InvalidRequest,
    ManifestConflict,
    ManifestFormatError,
    MissingExtra,
    NoValidCheckpoint,
    PipelineDefinitionError,
    PipelineError,
    ReplayMismatch,
    RetryableSinkError,
    SinkBehind,
    SinkError,
    StoreConfigurationError,
    StreamingError,
    TransientStoreError,
    UnknownOutcome,
    UnsupportedStore,
    UnsupportedVersion,
)
from holdfast.stores.protocol import CheckpointStore
from holdfast.stores.urls import open_store

if TYPE_CHECKING:
    from holdfast import sinks, sources, tables
    from holdfast.interfaces.http.serving import serve
    from holdfast.spark.pipeline import Handle, Pipeline

__version__ = "0.1.0"

__all__ = [
    "ApprovalNeeded",
    "BootstrapPolicy",
    "CheckpointActivity",
    "CheckpointDelayed",
    "CheckpointDependencies",
    "CheckpointDependenciesWrite",
    "CheckpointFailure",
    "CheckpointId",
    "CheckpointIdle",
    "CheckpointInProgress",
    "CheckpointManager",
    "CheckpointManifest",
    "CheckpointMetadata",
    "CheckpointNotFound",
    "CheckpointResponse",
    "CheckpointState",
    "CheckpointStatus",
    "CheckpointStore",
    "CheckpointStoreError",
    "CheckpointSyncFailure",
    "CheckpointSyncMetrics",
    "CheckpointSyncResponse",
    "CheckpointSyncStatus",
    "ConnectorCheckpoint",
    "CorruptCheckpoint",
    "DEFAULT_VNODE_COUNT",
    "DeploymentStatus",
    "DeserializationError",
    "Fenced",
    "ForeignTimeline",
    "Handle",
    "HoldfastError",
    "InMemoryCheckpointStore",
    "IntegrityFailure",
    "InvalidRequest",
    "ManifestConflict",
    "ManifestFormatError",
    "ManifestValidationError",
    "ManifestWarning",
    "MissingExtra",
    "NoValidCheckpoint",
    "OperatorCheckpoint",
    "PSpineBatches",
    "PermanentSuspendError",
    "Pipeline",
    "PipelineDefinitionError",
    "PipelineError",
    "RecoveryReport",
    "RemoteCheckpoint",
    "ReplayMismatch",
    "RetryableSinkError",
    "RuntimeDesiredStatus",
    "RuntimeStatus",
    "SinkBehind",
    "SinkCommitStatus",
    "SinkError",
    "StoreConfigurationError",
    "StreamingError",
    "SuspendError",
    "SyncSettings",
    "TemporarySuspendError",
    "TransientStoreError",
    "UnknownOutcome",
    "UnsupportedStore",
    "UnsupportedVersion",
    "ValidationResult",
    "__version__",
    "open_store",
    "serve",
    "sinks",
    "sources",
    "tables",
]

_CONNECTORS = ("sinks", "sources", "tables")
_LATE = {
    "Handle": "holdfast.spark.pipeline",
    "Pipeline": "holdfast.spark.pipeline",
    "serve": "holdfast.interfaces.http.serving",
}


def __getattr__(name: str) -> Any:
    """Load what needs pyspark or a web framework when it is asked for: looking at a checkpoint works without.

    Connectors need neither, but take as long to load as all the rest.
    """
    if name in _CONNECTORS:
        return import_module(f"holdfast.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'holdfast' has no attribute '{name}'")
    try:
        return getattr(import_module(_LATE[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "pyarrow"):
            raise
        raise MissingExtra(f"holdfast.{name} runs Spark: pip install 'holdfast[spark]'") from error
