"""Copying sidecars: one that goes or shrinks while it is copied leaves nothing that looks whole."""

from pathlib import Path

import pytest

from holdfast.engine.sync.copying import Vanished, copy_sidecars
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import seal, state_of
from stores.places import DirectoryPlace, Place

NAME = "state-000001.bin"


@pytest.fixture
def source(tmp_path: Path) -> DurableCheckpointStore:
    store = DirectoryPlace(tmp_path / "source").open()
    seal(store, 1)
    return store


def test_a_sidecar_appears_whole_and_its_bytes_are_counted(source: DurableCheckpointStore, place: Place) -> None:
    counted: list[int] = []
    copy_sidecars(source.medium, place.open().medium, {NAME: len(state_of(1))}, counted.append)
    assert place.open().medium.read_sidecar(NAME, 0, 10_000) == state_of(1)
    assert sum(counted) == len(state_of(1))


@pytest.mark.parametrize("happens", ["goes", "shrinks"])
def test_a_sidecar_that_was_pruned_or_cut_off_meanwhile_is_not_copied(
    source: DurableCheckpointStore, tmp_path: Path, place: Place, happens: str
) -> None:
    path = tmp_path / "source" / "checkpoints" / "checkpoint_000001" / "state.bin"
    size = path.stat().st_size
    path.unlink() if happens == "goes" else path.write_bytes(state_of(1)[:-1])
    target = place.open()
    with pytest.raises(Vanished, match="was pruned meanwhile"):
        copy_sidecars(source.medium, target.medium, {NAME: size}, lambda count: None)
    assert target.sidecars() == {}
