"""The values a manifest is made of."""

import copy
import logging
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from holdfast.core.entries import ConnectorCheckpoint, OperatorCheckpoint, SinkCommitStatus

DAMAGED_BASE64 = ["aGVsbG8", "aGVsbG8==", "aGVs bG8=", "aGVsbG8=\n", "aGVsbG8=aGVsbG8=", "aGVsbG9=", "-_-_", "=", "ä"]


# Connectors


def test_a_new_connector_checkpoint_knows_only_its_epoch() -> None:
    checkpoint = ConnectorCheckpoint.new(5)
    assert (checkpoint.epoch, checkpoint.offsets, checkpoint.metadata) == (5, {}, {})


def test_a_connector_checkpoint_keeps_a_copy_of_its_offsets() -> None:
    offsets = {"lsn": "0/ABCD"}
    checkpoint = ConnectorCheckpoint.with_offsets(3, offsets)
    offsets["lsn"] = "0/0000"
    assert (checkpoint.epoch, checkpoint.offsets) == (3, {"lsn": "0/ABCD"})


def test_metadata_may_be_missing_in_json_and_is_always_written() -> None:
    checkpoint = ConnectorCheckpoint.model_validate({"offsets": {"a": "1"}, "epoch": 2})
    assert checkpoint.model_dump(mode="json") == {"offsets": {"a": "1"}, "epoch": 2, "metadata": {}}


@pytest.mark.parametrize(
    "value", [{}, {"offsets": {}}, {"epoch": 1}, {"offsets": {"a": 1}, "epoch": 1}, {"offsets": None, "epoch": 1}]
)
def test_a_malformed_connector_checkpoint_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        ConnectorCheckpoint.model_validate(value)


# Operators


def test_inline_state_comes_back() -> None:
    entry = OperatorCheckpoint.inline(b"state-data")
    assert entry.external is False
    assert entry.state_b64 == "c3RhdGUtZGF0YQ=="
    assert entry.decode_inline() == b"state-data"


@given(st.binary(max_size=50))
def test_any_inline_bytes_come_back(data: bytes) -> None:
    assert OperatorCheckpoint.inline(memoryview(data)).try_decode_inline() == data


def test_empty_inline_state_is_not_the_same_as_none() -> None:
    assert OperatorCheckpoint.inline(b"").decode_inline() == b""
    assert OperatorCheckpoint().decode_inline() is None


def test_external_builds_an_entry_on_the_class_and_tells_of_it_on_the_instance() -> None:
    entry = OperatorCheckpoint.external(1024, 256)
    assert entry.external is True
    assert (entry.external_offset, entry.external_length) == (1024, 256)
    assert entry.state_b64 is None
    assert entry.decode_inline() is None
    assert entry.try_decode_inline() is None


def test_external_builds_an_instance_of_the_class_it_is_asked_of() -> None:
    class Special(OperatorCheckpoint):
        pass

    assert type(Special.external(1, 2)) is Special


def test_the_json_key_is_external() -> None:
    assert OperatorCheckpoint.external(7, 9).model_dump(mode="json") == {
        "state_b64": None,
        "external": True,
        "external_offset": 7,
        "external_length": 9,
    }
    assert '"external":false' in OperatorCheckpoint.inline(b"x").model_dump_json()
    assert OperatorCheckpoint.model_validate({"external": True, "external_length": 9}).external


@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_only_true_and_false_are_external(value: Any) -> None:
    with pytest.raises(ValidationError):
        OperatorCheckpoint.model_validate({"external": value})


def test_missing_keys_mean_no_state_at_all() -> None:
    assert OperatorCheckpoint.model_validate({}) == OperatorCheckpoint()
    assert OperatorCheckpoint().external is False


@pytest.mark.parametrize("text", DAMAGED_BASE64)
def test_damaged_base64_is_told_from_none_by_the_strict_reader(text: str) -> None:
    with pytest.raises(ValueError, match=r"^\[LDB-4004\] base64 decode failed: "):
        OperatorCheckpoint(state_b64=text).try_decode_inline()


