"""The binary snapshot: byte-compatible version 1, framed version 2, and what neither of them swallows."""

import struct
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.frames import FRAME_HEADER_LENGTH, decode_frame, encode_frame, frame_length
from holdfast.core.snapshot_codec import SNAPSHOT_MAGIC, CheckpointId, CheckpointState
from holdfast.errors import DeserializationError, StreamingError

GOLDEN_V1 = bytes.fromhex(
    "0700000000000000010000000000000002000000000000000100000002000000"
    "6f7002000000010201000000010000006b0900000000000000"
)
CREATED_AT = datetime(2026, 2, 28, 12, 30, 15, 123000, tzinfo=UTC)
MAGIC_AS_SEQUENCE = int.from_bytes(SNAPSHOT_MAGIC, "little")
U64_MAX = 2**64 - 1

texts = st.text(st.characters(codec="utf-8"), max_size=12)
u64s = st.integers(0, U64_MAX)
milliseconds = st.integers(-(10**13), 10**14).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)
states = st.builds(
    CheckpointState,
    id=st.builds(CheckpointId, stream_id=texts, sequence=u64s, created_at=milliseconds),
    operator_states=st.dictionaries(texts, st.binary(max_size=40), max_size=4),
    source_offsets=st.dictionaries(texts, u64s, max_size=4),
    watermark_ns=u64s,
    event_count=u64s,
    metadata=st.dictionaries(texts, texts, max_size=4),
)


class StoppedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_123

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


STOPPED = StoppedClock()


def golden_state() -> CheckpointState:
    state = CheckpointState.new(CheckpointId("orders", 7, CREATED_AT))
    state.set_operator_state("op", b"\x01\x02")
    state.set_source_offset("k", 9)
    state.watermark_ns, state.event_count = 1, 2
    return state


def small_state() -> CheckpointState:
    state = golden_state()
    state.metadata = {"host": "a", "zone": "b"}
    return state


SMALL_V2 = small_state().serialize_framed()


class TestCheckpointId:
    def test_the_same_cut_is_equal_whenever_it_was_made(self) -> None:
        early = CheckpointId("s", 1, CREATED_AT)
        late = CheckpointId("s", 1, CREATED_AT + timedelta(days=1))
        assert early == late
        assert hash(early) == hash(late)
        assert not early < late
        assert not late < early

    def test_order_is_stream_then_sequence(self) -> None:
        ids = [CheckpointId(s, n, CREATED_AT - timedelta(hours=n)) for s, n in [("b", 1), ("a", 10), ("a", 9)]]
        assert [(i.stream_id, i.sequence) for i in sorted(ids)] == [("a", 9), ("a", 10), ("b", 1)]

    def test_new_stamps_the_time_of_the_clock(self) -> None:
        stamped = CheckpointId.new("s", 4, STOPPED)
        assert stamped.created_at == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)

    def test_a_time_without_zone_is_refused(self) -> None:
        with pytest.raises(ValueError, match="time zone"):
            CheckpointId("s", 1, CREATED_AT.replace(tzinfo=None))


class TestState:
    def test_setters_overwrite(self) -> None:
        state = golden_state()
        state.set_operator_state("op", b"new")
        state.set_source_offset("k", 10)
        assert (state.operator_states, state.source_offsets) == ({"op": b"new"}, {"k": 10})

    def test_a_changeable_buffer_is_copied(self) -> None:
        state, buffer = golden_state(), bytearray(b"before")
        state.set_operator_state("op", buffer)
        buffer[:] = b"after!"
        assert state.operator_states["op"] == b"before"

    def test_a_copy_is_equal_and_independent(self) -> None:
        state = small_state()
        copied = state.copy()
        assert copied == state
        copied.set_operator_state("other", b"")
        copied.set_source_offset("other", 1)
        copied.metadata["other"] = ""
        assert state == small_state()


