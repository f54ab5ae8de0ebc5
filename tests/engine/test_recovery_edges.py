"""Where a decision of recovery could slip by one: fences that were damaged, and how many it speaks of."""

import pytest

from holdfast import NoValidCheckpoint
from holdfast.core.contracts import LedgerState
from holdfast.engine.fencing import take_over
from holdfast.engine.ledgers import Ledgers
from holdfast.engine.recovery import decide_recovery
from holdfast.errors import HoldfastError
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import flipped, seal, state_of, with_state
from stores.jobs import TIMELINE
from stores.places import BucketPlace, Place


def test_a_damaged_fence_of_an_epoch_is_given_up_like_any_other(place: Place) -> None:
    """Goal: it never comes back. Method: it shares a damaged sidecar with what it was made of."""
    store = place.open()
    seal(store, 1, 2)
    assert take_over(store).fence.checkpoint_id == 3
    place.edit(place.sidecar(2), flipped)
    decision = decide_recovery(store)
    assert decision.chosen is not None
    assert decision.chosen.checkpoint_id == 1
    assert decision.abandons == (2, 3)


def test_a_store_of_which_only_a_damaged_fence_is_left_is_not_empty(place: Place) -> None:
    """Goal: lost epochs are never taken for a fresh start. Method: the fence stays, what it stands on does not."""
    store = place.open()
    seal(store, 1)
    take_over(store)
    place.edit(place.sidecar(1), flipped)
    place.delete(place.manifest(1))
    with pytest.raises(NoValidCheckpoint):
        decide_recovery(store)


@pytest.mark.parametrize(("count", "more"), [(3, None), (4, "(and 1 more)")])
def test_the_refusal_counts_what_it_does_not_name(
    store: DurableCheckpointStore, place: Place, count: int, more: str | None
) -> None:
    ids = range(1, count + 1)
    seal(store, *ids)
    for id in ids:
        place.edit(place.sidecar(id), flipped)
    with pytest.raises(NoValidCheckpoint) as caught:
        decide_recovery(store)
    assert ("more)" in str(caught.value)) == (more is not None)
    assert (more or "") in str(caught.value)


def test_a_fresh_start_gives_up_ids_of_which_only_the_sidecar_is_left(
    store: DurableCheckpointStore, place: Place
) -> None:
    """Their manifests may come back from a copy. In a bucket one beyond them is of a writer about to seal."""
    for id in (1, 2, 3, 4):
        store.save_with_state(with_state(id, state_of(id)), [state_of(id)])
    store.save_state_data(5, [b"about to be sealed"])
    for id in (2, 4):
        place.delete(place.manifest(id))
    newest = 4 if isinstance(place, BucketPlace) else 5
    assert store.newest_id() == newest
    assert decide_recovery(store, fresh=True).abandons == tuple(range(1, newest + 1))


@pytest.mark.parametrize(("rewound_to", "refused"), [(3, True), (4, False)])
def test_nobody_goes_back_to_what_only_a_target_knows_was_given_up(
    store: DurableCheckpointStore, rewound_to: int, refused: bool
) -> None:
    """Doubled or lost rows without this: the target went on from an earlier epoch, with others of one number."""
    seal(store, 3, 4, 5, generation=1, timeline=TIMELINE)
    ledgers = Ledgers({"a": LedgerState(TIMELINE, 2, rewound_to, None, rewound_in=2, rewound_to=rewound_to)})
    if refused:
        with pytest.raises(HoldfastError, match="checkpoint 4 cannot be used: it was given up"):
            decide_recovery(store, from_id=4, ledgers=ledgers)
    else:
        chosen = decide_recovery(store, from_id=4, ledgers=ledgers).chosen
        assert chosen is not None
        assert chosen.checkpoint_id == 4
