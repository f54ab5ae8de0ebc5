"""The compact binary snapshot of one stream, in two formats.

Version 1 is the model system's, byte for byte: bare numbers, names and states, all little endian.

    u64 sequence | u64 watermark_ns | u64 event_count
    u32 operators, each: u32 length, UTF-8 name, u32 length, state bytes
    u32 sources, each:   u32 length, UTF-8 name, u64 offset

It has no magic and no checksum, and it forgets stream, creation time and metadata. Version 2 is a
frame (`holdfast.core.frames`, magic ``HFCS``) whose payload keeps those and then the version 1 bytes:

    u32 length, UTF-8 stream id | i64 creation time in ms since the Unix epoch
    u32 metadata entries, each: u32 length, UTF-8 key, u32 length, UTF-8 value
    version 1

Names are written in sorted order, so equal states give equal bytes; they are read in any order.
"""

import struct
from collections.abc import Callable, Sized
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Self, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock, utc_from_ms
from holdfast.core.buffers import Buffer
from holdfast.core.frames import (
    FRAME_HEADER_LENGTH,
    MAGIC_LENGTH,
    Frame,
    decode_frame,
    encode_frame,
)
from holdfast.errors import DeserializationError, StreamingError

SNAPSHOT_MAGIC = b"HFCS"
SNAPSHOT_VERSION = 2

_V1_HEADER_LENGTH = 24
_FRAME_VERSION_AT = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")

_Value = TypeVar("_Value")


@dataclass(frozen=True, order=True)
class CheckpointId:
    """Which cut of which stream: everything up to and including event `sequence`.

    Equality, hash and order look at stream and sequence only: two ids of the same cut are equal, whenever
    they were made. `created_at` is an aware time; the framed format keeps it to the millisecond.
    """

    stream_id: str
    sequence: int
    created_at: datetime = field(compare=False)

    def __post_init__(self) -> None:
        if self.created_at.utcoffset() is None:
            raise ValueError(f"created_at must carry a time zone, not {self.created_at!r}")

    @classmethod
    def new(cls, stream_id: str, sequence: int, clock: Clock = SYSTEM_CLOCK) -> Self:
        """Return an id stamped with the clock's present."""
        return cls(stream_id, sequence, utc_from_ms(clock.now_ms()))


