"""What the service answers: small frozen records, each with one JSON form.

The same records feed the terminal and HTTP, so a number on the screen is a number in the JSON. Keys are the
field names; every key is always present, empty ones are `null`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from holdfast.clock import utc_from_ms


class Record:
    """A frozen dataclass that can become plain JSON values."""

    def to_json_value(self) -> dict[str, Any]:
        """Return nested dictionaries, lists, strings, numbers, booleans and None."""
        return {key.name: plain(getattr(self, key.name)) for key in fields(self)}  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """Return a value in JSON terms."""
    if isinstance(value, Record):
        return value.to_json_value()
    if is_dataclass(value) and not isinstance(value, type):
        return {key.name: plain(getattr(value, key.name)) for key in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, UUID):
        return str(value)
    return value


def time_text(timestamp_ms: int | None) -> str | None:
    """Return a millisecond stamp as RFC 3339 UTC; None when it is no date people would recognise."""
    if timestamp_ms is None:
        return None
    try:
        moment: datetime = utc_from_ms(timestamp_ms)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


class Standing(StrEnum):
    """How a checkpoint looks without reading its state bytes."""

    VALID = "valid"
    START = "start"
    """The fence of a pipeline's first start: true, with nothing to restore."""
    BROKEN = "broken"
    """The manifest is true, but a sidecar it needs is missing or short."""
    CORRUPT = "corrupt"
    """The manifest is damaged."""
    UNSUPPORTED = "unsupported"
    """A newer Holdfast wrote the manifest."""
    FOREIGN = "foreign"
    """Another system wrote the manifest: it has no checksum, and only `import` takes it."""
    ORPHAN = "orphan"
    """There is no manifest."""


@dataclass(frozen=True)
class Summary(Record):
    """One line about one checkpoint. What a damaged manifest would have told is None."""

    checkpoint_id: int
    condition: Standing
    problem: str | None = None
    abandoned_by: int | None = None
    epoch: int | None = None
    created_at: str | None = None
    age_seconds: float | None = None
    kind: str | None = None
    name: str | None = None
    size: int | None = None
    """Bytes that this checkpoint added to the store: its own sidecar and its inline state."""
    sinks: Mapping[str, str] = field(default_factory=dict)
    generation: int | None = None
    uuid: UUID | None = None


@dataclass(frozen=True)
class Listing(Record):
    """Every checkpoint of a store, oldest first."""

    store: str
    checkpoints: tuple[Summary, ...]
    total: int


@dataclass(frozen=True)
class SourceLag(Record):
    """How far a position is behind where the source ended when it was asked."""

    amount: int
    unit: str
    head: Mapping[str, str]
    at_ms: int

    @classmethod
    def recorded(cls, metadata: Mapping[str, str]) -> "SourceLag | None":
        """Return what was known when a checkpoint was sealed; None when the source had not been asked."""
        head = {key.removeprefix("head."): value for key, value in metadata.items() if key.startswith("head.")}
        try:
            return cls(int(metadata["lag"]), metadata["lag_unit"], head, int(metadata["head_at_ms"]))
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class SourcePosition(Record):
    """Where a source or a reference table goes on: always the NEXT record to read."""

    name: str
    offsets: Mapping[str, str]
    epoch: int
    metadata: Mapping[str, str]
    watermark: int | None = None
    lag: SourceLag | None = None


@dataclass(frozen=True)
class SinkState(Record):
    """What is known of one sink."""

    name: str
    status: str | None
    message: str | None
    epoch: int | None
    has_token: bool


@dataclass(frozen=True)
class OperatorState(Record):
    """One operator's state. `new_bytes` and `referenced_bytes` add up to `bytes`; None when nobody can tell."""

    name: str
    placement: str
    files: int | None
    bytes: int | None
    new_bytes: int | None
    referenced_bytes: int | None


@dataclass(frozen=True)
class SidecarUse(Record):
    """A sidecar this checkpoint needs. `used_bytes` counts the state files in it that are still alive."""

    name: str
    own: bool
    size: int | None
    used_bytes: int | None


