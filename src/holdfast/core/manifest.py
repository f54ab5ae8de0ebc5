"""The manifest: one readable JSON document per checkpoint, and the only thing that makes it exist.

The first 17 fields have the names and shapes of the format we share with another engine; the rest are our
extension keys, written only when set and ignored by others. `manifest_checksum` covers everything else in the
document, so one edited digit in an offset is noticed.
"""

import hashlib
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from holdfast.clock import SYSTEM_CLOCK
from holdfast.core import canonical_json
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.entries import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus
from holdfast.core.integers import I64, U16, U32, U64
from holdfast.core.names import sidecar_name
from holdfast.errors import ManifestFormatError, UnsupportedVersion

MANIFEST_VERSION = 1
REPLAY = "replay"
"""Key in `recovery`: the epochs that are still to be replayed on top of a checkpoint, and where they stand."""
DEFAULT_VNODE_COUNT = 256


@dataclass(frozen=True)
class ManifestValidationError:
    """One thing that is inconsistent in a manifest. A finding, not an exception."""

    message: str

    def __str__(self) -> str:
        return self.message


class ParentRef(BaseModel):
    """The checkpoint this one was built on."""

    model_config = ConfigDict(frozen=True)

    id: U64
    manifest_checksum: str


class CheckpointManifest(BaseModel):
    """A point-in-time snapshot of a whole pipeline."""

    model_config = ConfigDict(extra="allow", validate_assignment=True, ser_json_inf_nan="constants")

    version: U32
    checkpoint_id: U64
    epoch: U64
    timestamp_ms: U64
    source_offsets: dict[str, ConnectorCheckpoint] = Field(default_factory=dict)
    sink_epochs: dict[str, U64] = Field(default_factory=dict)
    sink_commit_statuses: dict[str, SinkCommitStatus] = Field(default_factory=dict)
    table_offsets: dict[str, ConnectorCheckpoint] = Field(default_factory=dict)
    operator_states: dict[str, OperatorCheckpoint] = Field(default_factory=dict)
    table_store_checkpoint_path: str | None = None
    watermark: I64 | None = None
    source_watermarks: dict[str, I64] = Field(default_factory=dict)
    source_names: list[str] = Field(default_factory=list)
    sink_names: list[str] = Field(default_factory=list)
    pipeline_hash: U64 | None = None
    vnode_count: U16 = 0
    state_checksum: str | None = None

    # Extension keys: ours alone, absent from the document when they have nothing to say.
    uuid: UUID | None = None
    timeline: UUID | None = None
    generation: U64 | None = None
    began: list[tuple[U64, U64]] = Field(default_factory=list)
    parent: ParentRef | None = None
    abandons: list[U64] = Field(default_factory=list)
    kind: Literal["checkpoint", "fence"] = "checkpoint"
    identifier: str | None = None
    held_until: U64 | None = None
    fingerprint: U64 | None = None
    size: U64 | None = None
    steps: U64 | None = None
    processed_records: U64 | None = None
    dependencies: CheckpointDependencies | None = None
    sink_tokens: dict[str, Any] = Field(default_factory=dict)
    recovery: dict[str, Any] | None = None
    identity: dict[str, Any] | None = None
    manifest_checksum: str | None = None

    @classmethod
    def new(cls, checkpoint_id: int, epoch: int) -> Self:
        """Return an empty manifest stamped with the current time and the default vnode count."""
        return cls.new_with_vnode_count(checkpoint_id, epoch, DEFAULT_VNODE_COUNT)

    @classmethod
    def new_with_vnode_count(cls, checkpoint_id: int, epoch: int, vnode_count: int) -> Self:
        """Return an empty manifest for a pipeline with its own number of state partitions."""
        return cls(
            version=MANIFEST_VERSION,
            checkpoint_id=checkpoint_id,
            epoch=epoch,
            timestamp_ms=SYSTEM_CLOCK.now_ms(),
            vnode_count=vnode_count,
        )

    def validate(self, expected_vnode_count: int) -> list[ManifestValidationError]:  # type: ignore[override]
        """Return what is inconsistent, in a fixed order; an empty list means nothing was found.

        `expected_vnode_count` is the pipeline's own number: state keys of another number map to other shards.
        """
        return [ManifestValidationError(message) for message in self._findings(expected_vnode_count)]

    def _findings(self, expected_vnode_count: int) -> list[str]:
        found = []
        if self.version == 0:
            found.append("manifest version is 0")
        if self.checkpoint_id == 0:
            found.append("checkpoint_id is 0")
        if self.epoch == 0:
            found.append("epoch is 0")
        if self.timestamp_ms == 0:
            found.append("timestamp_ms is 0 (missing creation time)")
        found += [
            f"sink '{sink}' has epoch but no commit status"
            for sink in sorted(self.sink_epochs)
            if self.sink_commit_statuses and sink not in self.sink_commit_statuses
        ]
        found += [
            f"source_offsets contains '{source}' not in source_names"
            for source in sorted(self.source_offsets)
            if self.source_names and source not in self.source_names
        ]
        if self.vnode_count == 0:
            found.append("vnode_count is 0 (missing or legacy checkpoint)")
        elif self.vnode_count != expected_vnode_count:
            found.append(
                f"vnode_count mismatch: checkpoint has {self.vnode_count}, runtime expects {expected_vnode_count}"
            )
        return found

    @property
    def sidecar(self) -> str | None:
        """Name of the sidecar that the external ranges point into; None when there is none.

        Recorded in `dependencies.state_files`; a manifest of another system has no such record and uses the
        name made from its id.
        """
        if self.dependencies is not None:
            return self.dependencies.state_files[0] if self.dependencies.state_files else None
        states = self.operator_states.values()
        external = any(state.external for state in states)
        inline = any(state.state_b64 is not None for state in states)
        checksum_of_sidecar_alone = self.state_checksum is not None and not inline
        return sidecar_name(self.checkpoint_id) if external or checksum_of_sidecar_alone else None

    @property
    def needed_sidecars(self) -> frozenset[str]:
        """Every sidecar that must stay for this checkpoint to be restored."""
        earlier = self.dependencies.batches if self.dependencies is not None else ()
        return frozenset(earlier) | ({self.sidecar} if self.sidecar else frozenset())

    @property
    def passes_over(self) -> range:
        """The ids between a fence and what it goes on from; for one that begins a timeline, all below it.

        It named those that were there. Whatever else turns up was sealed too late, or had been lost.
        """
        if self.kind != "fence" or (self.parent is None and self.epoch > 0):
            return range(0)
        return range(self.parent.id + 1 if self.parent is not None else 1, self.checkpoint_id)

    def gives_up(self, checkpoint_ids: Set[int]) -> set[int]:
        """Return which of the checkpoints are not to be chosen any more where this one stands."""
        return given_up(self.abandons, self.passes_over, checkpoint_ids)

    @property
    def withdrawn(self) -> bool:
        """Whether its own writer took it back: it had been replaced, and sealed under an id that was free again."""
        return self.checkpoint_id in self.abandons

    @property
    def replays(self) -> frozenset[int]:
        """The checkpoints that know the epochs which are still to be replayed on top of this one."""
        return frozenset(entry["checkpoint_id"] for entry in (self.recovery or {}).get(REPLAY, ()))

    def to_json_value(self) -> dict[str, Any]:
        """Return the document as plain values: the 17 shared keys always, extension keys when set."""
        document = self.model_dump(mode="json")
        for key in _EXTENSION_KEYS:
            if document[key] in (None, [], {}) or (key == "kind" and self.kind == "checkpoint"):
                del document[key]
        return document

    def to_json(self) -> str:
        """Return the document as text. Equal manifests give equal bytes."""
        return canonical_json.pretty(self.to_json_value()).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a document, ours or the other system's. Does not compare the checksum: see `checksum_of`."""
        return cls.from_json_value(canonical_json.parse_object(text, "manifest"))

    @classmethod
    def from_json_value(cls, document: dict[str, Any]) -> Self:
        """Build a manifest from parsed JSON, refusing versions from the future."""
        version = document.get("version")
        if isinstance(version, int) and version > MANIFEST_VERSION:
            raise UnsupportedVersion(version, MANIFEST_VERSION)
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise ManifestFormatError(f"manifest is malformed: {place}: {first['msg']}") from None

    def stamped(self) -> Self:
        """Return a copy whose `manifest_checksum` is true; refuse what could not be read back once it is sealed."""
        document = self.to_json_value()
        self.from_json_value(document)
        return self.model_copy(update={"manifest_checksum": checksum_of(document)}, deep=True)


def given_up(named: Iterable[int], passed: range, checkpoint_ids: Set[int]) -> set[int]:
    """Return those of the ids that are named or passed over, looking at as few as possible."""
    few, many = (passed, checkpoint_ids) if len(passed) < len(checkpoint_ids) else (checkpoint_ids, passed)
    return {id for id in named if id in checkpoint_ids} | {id for id in few if id in many}


def checksum_of(document: dict[str, Any]) -> str:
    """Return the SHA-256 of everything in a manifest document except its own checksum."""
    rest = {key: value for key, value in document.items() if key != "manifest_checksum"}
    return hashlib.sha256(canonical_json.compact(rest)).hexdigest()


_SEED_KEYS = 17
_EXTENSION_KEYS = tuple(CheckpointManifest.model_fields)[_SEED_KEYS:]