@dataclass
class CheckpointState:
    """What a stream needs to go on after a cut: operator states, source offsets, watermark and event count.

    Fields are free to change until it is serialised, which is also when their ranges are checked. Offsets
    name the NEXT record to read. Not safe to change from two threads.
    """

    id: CheckpointId
    operator_states: dict[str, bytes] = field(default_factory=dict)
    source_offsets: dict[str, int] = field(default_factory=dict)
    watermark_ns: int = 0
    event_count: int = 0
    metadata: dict[str, str] = field(default_factory=dict)

    @classmethod
    def new(cls, checkpoint_id: CheckpointId) -> Self:
        """Return an empty state of that cut."""
        return cls(checkpoint_id)

    def copy(self) -> Self:
        """Return a state that shares nothing changeable with this one; stores keep and hand out copies."""
        return replace(
            self,
            operator_states=dict(self.operator_states),
            source_offsets=dict(self.source_offsets),
            metadata=dict(self.metadata),
        )

    def set_operator_state(self, operator: str, state: Buffer) -> None:
        """Keep an operator's serialised state, replacing an earlier one; a changeable buffer is copied."""
        self.operator_states[operator] = state if isinstance(state, bytes) else bytes(memoryview(state))

    def set_source_offset(self, source: str, offset: int) -> None:
        """Keep the next position to read from a source, replacing an earlier one."""
        self.source_offsets[source] = offset

    def serialize(self) -> bytes:
        """Return the version 1 bytes, readable by the model system.

        Stream, creation time and metadata are not in them: for our own use take `serialize_framed`.
        Raises `StreamingError` when a number or a length does not fit its field; nothing is ever cut short.
        """
        return b"".join(self._v1_parts())

    def serialize_framed(self) -> bytes:
        """Return the version 2 bytes: everything, after magic, length and digest. Raises like `serialize`."""
        parts = [
            _pack_string(self.id.stream_id, "stream id"),
            _I64.pack((self.id.created_at - _EPOCH) // _MILLISECOND),
            _pack_length(self.metadata, "metadata"),
        ]
        for key, value in sorted(self.metadata.items()):
            parts += (_pack_string(key, "metadata key"), _pack_string(value, f"metadata '{key}'"))
        return encode_frame(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, b"".join(parts + self._v1_parts()))

    @classmethod
    def deserialize(
        cls,
        stream_id: str,
        data: Buffer,
        *,
        allow_trailing: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Self:
        """Read either version; `clock` stamps a version 1 state, which carries no time of its own.

        Raises `DeserializationError` for damaged bytes, a repeated name, or (unless `allow_trailing`) bytes
        left over, and `StreamingError` when a framed state belongs to another stream. Version 1 has no
        digest: a flipped bit in a number, a name or a state goes unnoticed there.

        A version 1 blob begins with the magic when the low half of its sequence spells it, but cannot hold a
        matching digest by accident: what is no intact frame, yet a version 1 blob to its last byte, is one.
        """
        view = memoryview(data).cast("B")
        if view[:MAGIC_LENGTH] != SNAPSHOT_MAGIC:
            return cls._read_v1(stream_id, view, allow_trailing, clock)
        try:
            frame = decode_frame(view, SNAPSHOT_MAGIC)
        except DeserializationError:
            with suppress(DeserializationError):
                return cls._read_v1(stream_id, view, allow_trailing=False, clock=clock)
            raise
        state = cls._read_framed(view, frame)
        if state.id.stream_id != stream_id:
            raise StreamingError(f"snapshot belongs to stream '{state.id.stream_id}', not '{stream_id}'")
        _refuse_rest(frame.length, view, allow_trailing)
        return state

    @classmethod
    def deserialize_prefix(cls, buffer: Buffer) -> tuple[Self, int]:
        """Read the framed state at the start of `buffer`; return it with its length.

        For a sidecar, whose first chunk is such a state: the next record starts at that length, and what
        stands there is not looked at. Version 2 only. To fetch no more than the state from a store, ask
        `frames.frame_length` with `SNAPSHOT_MAGIC` first.
        """
        view = memoryview(buffer).cast("B")
        frame = decode_frame(view, SNAPSHOT_MAGIC)
        return cls._read_framed(view, frame), frame.length

    def _v1_parts(self) -> list[bytes]:
        parts = [
            _pack_u64(self.id.sequence, "sequence"),
            _pack_u64(self.watermark_ns, "watermark_ns"),
            _pack_u64(self.event_count, "event_count"),
            _pack_length(self.operator_states, "operator states"),
        ]
        for name, state in sorted(self.operator_states.items()):
            parts += (
                _pack_string(name, "operator name"),
                _pack_length(state, f"state of operator '{name}'"),
                state,
            )
        parts.append(_pack_length(self.source_offsets, "source offsets"))
        for name, offset in sorted(self.source_offsets.items()):
            parts += (_pack_string(name, "source name"), _pack_u64(offset, f"offset of source '{name}'"))
        return parts

    @classmethod
    def _read_v1(cls, stream_id: str, view: memoryview, allow_trailing: bool, clock: Clock) -> Self:
        reader = _Reader(view, 0, len(view))
        state = cls._read_body(reader, lambda sequence: CheckpointId.new(stream_id, sequence, clock))
        _refuse_rest(reader.position, view, allow_trailing)
        return state

    @classmethod
    def _read_framed(cls, view: memoryview, frame: Frame) -> Self:
        if frame.version != SNAPSHOT_VERSION:
            raise DeserializationError(
                f"snapshot format version {frame.version} in a frame; this holdfast reads {SNAPSHOT_VERSION}",
                _FRAME_VERSION_AT,
            )
        reader = _Reader(view, FRAME_HEADER_LENGTH, frame.length)
        stream_id, created_at = reader.string(), reader.time()
        metadata = reader.mapping(reader.string, "metadata key")
        state = cls._read_body(reader, lambda sequence: CheckpointId(stream_id, sequence, created_at))
        state.metadata = metadata
        _refuse_rest(reader.position, view[: frame.length], allow_trailing=False)
        return state

    @classmethod
    def _read_body(cls, reader: "_Reader", make_id: Callable[[int], CheckpointId]) -> Self:
        """Read what both versions share; the id needs the sequence, which comes first."""
        reader.require(_V1_HEADER_LENGTH, "too short for header")
        state = cls.new(make_id(reader.u64()))
        state.watermark_ns, state.event_count = reader.u64(), reader.u64()
        state.operator_states = reader.mapping(reader.operator_state, "operator")
        state.source_offsets = reader.mapping(reader.u64, "source")
        return state


class _Reader:
    """Reads fields one after the other and never past `end`.

    The position of an error is that of the field which could not be read, counted from the start of `view`.
    """

    def __init__(self, view: memoryview, position: int, end: int) -> None:
        self._view, self.position, self._end = view, position, end

    def require(self, length: int, complaint: str) -> None:
        if self._end - self.position < length:
            raise DeserializationError(complaint, self.position)

    def u32(self) -> int:
        return self._number(_U32, "u32")

    def u64(self) -> int:
        return self._number(_U64, "u64")

    def string(self) -> str:
        start = self.position + _U32.size
        raw = self._sized("truncated string")
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise DeserializationError(f"invalid UTF-8: {error.reason}", start + error.start) from error

    def operator_state(self) -> bytes:
        return bytes(self._sized("truncated operator state"))

    def time(self) -> datetime:
        start = self.position
        milliseconds = self._number(_I64, "i64")
        try:
            return _EPOCH + timedelta(milliseconds=milliseconds)
        except OverflowError as error:
            raise DeserializationError(f"creation time of {milliseconds} ms is out of range", start) from error

    def mapping(self, read_value: Callable[[], _Value], what: str) -> dict[str, _Value]:
        entries: dict[str, _Value] = {}
        for _ in range(self.u32()):
            start = self.position
            name = self.string()
            if name in entries:
                raise DeserializationError(f"duplicate {what} '{name}'", start)
            entries[name] = read_value()
        return entries

    def _number(self, layout: struct.Struct, kind: str) -> int:
        self.require(layout.size, f"cannot read {kind} at offset {self.position}")
        (number,) = layout.unpack_from(self._view, self.position)
        self.position += layout.size
        return int(number)

    def _sized(self, complaint: str) -> memoryview:
        length = self.u32()
        self.require(length, complaint)
        start = self.position
        self.position += length
        return self._view[start : self.position]


def _refuse_rest(position: int, view: memoryview, allow_trailing: bool) -> None:
    if position < len(view) and not allow_trailing:
        raise DeserializationError(f"{len(view) - position} trailing bytes after the snapshot", position)


def _pack_u64(number: int, what: str) -> bytes:
    try:
        return _U64.pack(number)
    except struct.error as error:
        raise StreamingError(f"{what} must be an integer from 0 to 2^64-1, not {number!r}") from error


def _pack_length(sized: Sized, what: str) -> bytes:
    if len(sized) >= 1 << 32:
        raise StreamingError(f"length of {what} must be below 2^32, not {len(sized)}")
    return _U32.pack(len(sized))


def _pack_string(text: str, what: str) -> bytes:
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise StreamingError(f"{what} {text!r} cannot be written as UTF-8") from error
    return _pack_length(raw, what) + raw