@dataclass(frozen=True)
class CheckpointReport(Record):
    """Everything a manifest and its indexes say."""

    store: str
    checkpoint_id: int
    epoch: int
    kind: str
    name: str | None
    condition: Standing
    problem: str | None
    abandoned_by: int | None
    created_at: str | None
    timestamp_ms: int
    age_seconds: float
    uuid: UUID | None
    timeline: UUID | None
    generation: int | None
    parent: int | None
    abandons: tuple[int, ...]
    watermark: int | None
    source_watermarks: Mapping[str, int]
    sources: tuple[SourcePosition, ...]
    tables: tuple[SourcePosition, ...]
    sinks: tuple[SinkState, ...]
    operators: tuple[OperatorState, ...]
    depends_on: tuple[SidecarUse, ...]
    fingerprint: int | None
    pipeline_hash: int | None
    vnode_count: int
    size: int | None
    steps: int | None
    processed_records: int | None
    state_checksum: str | None
    manifest_checksum: str | None
    recovery: Mapping[str, Any] | None
    identity: Mapping[str, Any] | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class StateFileEntry(Record):
    """One file of an operator's state; `sidecar` None means that its bytes are in the manifest."""

    operator: str
    path: str
    size: int
    sha256: str
    sidecar: str | None

    @property
    def name(self) -> str:
        """Operator and path in one."""
        return f"{self.operator}/{self.path}"


@dataclass(frozen=True)
class StateFileList(Record):
    """The state files of one checkpoint. Its JSON is the form of `PSpineBatches`: `{"files": [name, ...]}`."""

    checkpoint_id: int
    entries: tuple[StateFileEntry, ...]

    def to_json_value(self) -> dict[str, Any]:
        """Return the names alone, as other tools expect them."""
        return {"files": [entry.name for entry in self.entries]}


@dataclass(frozen=True)
class Verdict(Record):
    """What reading every byte of one checkpoint found. `start` counts as sound: there is nothing to restore."""

    checkpoint_id: int
    outcome: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return self.outcome != "damaged"


@dataclass(frozen=True)
class Verification(Record):
    """The verdicts on several checkpoints, in the order they were read."""

    store: str
    verdicts: tuple[Verdict, ...]
    bytes_read: int
    elapsed_seconds: float

    @property
    def sound(self) -> bool:
        """Whether every one is sound."""
        return all(verdict.sound for verdict in self.verdicts)

    @property
    def damaged(self) -> tuple[int, ...]:
        """The ids of the damaged ones."""
        return tuple(verdict.checkpoint_id for verdict in self.verdicts if not verdict.sound)

    def to_json_value(self) -> dict[str, Any]:
        """Return the fields and the overall verdict."""
        return {**super().to_json_value(), "sound": self.sound, "damaged": list(self.damaged)}


@dataclass(frozen=True)
class Skipped(Record):
    """A checkpoint that recovery passes over."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True)
class RecoveryPreview(Record):
    """What recovery would do if the pipeline started now: `restore`, start `fresh`, or `refuse`."""

    store: str
    outcome: str
    chosen: Summary | None
    skipped: tuple[Skipped, ...]
    examined: int
    reason: str | None
    fence_id: int | None
    generation: int | None
    timeline: UUID | None
    abandons: tuple[int, ...]
    sinks_to_commit: tuple[str, ...]


@dataclass(frozen=True)
class PruneOutcome(Record):
    """What pruning removed, or would remove. Sizes are None for a dry run."""

    store: str
    keep: int
    dry_run: bool
    removed: tuple[int, ...]
    remaining: tuple[int, ...]
    savepoints: tuple[str, ...]
    freed_bytes: int | None


@dataclass(frozen=True)
class OrphanOutcome(Record):
    """What dead writers left behind. A dry run names sidecars and ids; a real run counts everything that went."""

    store: str
    dry_run: bool
    found: tuple[str, ...]
    removed: int
    freed_bytes: int
    blocked: str | None


@dataclass(frozen=True)
class SavepointReceipt(Record):
    """A name was given or taken away."""

    store: str
    action: str
    name: str
    checkpoint_id: int
    epoch: int


@dataclass(frozen=True)
class ExportReceipt(Record):
    """A checkpoint was written to one file."""

    store: str
    checkpoint_id: int
    epoch: int
    file: str
    file_bytes: int
    state_bytes: int
    rebuilt: bool
    """Whether the sidecar was put together from several, so that the file needs no other."""
    files: int = 0
    """How many files of its sources and tables went along."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImportReceipt(Record):
    """A checkpoint was verified and sealed."""

    store: str
    checkpoint_id: int
    original_id: int
    epoch: int
    timeline: UUID | None
    generation: int | None
    name: str | None
    state_bytes: int
    first: bool
    """Whether the store was empty before."""
    notes: tuple[str, ...]
    files: int = 0
    """How many files of its sources and tables came along."""
