"""What a pipeline says about its checkpoints, as values with a fixed JSON form.

Every model here is frozen. On the way out every key is present and an empty one is `null`; on the way in
unknown keys are ignored and a missing optional one is empty. Times are UTC, UUIDs lower-case with hyphens,
64-bit numbers exact. Input that does not fit raises pydantic's `ValidationError`.

Two shapes of tagged value occur. `CheckpointActivity` keeps its tag among its own keys (`status`). The
reasons not to checkpoint put it outside: `"Replaying"`, or `{"InputEndpointBarrier": "orders"}` for a kind
that carries something.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
    field_serializer,
)
from pydantic_core import CoreSchema, core_schema

from holdfast.core.integers import U64

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _require_rfc3339(value: object) -> object:
    """Refuse what pydantic would also take for a time: bare numbers, numbers in quotes, dates."""
    if isinstance(value, datetime) or (isinstance(value, str) and _RFC3339.fullmatch(value)):
        return value
    raise ValueError("expected an RFC 3339 time with an offset, such as 2026-01-31T08:00:00Z")


def _to_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("the time has no UTC equivalent between the years 1 and 9999") from None


def _write_rfc3339(time: datetime) -> str:
    """Write no fraction, milliseconds or microseconds: the shortest that loses nothing."""
    if time.microsecond == 0:
        timespec = "seconds"
    elif time.microsecond % 1000 == 0:
        timespec = "milliseconds"
    else:
        timespec = "microseconds"
    return time.replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


UtcTime = Annotated[
    AwareDatetime,
    BeforeValidator(_require_rfc3339),
    AfterValidator(_to_utc),
    PlainSerializer(_write_rfc3339, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment: any offset on input, always UTC in Python, RFC 3339 ending in `Z` in JSON.

Digits beyond the microsecond are cut off on input.
"""


def _outer_tag(value: object) -> str | None:
    """Return the tag of `"Kind"` or `{"Kind": content}`; None when the value is neither."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and len(value) == 1:
        return str(next(iter(value)))
    return None


class _ExternallyTagged(ABC):
    """A kind and what it carries, written `"Kind"` when that is nothing and `{"Kind": content}` otherwise.

    A subclass is a frozen dataclass of exactly two fields, the kind and the content, in this order.
    """

    kind: str

    @classmethod
    @abstractmethod
    def _content_types(cls) -> Mapping[str, Any]:
        """Return for every kind the type of its content, None for a kind that carries nothing."""

    @property
    @abstractmethod
    def _content(self) -> Any:
        """The content of this value, None when its kind carries nothing."""

    @classmethod
    def _from_wire(cls, value: str | dict[str, Any]) -> Self:
        kind, content = (value, None) if isinstance(value, str) else next(iter(value.items()))
        return cls(kind, content)  # type: ignore[call-arg]

    def _to_wire(self) -> str | dict[str, Any]:
        return self.kind if self._content_types()[self.kind] is None else {self.kind: self._content}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        forms: dict[Any, CoreSchema] = {}
        for kind, content_type in cls._content_types().items():
            if content_type is None:
                forms[kind] = core_schema.literal_schema([kind])
            else:
                content = core_schema.typed_dict_field(handler.generate_schema(content_type), required=True)
                forms[kind] = core_schema.typed_dict_schema({kind: content})
        wire = core_schema.tagged_union_schema(forms, discriminator=_outer_tag)
        read = core_schema.no_info_after_validator_function(cls._from_wire, wire)
        return core_schema.json_or_python_schema(
            json_schema=read,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), read]),
            serialization=core_schema.plain_serializer_function_ser_schema(cls._to_wire, return_schema=wire),
        )


@dataclass(frozen=True)
class _SuspendReason(_ExternallyTagged):
    """One reason; `name` is the input it is about, for the kinds that are about one."""

    kind: str
    name: str | None = None

    _texts: ClassVar[Mapping[str, str]]  # kind -> sentence; a sentence with {name} makes the name compulsory

    def __post_init__(self) -> None:
        if self.kind not in self._texts:
            raise ValueError(f"unknown kind '{self.kind}', expected one of {', '.join(self._texts)}")
        wants_name = self._content_types()[self.kind] is not None
        if wants_name != (self.name is not None):
            raise ValueError(f"'{self.kind}' {'needs the name of an input' if wants_name else 'takes no name'}")

    def __str__(self) -> str:
        return self._texts[self.kind].format(name=self.name)

    @classmethod
    def _content_types(cls) -> Mapping[str, Any]:
        return {kind: str if "{name}" in text else None for kind, text in cls._texts.items()}

    @property
    def _content(self) -> Any:
        return self.name


@dataclass(frozen=True)
class PermanentSuspendError(_SuspendReason):
    """Why this pipeline can never be checkpointed as it is: waiting will not help."""

    kind: Literal["StorageRequired", "EnterpriseFeature", "UnsupportedInputEndpoint"]

    _texts: ClassVar[Mapping[str, str]] = {
        "StorageRequired": "no storage is configured",
        "EnterpriseFeature": "this edition has no checkpoints",
        "UnsupportedInputEndpoint": "input '{name}' cannot be resumed",
    }


@dataclass(frozen=True)
class TemporarySuspendError(_SuspendReason):
    """Why a checkpoint has to wait: the reason passes without anybody's help."""

    kind: Literal["Replaying", "Bootstrapping", "TransactionInProgress", "InputEndpointBarrier", "Coordination"]

    _texts: ClassVar[Mapping[str, str]] = {
        "Replaying": "input is being replayed",
        "Bootstrapping": "changed parts are being filled from existing data",
        "TransactionInProgress": "a transaction is open",
        "InputEndpointBarrier": "input '{name}' is at a point it could not resume from",
        "Coordination": "the coordinator has not given its word",
    }


