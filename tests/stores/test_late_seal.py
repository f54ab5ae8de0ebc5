"""What a writer that was replaced takes back, and what it leaves because somebody goes on from it."""

import pytest

from holdfast.core.manifest import ParentRef
from holdfast.stores.late_seal import _is_built_upon
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import seal
from stores.jobs import TIMELINE
from stores.places import Place


@pytest.mark.parametrize("built_upon", [True, False])
def test_a_damaged_checkpoint_in_between_does_not_end_the_look(
    store: DurableCheckpointStore, place: Place, built_upon: bool
) -> None:
    """Loss without this: somebody shows what the late writer takes back."""
    late = seal(store, 3, generation=1, timeline=TIMELINE)
    seal(store, 5, 6, generation=2, timeline=TIMELINE)
    place.put(place.manifest(5), b"garbage")
    parent = ParentRef(id=3, manifest_checksum=late.manifest_checksum or "")
    if built_upon:
        seal(store, 7, generation=2, timeline=TIMELINE, parent=parent)
    assert _is_built_upon(store, late) is built_upon
