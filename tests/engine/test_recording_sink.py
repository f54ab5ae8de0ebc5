"""The sink and the source that we ship for tests: they keep the contract, and fail as they are told."""

import threading
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from holdfast.core.contracts import (
    CommitOutcome,
    EpochRef,
    LedgerState,
    OnForeign,
    Owner,
    RewindOutcome,
    SinkContext,
    Token,
)
from holdfast.errors import Fenced, ForeignTimeline, RetryableSinkError, SinkError, UnknownOutcome
from holdfast.testing import RecordedTarget, RecordingSink, ScriptedEpoch, ScriptedRows, ScriptedSource, Trouble
from holdfast.testing.scripted_source import recorded_end, restored_count

TIMELINE, OTHER = UUID(int=1), UUID(int=2)


class Writer:
    """One process's hold on a target."""

    def __init__(
        self, target: RecordedTarget, generation: int = 1, timeline: UUID = TIMELINE, **options: Any
    ) -> None:
        self.sink, self.generation, self.timeline = RecordingSink(target), generation, timeline
        self.opened = self.sink.open(Owner("shop", timeline, generation), **options)

    def prepare(self, epoch: int, *ids: int, previous: int | None = None, attempt: int = 0) -> Token:
        ref = EpochRef(self.timeline, self.generation, epoch, attempt)
        prepared = self.sink.prepare(ScriptedRows([{"id": id} for id in ids]), ref)
        before = epoch - 1 if previous is None else previous
        return Token(epoch, self.generation, attempt, before, prepared.rows, f"range {epoch}", prepared.payload)

    def write(self, epoch: int, *ids: int) -> Token:
        token = self.prepare(epoch, *ids)
        assert self.sink.commit(token) is CommitOutcome.DONE
        return token


def ids(target: RecordedTarget) -> list[int]:
    return [row["id"] for row in target.rows]


@pytest.fixture
def target() -> RecordedTarget:
    return RecordedTarget()


# --- the contract


def test_prepared_rows_are_invisible_until_they_are_committed_once(target: RecordedTarget) -> None:
    writer = Writer(target)
    token = writer.prepare(1, 1, 2)
    assert ids(target) == []
    assert [writer.sink.commit(token), writer.sink.commit(token)] == [CommitOutcome.DONE, CommitOutcome.ALREADY_DONE]
    assert ids(target) == [1, 2]
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 1, "range 1")


def test_a_token_must_follow_the_ledger_and_have_its_range_and_rows(target: RecordedTarget) -> None:
    writer = Writer(target)
    done = writer.write(1, 1)
    token = writer.prepare(2, 2)
    for wrong, reason in [
        (replace(token, previous=0), "ledger is at 1"),
        (replace(done, range_digest="another"), "another source range"),
        (replace(token, rows=7), "1 rows are staged, expected 7"),
        (replace(token, attempt=7), "gone"),
    ]:
        with pytest.raises(SinkError, match=reason):
            writer.sink.commit(wrong)
    assert ids(target) == [1]


def test_a_zombie_may_do_nothing_and_its_heir_commits_what_it_sealed(target: RecordedTarget) -> None:
    zombie = Writer(target)
    token = zombie.prepare(1, 1)
    heir = Writer(target, 2)
    for forbidden in (
        lambda: zombie.sink.commit(token),
        lambda: zombie.sink.rewind(0),
        lambda: Writer(target, 1),
    ):
        with pytest.raises(Fenced):
            forbidden()
    assert heir.sink.commit(token) is CommitOutcome.DONE


def test_an_abort_removes_lower_attempts_of_the_epoch_only(target: RecordedTarget) -> None:
    writer = Writer(target)
    tokens = [writer.prepare(1, n, attempt=n) for n in range(3)]
    other = writer.prepare(2, 9)
    writer.sink.abort(EpochRef(TIMELINE, 1, 1, 2))
    with pytest.raises(SinkError, match="gone"):
        writer.sink.commit(tokens[1])
    writer.sink.commit(tokens[2])
    writer.sink.commit(other)
    assert ids(target) == [2, 9]


def test_a_rewind_takes_epochs_back_and_makes_tokens_stale(target: RecordedTarget) -> None:
    writer = Writer(target)
    for epoch in (1, 2, 3):
        writer.write(epoch, epoch)
    stale = writer.prepare(4, 4, previous=2)
    assert writer.sink.rewind(2) is RewindOutcome.DONE
    assert ids(target) == [1, 2]
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 2, "range 2", rewound_in=1, rewound_to=2)
    with pytest.raises(SinkError, match="before the target was rewound"):
        writer.sink.commit(stale)
    assert writer.sink.rewind(2) is RewindOutcome.DONE


def test_a_target_that_cannot_be_rewound_says_so(target: RecordedTarget) -> None:
    target.rewindable = False
    writer = Writer(target)
    writer.write(1, 1)
    assert writer.sink.rewind(0) is RewindOutcome.IMPOSSIBLE
    assert ids(target) == [1]


def test_another_timeline_needs_a_choice(target: RecordedTarget) -> None:
    Writer(target, 5).write(1, 1)
    backup = target.state
    with pytest.raises(ForeignTimeline):
        Writer(target, 1, OTHER)
    for choice, shown, epoch in [
        (OnForeign.APPEND, [1], 0),
        (OnForeign.ADOPT, [1], 4),
        (OnForeign.REWIND, [], 0),
    ]:
        target.state = backup
        opened = Writer(target, 1, OTHER, on_foreign=choice, adopt_epoch=4).opened
        assert (opened, ids(target)) == (LedgerState(OTHER, 1, epoch), shown)
    target.state, target.rewindable = backup, False
    with pytest.raises(SinkError, match="cannot be removed"):
        Writer(target, 1, OTHER, on_foreign=OnForeign.REWIND)


