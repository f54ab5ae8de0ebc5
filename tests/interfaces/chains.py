"""What the command line tests look at: stores with an incremental chain, as a pipeline would write them."""

import hashlib
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from holdfast import CheckpointManifest, ConnectorCheckpoint, SinkCommitStatus
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.manifest import ParentRef
from holdfast.core.progress import ProgressRecord
from holdfast.core.sidecar import CapturedFile, StateCatalog, build_sidecar
from holdfast.stores.store import DurableCheckpointStore

TIMELINE = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
OTHER_TIMELINE = UUID("01890a5d-ac96-774b-bcce-b302099a8058")
START_MS = 1_767_225_600_000


def captured(path: str, data: bytes) -> CapturedFile:
    return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), lambda: data)


def blob(seed: str, size: int = 6000) -> bytes:
    """Return bytes that depend on the seed alone."""
    return (hashlib.sha256(seed.encode()).digest() * (size // 32 + 1))[:size]


@dataclass
class Chain:
    """Writes one checkpoint per epoch; each adds a file to `agg` and refers to the earlier ones for the rest."""

    store: DurableCheckpointStore
    timeline: UUID | None = TIMELINE
    catalog: StateCatalog | None = None
    state: dict[str, dict[str, bytes]] = field(default_factory=dict)
    states: dict[int, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    last: CheckpointManifest | None = None

    def seal(self, checkpoint_id: int, **fields: Any) -> CheckpointManifest:
        epoch = fields.pop("epoch", checkpoint_id)
        parts = fields.pop("parts", {"offsets": b"{}"})
        agg = {**self.state.get("agg", {}), f"0/{epoch}.delta": blob(f"agg {self.timeline} {epoch}")}
        self.state = {"agg": agg, "dedup": {"0/current": blob(f"dedup {epoch}", 100)}}
        operators = {name: [captured(p, d) for p, d in files.items()] for name, files in self.state.items()}
        progress = ProgressRecord(self.timeline or TIMELINE, checkpoint_id, epoch, 1, parts=parts)
        built = build_sidecar(progress.to_bytes(), operators, base=self.catalog)
        manifest = self._manifest(checkpoint_id, epoch, **fields).model_copy(
            update={
                "operator_states": built.operator_states,
                "dependencies": CheckpointDependencies(batches=built.batches),
            }
        )
        self.last = self.store.save_with_state(manifest, built.chunks)
        assert self.last.sidecar is not None
        self.catalog = built.catalog(self.last.sidecar)
        self.states[checkpoint_id] = {name: dict(files) for name, files in self.state.items()}
        return self.last

    def _manifest(self, checkpoint_id: int, epoch: int, **fields: Any) -> CheckpointManifest:
        parent = self.last and ParentRef(
            id=self.last.checkpoint_id, manifest_checksum=self.last.manifest_checksum or ""
        )
        values: dict[str, Any] = {
            "timestamp_ms": START_MS + epoch * 60_000,
            "vnode_count": 4,
            "timeline": self.timeline,
            "generation": 1,
            "uuid": UUID(int=(0x01890A5D_AC96_7000_8000 << 48) + checkpoint_id),
            "parent": parent,
            "fingerprint": 12345,
            "watermark": START_MS + epoch * 1000,
            "source_watermarks": {"orders": START_MS + epoch * 1000},
            "source_names": ["orders", "users"],
            "sink_names": ["lake", "pg"],
            "source_offsets": {
                "orders": ConnectorCheckpoint(
                    epoch=epoch,
                    offsets={"partition-0": str(100 * epoch), "partition-1": str(7 * epoch)},
                    metadata={
                        "connector": "kafka",
                        "topic": "orders",
                        "head.partition-0": str(100 * epoch + 1200),
                        "head.partition-1": str(7 * epoch + 30),
                        "head_at_ms": str(START_MS + epoch * 60_000),
                        "lag": "1230",
                        "lag_unit": "records",
                    },
                ),
                "users": ConnectorCheckpoint.with_offsets(epoch, {"file": f"part-{epoch}.csv"}),
            },
            "sink_epochs": {"lake": epoch, "pg": epoch - 1},
            "sink_commit_statuses": {
                "lake": SinkCommitStatus.COMMITTED,
                "pg": SinkCommitStatus.PENDING,
            },
            "sink_tokens": {"pg": {"rows": 3}},
            "processed_records": 10 * epoch,
            **fields,
        }
        return CheckpointManifest(version=1, checkpoint_id=checkpoint_id, epoch=epoch, **values)


def restored(store: DurableCheckpointStore, checkpoint_id: int) -> dict[str, dict[str, bytes]]:
    """Return every state file of a checkpoint, read and verified."""
    manifest = store.load_by_id(checkpoint_id)
    assert manifest is not None
    files: dict[str, dict[str, bytes]] = {}
    for file in store.state_reader.catalog(manifest).files:
        files.setdefault(file.operator, {})[file.path] = store.state_reader.read(file)
    return files
