"""A requested checkpoint that storage does not answer about: the pipeline must not take its own id for another's."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.worlds import World
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.witness import NoWitness
from holdfast.errors import Fenced, TransientStoreError
from holdfast.stores.bucket import BucketMedium
from holdfast.testing import Fault, FaultSchedule, InterceptedObjects

FAULTS = (
    Fault.UNAVAILABLE,
    Fault.CONFLICT,
    Fault.CONFLICT_APPLIED,
    Fault.TIMEOUT_APPLIED,
    Fault.TIMEOUT_NOT_APPLIED,
    Fault.TIMEOUT_LATE,
)


class Weather:
    """Lets requests meet the faults of a schedule that can be changed on the way."""

    def __init__(self) -> None:
        self.schedule = FaultSchedule()

    def call(self, label: str, mutates: bool, run: Callable[[], Any], half: Any = None) -> Any:
        return self.schedule.call(label, mutates, run)


def requests_of_one_seal() -> int:
    world, weather = World(4), Weather()
    process = _started(world, weather)
    weather.schedule = FaultSchedule()
    process.writer.seal_again()
    return len(weather.schedule.trace)


def _started(world: World, weather: Weather) -> Any:
    medium = BucketMedium(InterceptedObjects(world.objects, weather), "memory://world", "world", world.clock)
    process = world.process(store=world.store(medium))
    process.start()
    process.next_epoch()
    return process


@pytest.mark.parametrize("delivered", ["before the next epoch", "after it"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_next_epoch_is_sealed_whatever_became_of_the_requested_checkpoint(fault: Fault, delivered: str) -> None:
    """Goal: a request never costs an epoch. Method: each request of a seal meets each fault; then storage is well."""
    for number in range(requests_of_one_seal()):
        world, weather = World(4), Weather()
        process = _started(world, weather)
        stormy = weather.schedule = FaultSchedule({number: fault}, late_by=1000)
        try:
            process.writer.seal_again()
        except TransientStoreError:
            """Whoever asked is told; the pipeline goes on."""
        weather.schedule = FaultSchedule()
        if delivered == "before the next epoch":
            stormy.deliver_late()
        while process.next_epoch():
            pass
        stormy.deliver_late()
        assert process.writer.seal_again().epoch == 2
        process.delivery.close()
        assert world.run().world.shown() == world.expected()


def test_a_second_request_settles_the_first() -> None:
    world, weather = World(2), Weather()
    process = _started(world, weather)
    before = process.writer.last.checkpoint_id
    for number in range(requests_of_one_seal()):
        weather.schedule = stormy = FaultSchedule({number: Fault.TIMEOUT_LATE}, late_by=1000)
        try:
            process.writer.seal_again()
        except TransientStoreError:
            stormy.deliver_late()
    weather.schedule = FaultSchedule()
    assert process.writer.seal_again().checkpoint_id > before
    process.delivery.close()


def test_whoever_asks_is_never_given_an_older_checkpoint_for_a_new_one() -> None:
    """Goal: silence is no success. Method: each request of a seal stays without an answer."""
    refused = 0
    for number in range(requests_of_one_seal()):
        world, weather = World(2), Weather()
        process = _started(world, weather)
        before = process.writer.last.checkpoint_id
        weather.schedule = FaultSchedule({number: Fault.UNAVAILABLE})
        try:
            assert process.writer.seal_again().checkpoint_id > before
        except TransientStoreError:
            refused += 1
        process.delivery.close()
    assert refused > 0


class DeafWitness(NoWitness):
    def __init__(self) -> None:
        self.hears = True

    def record(self, sealed: CheckpointManifest, progress: bytes | None = None) -> None:
        if not self.hears:
            raise TransientStoreError("nobody answers")


def test_an_epoch_that_its_witness_did_not_hear_of_is_our_own() -> None:
    """Goal: a machine that is cut off is told just that. To say that it was replaced would be a lie."""
    world, witness = World(3), DeafWitness()
    process = world.process()
    process.witness = witness
    process.start()
    process.next_epoch()
    shown, witness.hears = world.shown(), False
    with pytest.raises(TransientStoreError, match="nobody answers"):
        process.next_epoch()
    assert process.writer.replaced() is None
    assert world.shown() == shown
    process.delivery.close()
    assert world.run().world.shown() == world.expected()


def test_a_seal_whose_answer_was_lost_is_our_own_and_a_fence_is_not() -> None:
    world, weather = World(6), Weather()
    process = _started(world, weather)
    weather.schedule = FaultSchedule()
    process.next_epoch()
    seal = next(n for n, label in enumerate(weather.schedule.trace) if "manifest-" in label)
    before = process.writer.next_id
    outage = dict.fromkeys(range(seal + 1, 100), Fault.UNAVAILABLE)
    weather.schedule = FaultSchedule({seal: Fault.TIMEOUT_APPLIED, **outage})
    with pytest.raises(TransientStoreError):
        process.next_epoch()
    weather.schedule = FaultSchedule()
    assert process.store.newest_id() == before
    assert process.writer.replaced() is None
    world.run()
    assert isinstance(process.writer.replaced(), Fenced)
    process.delivery.close()
    assert world.shown() == world.expected()
