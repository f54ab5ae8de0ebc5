"""What every exactly-once sink does alike. A new connector is one line in `targets.TARGETS`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.targets import (
    OTHER_TIMELINE,
    SCHEMA,
    TARGETS,
    TIMELINE,
    Row,
    Target,
    Writer,
    bound,
    ledger,
    orders,
    range_digest,
)
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, Owner, RewindOutcome, Token
from holdfast.errors import Fenced, ForeignTimeline, SinkError

DONE, ALREADY_DONE = CommitOutcome.DONE, CommitOutcome.ALREADY_DONE


def only(wanted: Callable[[Target], bool]) -> pytest.MarkDecorator:
    """Run a test with some of the targets."""
    chosen = [target for target in TARGETS if wanted(target)]
    return pytest.mark.parametrize("target", chosen, indirect=True, ids=lambda target: target.name)


rewindable = only(lambda target: target.rewinds)
keyed = only(lambda target: target.output_mode == "update")
in_files = only(lambda target: target.in_tables is None)
damaged = pytest.mark.parametrize(
    ("target", "damage"),
    [(target, damage) for target in TARGETS for damage in target.place.damages],
    indirect=["target"],
    ids=lambda value: value if isinstance(value, str) else value.name,
)


@contextmanager
def other_processes(target: Target, directory: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Open the target in processes of their own, all as generation 1."""
    script = str(Path(__file__).with_name("other_process.py"))
    command = [sys.executable, script, target.name, str(directory), "1"]
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        assert [hear(process) for process in processes] == [{"ready": True}] * count
        yield processes


def tell(process: subprocess.Popen[str], value: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value) + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


# --- one epoch