class TestVersion1:
    def test_golden_bytes_are_written(self) -> None:
        assert len(GOLDEN_V1) == 57
        assert golden_state().serialize() == GOLDEN_V1

    def test_golden_bytes_are_read(self) -> None:
        state = CheckpointState.deserialize("orders", GOLDEN_V1, clock=STOPPED)
        assert state == golden_state()
        assert state.id.created_at == CheckpointId.new("orders", 7, STOPPED).created_at

    @given(states)
    def test_round_trip_keeps_all_but_metadata_and_time(self, state: CheckpointState) -> None:
        decoded = CheckpointState.deserialize(state.id.stream_id, state.serialize())
        state.metadata = {}
        assert decoded == state

    def test_names_are_written_in_order_and_read_in_any(self) -> None:
        one, other = golden_state(), golden_state()
        for name in ("b", "é", "a"):
            one.set_operator_state(name, name.encode())
            one.set_source_offset(name, 1)
        for name in ("a", "b", "é"):
            other.set_operator_state(name, name.encode())
            other.set_source_offset(name, 1)
        assert one.serialize() == other.serialize()
        unsorted = struct.pack("<QQQI", 1, 0, 0, 0) + struct.pack("<II1sQI1sQ", 2, 1, b"z", 5, 1, b"a", 6)
        assert CheckpointState.deserialize("s", unsorted).source_offsets == {"z": 5, "a": 6}

    def test_any_buffer_is_read(self) -> None:
        for data in (bytearray(GOLDEN_V1), memoryview(GOLDEN_V1)):
            assert CheckpointState.deserialize("orders", data) == golden_state()

    @pytest.mark.parametrize("allow_trailing", [False, True])
    def test_every_truncation_is_refused(self, allow_trailing: bool) -> None:
        for kept in range(len(GOLDEN_V1)):
            with pytest.raises(DeserializationError) as caught:
                CheckpointState.deserialize("orders", GOLDEN_V1[:kept], allow_trailing=allow_trailing)
            assert 0 <= caught.value.position <= kept

    @pytest.mark.parametrize(
        ("kept", "text", "position"),
        [
            (0, "too short for header", 0),
            (23, "too short for header", 0),
            (24, "cannot read u32 at offset 24", 24),
            (27, "cannot read u32 at offset 24", 24),
            (31, "cannot read u32 at offset 28", 28),
            (33, "truncated string", 32),
            (37, "cannot read u32 at offset 34", 34),
            (39, "truncated operator state", 38),
            (40, "cannot read u32 at offset 40", 40),
            (43, "cannot read u32 at offset 40", 40),
            (44, "cannot read u32 at offset 44", 44),
            (48, "truncated string", 48),
            (56, "cannot read u64 at offset 49", 49),
        ],
    )
    def test_a_truncation_is_named_with_its_position(self, kept: int, text: str, position: int) -> None:
        with pytest.raises(DeserializationError, match=text) as caught:
            CheckpointState.deserialize("orders", GOLDEN_V1[:kept])
        assert caught.value.position == position

    def test_invalid_utf8_points_at_the_byte(self) -> None:
        with pytest.raises(DeserializationError, match="invalid UTF-8") as caught:
            CheckpointState.deserialize("orders", GOLDEN_V1[:33] + b"\xff" + GOLDEN_V1[34:])
        assert caught.value.position == 33

    def test_trailing_bytes_are_refused_unless_allowed(self) -> None:
        with pytest.raises(DeserializationError, match="3 trailing bytes") as caught:
            CheckpointState.deserialize("orders", GOLDEN_V1 + b"xyz")
        assert caught.value.position == 57
        assert CheckpointState.deserialize("orders", GOLDEN_V1 + b"xyz", allow_trailing=True) == golden_state()

    def test_duplicate_names_are_refused(self) -> None:
        header = struct.pack("<QQQ", 1, 0, 0)
        operators = header + struct.pack("<II2sII2sII", 2, 2, b"op", 0, 2, b"op", 0, 0)
        with pytest.raises(DeserializationError, match="duplicate operator 'op'") as caught:
            CheckpointState.deserialize("s", operators)
        assert caught.value.position == 38
        sources = header + struct.pack("<III1sQI1sQ", 0, 2, 1, b"k", 5, 1, b"k", 6)
        with pytest.raises(DeserializationError, match="duplicate source 'k'"):
            CheckpointState.deserialize("s", sources)

    def test_a_huge_count_over_few_bytes_fails_at_once(self) -> None:
        with pytest.raises(DeserializationError, match="cannot read u32 at offset 28"):
            CheckpointState.deserialize("s", struct.pack("<QQQI", 1, 0, 0, 2**32 - 1))


