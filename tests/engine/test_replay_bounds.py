"""How far a replay goes: every epoch that was decided or shown, and not one whose range is a guess.

Goal: no row of a range that nobody decided beside those of the one that was shown. Method: sinks, checkpoints and
old working directories that know some epochs and not others.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from holdfast import CheckpointManifest
from holdfast.core.contracts import LedgerState, Token
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.forms import FORM
from holdfast.core.progress import ProgressRecord
from holdfast.core.validation import RecoveryReport
from holdfast.engine.coordinator import SCHEMA_PARTS
from holdfast.engine.records import FoundRange, Replay, find_replay, sealed_tokens
from holdfast.engine.recovery import RecoveryDecision
from holdfast.engine.sequel import NOTHING_FOLLOWED, Sequel
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import COMMITTED, PENDING, manifest
from stores.places import BucketPlace

TIMELINE = UUID(int=1)


@pytest.fixture
def store(memory: BucketPlace) -> DurableCheckpointStore:
    return memory.open()


def token(epoch: int, previous: int | None = None) -> Token:
    before = epoch - 1 if previous is None else previous
    return Token(epoch, 2, 0, before, 1, f"range of {epoch}", {FORM: {}})


def ledger(epoch: int, range_digest: str | None = "") -> LedgerState:
    return LedgerState(TIMELINE, 2, epoch, f"range of {epoch}" if range_digest == "" else range_digest)


def seal(
    store: DurableCheckpointStore,
    epoch: int,
    tokens: Mapping[str, Token | None],
    *,
    parts: Mapping[str, bytes] | None = None,
    **fields: Any,
) -> CheckpointManifest:
    """Seal an epoch under its own number as id, with its progress record."""
    values = {name: None if each is None else each.to_json_value() for name, each in tokens.items()}
    recorded = {"tokens": json.dumps(values).encode(), f"offsets/{epoch - 1}": b"range", **(parts or {})}
    store.save_state_data(epoch, [ProgressRecord(TIMELINE, epoch, epoch, 2, parts=recorded).to_bytes()])
    needed = CheckpointDependencies(batches=(), state_files=(f"state-{epoch:06d}.bin",))
    said = {"sink_tokens": values, **fields}
    return store.save(manifest(epoch, timeline=TIMELINE, generation=2, dependencies=needed, **said))


def replay(
    store: DurableCheckpointStore,
    chosen: CheckpointManifest | None,
    ledgers: Mapping[str, LedgerState],
    *,
    sequel: Sequel = NOTHING_FOLLOWED,
    elsewhere: Collection[int] = (),
) -> Replay:
    decided = RecoveryDecision(9, chosen, RecoveryReport(None), (), 2, TIMELINE, sequel)
    return find_replay(
        store,
        decided,
        ledgers,
        lambda epoch: [FoundRange({f"offsets/{epoch - 1}": b"there"})] if epoch in elsewhere else [],
    )


def told(found: Replay) -> tuple[list[int], int, bool]:
    return [record.epoch for record in found.epochs], found.reached, found.lost


# --- how far


@pytest.mark.parametrize(
    ("at", "elsewhere", "found"),
    [
        ([4, 4], {2, 3, 4}, ([2, 3, 4], 4, False)),
        ([4, 1], {2, 3, 4}, ([2, 3, 4], 4, False)),
        ([1, 1], {2, 3, 4}, ([], 1, False)),
        ([2, 1], {2, 3, 4}, ([2], 2, False)),
        # The range of epoch 4 is lost: a sink is rewound past 3, so whose range 3 had is for a sink to tell.
        ([4, 3], {2, 3}, ([2, 3], 3, True)),
        ([4, 2], {2, 3}, ([2], 2, True)),
        ([4, 1], {2, 3}, ([], 1, True)),
        ([4, 4], {2, 3}, ([], 1, True)),
        ([4, 4], {3, 4}, ([], 1, True)),
    ],
)
def test_a_range_that_nobody_decided_counts_as_far_as_sinks_stand_there(
    store: DurableCheckpointStore, at: list[int], elsewhere: set[int], found: tuple[list[int], int, bool]
) -> None:
    ledgers = {str(number): ledger(epoch) for number, epoch in enumerate(at)}
    assert told(replay(store, seal(store, 1, {}), ledgers, elsewhere=elsewhere)) == found


def test_what_was_decided_counts_although_a_sink_is_rewound_past_it(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, {})
    seal(store, 2, {"a": token(2)})
    found = replay(store, chosen, {"a": ledger(3)}, sequel=Sequel({2: 2}))
    assert told(found) == ([2], 2, True)
    assert found.sequel == Sequel({2: 2}, given_up_after=2)


def test_a_range_before_a_decided_one_counts(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, {})
    seal(store, 3, {"a": token(3)})
    found = replay(store, chosen, {"a": ledger(1)}, sequel=Sequel({3: 3}), elsewhere={2, 4})
    assert told(found) == ([2, 3], 3, False)


def test_a_decided_epoch_without_its_range_takes_it_from_elsewhere(
    store: DurableCheckpointStore, memory: BucketPlace
) -> None:
    chosen = seal(store, 1, {})
    seal(store, 2, {"a": token(2)})
    memory.edit(memory.sidecar(2), lambda data: data[:50] + b"x" + data[51:])
    found = replay(store, chosen, {"a": ledger(1)}, sequel=Sequel({2: 2}), elsewhere={2})
    assert [(dict(record.parts), record.found_in) for record in found.epochs] == [
        ({"offsets/1": b"there"}, "checkpoint 2")
    ]
    assert told(replay(store, chosen, {"a": ledger(1)}, sequel=Sequel({2: 2}))) == ([], 1, True)


def test_what_was_given_up_is_not_replayed_even_if_it_is_known(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, {})
    seal(store, 2, {"a": token(2)})
    seal(store, 3, {"a": token(3)})
    found = replay(store, chosen, {"a": ledger(3)}, sequel=Sequel({2: 2, 3: 3}, given_up_after=2))
    assert told(found) == ([2], 2, False)
    assert found.sequel == Sequel({2: 2}, given_up_after=2)
    assert found.epochs[0].sequel == Sequel({}, given_up_after=2)


def test_on_a_fresh_start_the_first_epoch_is_the_first_to_replay(store: DurableCheckpointStore) -> None:
    assert told(replay(store, None, {"a": ledger(1)}, elsewhere={1})) == ([1], 1, False)
    assert told(replay(store, None, {})) == ([], 0, False)


# --- contradictions


@pytest.mark.parametrize(
    ("shown", "replayed"),
    [
        (ledger(2), [2]),
        (ledger(2, None), [2]),  # It was rewound to there, or adopted: nobody knows its range.
        (ledger(2, "decided again"), []),
        (ledger(1, "decided again"), [2]),
    ],
)
def test_a_record_that_a_sink_contradicts_does_not_count(
    store: DurableCheckpointStore, shown: LedgerState, replayed: list[int]
) -> None:
    """Loss without this: the sink is taken for one that shows the record's range, and never gets the rest of it."""
    chosen = seal(store, 1, {})
    seal(store, 2, {"a": token(2), "b": token(2)})
    assert told(replay(store, chosen, {"a": shown}, sequel=Sequel({2: 2})))[0] == replayed


