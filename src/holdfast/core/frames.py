"""One self-describing frame for every record we keep inside a sidecar.

    offset  bytes  field
    0       4      magic: what kind of record this is
    4       2      format version of the payload, little endian
    6       2      reserved, zero
    8       8      payload length, little endian
    16      32     SHA-256 over bytes 0..15 and the payload
    48      ...    payload

A frame may stand at the start of a longer buffer, so a record can be read from a sidecar whose manifest is
lost. The digest detects damage; it is no signature and does not say who wrote the frame.
"""

import hashlib
import struct
from dataclasses import dataclass

from holdfast.core.buffers import Buffer
from holdfast.errors import DeserializationError, StreamingError

_PREFIX = struct.Struct("<4sHHQ")
_RESERVED_AT = 6
_PAYLOAD_LENGTH_AT = 8
_DIGEST_AT = _PREFIX.size

MAGIC_LENGTH = 4
FRAME_HEADER_LENGTH = _DIGEST_AT + hashlib.sha256().digest_size
MAX_PAYLOAD_LENGTH = 1 << 32
"""Nothing longer is written, so a reader never fetches more because of one flipped bit in a length."""


@dataclass(frozen=True)
class Frame:
    """A frame whose digest was verified.

    `payload` is a read-only view into the buffer that was decoded: it keeps that buffer alive, and it is only
    as constant as the buffer. `length` counts header and payload, so the next record starts there.
    """

    version: int
    payload: memoryview
    length: int


def encode_frame(magic: bytes, version: int, payload: Buffer) -> bytes:
    """Return the bytes of one frame; equal arguments give equal bytes. `version` is for the caller to use."""
    _check_magic(magic)
    if not 0 <= version < 1 << 16:
        raise ValueError(f"frame version must be from 0 to 65535, not {version}")
    body = memoryview(payload).cast("B")
    if len(body) > MAX_PAYLOAD_LENGTH:
        raise StreamingError(f"frame payload of {len(body)} bytes is over the limit of {MAX_PAYLOAD_LENGTH}")
    prefix = _PREFIX.pack(magic, version, 0, len(body))
    return b"".join((prefix, _digest(prefix, body), body))


def decode_frame(buffer: Buffer, magic: bytes) -> Frame:
    """Verify and open the frame at the start of `buffer`; bytes after it are left alone.

    Raises `DeserializationError` for another magic, a truncation, or any bit that differs from what was
    written. The version is returned, not judged.
    """
    view = memoryview(buffer).cast("B").toreadonly()
    version, payload_length = _read_prefix(view, magic)
    length = FRAME_HEADER_LENGTH + payload_length
    if len(view) < length:
        raise DeserializationError(f"truncated frame: {len(view)} of {length} bytes", len(view))
    payload = view[FRAME_HEADER_LENGTH:length]
    if view[_DIGEST_AT:FRAME_HEADER_LENGTH] != _digest(view[:_DIGEST_AT], payload):
        raise DeserializationError("frame digest mismatch: header or payload is damaged", _DIGEST_AT)
    return Frame(version=version, payload=payload, length=length)


def frame_length(header: Buffer, magic: bytes) -> int:
    """Return how many bytes the whole frame has, from its first `FRAME_HEADER_LENGTH` bytes alone.

    For a reader that fetches the header, then exactly the frame. The number is bounded but not verified: only
    `decode_frame` knows whether the length itself was damaged.
    """
    _, payload_length = _read_prefix(memoryview(header).cast("B"), magic)
    return FRAME_HEADER_LENGTH + payload_length


def _read_prefix(view: memoryview, magic: bytes) -> tuple[int, int]:
    """Return version and payload length."""
    _check_magic(magic)
    found = bytes(view[:MAGIC_LENGTH])
    if not magic.startswith(found):
        raise DeserializationError(
            f"wrong magic: expected {magic!r}, found {found!r}", _first_difference(found, magic)
        )
    if len(view) < FRAME_HEADER_LENGTH:
        raise DeserializationError(f"truncated frame header: {len(view)} of {FRAME_HEADER_LENGTH} bytes", len(view))
    _, version, reserved, payload_length = _PREFIX.unpack_from(view)
    if reserved != 0:
        raise DeserializationError(f"reserved frame field is {reserved}, not 0", _RESERVED_AT)
    if payload_length > MAX_PAYLOAD_LENGTH:
        raise DeserializationError(
            f"frame payload length {payload_length} is over the limit of {MAX_PAYLOAD_LENGTH}",
            _PAYLOAD_LENGTH_AT,
        )
    return version, payload_length


def _check_magic(magic: bytes) -> None:
    if len(magic) != MAGIC_LENGTH:
        raise ValueError(f"frame magic must have {MAGIC_LENGTH} bytes, not {magic!r}")


def _first_difference(found: bytes, expected: bytes) -> int:
    return next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)


def _digest(prefix: Buffer, payload: memoryview) -> bytes:
    digest = hashlib.sha256(prefix)
    digest.update(payload)
    return digest.digest()