@dataclass(frozen=True)
class SuspendError(_ExternallyTagged):
    """Everything that stands between a pipeline and its checkpoint, either all permanent or all temporary.

    A value to report, not an exception. `str()` gives one line for people.
    """

    kind: Literal["Permanent", "Temporary"]
    reasons: tuple[PermanentSuspendError, ...] | tuple[TemporarySuspendError, ...]

    def __post_init__(self) -> None:
        wanted = {"Permanent": PermanentSuspendError, "Temporary": TemporarySuspendError}.get(self.kind)
        if wanted is None:
            raise ValueError(f"unknown kind '{self.kind}', expected Permanent or Temporary")
        if not all(isinstance(reason, wanted) for reason in self.reasons):
            raise ValueError(f"every reason of a {self.kind} suspend error must be a {wanted.__name__}")

    def __str__(self) -> str:
        permanent = self.kind == "Permanent"
        lead = "the pipeline cannot be checkpointed" if permanent else "the checkpoint has to wait"
        return f"{lead}: {', '.join(str(reason) for reason in self.reasons)}" if self.reasons else lead

    @classmethod
    def _content_types(cls) -> Mapping[str, Any]:
        return {
            "Permanent": tuple[PermanentSuspendError, ...],
            "Temporary": tuple[TemporarySuspendError, ...],
        }

    @property
    def _content(self) -> Any:
        return self.reasons


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class CheckpointFailure(_Value):
    """A requested checkpoint that failed, when, and what the error said."""

    sequence_number: U64
    error: str
    failed_at: UtcTime


class CheckpointStatus(_Value):
    """How the requested checkpoints ended: the newest success and the newest failure.

    A later success leaves `failure` as it is; compare sequence numbers to see which came last.
    """

    success: U64 | None = None
    failure: CheckpointFailure | None = None


class CheckpointIdle(_Value):
    """No checkpoint is wanted or being written."""

    status: Literal["idle"] = "idle"


class CheckpointDelayed(_Value):
    """A checkpoint is wanted and waits for `reasons` to pass.

    `delayed_since` is when the waiting began, whatever the reason was then.
    """

    status: Literal["delayed"] = "delayed"
    reasons: tuple[TemporarySuspendError, ...]
    delayed_since: UtcTime


class CheckpointInProgress(_Value):
    """A checkpoint is being written since `started_at`."""

    status: Literal["in_progress"] = "in_progress"
    started_at: UtcTime


CheckpointActivity = Annotated[
    CheckpointIdle | CheckpointDelayed | CheckpointInProgress, Field(discriminator="status")
]
"""What checkpointing is doing right now; a field type, or match on the three classes."""

