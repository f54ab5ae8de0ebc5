"""A fence is the chosen checkpoint again, and a manifest of its own."""

from holdfast.engine.fencing import take_over
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import PENDING, seal


def test_a_fence_shares_nothing_that_can_change_with_the_checkpoint_it_was_made_of(
    store: DurableCheckpointStore,
) -> None:
    seal(store, 1, sink_commit_statuses={"a": PENDING})
    taken = take_over(store)
    assert taken.decision.chosen is not None
    before = taken.decision.chosen.to_json()
    taken.fence.operator_states.clear()
    taken.fence.sink_commit_statuses.clear()
    assert taken.decision.chosen.to_json() == before