def test_staged_rows_can_be_read_by_somebody_who_did_not_prepare_them(target: RecordedTarget) -> None:
    token = Writer(target).prepare(1, 1, 2)
    stranger = RecordingSink(target)
    stranger.bind(SinkContext("a", "shop", pa.schema([("id", pa.int64())]), "append", ""))
    assert stranger.staged(token).to_pylist() == [{"id": 1}, {"id": 2}]
    with pytest.raises(SinkError, match="gone"):
        stranger.staged(replace(token, attempt=7))


def test_what_was_not_opened_cannot_write(target: RecordedTarget) -> None:
    token = Writer(target).prepare(1, 1)
    with pytest.raises(SinkError, match="not opened"):
        RecordingSink(target).commit(token)


# --- going wrong


@pytest.mark.parametrize(
    ("kind", "error", "done"),
    [
        (Trouble.BUSY, RetryableSinkError, False),
        (Trouble.BROKEN, SinkError, False),
        (Trouble.UNKNOWN_BEFORE, UnknownOutcome, False),
        (Trouble.UNKNOWN_AFTER, UnknownOutcome, True),
    ],
)
def test_a_call_fails_as_often_as_it_was_told(
    target: RecordedTarget, kind: Trouble, error: type[Exception], done: bool
) -> None:
    writer = Writer(target)
    token = writer.prepare(1, 1)
    target.trouble("commit", kind, times=2)
    for _ in range(2):
        with pytest.raises(error):
            writer.sink.commit(token)
        assert bool(target.rows) is done
    assert writer.sink.commit(token) is (CommitOutcome.ALREADY_DONE if done else CommitOutcome.DONE)


@pytest.mark.parametrize(("kind", "done"), [(Trouble.HANG_BEFORE, False), (Trouble.HANG_AFTER, True)])
def test_a_call_hangs_until_it_is_let_go(target: RecordedTarget, kind: Trouble, done: bool) -> None:
    writer = Writer(target)
    token = writer.prepare(1, 1)
    target.trouble("commit", kind)
    thread = threading.Thread(target=writer.sink.commit, args=(token,), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert bool(target.rows) is done
    target.let_go()
    thread.join(5)
    assert ids(target) == [1]


def test_trouble_can_be_called_off(target: RecordedTarget) -> None:
    target.trouble("open", Trouble.BROKEN)
    target.calm()
    Writer(target)


@pytest.mark.parametrize("staged_rows_too", [False, True])
def test_a_target_loses_its_last_commit(target: RecordedTarget, staged_rows_too: bool) -> None:
    writer = Writer(target)
    writer.write(1, 1)
    token = writer.write(2, 2)
    target.lose_last_commit(staged_rows_too=staged_rows_too)
    assert ids(target) == [1]
    if staged_rows_too:
        with pytest.raises(SinkError, match="gone"):
            writer.sink.commit(token)
    else:
        assert writer.sink.commit(token) is CommitOutcome.DONE


def test_somebody_can_stand_in_front_of_every_call(target: RecordedTarget) -> None:
    seen: list[str] = []
    sink = RecordingSink(target, before=seen.append)
    sink.open(Owner("shop", TIMELINE, 1))
    sink.ledger()
    sink.close()
    assert seen == ["open", "ledger"]
    assert [call.action for call in target.calls] == ["open", "ledger", "close"]


# --- the source


def test_an_epoch_gives_the_same_again() -> None:
    source = ScriptedSource([{"id": n} for n in range(6)], {"a": lambda row, seen: {**row, "seen": seen}})
    first, again = source.epoch(2, range(2, 4)), source.epoch(2, range(2, 4), seen=2)
    assert first.rows()["a"].arrow().to_pylist() == [{"id": 2, "seen": 3}, {"id": 3, "seen": 4}]
    assert again.rows()["a"].arrow().to_pylist() == first.rows()["a"].arrow().to_pylist()
    assert first.range_digest() == again.range_digest() != source.epoch(2, range(1, 4)).range_digest()
    captured = first.capture()
    assert recorded_end(captured.parts, 2) == 4
    (file,) = captured.operators["state/0"]
    assert restored_count({file.path: bytes(file.open())}) == 4
    assert captured.rows_in == 2


def test_another_state_gives_other_rows() -> None:
    source = ScriptedSource([{"id": 1}], {"a": lambda row, seen: {"seen": seen}})
    assert source.epoch(1, range(0, 1), seen=7).rows()["a"].arrow().to_pylist() == [{"seen": 8}]
    assert source.expected("a") == [{"seen": 1}]


def test_sinks_without_rows_are_left_out() -> None:
    source = ScriptedSource([{"id": 1}], {"a": lambda row, seen: row, "b": lambda row, seen: None})
    assert source.epoch(1, range(0, 1)).rows().keys() == {"a"}


def test_an_epoch_fails_where_it_is_told() -> None:
    work = ScriptedEpoch(1, {})
    work.fails["capture"] = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        work.capture()
    assert work.calls == ["capture"]
