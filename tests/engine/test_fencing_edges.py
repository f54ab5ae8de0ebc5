"""What a take-over must not let slip: a witness that knows more than our store."""

from collections.abc import Callable

from holdfast import CheckpointManifest
from holdfast.engine.fencing import decide, take_over
from holdfast.engine.recovery import decide_recovery
from holdfast.engine.witness import NoWitness, OutOfDate
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import seal
from stores.jobs import TIMELINE


class KnowsMore(NoWitness):
    """A witness that brings our store up to date when it hears of the first fence."""

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self.heard: list[CheckpointManifest] = []

    def announce(self, fence: CheckpointManifest) -> None:
        self.heard.append(fence)
        if len(self.heard) == 1:
            self._tell()
            raise OutOfDate


def test_a_fence_that_the_witness_did_not_take_is_never_sealed(store: DurableCheckpointStore) -> None:
    """Loss without this: a decision that was made without what the witness knew is sealed all the same."""
    seal(store, 1, timeline=TIMELINE, generation=1)
    witness = KnowsMore(lambda: None)
    fence = take_over(store, witness=witness).fence
    assert [heard.uuid == fence.uuid for heard in witness.heard] == [False, True]
    assert store.list_ids() == [1, fence.checkpoint_id]
    assert fence.checkpoint_id == 2


def test_what_the_witness_told_is_what_is_gone_on_from(store: DurableCheckpointStore) -> None:
    seal(store, 1, timeline=TIMELINE, generation=1)
    witness = KnowsMore(lambda: seal(store, 2, timeline=TIMELINE, generation=1))
    taken = take_over(store, witness=witness)
    assert taken.decision.chosen is not None
    assert (taken.decision.chosen.checkpoint_id, taken.fence.checkpoint_id) == (2, 3)


def test_a_decision_goes_on_unless_a_person_says_otherwise(store: DurableCheckpointStore) -> None:
    seal(store, 1, timeline=TIMELINE, generation=1)
    for decision in (decide(store), decide_recovery(store), take_over(store).decision):
        assert decision.chosen is not None
        assert decision.chosen.checkpoint_id == 1
