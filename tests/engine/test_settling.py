"""What is decided about each sink at a start, as tables: where it stands, what is sealed, and what has to be done.

Goal: no row twice, none lost, none of a branch that was given up. Method: a ledger and a store that say so; every
bound is tried at it and on both sides of it.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from holdfast import CheckpointManifest, SinkCommitStatus
from holdfast.core.contracts import LedgerState, Token
from holdfast.core.dependencies import CheckpointDependencies
from holdfast.core.forms import FORM
from holdfast.core.progress import ProgressRecord
from holdfast.core.validation import RecoveryReport
from holdfast.engine.branches import Branches
from holdfast.engine.ledgers import Ledgers
from holdfast.engine.records import FoundRange
from holdfast.engine.recovery import RecoveryDecision
from holdfast.engine.sequel import Sequel
from holdfast.engine.settling import Settlement, Settler, Settling, refuse_removed
from holdfast.errors import PipelineError, ReplayMismatch, SinkBehind, SinkError
from holdfast.stores.store import DurableCheckpointStore
from stores.builders import COMMITTED, PENDING, manifest
from stores.places import BucketPlace

TIMELINE, OTHER = UUID(int=1), UUID(int=2)


@pytest.fixture
def store(memory: BucketPlace) -> DurableCheckpointStore:
    return memory.open()


def token(epoch: int, previous: int | None = None, *, range_digest: str = "", generation: int = 2) -> Token:
    before = epoch - 1 if previous is None else previous
    return Token(epoch, generation, 0, before, 1, range_digest or f"range of {epoch}", {FORM: {}})


def ledger(epoch: int, *, range_digest: str | None = "", **fields: Any) -> LedgerState:
    digest = f"range of {epoch}" if range_digest == "" else range_digest
    return LedgerState(TIMELINE, fields.pop("generation", 2), epoch, digest, **fields)


def seal(store: DurableCheckpointStore, epoch: int, tokens: Mapping[str, Token], **fields: Any) -> CheckpointManifest:
    """Seal an epoch under its own number as id."""
    values = {name: each.to_json_value() for name, each in tokens.items()}
    parts = {"tokens": json.dumps(values).encode(), f"offsets/{epoch - 1}": b"range"}
    store.save_state_data(epoch, [ProgressRecord(TIMELINE, epoch, epoch, 2, parts=parts).to_bytes()])
    needed = CheckpointDependencies(batches=(), state_files=(f"state-{epoch:06d}.bin",))
    said = {"sink_tokens": values, "sink_epochs": {name: each.epoch for name, each in tokens.items()}, **fields}
    return store.save(manifest(epoch, timeline=TIMELINE, generation=2, dependencies=needed, **said))


def decision(chosen: CheckpointManifest | None, **fields: Any) -> RecoveryDecision:
    report = RecoveryReport(chosen.checkpoint_id if chosen else None)
    return replace(RecoveryDecision(9, chosen, report, (), 2, TIMELINE), **fields)


def settle(
    store: DurableCheckpointStore,
    decided: RecoveryDecision,
    now: Mapping[str, LedgerState],
    *,
    before: Mapping[str, LedgerState] | None = None,
    staged: bool = True,
) -> Settling:
    found = Ledgers(now if before is None else before)
    return Settler(store, decided, found, lambda epoch: [], dict.fromkeys(now, staged)).settle(now)


def one(store: DurableCheckpointStore, decided: RecoveryDecision, now: LedgerState, **others: Any) -> Settlement:
    return settle(store, decided, {"a": now}, **others).sinks["a"]


def epochs(settlement: Settlement) -> list[int]:
    return [each.epoch for each in settlement.commits]


# --- at the chosen checkpoint


def test_a_sink_that_shows_what_is_sealed_needs_nothing(store: DurableCheckpointStore) -> None:
    found = one(store, decision(seal(store, 4, {"a": token(4)})), ledger(4))
    assert (found.commits, found.rewind_to, found.report) == ((), None, "has everything")
    assert found.reached == ledger(4)


def test_a_sink_that_stands_before_what_is_sealed_gets_it(store: DurableCheckpointStore) -> None:
    found = one(store, decision(seal(store, 4, {"a": token(4, 2)})), ledger(2))
    assert (found.commits, found.report) == ((token(4, 2),), "committed epoch 4")
    assert found.reached == ledger(4)


def test_a_sink_that_lacks_earlier_epochs_is_refused(store: DurableCheckpointStore) -> None:
    """Loss without this: the epochs between are never shown there."""
    with pytest.raises(SinkBehind, match="stands at epoch 2, but epoch 3 was committed there: epochs 3 to 3"):
        one(store, decision(seal(store, 4, {"a": token(4)})), ledger(2))


def test_a_sink_beyond_what_the_sealed_epoch_follows_is_refused(store: DurableCheckpointStore) -> None:
    """Loss without this: what it shows of epoch 3 and what is sealed overlap."""
    with pytest.raises(ReplayMismatch, match="stands at epoch 3, but what is sealed for it follows its epoch 2"):
        one(store, decision(seal(store, 4, {"a": token(4, 2)})), ledger(3))


@pytest.mark.parametrize("at", [3, 4])
def test_a_sink_without_rows_of_the_epoch_needs_nothing(store: DurableCheckpointStore, at: int) -> None:
    found = one(store, decision(seal(store, 4, {}, sink_epochs={"a": 3})), ledger(at))
    assert (found.commits, found.report) == ((), "has everything")


def test_a_sink_without_rows_of_the_epoch_may_still_lack_earlier_ones(store: DurableCheckpointStore) -> None:
    with pytest.raises(SinkBehind, match="stands at epoch 2, but epoch 3 was committed there"):
        one(store, decision(seal(store, 4, {}, sink_epochs={"a": 3})), ledger(2))


@pytest.mark.parametrize(("at", "report"), [(0, "new"), (2, "joins again after epoch 2")])
def test_a_sink_that_the_checkpoint_does_not_know_joins(store: DurableCheckpointStore, at: int, report: str) -> None:
    found = one(store, decision(seal(store, 4, {"b": token(4)})), ledger(at))
    assert (found.commits, found.rewind_to, found.report) == ((), None, report)


def test_on_a_fresh_start_a_sink_is_new(store: DurableCheckpointStore) -> None:
    found = one(store, decision(None, timeline=None), ledger(0, range_digest=None))
    assert (found.commits, found.rewind_to, found.report) == ((), None, "new")


# --- ranges


def test_the_epoch_of_the_checkpoint_from_another_range_is_refused(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    with pytest.raises(ReplayMismatch, match="Restore the target to epoch 3"):
        one(store, decision(chosen), ledger(4, range_digest="other"))
    # Nobody knows the range of a target that was restored or adopted there: a person vouched for it.
    assert one(store, decision(chosen), ledger(4, range_digest=None)).commits == ()


def test_a_sink_that_joins_again_from_another_branch_is_refused(store: DurableCheckpointStore) -> None:
    """Loss without this: its epoch 3 is of a range that was decided anew since."""
    seal(store, 3, {"b": token(3)})
    chosen = seal(store, 4, {"b": token(4)})
    with pytest.raises(ReplayMismatch, match="has epoch 3, but of another source range"):
        one(store, decision(chosen), ledger(3, range_digest="other"))
    assert one(store, decision(chosen), ledger(3)).report == "joins again after epoch 3"
    # No checkpoint of epoch 2 is left to compare with.
    assert one(store, decision(chosen), ledger(2, range_digest="other")).report == "joins again after epoch 2"


def test_an_abandoned_checkpoint_does_not_vouch_for_a_sink(store: DurableCheckpointStore) -> None:
    seal(store, 3, {"b": token(3, range_digest="kept")})
    given_up = manifest(5, 3, timeline=TIMELINE, sink_tokens={"b": token(3).to_json_value()})
    chosen = seal(store, 4, {"b": token(4)})
    store.save(given_up)
    with pytest.raises(ReplayMismatch, match="has epoch 3, but of another source range"):
        one(store, decision(chosen, abandons=(5,)), ledger(3))


def test_a_sink_that_was_there_all_the_time_is_compared_at_the_checkpoint_only(store: DurableCheckpointStore) -> None:
    """Every sink of an epoch has the range of the epoch: what it stands at was compared when it was committed."""
    seal(store, 3, {"b": token(3, range_digest="decided again")})
    chosen = seal(store, 4, {"a": token(4), "b": token(4)})
    assert epochs(one(store, decision(chosen), ledger(3))) == [4]


# --- what is replayed


def test_what_was_decided_after_the_checkpoint_is_shown_in_order(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    seal(store, 5, {"a": token(5)})
    seal(store, 6, {"a": token(6)})
    decided = decision(chosen, sequel=Sequel({5: 5, 6: 6}))
    for at, owed in [(3, [4, 5, 6]), (4, [5, 6]), (5, [6]), (6, [])]:
        found = one(store, decided, ledger(at))
        assert (epochs(found), found.rewind_to) == (owed, None)
        assert found.reached.epoch == 6


def test_an_epoch_that_leaves_a_gap_is_not_shown(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    seal(store, 5, {"a": token(5, 3)})
    with pytest.raises(ReplayMismatch, match="follows its epoch 3"):
        one(store, decision(chosen, sequel=Sequel({5: 5})), ledger(4))


def test_what_is_staged_elsewhere_is_computed_again(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    seal(store, 5, {"a": token(5)})
    settling = settle(store, decision(chosen, sequel=Sequel({5: 5})), {"a": ledger(4)}, staged=False)
    assert (epochs(settling.sinks["a"]), [record.epoch for record in settling.replay.epochs]) == ([], [5])


def test_what_nobody_is_known_to_have_decided_is_computed_again(
    store: DurableCheckpointStore, memory: BucketPlace
) -> None:
    """Loss without this: rows of an attempt that was never sealed are shown beside those of the one that was."""
    chosen = seal(store, 4, {"a": token(4), "b": token(4)})
    seal(store, 5, {"a": token(5), "b": token(5)})
    memory.put(memory.manifest(5), b"garbage")
    settling = settle(store, decision(chosen, sequel=Sequel({5: 5})), {"a": ledger(4), "b": ledger(5)})
    assert {name: epochs(each) for name, each in settling.sinks.items()} == {"a": [], "b": []}
    assert [record.epoch for record in settling.replay.epochs] == [5]


@pytest.mark.parametrize(("rewound_in", "shown"), [(1, [5]), (2, [5]), (3, [])])
def test_what_was_prepared_before_a_rewind_is_computed_again(
    store: DurableCheckpointStore, rewound_in: int, shown: list[int]
) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    seal(store, 5, {"a": token(5)})
    rewound = ledger(4, generation=3, rewound_in=rewound_in, rewound_to=4)
    decided = decision(chosen, sequel=Sequel({5: 5}))
    settling = Settler(store, decided, Ledgers({}), lambda epoch: [], {"a": True}).settle({"a": rewound})
    assert epochs(settling.sinks["a"]) == shown
    assert [record.epoch for record in settling.replay.epochs] == [5]


@pytest.mark.parametrize("rewound_in", [1, 2])
def test_what_is_owed_is_shown_if_it_was_prepared_after_the_rewind(
    store: DurableCheckpointStore, rewound_in: int
) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    assert epochs(one(store, decision(chosen), ledger(3, rewound_in=rewound_in, rewound_to=3), before={})) == [4]


def test_what_is_owed_and_was_prepared_before_a_rewind_is_refused(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    rewound = ledger(3, generation=3, rewound_in=3, rewound_to=3)
    with pytest.raises(SinkError, match="owed epoch 4, but what was prepared for it is from before generation 3"):
        one(store, decision(chosen), rewound, before={})
    # One that shows it already is owed nothing, whenever it was rewound.
    assert one(store, decision(chosen), replace(rewound, epoch=4, range_digest=None), before={}).commits == ()


def test_a_first_epoch_without_a_checkpoint_is_replayed_from_elsewhere(store: DurableCheckpointStore) -> None:
    recorded = FoundRange({"offsets/0": b"range"})
    settler = Settler(store, decision(None), Ledgers({}), lambda epoch: [recorded], {"a": True})
    settling = settler.settle({"a": ledger(1)})
    assert [record.epoch for record in settling.replay.epochs] == [1]
    assert (settling.sinks["a"].ahead, settling.sinks["a"].report) == (False, "ahead: at epoch 1")


# --- what was given up


def test_a_sink_beyond_what_is_known_is_rewound(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4), "b": token(4)})
    settling = settle(store, decision(chosen), {"a": ledger(6), "b": ledger(4)})
    ahead, level = settling.sinks["a"], settling.sinks["b"]
    assert (settling.replay.reached, settling.replay.lost) == (4, True)
    assert (ahead.ahead, ahead.rewind_to, ahead.report) == (True, 4, "rewound from epoch 6 to 4")
    assert ahead.reached == replace(ledger(6), epoch=4, range_digest=None)
    # One that is not ahead is told as well: a lost fence is known from its ledger.
    assert (level.ahead, level.rewind_to, level.report) == (False, 4, "has everything")
    assert level.reached == ledger(4)


def test_a_person_who_goes_back_has_sinks_rewound_also_without_loss(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    decided = decision(chosen, sequel=Sequel(given_up_after=4))
    assert one(store, decided, ledger(5)).rewind_to == 4
    assert epochs(one(store, decided, ledger(3))) == [4]
    assert one(store, decided, ledger(3)).reached.epoch == 4


def test_a_sink_ahead_that_nothing_was_given_up_for_waits_for_the_replay(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {"a": token(4)})
    seal(store, 5, {"a": token(5)})
    found = one(store, decision(chosen, sequel=Sequel({5: 5})), ledger(5))
    assert (found.commits, found.rewind_to, found.ahead, found.report) == ((), None, False, "ahead: at epoch 5")


# --- another branch

WENT_BACK = Branches(((3, 2),))
"""Generation 3 went back to epoch 2."""


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        (ledger(3), True),  # It was claimed by generation 2 last, and shows an epoch that was given up.
        (ledger(2), False),
        (ledger(3, generation=3), False),
        (ledger(3, generation=4), False),
        (replace(ledger(3), timeline=OTHER), False),
        (None, False),
    ],
)
def test_a_sink_that_was_away_during_a_go_back_is_refused_if_it_shows_more(
    store: DurableCheckpointStore, before: LedgerState | None, refused: bool
) -> None:
    """Loss without this: numbers are used again, so its rows of the old epoch 3 stay beside the new ones."""
    decided = decision(seal(store, 5, {"b": token(5)}), branches=WENT_BACK)
    now = before or ledger(0)
    known = {} if before is None else {"a": before}
    if not refused:
        assert one(store, decided, now, before=known).rewind_to is None
        return
    with pytest.raises(ReplayMismatch, match="went back to epoch 2, and shows epochs 3 to 3 of what was given up"):
        one(store, decided, now, before=known)


def test_a_sink_that_is_rewound_to_the_common_epoch_is_welcome(store: DurableCheckpointStore) -> None:
    decided = decision(seal(store, 2, {"a": token(2)}), branches=WENT_BACK, sequel=Sequel(given_up_after=2))
    assert one(store, decided, ledger(3)).rewind_to == 2


# --- a sink that is gone


@pytest.mark.parametrize(
    ("status", "present", "refused"),
    [
        (PENDING, set(), True),
        (SinkCommitStatus.failed("disk full"), set(), True),
        (COMMITTED, set(), False),
        (PENDING, {"a"}, False),
    ],
)
def test_a_sink_that_is_owed_the_sealed_epoch_cannot_be_left_out(
    store: DurableCheckpointStore, status: SinkCommitStatus, present: set[str], refused: bool
) -> None:
    chosen = seal(store, 4, {"a": token(4)}, sink_commit_statuses={"a": status})
    if not refused:
        refuse_removed(chosen, [], present)
        return
    with pytest.raises(PipelineError, match="'a' was removed from the pipeline, but epoch 4 is sealed"):
        refuse_removed(chosen, [], present)


@pytest.mark.parametrize(
    ("later", "refused"), [({}, False), ({"a": COMMITTED}, False), ({"a": PENDING}, True), (None, True)]
)
def test_a_sink_that_was_settled_since_may_be_left_out_of_a_way_back(
    store: DurableCheckpointStore, later: dict[str, SinkCommitStatus] | None, refused: bool
) -> None:
    """Its epoch was shown, or given up by hand; then the pipeline went on, perhaps without it."""
    chosen = seal(store, 4, {"a": token(4)}, sink_commit_statuses={"a": PENDING})
    if later is not None:
        seal(store, 5, {}, sink_commit_statuses=later)
    if not refused:
        assert settle(store, decision(chosen), {}).sinks == {}
        return
    with pytest.raises(PipelineError, match="'a' was removed from the pipeline"):
        settle(store, decision(chosen), {})


def test_who_came_too_late_does_not_know_what_a_sink_is_owed(store: DurableCheckpointStore) -> None:
    """Loss without this: its writer was replaced before the sink was added, so it names none."""
    chosen = seal(store, 4, {"a": token(4)}, sink_commit_statuses={"a": PENDING})
    said = {"timeline": TIMELINE, "sink_commit_statuses": {"a": PENDING}}
    store.save(manifest(6, 4, generation=1, timeline=TIMELINE))
    store.save(manifest(7, 4, generation=2, began=[(2, 3)], **said))
    with pytest.raises(PipelineError, match="'a' was removed from the pipeline"):
        settle(store, decision(chosen), {})


def test_every_sink_is_looked_at_before_one_may_be_left_out(store: DurableCheckpointStore) -> None:
    statuses = {"a": COMMITTED, "b": PENDING, "c": PENDING}
    chosen = seal(store, 4, {}, sink_commit_statuses=statuses)
    with pytest.raises(PipelineError, match="'c' was removed"):
        refuse_removed(chosen, [], {"b"})


def test_a_sink_that_is_owed_an_epoch_to_replay_cannot_be_left_out(store: DurableCheckpointStore) -> None:
    chosen = seal(store, 4, {})
    seal(store, 5, {"a": token(5), "b": token(5)}, sink_commit_statuses={"a": COMMITTED, "b": PENDING})
    decided = decision(chosen, sequel=Sequel({5: 5}))
    with pytest.raises(PipelineError, match="'b' was removed from the pipeline, but epoch 5 is to be replayed"):
        settle(store, decided, {"a": ledger(5)})
    # Who shows it may be left out.
    assert settle(store, decided, {"b": ledger(4)}).replay.reached == 5
