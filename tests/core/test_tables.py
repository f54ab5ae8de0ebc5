"""Pins of reference tables: what stands in a manifest, what a version's content is, when a look is due."""

import pytest

from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.tables import (
    TableFile,
    TableForm,
    TableIndex,
    TablePin,
    TableVersion,
    definition_digest,
    pins_in_part,
    pins_of,
    pins_to_part,
    refresh_is_due,
)

FILES = (TableFile("a.csv", 3, "0a" * 32), TableFile("k=1/b.csv", 5, "0b" * 32))
PIN = TablePin("delta", "0123456789abcdef", TableVersion({"version": "42"}, {"table_id": "t-1"}), 1_000_000)


def test_a_pin_stands_in_the_manifest_in_the_tables_own_terms() -> None:
    position = PIN.to_checkpoint(7)
    assert position.offsets == {"version": "42"}
    assert position.epoch == 7
    assert position.metadata["connector"] == "delta"


@pytest.mark.parametrize("copy", [None, "timeline/tables/products/3-" + "ab" * 32])
def test_a_pin_is_read_back_from_the_manifest_and_from_the_progress_chunk(copy: str | None) -> None:
    pin = TablePin(PIN.connector, PIN.definition, PIN.version, PIN.taken_ms, copy)
    positions = {"products": pin.to_checkpoint(7)}
    assert pins_of(positions) == {"products": pin}
    assert pins_in_part(pins_to_part(positions)) == {"products": pin}


def test_a_position_of_another_system_is_a_pin_that_is_always_looked_at() -> None:
    [pin] = pins_of({"products": ConnectorCheckpoint.with_offsets(3, {"version": "1"})}).values()
    assert pin.version.offsets == {"version": "1"}
    assert refresh_is_due(pin, refresh_seconds=600, now_ms=1_700_000_000_000, looked_at=True)


def test_an_index_is_the_same_in_whatever_order_files_were_found() -> None:
    one, other = TableIndex(TableForm(), FILES), TableIndex(TableForm(), FILES[::-1])
    assert one.digest == other.digest
    assert TableIndex.from_bytes(other.to_bytes()) == one


@pytest.mark.parametrize(
    "other",
    [
        TableIndex(TableForm(), FILES[:1]),
        TableIndex(TableForm(), (TableFile("a.csv", 3, "0c" * 32), FILES[1])),
        TableIndex(TableForm(), (TableFile("c.csv", 3, "0a" * 32), FILES[1])),
        TableIndex(TableForm("csv"), FILES),
        TableIndex(TableForm(schema="id long"), FILES),
        TableIndex(TableForm(options={"header": "true"}), FILES),
    ],
)
def test_other_files_and_another_way_to_read_them_are_another_version(other: TableIndex) -> None:
    assert other.digest != TableIndex(TableForm(), FILES).digest


def test_a_definition_is_told_by_what_it_says_and_not_by_its_order() -> None:
    assert definition_digest({"a": 1, "b": None}) == definition_digest({"b": None, "a": 1})
    assert definition_digest({"a": 1}) != definition_digest({"a": 2})


@pytest.mark.parametrize(
    ("later_ms", "due"), [(0, False), (599_999, False), (600_000, True), (10_000_000, True), (-1, True)]
)
@pytest.mark.parametrize("looked_at", [True, False])
def test_an_interval_counts_from_the_last_look_in_whatever_run(later_ms: int, due: bool, looked_at: bool) -> None:
    now = PIN.taken_ms + later_ms
    assert refresh_is_due(PIN, refresh_seconds=600, now_ms=now, looked_at=looked_at) is due


@pytest.mark.parametrize("looked_at", [True, False])
def test_without_an_interval_a_table_is_looked_at_once_in_a_run(looked_at: bool) -> None:
    assert refresh_is_due(PIN, refresh_seconds=None, now_ms=PIN.taken_ms, looked_at=looked_at) is not looked_at


def test_a_version_is_shown_as_its_offsets() -> None:
    assert str(PIN.version) == "version 42"
