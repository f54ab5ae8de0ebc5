"""What every test of the crash lab stands on. The counts are printed by the conftest of all tests."""

import functools
from collections.abc import Iterator

import crash_lab
import pytest

import holdfast.clock
from holdfast.stores import store, survey, verification


@pytest.fixture(autouse=True)
def _clock_as_it_was() -> Iterator[None]:
    """Give the real source of tokens back after a test that made them repeatable."""
    real = holdfast.clock.os
    yield
    holdfast.clock.os = real


@pytest.fixture(autouse=True)
def _manifests_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember what bytes parse to: it depends on nothing else, and the lab reads the same manifest often."""
    remembered = functools.lru_cache(maxsize=4096)(verification.parse_manifest)
    for module in (verification, store, survey):
        monkeypatch.setattr(module, "parse_manifest", remembered)


@pytest.fixture
def tally() -> "crash_lab.Counter[str]":
    """Where a test counts what it tried."""
    return crash_lab.TALLY
