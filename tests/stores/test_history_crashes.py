"""History across crashes, power losses and full disks: always readable, and never both copies of an entry lost."""

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import TransientStoreError
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import Disk
from holdfast.stores.history import History, HistoryLimits
from holdfast.testing import (
    EVERYTHING,
    NAMED_LOSSES,
    CrashingDisk,
    CrashPoint,
    FaultyDisk,
    InterceptedDisk,
    SimulatedCrash,
    SimulatedDisk,
    single_losses,
)
from stores.test_history import epoch, epochs_of

LIMITS = HistoryLimits(segment_bytes=10_000, small_segments=2)
OLD = [1, 2, 3]


def history_on(disk: Disk) -> History:
    return History(DirectoryMedium("/store", disk), LIMITS)


def with_three_segments() -> SimulatedDisk:
    """Return a disk with three small segments on it, not flushed: the next append merges them."""
    disk = SimulatedDisk()
    DirectoryMedium("/store", disk).prepare()
    for number in OLD:
        History(DirectoryMedium("/store", disk)).append([epoch(number)])
    return disk


def settled() -> SimulatedDisk:
    """Return the same with everything durable."""
    disk = with_three_segments()
    disk.settle()
    return disk


def crash_points() -> list[CrashPoint]:
    counting = CrashingDisk(settled())
    history_on(counting).append([epoch(4)])
    return list(counting.plan.crash_points())


def survivors(disk: SimulatedDisk) -> Iterator[tuple[str, SimulatedDisk]]:
    yield "process crash", disk.process_crash()
    for loss in (*NAMED_LOSSES, *single_losses(disk.pending)):
        yield str(loss), disk.power_loss(loss)


def test_a_crash_at_any_step_leaves_a_readable_history_with_everything_that_was_durable() -> None:
    """Goal: a merge never risks what it merges. Method: crash at every step, lose what was not flushed, and read."""
    points = crash_points()
    assert len(points) > 15
    for point in points:
        disk = settled()
        with pytest.raises(SimulatedCrash):
            history_on(CrashingDisk(disk, point)).append([epoch(4)])
        for how, survivor in survivors(disk):
            found = epochs_of(history_on(survivor), on_note=lambda note: None)
            assert found in (OLD, [*OLD, 4]), f"{point}, {how}"
            history_on(survivor).append([epoch(5)])
            assert epochs_of(history_on(survivor), on_note=lambda note: None) == [*found, 5], f"{point}, {how}"


def test_what_was_merged_survives_any_power_loss_right_after() -> None:
    disk = with_three_segments()
    history_on(disk).append([epoch(4)])
    for how, survivor in survivors(disk):
        assert epochs_of(history_on(survivor), on_note=lambda note: None) == [*OLD, 4], how


def test_an_entry_that_was_not_flushed_may_be_lost_with_the_power_and_nothing_else() -> None:
    disk = settled()
    History(DirectoryMedium("/store", disk)).append([epoch(4)])
    found = {tuple(epochs_of(history_on(survivor), on_note=lambda note: None)) for _, survivor in survivors(disk)}
    assert found == {(1, 2, 3), (1, 2, 3, 4)}
    assert epochs_of(history_on(disk.power_loss(EVERYTHING))) == [*OLD, 4]


def test_a_full_disk_fails_the_append_and_leaves_nothing_behind() -> None:
    counting = FaultyDisk(SimulatedDisk())
    medium = DirectoryMedium("/store", counting)
    medium.prepare()
    before = len(counting.plan.trace)
    History(medium).append([epoch(1)])
    for step in range(before, len(counting.plan.trace)):
        disk = SimulatedDisk()
        DirectoryMedium("/store", disk).prepare()
        history = History(DirectoryMedium("/store", FaultyDisk(disk, step - before, errno.ENOSPC)))
        with pytest.raises(TransientStoreError, match="cannot write epochs-"):
            history.append([epoch(1)])
        left = disk.entries("/store/history") if disk.exists("/store/history") else []
        assert left == [], counting.plan.trace[step]
        history.append([epoch(1)])
        assert epochs_of(history) == [1]


class SweepsBeforeRenames:
    """An interceptor that lets somebody else clean up right before each rename."""

    def __init__(self, disk: Disk) -> None:
        self._other = DirectoryMedium("/store", disk)
        self.swept: list[int] = []

    def call(self, label: str, mutates: bool, run: Callable[[], Any], half: object = None) -> Any:
        if label.startswith("rename"):
            self.swept.append(self._other.sweep())
        return run()


def test_nobody_sweeps_a_segment_away_while_it_is_written() -> None:
    disk = settled()
    sweeping = SweepsBeforeRenames(disk)
    history = history_on(InterceptedDisk(disk, sweeping))
    history.append([epoch(4)])
    assert sweeping.swept == [0, 0]
    assert epochs_of(history) == [*OLD, 4]
