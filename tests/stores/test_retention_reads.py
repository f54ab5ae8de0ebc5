"""What retention leaves alone: bytes it need not read, a pointer it need not move, what is no leftover."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core.names import sidecar_name
from holdfast.stores.directory import DirectoryMedium
from holdfast.stores.disk import LocalDisk
from holdfast.stores.store import DurableCheckpointStore
from holdfast.testing import InterceptedDisk
from stores.builders import seal, with_state
from stores.places import DirectoryPlace, Place


class ReadBytes:
    """An interceptor (`holdfast.testing`) that counts the bytes that are read."""

    count = 0

    def call(self, label: str, mutates: bool, run: Callable[[], Any], half: object = None) -> Any:
        result = run()
        self.count += len(result) if label.startswith("read ") else 0
        return result


def test_a_survey_does_not_read_the_states(tmp_path: Path) -> None:
    """Goal: a prune of a store of terabytes takes moments. Method: nothing goes, so nothing is to be read back."""
    store, state = DirectoryPlace(tmp_path / "store").open(), bytes(4 << 20)
    for id in (1, 2):
        store.save_with_state(with_state(id, state), [state])
    read = ReadBytes()
    medium = DirectoryMedium(str(tmp_path / "store"), InterceptedDisk(LocalDisk(), read))
    store = DurableCheckpointStore(medium, retain=None)
    assert store.prune(3) == 0
    assert store.cleanup_orphans() == 0
    assert 0 < read.count < 1 << 20


def test_a_prune_that_removes_nothing_does_not_move_the_pointer(place: Place) -> None:
    seal(place.open(), 1, 2, 3)
    place.put(place.pointer, place.pointer_to(1))
    store = place.open()
    assert store.prune(3) == 0
    assert place.get(place.pointer) == place.pointer_to(1)
    assert store.prune(1) == 1
    assert place.get(place.pointer) == place.pointer_to(3)


def test_a_sidecar_of_another_attempt_at_the_newest_id_is_a_leftover(place: Place) -> None:
    """Goal: the loser of a race does not leave its state for ever. Method: one with the winner's id."""
    store = place.open()
    seal(store, 1, 2)
    place.medium().put_sidecar(sidecar_name(2, "loser"), [b"lost"], 4)
    place.medium().put_sidecar(sidecar_name(3, "writer"), [b"at work"], 7)
    assert store.cleanup_orphans() == 1
    assert sidecar_name(2, "loser") not in store.sidecars()
    assert sidecar_name(3, "writer") in store.sidecars()