def test_a_record_without_rows_cannot_be_contradicted(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, {})
    seal(store, 2, {})
    assert told(replay(store, chosen, {"a": ledger(2, "other")}, sequel=Sequel({2: 2})))[0] == [2]


# --- what a record says of sinks


def test_a_decided_record_says_who_is_owed_who_had_no_rows_and_who_gave_up(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 1, {})
    seal(
        store,
        3,
        {"owed": token(3), "shown": token(3), "given up": None},
        sink_epochs={"owed": 1, "shown": 3, "given up": 1, "no rows": 1, "level": 3},
        sink_commit_statuses={"owed": PENDING, "shown": COMMITTED},
    )
    found = replay(store, chosen, {"owed": ledger(1)}, sequel=Sequel({3: 3}), elsewhere={2})
    between, record = found.epochs
    assert (record.decided, record.owed) == (True, frozenset({"owed"}))
    assert (record.without_rows, record.given_up) == (frozenset({"no rows"}), frozenset({"given up"}))
    assert set(record.tokens or {}) == {"owed", "shown"}
    assert (between.decided, between.owed, between.tokens) == (False, frozenset(), None)


def test_a_record_without_manifest_decides_nothing_and_owes_everybody(
    store: DurableCheckpointStore, memory: BucketPlace
) -> None:
    chosen = seal(store, 1, {})
    seal(store, 2, {"a": token(2), "b": None}, sink_epochs={"c": 1})
    memory.put(memory.manifest(2), b"garbage")
    assert told(replay(store, chosen, {"a": ledger(1)}, sequel=Sequel({2: 2})))[0] == []
    (record,) = replay(store, chosen, {"a": ledger(2)}, sequel=Sequel({2: 2})).epochs
    assert (record.decided, record.owed, record.given_up) == (False, frozenset({"a"}), frozenset({"b"}))
    assert (record.without_rows, set(record.tokens or {})) == (frozenset(), {"a"})


# --- tokens from before they had a form


def test_tokens_without_a_form_get_the_columns_that_are_recorded_beside_them(
    store: DurableCheckpointStore, memory: BucketPlace
) -> None:
    old = replace(token(1), payload={})
    columns = json.dumps([["id", "long"]]).encode()
    sealed = seal(store, 1, {"a": old}, parts={f"{SCHEMA_PARTS}a": columns})
    plain = seal(store, 2, {"a": token(2)}, parts={f"{SCHEMA_PARTS}a": columns})
    completed = sealed_tokens(store, sealed)
    assert completed is not None
    assert (completed["a"] != old, replace(completed["a"], payload={})) == (True, old)
    assert sealed_tokens(store, plain) == {"a": token(2)}
    memory.edit(memory.sidecar(1), lambda data: data[:50] + b"x" + data[51:])
    assert sealed_tokens(memory.open(), sealed) == {"a": old}
