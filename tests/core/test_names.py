"""Names: each id has exactly one, and nothing else passes for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.names import (
    checkpoint_id_of,
    checkpoint_name,
    manifest_id_of,
    manifest_name,
    sidecar_id_of,
    sidecar_name,
)

PAIRS = [(checkpoint_name, checkpoint_id_of), (manifest_name, manifest_id_of), (sidecar_name, sidecar_id_of)]


def test_names_are_padded_to_six_digits_and_grow_beyond() -> None:
    assert checkpoint_name(42) == "checkpoint_000042"
    assert manifest_name(42) == "manifest-000042.json"
    assert sidecar_name(42) == "state-000042.bin"
    assert sidecar_name(42, "0a1b") == "state-000042-0a1b.bin"
    assert checkpoint_name(12_345_678) == "checkpoint_12345678"


@given(st.integers(0, 2**64 - 1))
def test_every_id_is_read_back_from_its_names(checkpoint_id: int) -> None:
    for name_of, id_of in PAIRS:
        assert id_of(name_of(checkpoint_id)) == checkpoint_id
    assert sidecar_id_of(sidecar_name(checkpoint_id, "00ff")) == checkpoint_id


@given(st.from_regex(r"\A(checkpoint_|manifest-|state-)\w{0,22}(\.json|\.bin)?\Z"))
def test_a_name_with_an_id_is_the_name_of_that_id(name: str) -> None:
    for name_of, id_of in PAIRS:
        found = id_of(name)
        assert found is None or name == name_of(found)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "checkpoint_",
        "checkpoint_42",
        "checkpoint_0000042",  # would be a second name of 42
        "checkpoint_٠٠٠٠٤٢",  # digits, but not ours
        "checkpoint_000042.tmp",
        "checkpoint_000042\n",
        " checkpoint_000042",
        "checkpoint_-00042",
        "checkpoint_18446744073709551616",
        "Checkpoint_000042",
        "manifest-000042.json.tmp",
        "manifest-000042",
        "manifest-latest.json",
        "latest.json",
        "state-000042",
        "state-000042-.bin",
        "state-000042-AB.bin",
        "state-000042-ab-cd.bin",
        "state-0000042.bin",
        f"state-000042-{'a' * 33}.bin",
        "state.bin",
    ],
)
def test_other_names_have_no_id(name: str) -> None:
    assert [id_of(name) for _, id_of in PAIRS] == [None, None, None]
