"""What can still be read of epochs that were sealed: tokens, wherever they stand, and ranges."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from holdfast import CheckpointManifest
from holdfast.core.contracts import LedgerState, Token
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.progress import ProgressRecord
from holdfast.core.validation import RecoveryReport
from holdfast.engine.records import FoundRange, find_replay, passed_over, sealed_range, sealed_tokens
from holdfast.engine.recovery import RecoveryDecision
from holdfast.engine.sequel import Sequel
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import manifest
from stores.places import BucketPlace

TIMELINE, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
def store(memory: BucketPlace) -> DurableCheckpointStore:
    return memory.open()


def token(epoch: int, range_digest: str = "range") -> Token:
    return Token(epoch, 1, 0, epoch - 1, 1, range_digest)


def seal(
    store: DurableCheckpointStore, id: int, epoch: int, tokens: dict[str, Any], *, large: bool = False, **fields: Any
) -> CheckpointManifest:
    """Seal an epoch with a progress chunk; `large` tokens are only there."""
    parts = {"tokens": json.dumps(tokens).encode(), f"offsets/{epoch - 1}": b"range"}
    store.save_state_data(id, [ProgressRecord(TIMELINE, id, epoch, 1, parts=parts).to_bytes()])
    fields = {"timeline": TIMELINE, "sink_tokens": {} if large else tokens, **fields}
    draft = manifest(
        id, epoch, dependencies=CheckpointDependencies(batches=(), state_files=(f"state-{id:06d}.bin",)), **fields
    )
    return store.save(draft)


def decision(chosen: CheckpointManifest, **fields: Any) -> RecoveryDecision:
    report = RecoveryReport(chosen.checkpoint_id)
    return replace(RecoveryDecision(9, chosen, report, (), 1, TIMELINE), **fields)


@pytest.mark.parametrize("large", [False, True])
def test_tokens_are_found_wherever_they_stand_without_those_that_were_given_up(
    store: DurableCheckpointStore, large: bool
) -> None:
    sealed = seal(store, 1, 1, {"a": token(1).to_json_value(), "b": None}, large=large)
    assert sealed_tokens(store, sealed) == {"a": token(1)}


def test_an_epoch_without_rows_has_no_tokens(store: DurableCheckpointStore) -> None:
    assert sealed_tokens(store, seal(store, 1, 1, {})) == {}


def test_tokens_that_are_damaged_are_not_taken_for_none(store: DurableCheckpointStore, memory: BucketPlace) -> None:
    sealed = seal(store, 1, 1, {"a": token(1).to_json_value()}, large=True)
    memory.edit(memory.sidecar(1), lambda data: data[:50] + b"x" + data[51:])
    assert sealed_tokens(store, sealed) is None


def test_the_range_of_an_epoch_is_that_of_the_newest_checkpoint_that_stands(store: DurableCheckpointStore) -> None:
    seal(store, 1, 1, {"a": token(1, "first").to_json_value()})
    seal(store, 2, 1, {"a": token(1, "abandoned").to_json_value()})
    seal(store, 3, 1, {"a": token(1, "foreign").to_json_value()}, timeline=OTHER)
    chosen = seal(store, 4, 2, {})
    decided = decision(chosen, abandons=(2,))
    assert [sealed_range(store, decided, epoch) for epoch in (1, 2, 3)] == ["first", None, None]


def test_a_sink_that_is_nowhere_ahead_needs_no_replay(store: DurableCheckpointStore) -> None:
    decided = decision(seal(store, 1, 1, {}))
    found = find_replay(
        store, decided, {"a": LedgerState(TIMELINE, 1, 1)}, lambda epoch: [FoundRange({"offsets/1": b"there"})]
    )
    assert (found.epochs, found.reached, found.lost) == ((), 1, False)


def test_what_was_given_up_is_not_looked_for(store: DurableCheckpointStore) -> None:
    decided = decision(seal(store, 1, 1, {}), sequel=Sequel(given_up_after=1))
    found = find_replay(
        store, decided, {"a": LedgerState(TIMELINE, 1, 3)}, lambda epoch: [FoundRange({"offsets/1": b"there"})]
    )
    assert (found.epochs, found.reached, found.lost) == ((), 1, False)


def test_of_what_is_not_gone_on_from_only_later_epochs_are_read_anew(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 1, {})
    for id in (2, 3, 4):
        seal(store, id, id, {})
    skipped = tuple((id, "damaged") for id in (9, 4, 3, 2))
    decided = decision(chosen, report=RecoveryReport(1, skipped, 5, 0.0))
    assert [record.epoch for record in passed_over(store, decided, 2)] == [3, 4]


def test_a_range_that_nobody_decided_is_not_replayed_beside_sinks_that_are_rewound(
    store: DurableCheckpointStore,
) -> None:
    """A rewound sink knows no range of the epoch: it would take any for its own. One that stands there compares."""
    decided = decision(seal(store, 1, 1, {}))

    def elsewhere(epoch: int) -> list[FoundRange]:
        return [FoundRange({f"offsets/{epoch - 1}": b"there"})] if epoch == 2 else []

    ahead = {"a": LedgerState(TIMELINE, 1, 3)}
    found = find_replay(store, decided, ahead, elsewhere)
    assert (found.epochs, found.reached, found.lost, found.sequel.given_up_after) == ((), 1, True, 1)
    found = find_replay(store, decided, {**ahead, "b": LedgerState(TIMELINE, 1, 2)}, elsewhere)
    assert ([record.epoch for record in found.epochs], found.reached, found.lost) == ([2], 2, True)


def test_of_several_ranges_that_were_planned_that_one_counts_which_is_shown(store: DurableCheckpointStore) -> None:
    """A process that slept plans an epoch that was decided long ago, and writes that down beside the others."""
    decided = decision(seal(store, 1, 1, {}))
    slept, true = FoundRange({"offsets/1": b"slept"}, "slept"), FoundRange({"offsets/1": b"true"}, "true")
    shown = {"a": LedgerState(TIMELINE, 1, 2, "true"), "b": LedgerState(TIMELINE, 1, 1, "before")}
    for found in ([slept, true], [true, slept]):
        (record,) = find_replay(store, decided, shown, lambda epoch, found=found: found).epochs
        assert record.parts == {"offsets/1": b"true"}
    lost = find_replay(store, decided, shown, lambda epoch: [slept])
    assert (lost.epochs, lost.reached, lost.lost) == ((), 1, True)
    (untold,) = find_replay(store, decided, shown, lambda epoch: [FoundRange({"offsets/1": b"untold"})]).epochs
    assert untold.parts == {"offsets/1": b"untold"}


def test_a_range_that_was_sealed_is_known_by_its_tokens(store: DurableCheckpointStore) -> None:
    """The sidecar is gone, and with it the range; the manifest still says which one it was."""
    chosen = seal(store, 1, 1, {})
    seal(store, 2, 2, {"a": token(2).to_json_value()})
    store.medium.remove_sidecar("state-000002.bin")
    decided = decision(chosen, sequel=Sequel({2: 2}))
    sealed = token(2).range_digest
    ranges = [FoundRange({"offsets/1": b"slept"}, "slept"), FoundRange({"offsets/1": b"true"}, sealed)]
    (record,) = find_replay(store, decided, {"a": LedgerState(TIMELINE, 1, 1)}, lambda epoch: ranges).epochs
    assert record.parts["offsets/1"] == b"true"


def test_a_hole_ends_the_replay_and_the_rest_is_lost(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 1, {})
    seal(store, 2, 2, {"a": token(2).to_json_value()})
    seal(store, 4, 4, {"a": token(4).to_json_value()})
    decided = decision(chosen, sequel=Sequel({2: 2, 4: 4}))
    found = find_replay(store, decided, {"a": LedgerState(TIMELINE, 1, 4, "range")}, lambda epoch: [])
    assert [record.epoch for record in found.epochs] == [2]
    assert (found.reached, found.lost, found.sequel) == (2, True, Sequel({2: 2}, given_up_after=2))


def test_a_hole_can_be_filled_from_elsewhere(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, 1, {})
    seal(store, 3, 3, {"a": token(3).to_json_value()})
    decided = decision(chosen, sequel=Sequel({3: 3}))
    found = find_replay(store, decided, {}, lambda epoch: [FoundRange({f"offsets/{epoch - 1}": b"there"})])
    assert [(record.epoch, record.found_in) for record in found.epochs] == [
        (2, "the old working directory"),
        (3, "checkpoint 3"),
    ]
    assert [record.sequel for record in found.epochs] == [Sequel({3: 3}), Sequel()]
    assert not found.lost
