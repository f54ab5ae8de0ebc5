"""The values a manifest is made of: a connector's position, an operator's state, a sink's commit status."""

import base64
import binascii
import logging
from collections.abc import Callable
from typing import Any, ClassVar, Self, overload

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StrictBool
from pydantic_core import core_schema

from holdfast.core.buffers import Buffer
from holdfast.core.integers import U64

_log = logging.getLogger(__name__)


class SinkCommitStatus:
    """What is known of one sink's commit: `PENDING`, `COMMITTED`, or `failed(message)`.

    In JSON: `"Pending"`, `"Committed"`, `{"Failed": "message"}`.
    """

    PENDING: ClassVar["SinkCommitStatus"]
    COMMITTED: ClassVar["SinkCommitStatus"]
    __slots__ = ("kind", "message")

    def __init__(self, kind: str, message: str | None = None) -> None:
        if kind not in _STATUS_PROGRESS:
            raise ValueError(f"unknown sink commit status '{kind}', expected Pending, Committed or Failed")
        if (kind == "Failed") != (message is not None):
            raise ValueError("only Failed carries a message, and always does")
        self.kind, self.message = kind, message

    @classmethod
    def failed(cls, message: str) -> "SinkCommitStatus":
        """Return the status of a commit that was tried and failed; it will be tried again."""
        return cls("Failed", message)

    @classmethod
    def parse(cls, value: Any) -> "SinkCommitStatus":
        """Return the status a JSON value stands for."""
        match value:
            case SinkCommitStatus():
                return value
            case "Pending" | "Committed":
                return cls(value)
            case {"Failed": str(message)} if len(value) == 1:
                return cls.failed(message)
        raise ValueError('expected "Pending", "Committed" or {"Failed": message}')

    def to_json_value(self) -> str | dict[str, str]:
        """Return the JSON form."""
        return self.kind if self.message is None else {self.kind: self.message}

    @property
    def progress(self) -> int:
        """How close to Committed: a status only ever moves to a higher progress."""
        return _STATUS_PROGRESS[self.kind]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SinkCommitStatus) and (self.kind, self.message) == (
            other.kind,
            other.message,
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.message))

    def __repr__(self) -> str:
        return f"SinkCommitStatus({self})"

    def __str__(self) -> str:
        return self.kind if self.message is None else f"{self.kind}: {self.message}"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(cls.to_json_value)
        )


_STATUS_PROGRESS = {"Pending": 0, "Failed": 1, "Committed": 2}
SinkCommitStatus.PENDING = SinkCommitStatus("Pending")
SinkCommitStatus.COMMITTED = SinkCommitStatus("Committed")


class ConnectorCheckpoint(BaseModel):
    """A connector's position in its own terms: always the NEXT record to read."""

    model_config = ConfigDict(extra="ignore", validate_assignment=True)

    offsets: dict[str, str]
    epoch: U64
    metadata: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def new(cls, epoch: int) -> Self:
        """Return a position that knows only its epoch."""
        return cls(offsets={}, epoch=epoch)

    @classmethod
    def with_offsets(cls, epoch: int, offsets: dict[str, str]) -> Self:
        """Return a position with its offsets."""
        return cls(offsets=dict(offsets), epoch=epoch)


class _External:
    """`OperatorCheckpoint.external(offset, length)` builds an entry, `entry.external` tells whether it is one.

    The shared format has one name for the constructor and the field; a descriptor is how Python can have both.
    """

    @overload
    def __get__(
        self, entry: None, owner: type["OperatorCheckpoint"]
    ) -> Callable[[int, int], "OperatorCheckpoint"]: ...
    @overload
    def __get__(self, entry: "OperatorCheckpoint", owner: type["OperatorCheckpoint"]) -> bool: ...
    def __get__(
        self, entry: "OperatorCheckpoint | None", owner: type["OperatorCheckpoint"]
    ) -> bool | Callable[[int, int], "OperatorCheckpoint"]:
        if entry is not None:
            return entry.is_external
        return lambda offset, length: owner(is_external=True, external_offset=offset, external_length=length)


class OperatorCheckpoint(BaseModel):
    """Where an operator's state is: inline as base64, or a range of the checkpoint's sidecar."""

    model_config = ConfigDict(
        extra="ignore", validate_assignment=True, populate_by_name=True, serialize_by_alias=True
    )

    state_b64: str | None = None
    is_external: StrictBool = Field(default=False, alias="external")
    external: ClassVar[_External] = _External()
    external_offset: U64 = 0
    external_length: U64 = 0

    @classmethod
    def inline(cls, data: Buffer) -> Self:
        """Return an entry that carries its bytes itself."""
        return cls(state_b64=base64.b64encode(data).decode("ascii"))

    def try_decode_inline(self) -> bytes | None:
        """Return the inline bytes, None when there are none; raise ValueError when the base64 is damaged."""
        if self.state_b64 is None:
            return None
        try:
            data = base64.b64decode(self.state_b64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"[LDB-4004] base64 decode failed: {error}") from error
        if base64.b64encode(data).decode("ascii") != self.state_b64:
            raise ValueError("[LDB-4004] base64 decode failed: bits after the last byte are not zero")
        return data

    def decode_inline(self) -> bytes | None:
        """Return the inline bytes, or None when there are none or they are damaged (a warning is logged)."""
        try:
            return self.try_decode_inline()
        except ValueError as error:
            _log.warning("inline operator state of %d characters is damaged: %s", len(self.state_b64 or ""), error)
            return None

    @classmethod
    def from_bytes(
        cls, data: Buffer, threshold: int, current_offset: int
    ) -> tuple["OperatorCheckpoint", bytes | None]:
        """Inline up to `threshold` bytes; above it return a reference and a copy of the bytes for the sidecar."""
        entry, rest = cls.from_bytes_shared(data, threshold, current_offset)
        return entry, None if rest is None else bytes(rest)

    @classmethod
    def from_bytes_shared(
        cls, data: Buffer, threshold: int, current_offset: int
    ) -> tuple["OperatorCheckpoint", Buffer | None]:
        """As `from_bytes`, but the bytes for the sidecar are the caller's own buffer, not a copy."""
        length = memoryview(data).nbytes
        if length <= threshold:
            return cls.inline(data), None
        return cls.external(current_offset, length), data
