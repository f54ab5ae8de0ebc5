"""The frame around every record of a sidecar: what is written comes back, and nothing else is believed."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import frames
from holdfast.core.frames import (
    FRAME_HEADER_LENGTH,
    MAX_PAYLOAD_LENGTH,
    decode_frame,
    encode_frame,
    frame_length,
)
from holdfast.errors import DeserializationError, StreamingError

MAGIC = b"TEST"
SMALL = encode_frame(MAGIC, 3, b"payload")


def test_layout_is_the_documented_one() -> None:
    prefix = b"TEST" + b"\x03\x00" + b"\x00\x00" + b"\x07\x00\x00\x00\x00\x00\x00\x00"
    assert prefix + hashlib.sha256(prefix + b"payload").digest() + b"payload" == SMALL
    assert FRAME_HEADER_LENGTH == 48


@given(
    st.binary(min_size=4, max_size=4),
    st.integers(0, 2**16 - 1),
    st.binary(max_size=200),
    st.binary(max_size=9),
)
def test_round_trip_leaves_what_follows_alone(magic: bytes, version: int, payload: bytes, rest: bytes) -> None:
    encoded = encode_frame(magic, version, payload)
    frame = decode_frame(encoded + rest, magic)
    assert (frame.version, bytes(frame.payload), frame.length) == (version, payload, len(encoded))
    assert frame_length(encoded[:FRAME_HEADER_LENGTH], magic) == len(encoded)


def test_payload_is_a_read_only_view_of_the_buffer() -> None:
    buffer = bytearray(SMALL)
    payload = decode_frame(buffer, MAGIC).payload
    assert payload.obj is buffer
    assert payload.readonly


def test_wide_items_are_taken_as_their_bytes() -> None:
    wide = memoryview(bytes(range(8))).cast("I")
    assert decode_frame(encode_frame(MAGIC, 1, wide), MAGIC).payload == bytes(range(8))


def test_every_truncation_is_refused_where_the_bytes_end() -> None:
    for kept in range(len(SMALL)):
        with pytest.raises(DeserializationError, match="truncated frame") as caught:
            decode_frame(SMALL[:kept], MAGIC)
        assert caught.value.position == kept


def test_every_flipped_bit_is_refused() -> None:
    for bit in range(len(SMALL) * 8):
        damaged = bytearray(SMALL)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DeserializationError):
            decode_frame(damaged, MAGIC)


@pytest.mark.parametrize(
    ("damaged", "text", "position"),
    [
        (b"TEAT" + SMALL[4:], "wrong magic: expected b'TEST', found b'TEAT'", 2),
        (b"X", "wrong magic", 0),
        (SMALL[:6] + b"\x01" + SMALL[7:], "reserved frame field is 1", 6),
        (SMALL[:8] + b"\xff" * 8 + SMALL[16:], "over the limit", 8),
    ],
)
def test_a_bad_header_is_named_with_its_position(damaged: bytes, text: str, position: int) -> None:
    for read in (decode_frame, frame_length):
        with pytest.raises(DeserializationError, match=text) as caught:
            read(damaged, MAGIC)
        assert caught.value.position == position


def test_damage_behind_a_sound_header_points_at_the_digest() -> None:
    with pytest.raises(DeserializationError, match="digest mismatch") as caught:
        decode_frame(SMALL[:-1] + b"?", MAGIC)
    assert caught.value.position == 16


def test_frame_length_needs_the_whole_header() -> None:
    with pytest.raises(DeserializationError, match="truncated frame header: 47 of 48 bytes"):
        frame_length(SMALL[: FRAME_HEADER_LENGTH - 1], MAGIC)


def test_frame_length_goes_up_to_the_limit_and_not_beyond() -> None:
    longest = SMALL[:8] + MAX_PAYLOAD_LENGTH.to_bytes(8, "little") + SMALL[16:FRAME_HEADER_LENGTH]
    assert frame_length(longest, MAGIC) == MAX_PAYLOAD_LENGTH + FRAME_HEADER_LENGTH


def test_a_payload_over_the_limit_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_LENGTH", 4)
    assert encode_frame(MAGIC, 1, b"1234")
    with pytest.raises(StreamingError, match="payload of 5 bytes is over the limit of 4"):
        encode_frame(MAGIC, 1, b"12345")


@pytest.mark.parametrize("magic", [b"", b"ABC", b"ABCDE"])
def test_a_magic_of_another_length_is_a_mistake_of_the_caller(magic: bytes) -> None:
    with pytest.raises(ValueError, match="4 bytes"):
        encode_frame(magic, 1, b"")
    with pytest.raises(ValueError, match="4 bytes"):
        decode_frame(SMALL, magic)


@pytest.mark.parametrize("version", [-1, 2**16])
def test_a_version_that_does_not_fit_is_a_mistake_of_the_caller(version: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 65535"):
        encode_frame(MAGIC, version, b"")
