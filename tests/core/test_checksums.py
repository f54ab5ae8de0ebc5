"""The state checksum in its three shapes, against vectors worked out from the rule of the other system."""

import hashlib

import pytest

from holdfast.core.checksums import inline_digest, sidecar_digest, state_checksum
from holdfast.core.entries import OperatorCheckpoint

SIDECAR = b"\xab" * 4
ONLY_SIDECAR = "6725895d2173020ef6c827543cddd160fed886f4f0aacd9c263247af80c3f3b0"
ONLY_INLINE = "5012204fc7cadb3d1124bd346b101302489d46a7aa65f87c2e8df1900ade58b7"
MIXED = "9c1a8349d062c6af7b246de47e6fa115aca5076ac1447d17ceb9f064d1005ee4"

HELLO = OperatorCheckpoint.inline(b"hello")
EMPTY = OperatorCheckpoint.inline(b"")
EXTERNAL = OperatorCheckpoint.external(0, 4)


@pytest.mark.parametrize("states", [{}, {"z": EXTERNAL}])
def test_a_sidecar_alone_is_hashed_as_it_is(states: dict[str, OperatorCheckpoint]) -> None:
    assert state_checksum(states, [SIDECAR]) == ONLY_SIDECAR


def test_inline_entries_alone_are_hashed_by_name_and_text() -> None:
    assert state_checksum({"a": HELLO, "b": EMPTY}, None) == ONLY_INLINE
    assert hashlib.sha256(b"a\0aGVsbG8=\0b\0\0").hexdigest() == ONLY_INLINE


def test_both_together_are_the_inline_digest_in_hex_and_the_sidecar() -> None:
    assert state_checksum({"a": HELLO, "z": EXTERNAL}, [SIDECAR]) == MIXED


def test_no_state_has_no_checksum() -> None:
    assert state_checksum({}, None) is None
    assert inline_digest({"z": EXTERNAL}) is None


def test_external_entries_are_not_in_the_inline_digest() -> None:
    assert inline_digest({"a": HELLO, "b": EMPTY, "z": EXTERNAL}) == ONLY_INLINE


def test_an_empty_inline_entry_counts() -> None:
    assert inline_digest({"b": EMPTY}) == hashlib.sha256(b"b\0\0").hexdigest()


def test_order_of_entries_does_not_matter() -> None:
    assert state_checksum({"b": EMPTY, "a": HELLO}, None) == ONLY_INLINE


def test_names_are_sorted_by_their_utf8_bytes() -> None:
    names = ["z", "ä", "\uffff", "\U00010000"]
    text = b"".join(name.encode() + b"\0\0" for name in names)
    assert inline_digest(dict.fromkeys(reversed(names), EMPTY)) == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize(
    "chunks", [[SIDECAR], [SIDECAR[:1], b"", SIDECAR[1:]], [memoryview(SIDECAR)], [bytearray(SIDECAR)]]
)
def test_how_the_sidecar_is_cut_does_not_matter(chunks: list[bytes]) -> None:
    assert state_checksum({}, chunks) == ONLY_SIDECAR
    assert state_checksum({"a": HELLO, "z": EXTERNAL}, chunks) == MIXED


def test_a_running_digest_becomes_the_checksum() -> None:
    digest = sidecar_digest({"a": HELLO, "z": EXTERNAL})
    digest.update(SIDECAR[:2])
    digest.update(memoryview(SIDECAR)[2:])
    assert digest.hexdigest() == MIXED