class Huge(bytes):
    """Says that it is too long for a 32-bit length."""

    def __len__(self) -> int:
        return 2**32


class TestRanges:
    @pytest.mark.parametrize("number", [-1, 2**64, 1.5])
    def test_numbers_outside_u64_are_refused(self, number: int) -> None:
        broken = [golden_state() for _ in range(4)]
        broken[0].id = CheckpointId("orders", number, CREATED_AT)
        broken[1].watermark_ns = number
        broken[2].event_count = number
        broken[3].set_source_offset("k", number)
        expected = ("sequence", "watermark_ns", "event_count", "offset of source 'k'")
        for state, what in zip(broken, expected, strict=True):
            for write in (state.serialize, state.serialize_framed):
                with pytest.raises(StreamingError, match=f"{what} must be an integer from 0"):
                    write()

    def test_a_state_of_4_gib_is_refused_instead_of_cut(self) -> None:
        state = golden_state()
        state.operator_states["op"] = Huge()
        for write in (state.serialize, state.serialize_framed):
            with pytest.raises(StreamingError, match=r"state of operator 'op' must be below 2\^32, not 4294967296"):
                write()

    def test_a_name_that_is_no_text_is_refused(self) -> None:
        state = golden_state()
        state.set_source_offset("\ud800", 1)
        with pytest.raises(StreamingError, match=r"source name .* cannot be written as UTF-8"):
            state.serialize()

    def test_the_largest_numbers_fit(self) -> None:
        state = CheckpointState(CheckpointId("s", U64_MAX, CREATED_AT), {}, {"k": U64_MAX}, U64_MAX, U64_MAX)
        assert CheckpointState.deserialize("s", state.serialize()) == state