@pytest.mark.parametrize("text", DAMAGED_BASE64)
def test_damaged_base64_is_none_and_a_warning_for_the_lenient_reader(
    text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert OperatorCheckpoint(state_b64=text).decode_inline() is None
    (record,) = caplog.records
    assert "[LDB-4004]" in record.getMessage()
    assert f"{len(text)} characters" in record.getMessage()


def test_every_changed_character_of_base64_changes_the_bytes_or_is_damage() -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
    for data in (b"hello", b"hell", b"hel"):
        text = OperatorCheckpoint.inline(data).state_b64 or ""
        for position in range(len(text)):
            for character in set(alphabet) - {text[position]}:
                edited = text[:position] + character + text[position + 1 :]
                try:
                    assert OperatorCheckpoint(state_b64=edited).try_decode_inline() != data
                except ValueError as error:
                    assert "LDB-4004" in str(error)  # noqa: PT017


def test_small_state_is_inlined() -> None:
    entry, rest = OperatorCheckpoint.from_bytes(b"small-state", 1024, 0)
    assert (entry.external, rest) == (False, None)
    assert entry.decode_inline() == b"small-state"


def test_large_state_is_referenced_and_returned() -> None:
    data = b"\xab" * 2048
    entry, rest = OperatorCheckpoint.from_bytes(data, 1024, 512)
    assert (entry.external, entry.external_offset, entry.external_length) == (True, 512, 2048)
    assert entry.decode_inline() is None
    assert rest == data


def test_state_of_exactly_the_threshold_is_inlined_and_one_byte_more_is_not() -> None:
    entry, rest = OperatorCheckpoint.from_bytes(b"\xff" * 100, 100, 0)
    assert (entry.external, rest, entry.decode_inline()) == (False, None, b"\xff" * 100)
    entry, rest = OperatorCheckpoint.from_bytes(b"\xff" * 101, 100, 0)
    assert (entry.external, rest) == (True, b"\xff" * 101)


@pytest.mark.parametrize("threshold", [0, 1024])
def test_empty_state_is_inlined(threshold: int) -> None:
    entry, rest = OperatorCheckpoint.from_bytes(b"", threshold, 7)
    assert (entry.external, rest, entry.decode_inline()) == (False, None, b"")


@pytest.mark.parametrize("data", [b"x" * 10, bytearray(b"x" * 10), memoryview(b"x" * 10)])
def test_shared_state_is_the_callers_own_buffer(data: Any) -> None:
    entry, rest = OperatorCheckpoint.from_bytes_shared(data, 9, 3)
    assert rest is data
    assert (entry.external_offset, entry.external_length) == (3, 10)


def test_copied_state_does_not_follow_the_callers_buffer() -> None:
    buffer = bytearray(b"before")
    _, rest = OperatorCheckpoint.from_bytes(buffer, 0, 0)
    buffer[:] = b"after!"
    assert rest == b"before"


def test_length_counts_bytes_not_items() -> None:
    wide = memoryview(bytes(16)).cast("Q")
    entry, rest = OperatorCheckpoint.from_bytes(wide, 15, 0)
    assert (entry.external_length, rest) == (16, bytes(16))
    entry, _ = OperatorCheckpoint.from_bytes_shared(wide, 16, 0)
    assert entry.decode_inline() == bytes(16)


# Statuses


def test_a_status_is_written_in_three_forms() -> None:
    assert SinkCommitStatus.PENDING.to_json_value() == "Pending"
    assert SinkCommitStatus.COMMITTED.to_json_value() == "Committed"
    assert SinkCommitStatus.failed("boom").to_json_value() == {"Failed": "boom"}


@pytest.mark.parametrize(
    "status", [SinkCommitStatus.PENDING, SinkCommitStatus.COMMITTED, SinkCommitStatus.failed("")]
)
def test_a_status_survives_json_copying_and_pickling(status: SinkCommitStatus) -> None:
    assert SinkCommitStatus.parse(status.to_json_value()) == status
    assert copy.deepcopy(status) == status
    assert pickle.loads(pickle.dumps(status)) == status
    assert hash(copy.copy(status)) == hash(status)


def test_statuses_differ_by_kind_and_message() -> None:
    failed = SinkCommitStatus.failed("a")
    assert failed == SinkCommitStatus.failed("a")
    assert failed != SinkCommitStatus.failed("b")
    assert SinkCommitStatus.PENDING != SinkCommitStatus.COMMITTED
    assert SinkCommitStatus.PENDING != "Pending"


def test_progress_grows_towards_committed() -> None:
    progress = [
        s.progress for s in (SinkCommitStatus.PENDING, SinkCommitStatus.failed(""), SinkCommitStatus.COMMITTED)
    ]
    assert progress == sorted(set(progress))


def test_only_failed_carries_a_message() -> None:
    for kind, message in [("Pending", "x"), ("Committed", ""), ("Failed", None), ("Rolled", None)]:
        with pytest.raises(ValueError):
            SinkCommitStatus(kind, message)


def test_a_status_reads_well() -> None:
    assert [str(s) for s in (SinkCommitStatus.PENDING, SinkCommitStatus.failed("disk full"))] == [
        "Pending",
        "Failed: disk full",
    ]
    assert repr(SinkCommitStatus.COMMITTED) == "SinkCommitStatus(Committed)"
