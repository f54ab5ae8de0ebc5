"""Verifications that somebody asks for: how many may wait, and how many are remembered."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from holdfast import open_store
from holdfast.interfaces.control import ControlError
from holdfast.interfaces.http.verifications import Verifications
from holdfast.interfaces.reports import Verification
from holdfast.interfaces.service import CheckpointService
from stores.builders import seal

WAITING_AT_MOST, ENDED_KEPT = 8, 32


class HeldService(CheckpointService):
    """A store that is read only when somebody lets it."""

    released = threading.Event()

    def verify(self, ids: Sequence[int], on_bytes: Callable[[int], object] = lambda count: None) -> Verification:
        assert self.released.wait(60)
        return super().verify(ids, on_bytes)


@pytest.fixture
def service(tmp_path: Path) -> HeldService:
    store = open_store(tmp_path / "store", retain=None)
    seal(store, 1)
    service = HeldService(store)
    service.released = threading.Event()
    return service


@pytest.fixture
def verifications() -> Iterator[Verifications]:
    with contextlib.closing(Verifications()) as verifications:
        yield verifications


def test_whoever_asks_without_an_end_is_refused_and_takes_no_more_memory(
    verifications: Verifications, service: HeldService
) -> None:
    """Goal: nobody fills the memory, or keeps the disk busy for hours. Method: more requests than may wait."""
    refused = []
    for _ in range(3 * WAITING_AT_MOST):
        try:
            verifications.begin("shop", service, ["1"])
        except ControlError as error:
            refused.append(error)
    service.released.set()
    assert len(verifications.of("shop")) == WAITING_AT_MOST
    assert len(refused) == 2 * WAITING_AT_MOST
    assert {(error.status, error.error_code) for error in refused} == {(429, "TooManyVerifications")}


def test_what_ended_makes_room_and_the_oldest_is_forgotten(
    verifications: Verifications, service: HeldService
) -> None:
    service.released.set()
    jobs = []
    for _ in range(ENDED_KEPT + WAITING_AT_MOST):
        jobs.append(verifications.begin("shop", service, ["1"]))
        while not jobs[-1].ended:
            threading.Event().wait(0.001)
    kept = verifications.of("shop")
    assert [job.id for job in kept] == [job.id for job in jobs[-len(kept) :]]
    assert len(kept) == ENDED_KEPT + 1
    assert {job.status for job in kept} == {"done"}