def test_prepared_rows_are_invisible_until_they_are_committed(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    token = writer.prepare(1, orders(1, 2, 3))
    assert seen() == []
    assert token.rows == 3
    assert writer.commit(token) is DONE
    assert seen() == orders(1, 2, 3)


def test_committing_again_changes_nothing(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    token = writer.write(1, orders(1, 2))
    assert writer.commit(token) is ALREADY_DONE
    assert Writer(target, tmp_path, 2).commit(token) is ALREADY_DONE
    assert seen() == orders(1, 2)


def test_the_ledger_tells_owner_epoch_and_range(target: Target, tmp_path: Path) -> None:
    assert ledger(target, tmp_path) is None
    writer = Writer(target, tmp_path)
    assert writer.opened == LedgerState(TIMELINE, 1, 0, None)
    writer.write(1, orders(1))
    expected = LedgerState(TIMELINE, 1, 1, range_digest(1))
    assert writer.sink.ledger() == expected
    writer.sink.close()
    assert ledger(target, tmp_path) == expected
    assert Writer(target, tmp_path, 2).opened == replace(expected, generation=2)


def test_epochs_may_have_gaps(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(2, orders(1))
    writer.write(7, orders(2))
    assert seen() == orders(1, 2)
    found = ledger(target, tmp_path)
    assert found is not None
    assert found.epoch == 7


def test_a_token_that_does_not_follow_the_ledger_is_refused(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(3, orders(2))
    with pytest.raises(SinkError, match="ledger is at 1"):
        writer.sink.commit(replace(token, previous=2))
    assert seen() == orders(1)


def test_an_epoch_of_another_range_is_not_taken_for_done(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    token = writer.write(1, orders(1))
    with pytest.raises(SinkError, match="another source range"):
        writer.sink.commit(replace(token, range_digest=range_digest(99)))
    assert seen() == orders(1)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Collect the inodes of everything that is flushed."""
    inodes: set[int] = set()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        fsync(descriptor)
        inodes.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    return inodes


@in_files
def test_staged_rows_and_their_names_are_flushed_when_prepare_returns(
    target: Target, tmp_path: Path, flushed: set[int]
) -> None:
    Writer(target, tmp_path).prepare(1, orders(1, 2))
    (path,) = target.place.staged(tmp_path)
    below = [folder for folder in path.parents if folder.is_relative_to(tmp_path) and folder != tmp_path]
    missing = [str(found) for found in [path, *below] if found.stat().st_ino not in flushed]
    assert missing == []


# --- two writers


def test_of_two_processes_committing_one_token_exactly_one_does_it(target: Target, tmp_path: Path, seen: Any) -> None:
    with other_processes(target, tmp_path, 2) as processes:
        writer = Writer(target, tmp_path)
        for epoch in range(1, 6):
            token = writer.prepare(epoch, orders(epoch))
            writer.epoch = epoch
            for process in processes:
                tell(process, {"commit": token.to_json_value()})
            outcomes = sorted(str(hear(process)) for process in processes)
            assert outcomes == ["{'outcome': 'already done'}", "{'outcome': 'done'}"]
    assert seen() == orders(1, 2, 3, 4, 5)


def test_a_process_killed_at_any_moment_of_a_commit_leaves_all_or_nothing(
    target: Target, tmp_path: Path, seen: Any
) -> None:
    with other_processes(target, tmp_path, 2) as processes:
        writer = Writer(target, tmp_path)
        for epoch, (process, patience) in enumerate(zip(processes, (0.002, 0.008), strict=True), 1):
            token = writer.prepare(epoch, orders(epoch, epoch + 100))
            tell(process, {"commit": token.to_json_value()})
            time.sleep(patience)
            process.kill()
            process.wait()
            target.place.settle()
            shown = [row for row in seen() if row["id"] in (epoch, epoch + 100)]
            assert shown in ([], orders(epoch, epoch + 100))
            found = writer.sink.ledger()
            assert found is not None
            assert found.epoch == (epoch if shown else epoch - 1)
            assert writer.commit(token) is (ALREADY_DONE if shown else DONE)
    assert seen() == orders(1, 2, 101, 102)


def test_a_zombie_is_fenced_when_the_claim_came_after_its_prepare(target: Target, tmp_path: Path, seen: Any) -> None:
    zombie = Writer(target, tmp_path, 1)
    token = zombie.prepare(1, orders(1))
    Writer(target, tmp_path, 2)
    with pytest.raises(Fenced, match="generation 2"):
        zombie.commit(token)
    assert seen() == []


def test_a_zombie_may_neither_rewind_nor_claim_again(target: Target, tmp_path: Path, seen: Any) -> None:
    zombie = Writer(target, tmp_path, 1)
    zombie.write(1, orders(1))
    Writer(target, tmp_path, 2)
    with pytest.raises(Fenced):
        zombie.rewind(0)
    with pytest.raises(Fenced):
        Writer(target, tmp_path, 1)
    assert seen() == orders(1)


def test_a_newer_owner_commits_the_sealed_token_of_a_dead_one(target: Target, tmp_path: Path, seen: Any) -> None:
    token = Writer(target, tmp_path, 1).prepare(1, orders(1, 2))
    heir = Writer(target, tmp_path, 2)
    assert heir.commit(token) is DONE
    heir.write(2, orders(3))
    assert seen() == orders(1, 2, 3)
    assert ledger(target, tmp_path) == LedgerState(TIMELINE, 2, 2, range_digest(2))


def test_a_process_killed_between_prepare_and_commit_leaves_nothing_behind(
    target: Target, tmp_path: Path, seen: Any
) -> None:
    with other_processes(target, tmp_path, 1) as (process,):
        tell(process, {"prepare": 1, "ids": [1, 2]})
        dead = Token.from_json_value(hear(process)["token"])
        process.kill()
        process.wait()
    heir = Writer(target, tmp_path, 2)
    assert target.place.staged(tmp_path) != []
    heir.sink.abort(heir.ref(1))
    assert target.place.staged(tmp_path) == []
    with pytest.raises(SinkError, match="gone"):
        heir.sink.commit(dead)
    heir.write(1, orders(1, 2))
    assert seen() == orders(1, 2)


# --- staged rows


def test_an_abort_removes_only_lower_attempts(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    tokens = [writer.prepare(1, orders(attempt), attempt) for attempt in range(3)]
    later = writer.prepare(2, orders(9))
    writer.sink.abort(writer.ref(1, 2))
    for dead in tokens[:2]:
        with pytest.raises(SinkError, match="gone"):
            writer.sink.commit(dead)
    assert writer.commit(tokens[2]) is DONE
    assert writer.commit(replace(later, previous=1)) is DONE
    assert seen() == orders(2, 9)


def test_an_abort_leaves_what_another_process_of_its_generation_staged(
    target: Target, tmp_path: Path, seen: Any
) -> None:
    """Goal: of two copies of a store none loses the other's rows. Method: a higher attempt, by another process."""
    writer = Writer(target, tmp_path, nonce="0000000a")
    token = writer.prepare(1, orders(1))
    writer.sink.abort(replace(writer.ref(1, 5), nonce="0000000b"))
    assert writer.commit(token) is DONE
    assert seen() == orders(1)


def test_a_process_of_equal_generation_may_not_claim_the_target(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path, nonce="0000000a")
    token = writer.prepare(1, orders(1))
    with pytest.raises(Fenced):
        Writer(target, tmp_path, nonce="0000000b")
    assert writer.commit(token) is DONE
    assert seen() == orders(1)


def test_an_abort_never_touches_committed_rows(target: Target, tmp_path: Path, seen: Any) -> None:
    Writer(target, tmp_path, 1).write(1, orders(1, 2))
    heir = Writer(target, tmp_path, 2)
    heir.sink.abort(heir.ref(1, 5))
    heir.sink.abort(heir.ref(2, 5))
    assert seen() == orders(1, 2)


@damaged
def test_damaged_staged_rows_are_not_committed(target: Target, tmp_path: Path, damage: str, seen: Any) -> None:
    token = Writer(target, tmp_path, 1).prepare(1, orders(1, 2, 3))
    target.place.harm(tmp_path, damage)
    heir = Writer(target, tmp_path, 2)
    with pytest.raises(SinkError, match=r"damaged|gone|2 rows are staged, expected 3"):
        heir.commit(token)
    assert seen() == []
    assert heir.sink.ledger() == LedgerState(TIMELINE, 2, 0, None)


def test_a_token_with_another_row_count_is_refused(target: Target, tmp_path: Path, seen: Any) -> None:
    token = Writer(target, tmp_path, 1).prepare(1, orders(1, 2))
    heir = Writer(target, tmp_path, 2)
    with pytest.raises(SinkError, match="2 rows are staged, expected 3"):
        heir.commit(replace(token, rows=3))
    assert seen() == []


# --- staged rows for a person


def by_id(table: Any) -> list[Row]:
    return sorted(table.to_pylist(), key=lambda row: (row["id"] is not None, row["id"]))


def test_whoever_has_the_token_can_read_the_staged_rows_and_changes_nothing(
    target: Target, tmp_path: Path, seen: Any
) -> None:
    writer = Writer(target, tmp_path)
    given: list[Row] = [{"id": None, "name": None, "amount": None}, *orders(1), *orders(2, name='ä, "b"\n/=%')]
    given = given if target.null_keys else given[1:]
    token = writer.prepare(1, given)
    before = target.place.everything(tmp_path)
    found = bound(target, tmp_path).staged(token)
    assert found.schema.equals(SCHEMA)
    assert by_id(found) == given
    assert target.place.everything(tmp_path) == before
    assert ledger(target, tmp_path) == LedgerState(TIMELINE, 1, 0, None)
    assert writer.commit(token) is DONE


def test_staged_rows_are_those_of_the_tokens_own_attempt(target: Target, tmp_path: Path) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    tokens = [writer.prepare(2, orders(attempt), attempt) for attempt in range(3)]
    writer.sink.abort(writer.ref(2, 1))
    reader = bound(target, tmp_path)
    with pytest.raises(SinkError, match="gone"):
        reader.staged(tokens[0])
    assert [by_id(reader.staged(token)) for token in tokens[1:]] == [orders(1), orders(2)]


def test_staged_rows_of_a_committed_token_are_gone_or_still_the_same(target: Target, tmp_path: Path) -> None:
    token = Writer(target, tmp_path).write(1, orders(1, 2))
    found = orders(1, 2)
    with suppress(SinkError):
        found = by_id(bound(target, tmp_path).staged(token))
    assert found == orders(1, 2)


def test_staged_rows_that_are_not_as_many_as_the_token_says_are_refused(target: Target, tmp_path: Path) -> None:
    token = Writer(target, tmp_path).prepare(1, orders(1, 2))
    with pytest.raises(SinkError, match="2 rows are staged, expected 3"):
        bound(target, tmp_path).staged(replace(token, rows=3))


@damaged
def test_damaged_staged_rows_are_not_given_to_anybody(target: Target, tmp_path: Path, damage: str) -> None:
    token = Writer(target, tmp_path).prepare(1, orders(1, 2, 3))
    target.place.harm(tmp_path, damage)
    with pytest.raises(SinkError, match=r"damaged|gone|2 rows are staged, expected 3"):
        bound(target, tmp_path).staged(token)


# --- going back


@rewindable
def test_a_rewind_takes_epochs_back_and_the_pipeline_goes_on(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    for epoch in (1, 2, 3):
        writer.write(epoch, orders(epoch))
    assert writer.rewind(1) is RewindOutcome.DONE
    assert seen() == orders(1)
    assert ledger(target, tmp_path) == LedgerState(TIMELINE, 1, 1, range_digest(1), rewound_in=1, rewound_to=1)
    writer.write(2, orders(20), attempt=1)
    writer.write(3, orders(30), attempt=1)
    assert seen() == orders(1, 20, 30)


@rewindable
def test_a_rewind_to_an_epoch_without_rows_stands_exactly_there(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(2, orders(2))
    writer.write(5, orders(5))
    assert writer.rewind(3) is RewindOutcome.DONE
    assert ledger(target, tmp_path) == LedgerState(TIMELINE, 1, 3, None, rewound_in=1, rewound_to=3)
    writer.write(4, orders(4))
    assert seen() == orders(2, 4)


@only(lambda target: not target.rewinds)
def test_a_rewind_that_is_impossible_changes_nothing(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    assert writer.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert seen() == orders(1, 2)
    writer.write(3, orders(3))
    assert seen() == orders(1, 2, 3)


@rewindable
def test_rewinding_to_nothing_and_rewinding_twice(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    for epoch in (1, 2, 3):
        writer.write(epoch, orders(epoch))
    assert writer.rewind(2) is RewindOutcome.DONE
    writer.write(3, orders(30), attempt=1)
    assert writer.rewind(1) is RewindOutcome.DONE
    assert seen() == orders(1)
    assert writer.rewind(0) is RewindOutcome.DONE
    assert seen() == []
    writer.write(1, orders(7), attempt=2)
    assert seen() == orders(7)


@rewindable
def test_stale_tokens_do_not_fit_after_a_rewind(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    committed = writer.write(2, orders(2))
    prepared = writer.prepare(3, orders(3))
    assert writer.rewind(1) is RewindOutcome.DONE
    for stale in (committed, prepared, replace(prepared, previous=1)):
        with pytest.raises(SinkError):
            writer.sink.commit(stale)
    heir = Writer(target, tmp_path, 2)
    with pytest.raises(SinkError):
        heir.sink.commit(committed)
    assert seen() == orders(1)


def test_a_rewind_to_where_the_ledger_stands_makes_prepared_tokens_stale(
    target: Target, tmp_path: Path, seen: Any
) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    stale = writer.prepare(2, orders(2))
    assert writer.rewind(1) is RewindOutcome.DONE
    with pytest.raises(SinkError, match="before the target was rewound"):
        writer.sink.commit(stale)
    writer.write(2, orders(20), attempt=1)
    assert seen() == orders(1, 20)


@rewindable
def test_an_abort_after_a_rewind_leaves_the_target_alone(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    assert writer.rewind(1) is RewindOutcome.DONE
    heir = Writer(target, tmp_path, 2)
    heir.sink.abort(heir.ref(2))
    heir.write(2, orders(20))
    assert seen() == orders(1, 20)


def test_a_target_put_back_to_an_older_copy_shows_it(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    target.place.back_up(tmp_path)
    writer.write(2, orders(2))
    target.place.put_back(tmp_path)
    found = writer.sink.ledger()
    assert found is not None
    assert found.epoch == 1
    token = writer.prepare(3, orders(3))
    with pytest.raises(SinkError, match="ledger is at 1"):
        writer.sink.commit(token)
    assert seen() == orders(1)


# --- other timelines


def other_life(target: Target, directory: Path, on_foreign: OnForeign, adopt_epoch: int = 0) -> Writer:
    """Open the target for a new timeline of the same pipeline, which starts at generation 1 again."""
    return Writer(target, directory, timeline=OTHER_TIMELINE, on_foreign=on_foreign, adopt_epoch=adopt_epoch)


def test_a_target_of_another_timeline_is_refused(target: Target, tmp_path: Path, seen: Any) -> None:
    Writer(target, tmp_path, 5).write(1, orders(1))
    with pytest.raises(ForeignTimeline, match="--sinks rewind"):
        other_life(target, tmp_path, OnForeign.REFUSE)
    assert ledger(target, tmp_path) == LedgerState(TIMELINE, 5, 1, range_digest(1))


def test_append_leaves_the_rows_and_begins_behind_them(target: Target, tmp_path: Path, seen: Any) -> None:
    old = Writer(target, tmp_path, 5)
    old.write(1, orders(1))
    old.write(2, orders(2))
    late = old.prepare(3, orders(3))
    new = other_life(target, tmp_path, OnForeign.APPEND)
    assert new.opened == LedgerState(OTHER_TIMELINE, 1, 0, None)
    new.write(1, orders(10))
    with pytest.raises(Fenced):
        old.commit(late)
    assert seen() == orders(1, 2, 10)
    if new.rewind(0) is RewindOutcome.DONE:
        assert seen() == orders(1, 2)


def test_adopt_takes_the_rows_for_its_own(target: Target, tmp_path: Path, seen: Any) -> None:
    old = Writer(target, tmp_path, 5)
    old.write(1, orders(1))
    old.write(2, orders(2))
    new = other_life(target, tmp_path, OnForeign.ADOPT, adopt_epoch=2)
    assert new.opened == LedgerState(OTHER_TIMELINE, 1, 2, None)
    new.write(3, orders(3))
    assert Writer(target, tmp_path, 2, timeline=OTHER_TIMELINE).opened.epoch == 3
    assert seen() == orders(1, 2, 3)


def test_rewind_removes_what_the_other_timeline_wrote(target: Target, tmp_path: Path, seen: Any) -> None:
    old = Writer(target, tmp_path, 5)
    old.write(1, orders(1))
    old.write(2, orders(2))
    late = old.prepare(3, orders(3))
    if not target.takes_rows_back:
        with pytest.raises(SinkError, match=r"cannot be"):
            other_life(target, tmp_path, OnForeign.REWIND)
        return
    new = other_life(target, tmp_path, OnForeign.REWIND)
    assert seen() == []
    assert new.opened == LedgerState(OTHER_TIMELINE, 1, 0, None)
    with pytest.raises(Fenced):
        old.commit(late)
    new.write(1, orders(10))
    assert seen() == orders(10)


# --- values


@keyed
def test_rows_with_the_same_key_replace_each_other(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1, 2))
    writer.write(2, [*orders(2, name="bert"), *orders(3)])
    assert seen() == [*orders(1), *orders(2, name="bert"), *orders(3)]
    with pytest.raises(SinkError, match="same key"):
        writer.prepare(3, orders(4, 4))
    null_key: list[Row] = [{"id": None, "name": "nobody", "amount": 1.0}]
    if not target.null_keys:
        with pytest.raises(SinkError, match='null value in column "id"'):
            writer.prepare(3, null_key)
        return
    writer.write(3, null_key)
    writer.write(4, [{**null_key[0], "amount": 2.0}])
    found = [row for row in target.read(tmp_path) if row["id"] is None]
    assert found == [{"id": None, "name": "nobody", "amount": 2.0}]


def test_an_identity_has_no_secrets_and_stays_the_same(target: Target, tmp_path: Path) -> None:
    first, second = bound(target, tmp_path).identity(), bound(target, tmp_path).identity()
    assert first == second
    assert json.dumps(first)
    assert first["kind"] in target.name.replace("-", "_")


def test_opening_again_as_the_same_owner_is_harmless(target: Target, tmp_path: Path, seen: Any) -> None:
    writer = Writer(target, tmp_path)
    writer.write(1, orders(1))
    assert writer.sink.open(Owner("shop", TIMELINE, 1)) == LedgerState(TIMELINE, 1, 1, range_digest(1))
    writer.write(2, orders(2))
    assert seen() == orders(1, 2)


def test_every_exactly_once_sink_says_how(target: Target, tmp_path: Path) -> None:
    guarantee = target.make(tmp_path).guarantee
    assert guarantee.exactly_once
    assert guarantee.how
