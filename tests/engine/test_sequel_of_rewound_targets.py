"""What followed a checkpoint, when a target says that it was rewound and the fence that said so may be lost.

Goal: what was given up is not decided a second time, and what was decided after a go-back is not given up with it.
Method: ledgers and checkpoints of generations before, at and after the one that went back.
"""

from uuid import UUID

import pytest

from holdfast import CheckpointManifest
from holdfast.core.contracts import LedgerState
from holdfast.core.progress import ProgressRecord
from holdfast.engine.ledgers import Ledgers
from holdfast.engine.sequel import NOTHING_FOLLOWED, Sequel, find_sequel
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import manifest
from stores.places import BucketPlace

TIMELINE, OTHER = UUID(int=1), UUID(int=2)
REWOUND = Ledgers({"a": LedgerState(TIMELINE, 3, 2, rewound_in=3, rewound_to=2)})
"""Generation 3 went back to epoch 2."""


@pytest.fixture
def store(memory: BucketPlace) -> DurableCheckpointStore:
    return memory.open()


def seal(
    store: DurableCheckpointStore, id: int, epoch: int, generation: int | None, sequel: Sequel = NOTHING_FOLLOWED
) -> CheckpointManifest:
    recovery = sequel.to_json_value() or None
    return store.save(manifest(id, epoch, timeline=TIMELINE, generation=generation, recovery=recovery))


def test_a_ledger_tells_what_a_lost_fence_gave_up(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 2, 1)
    seal(store, 2, 3, 1)
    assert find_sequel(store, chosen, [2], TIMELINE, REWOUND) == Sequel(given_up_after=2)
    assert find_sequel(store, chosen, [2], TIMELINE) == Sequel({3: 2})


def test_what_was_decided_before_the_epoch_gone_back_to_stays(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 1, 1)
    seal(store, 2, 2, 1)
    seal(store, 3, 3, 1)
    assert find_sequel(store, chosen, [2, 3], TIMELINE, REWOUND) == Sequel({2: 2}, given_up_after=2)


@pytest.mark.parametrize("generation", [3, 4])
def test_what_was_decided_since_stands(store: DurableCheckpointStore, generation: int) -> None:
    """Loss without this: epoch 3 was sealed after the go-back, and would be given up with it."""
    chosen = seal(store, 1, 2, 1)
    seal(store, 2, 3, 1)
    seal(store, 3, 3, generation)
    assert find_sequel(store, chosen, [2, 3], TIMELINE, REWOUND) == Sequel({3: 3})


@pytest.mark.parametrize("generation", [3, 4])
def test_a_record_of_what_was_decided_since_counts_as_well(
    store: DurableCheckpointStore, memory: BucketPlace, generation: int
) -> None:
    chosen = seal(store, 1, 2, 1)
    store.save_state_data(2, [ProgressRecord(TIMELINE, 2, 3, generation).to_bytes()])
    memory.put(memory.manifest(2), b"garbage")
    assert find_sequel(store, chosen, [2], TIMELINE, REWOUND) == Sequel({3: 2})
    store.save_state_data(3, [ProgressRecord(TIMELINE, 3, 3, 2).to_bytes()])
    memory.put(memory.manifest(3), b"garbage")
    assert find_sequel(store, chosen, [3], TIMELINE, REWOUND) == Sequel(given_up_after=2)


def test_a_copy_of_the_epoch_gone_back_to_decides_nothing_beyond_it(store: DurableCheckpointStore) -> None:
    """Loss without this: sinks that were away are not rewound, and keep what was given up."""
    chosen = seal(store, 1, 2, 1)
    seal(store, 2, 2, 3)
    assert find_sequel(store, chosen, [2], TIMELINE, REWOUND) == Sequel(given_up_after=2)


@pytest.mark.parametrize(("generation", "limit"), [(None, 2), (2, 2), (3, None), (4, None)])
def test_the_chosen_one_knows_of_a_go_back_in_its_own_generation_or_before(
    store: DurableCheckpointStore, generation: int | None, limit: int | None
) -> None:
    chosen = seal(store, 1, 2, generation)
    assert find_sequel(store, chosen, [], TIMELINE, REWOUND) == Sequel(given_up_after=limit)


@pytest.mark.parametrize(("epoch", "limit"), [(1, 2), (2, 2), (3, None)])
def test_a_go_back_to_before_the_chosen_one_is_not_for_it(
    store: DurableCheckpointStore, epoch: int, limit: int | None
) -> None:
    chosen = seal(store, 1, epoch, 1)
    assert find_sequel(store, chosen, [], TIMELINE, REWOUND) == Sequel(given_up_after=limit)


def test_on_a_fresh_start_nothing_was_given_up(store: DurableCheckpointStore) -> None:
    assert find_sequel(store, None, [], TIMELINE, REWOUND) == NOTHING_FOLLOWED


def test_a_target_of_another_timeline_gives_up_nothing_here(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 2, 1)
    seal(store, 2, 3, 1)
    foreign = Ledgers({"a": LedgerState(OTHER, 3, 2, rewound_in=3, rewound_to=2)})
    assert find_sequel(store, chosen, [2], TIMELINE, foreign) == Sequel({3: 2})


def test_the_highest_epoch_of_a_generation_counts_whichever_was_sealed_last(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 2, 1)
    seal(store, 2, 3, 3)
    seal(store, 3, 2, 3)
    assert find_sequel(store, chosen, [2, 3], TIMELINE, REWOUND) == NOTHING_FOLLOWED


def test_what_is_left_once_all_behind_an_epoch_was_given_up_includes_the_epoch() -> None:
    assert Sequel({5: 7, 6: 8, 7: 9}, None).until(6) == Sequel({5: 7, 6: 8}, 6)