_ACTIVITY: TypeAdapter[CheckpointActivity] = TypeAdapter(CheckpointActivity)


def parse_activity(json: str | bytes) -> CheckpointActivity:
    """Read one activity from its JSON; `model_dump_json()` of the result writes it back."""
    return _ACTIVITY.validate_json(json)


class CheckpointResponse(_Value):
    """A checkpoint was requested; ask for its outcome by this number.

    Numbers start again with every process, so ask with the `incarnation_uuid` too. It is empty only when a
    server too old to have one answered.
    """

    checkpoint_sequence_number: U64
    incarnation_uuid: UUID | None = None


class CheckpointMetadata(_Value):
    """One checkpoint in storage.

    `fingerprint` tells pipelines apart: a checkpoint of another one cannot be restored. It uses all 64 bits,
    more than a float can hold. `size` counts the checkpoint's own files in bytes, not those it shares.
    """

    uuid: UUID
    identifier: str | None = None
    fingerprint: U64
    size: U64 | None = None
    steps: U64 | None = None
    processed_records: U64 | None = None


class RemoteCheckpoint(_Value):
    """One checkpoint in a bucket."""

    uuid: UUID


class CheckpointSyncFailure(_Value):
    """A checkpoint that could not be copied to the remote store, and why."""

    uuid: UUID
    error: str


class CheckpointSyncResponse(_Value):
    """Copying this checkpoint was requested; `incarnation_uuid` as in `CheckpointResponse`."""

    checkpoint_uuid: UUID
    incarnation_uuid: UUID | None = None


class CheckpointSyncStatus(_Value):
    """How the copying goes: the newest success and failure on request, the newest periodic success.

    `running` holds the requested copies that have not ended yet; a server too old to send it has none.
    """

    success: UUID | None = None
    failure: CheckpointSyncFailure | None = None
    periodic: UUID | None = None
    running: frozenset[UUID] = frozenset()

    @field_serializer("running")
    def _sort_running(self, running: frozenset[UUID]) -> list[UUID]:
        return sorted(running)


@dataclass(frozen=True)
class CheckpointSyncMetrics:
    """What one copy cost; `speed` is in bytes per second. Stays inside the process, so it has no JSON."""

    duration: timedelta
    speed: int
    bytes: int


class RuntimeStatus(StrEnum):
    """What a pipeline process reports about itself."""

    UNAVAILABLE = "Unavailable"
    COORDINATION = "Coordination"
    STANDBY = "Standby"
    INITIALIZING = "Initializing"
    AWAITING_APPROVAL = "AwaitingApproval"
    BOOTSTRAPPING = "Bootstrapping"
    REPLAYING = "Replaying"
    PAUSED = "Paused"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    CONCURRENT_BOOTSTRAPPING = "ConcurrentBootstrapping"
    SYNCHRONIZING = "Synchronizing"


class RuntimeDesiredStatus(StrEnum):
    """The state a pipeline process is asked to reach."""

    UNAVAILABLE = "Unavailable"
    COORDINATION = "Coordination"
    STANDBY = "Standby"
    PAUSED = "Paused"
    RUNNING = "Running"
    SUSPENDED = "Suspended"


class DeploymentStatus(StrEnum):
    """A pipeline seen from outside: its `RuntimeStatus`, or how far it is from having a process at all."""

    STOPPED = "Stopped"
    PROVISIONING = "Provisioning"
    STOPPING = "Stopping"
    UNAVAILABLE = "Unavailable"
    COORDINATION = "Coordination"
    STANDBY = "Standby"
    INITIALIZING = "Initializing"
    AWAITING_APPROVAL = "AwaitingApproval"
    BOOTSTRAPPING = "Bootstrapping"
    REPLAYING = "Replaying"
    PAUSED = "Paused"
    RUNNING = "Running"
    SUSPENDED = "Suspended"
    CONCURRENT_BOOTSTRAPPING = "ConcurrentBootstrapping"
    SYNCHRONIZING = "Synchronizing"


class BootstrapPolicy(StrEnum):
    """What to do when a pipeline changed since its checkpoint and parts must be filled anew.

    Go ahead, refuse to start, or ask a person first, which is the default.
    """

    ALLOW = "allow"
    REJECT = "reject"
    AWAIT_APPROVAL = "await_approval"