class TestVersion2:
    @given(states)
    def test_round_trip_keeps_everything(self, state: CheckpointState) -> None:
        encoded = state.serialize_framed()
        decoded = CheckpointState.deserialize(state.id.stream_id, encoded)
        assert decoded == state
        assert decoded.id.created_at == state.id.created_at
        assert decoded.serialize_framed() == encoded

    def test_payload_is_the_documented_one(self) -> None:
        frame = decode_frame(SMALL_V2, SNAPSHOT_MAGIC)
        assert frame.version == 2
        milliseconds = round(CREATED_AT.timestamp() * 1000)
        own = struct.pack("<I6sqI", 6, b"orders", milliseconds, 2)
        own += struct.pack("<I4sI1sI4sI1s", 4, b"host", 1, b"a", 4, b"zone", 1, b"b")
        assert frame.payload == own + GOLDEN_V1

    def test_order_of_insertion_does_not_matter(self) -> None:
        state = golden_state()
        state.metadata = {"zone": "b", "host": "a"}
        assert state.serialize_framed() == SMALL_V2

    def test_time_is_kept_to_the_millisecond_in_utc(self) -> None:
        local = timezone(timedelta(hours=-7))
        for moment in (
            datetime.max.replace(tzinfo=UTC),
            datetime(1969, 12, 31, 1, 2, 3, 456789, tzinfo=local),
        ):
            state = CheckpointState.new(CheckpointId("s", 1, moment))
            decoded = CheckpointState.deserialize("s", state.serialize_framed())
            assert decoded.id.created_at == moment.replace(microsecond=moment.microsecond // 1000 * 1000)

    def test_another_stream_is_refused(self) -> None:
        with pytest.raises(StreamingError, match="belongs to stream 'orders', not 'payments'"):
            CheckpointState.deserialize("payments", SMALL_V2)

    @pytest.mark.parametrize("allow_trailing", [False, True])
    def test_every_truncation_is_refused(self, allow_trailing: bool) -> None:
        for kept in range(len(SMALL_V2)):
            with pytest.raises(DeserializationError):
                CheckpointState.deserialize("orders", SMALL_V2[:kept], allow_trailing=allow_trailing)
            with pytest.raises(DeserializationError, match="truncated frame") as caught:
                CheckpointState.deserialize_prefix(SMALL_V2[:kept])
            assert caught.value.position == kept

    @pytest.mark.parametrize("allow_trailing", [False, True])
    def test_every_flipped_bit_is_refused(self, allow_trailing: bool) -> None:
        for bit in range(len(SMALL_V2) * 8):
            damaged = bytearray(SMALL_V2)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DeserializationError):
                CheckpointState.deserialize("orders", damaged, allow_trailing=allow_trailing)
            with pytest.raises(DeserializationError):
                CheckpointState.deserialize_prefix(damaged)

    def test_a_torn_write_of_zeros_is_not_taken_for_version_1(self) -> None:
        """The first bytes reached the disk, the rest is zeros: read as version 1 that is an empty state."""
        torn = SMALL_V2[:16] + bytes(len(SMALL_V2) - 16)
        for allow_trailing in (False, True):
            with pytest.raises(DeserializationError, match="digest mismatch"):
                CheckpointState.deserialize("orders", torn, allow_trailing=allow_trailing)

    def test_trailing_bytes_are_refused_unless_allowed(self) -> None:
        with pytest.raises(DeserializationError, match="1 trailing bytes") as caught:
            CheckpointState.deserialize("orders", SMALL_V2 + b"x")
        assert caught.value.position == len(SMALL_V2)
        assert CheckpointState.deserialize("orders", SMALL_V2 + b"x", allow_trailing=True) == small_state()

    def test_the_prefix_of_a_sidecar_is_read_with_its_length(self) -> None:
        sidecar = SMALL_V2 + b"chunks of operators"
        state, length = CheckpointState.deserialize_prefix(sidecar)
        assert (state, length) == (small_state(), len(SMALL_V2))
        assert frame_length(sidecar[:FRAME_HEADER_LENGTH], SNAPSHOT_MAGIC) == length

    def test_a_prefix_must_be_framed(self) -> None:
        with pytest.raises(DeserializationError, match="wrong magic"):
            CheckpointState.deserialize_prefix(GOLDEN_V1)

    def test_a_newer_version_is_refused_by_name(self) -> None:
        newer = encode_frame(SNAPSHOT_MAGIC, 3, decode_frame(SMALL_V2, SNAPSHOT_MAGIC).payload)
        with pytest.raises(DeserializationError, match="version 3 in a frame; this holdfast reads 2") as caught:
            CheckpointState.deserialize("orders", newer)
        assert caught.value.position == 4

    def test_an_intact_frame_with_a_malformed_payload_is_refused(self) -> None:
        """The digest is right, so it was written like this: positions count from the start of the frame."""
        payload = bytes(decode_frame(SMALL_V2, SNAPSHOT_MAGIC).payload)
        cases = [
            (payload[:-1], "cannot read u64", FRAME_HEADER_LENGTH + len(payload) - 8),
            (payload + b"x", "1 trailing bytes", FRAME_HEADER_LENGTH + len(payload)),
            (b"", "cannot read u32 at offset 48", FRAME_HEADER_LENGTH),
            (payload[:10] + b"\xff" * 7 + b"\x7f" + payload[18:], "out of range", FRAME_HEADER_LENGTH + 10),
            (payload.replace(b"zone", b"host"), "duplicate metadata key 'host'", FRAME_HEADER_LENGTH + 35),
        ]
        for malformed, text, position in cases:
            with pytest.raises(DeserializationError, match=text) as caught:
                CheckpointState.deserialize("orders", encode_frame(SNAPSHOT_MAGIC, 2, malformed))
            assert caught.value.position == position


class TestVersion1ThatBeginsWithTheMagic:
    @pytest.mark.parametrize("high_half", [0, 2, 2**32 - 1])
    def test_it_is_read_as_version_1(self, high_half: int) -> None:
        state = golden_state()
        state.id = CheckpointId("orders", high_half << 32 | MAGIC_AS_SEQUENCE, CREATED_AT)
        encoded = state.serialize()
        assert encoded.startswith(SNAPSHOT_MAGIC)
        assert CheckpointState.deserialize("orders", encoded) == state

    def test_a_truncation_of_it_is_refused(self) -> None:
        state = golden_state()
        state.id = CheckpointId("orders", MAGIC_AS_SEQUENCE, CREATED_AT)
        encoded = state.serialize()
        for kept in range(len(encoded)):
            with pytest.raises(DeserializationError):
                CheckpointState.deserialize("orders", encoded[:kept])
