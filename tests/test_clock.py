"""Time and identifiers: growing whatever the clock does."""

import itertools
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import clock as clock_module
from holdfast.clock import SYSTEM_CLOCK, SystemClock, new_token, new_uuid, utc_from_ms

NOW_MS = 1_750_000_000_000


class ScriptedClock(SystemClock):
    """Shows the given times, the last one for ever."""

    def __init__(self, *times_ms: int) -> None:
        self._times_ms = list(times_ms)

    def now_ms(self) -> int:
        return self._times_ms.pop(0) if len(self._times_ms) > 1 else self._times_ms[0]


@pytest.fixture(autouse=True)
def _fresh_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "_last_uuid_ms", 0)
    monkeypatch.setattr(clock_module, "_last_uuid_sequence", 0)


def stamp_of(value: uuid.UUID) -> int:
    return value.int >> 80


def is_growing(values: list[uuid.UUID]) -> bool:
    return all(a < b and str(a) < str(b) for a, b in itertools.pairwise(values))


def test_a_uuid_carries_version_variant_and_the_milliseconds() -> None:
    for value in [new_uuid(ScriptedClock(NOW_MS)), new_uuid()]:
        assert value.version == 7
        assert value.variant == uuid.RFC_4122
        assert str(value)[14] == "7"
        assert str(value)[19] in "89ab"
    assert stamp_of(new_uuid(ScriptedClock(2 * NOW_MS))) == 2 * NOW_MS


def test_uuids_grow_also_when_one_millisecond_has_room_for_less() -> None:
    frozen = ScriptedClock(NOW_MS)
    values = [new_uuid(frozen) for _ in range(10_000)]
    assert is_growing(values)
    assert {value.version for value in values} == {7}
    assert {value.variant for value in values} == {uuid.RFC_4122}
    assert 2 <= stamp_of(values[-1]) - stamp_of(values[0]) <= 3  # Other threads may want some meanwhile.


def test_uuids_grow_over_a_clock_that_steps_back() -> None:
    stepping = ScriptedClock(NOW_MS, NOW_MS + 5, NOW_MS - 3_600_000, NOW_MS + 4, NOW_MS + 6, 0)
    assert is_growing([new_uuid(stepping) for _ in range(8)])


def test_uuids_follow_the_clock_again_once_it_caught_up() -> None:
    values = [new_uuid(ScriptedClock(ms)) for ms in (NOW_MS + 10, NOW_MS, NOW_MS + 11)]
    assert [stamp_of(value) - NOW_MS for value in values] == [10, 10, 11]


@given(st.lists(st.integers(0, 2**40), min_size=2, max_size=50))
def test_uuids_grow_over_any_clock(times_ms: list[int]) -> None:
    scripted = ScriptedClock(*times_ms)
    assert is_growing([new_uuid(scripted) for _ in times_ms])


def test_uuids_of_many_threads_are_all_different() -> None:
    frozen = ScriptedClock(NOW_MS)
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda _: new_uuid(frozen), range(5_000)))
    assert len(set(values)) == 5_000
    assert len({value.int >> 64 for value in values}) == 5_000  # different even without the random tail


def test_tokens_are_short_different_and_fit_for_a_name() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 16 and set(token) <= set("0123456789abcdef") for token in tokens)


def test_the_system_clock_shows_milliseconds_and_never_runs_back() -> None:
    assert abs(SYSTEM_CLOCK.now_ms() - datetime.now(UTC).timestamp() * 1000) < 60_000
    assert SYSTEM_CLOCK.monotonic() <= SYSTEM_CLOCK.monotonic()


def test_a_stamp_becomes_an_aware_time() -> None:
    assert utc_from_ms(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert utc_from_ms(NOW_MS + 1) == datetime(2025, 6, 15, 15, 6, 40, 1000, tzinfo=UTC)


@given(st.integers(-(10**13), 253_402_300_799_999))
def test_a_stamp_loses_no_millisecond(timestamp_ms: int) -> None:
    exact = utc_from_ms(timestamp_ms) - utc_from_ms(0)
    assert (exact.days * 86_400 + exact.seconds) * 1000 + exact.microseconds / 1000 == timestamp_ms
