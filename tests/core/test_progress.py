"""The progress chunk: readable at the start of a sidecar, believed only when whole."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import utc_from_ms
from holdfast.core.progress import ProgressRecord
from holdfast.core.snapshot_codec import CheckpointId, CheckpointState
from holdfast.errors import DeserializationError, StreamingError

TIMELINE = UUID("01976e2c-0000-7000-8000-000000000002")
RECORD = ProgressRecord(
    timeline=TIMELINE,
    checkpoint_id=42,
    epoch=41,
    generation=3,
    attempt=2,
    created_ms=1_750_000_000_123,
    parts={"offsets/40": b"v1\n{}\n7", "commits/40": b"v1\n{}", "tokens": b"{}", "empty": b""},
)
ENCODED = RECORD.to_bytes()
LAST_MS_OF_9999 = 253_402_300_799_999

u64 = st.integers(0, 2**64 - 1)


def test_a_record_survives_a_round_trip() -> None:
    assert ProgressRecord.from_bytes(ENCODED) == RECORD


@given(
    st.uuids(),
    u64,
    u64,
    u64,
    u64,
    st.integers(0, LAST_MS_OF_9999),
    st.dictionaries(st.text(max_size=9), st.binary(max_size=9), max_size=3),
)
def test_any_record_survives_a_round_trip(
    timeline: UUID, id: int, epoch: int, generation: int, attempt: int, created_ms: int, parts: dict[str, bytes]
) -> None:
    record = ProgressRecord(timeline, id, epoch, generation, attempt, created_ms, parts)
    assert ProgressRecord.from_bytes(record.to_bytes()) == record


def test_equal_records_are_equal_bytes() -> None:
    reordered = ProgressRecord(TIMELINE, 42, 41, 3, 2, 1_750_000_000_123, dict(reversed(list(RECORD.parts.items()))))
    assert reordered.to_bytes() == ENCODED


@pytest.mark.parametrize("rest", [b"\0", b"HFIX and more", ENCODED])
def test_what_follows_in_the_sidecar_is_left_alone(rest: bytes) -> None:
    assert ProgressRecord.from_bytes(memoryview(ENCODED + rest)) == RECORD


def test_it_is_a_framed_snapshot_that_any_snapshot_reader_opens() -> None:
    state = CheckpointState.deserialize(str(TIMELINE), ENCODED)
    assert (state.id.sequence, state.operator_states["tokens"]) == (41, b"{}")
    assert ENCODED.startswith(b"HFCS\x02\x00")


def test_every_flipped_bit_is_detected() -> None:
    for position in range(len(ENCODED)):
        for bit in range(8):
            damaged = bytearray(ENCODED)
            damaged[position] ^= 1 << bit
            with pytest.raises(DeserializationError):
                ProgressRecord.from_bytes(damaged)


def test_every_truncation_is_detected() -> None:
    for kept in range(len(ENCODED)):
        with pytest.raises(DeserializationError):
            ProgressRecord.from_bytes(ENCODED[:kept])


def _snapshot(stream_id: str, metadata: dict[str, str]) -> bytes:
    state = CheckpointState.new(CheckpointId(stream_id, 1, utc_from_ms(0)))
    state.metadata = metadata
    return state.serialize_framed()


@pytest.mark.parametrize(
    ("stream_id", "metadata"),
    [
        ("orders", {"checkpoint_id": "1", "generation": "1", "attempt": "0"}),
        (str(TIMELINE), {}),
        (str(TIMELINE), {"checkpoint_id": "1", "generation": "1"}),
        (str(TIMELINE), {"checkpoint_id": "one", "generation": "1", "attempt": "0"}),
    ],
)
def test_another_snapshot_is_no_progress_record(stream_id: str, metadata: dict[str, str]) -> None:
    with pytest.raises(DeserializationError, match="not a progress record"):
        ProgressRecord.from_bytes(_snapshot(stream_id, metadata))


def test_a_record_that_does_not_fit_is_refused_when_it_is_written() -> None:
    with pytest.raises(StreamingError, match="sequence"):
        ProgressRecord(TIMELINE, 1, -1, 1).to_bytes()


def test_the_parts_are_not_printed() -> None:
    assert "offsets" not in repr(RECORD)
