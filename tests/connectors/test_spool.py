"""Rows that wait for a target that cannot keep them unseen: here, and beside checkpoints in object storage."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from connectors.targets import (
    BESIDE,
    BY_NAME,
    OTHER_TIMELINE,
    SCHEMA,
    TIMELINE,
    Files,
    SparkRows,
    Target,
    Writer,
    bound,
    orders,
    range_digest,
)
from holdfast import sinks
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, Owner, RewindOutcome, Token
from holdfast.errors import Fenced, RetryableSinkError, SinkError, TransientStoreError
from holdfast.stores.materials import DirectoryMaterials

HERE, THERE, COPIES = (Files(f"{place}/*/*") for place in ("a", "b", BESIDE))


def silent(*_: Any) -> None:
    raise TransientStoreError("no answer")


@pytest.fixture(params=["foreach-batch", "kafka"])
def target(request: pytest.FixtureRequest) -> Target:
    found = BY_NAME[request.param]
    if found.needs is not None:
        request.getfixturevalue(found.needs)
    return found


def test_another_machine_shows_what_a_lost_one_staged(tmp_path: Path, target: Target) -> None:
    first = Writer(target, tmp_path, machine="a")
    first.write(1, orders(1))
    token = first.prepare(2, orders(2, 3))
    second = Writer(target, tmp_path, 2, machine="b")
    assert second.opened.epoch == 1
    assert second.commit(token) is CommitOutcome.DONE
    assert second.commit(token) is CommitOutcome.ALREADY_DONE
    assert target.read(tmp_path) == orders(1, 2, 3)
    with pytest.raises(Fenced):
        first.commit(token)
    second.write(3, orders(4))
    assert target.read(tmp_path) == orders(1, 2, 3, 4)


def test_nothing_waits_any_more_for_an_epoch_that_is_shown(tmp_path: Path, target: Target) -> None:
    writer = Writer(target, tmp_path, machine="a")
    token = writer.prepare(1, orders(1))
    assert HERE.staged(tmp_path)
    assert COPIES.staged(tmp_path)
    writer.commit(token)
    assert HERE.staged(tmp_path) == COPIES.staged(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "removed"])
def test_what_is_damaged_here_is_taken_from_the_copy(tmp_path: Path, target: Target, damage: str) -> None:
    token = Writer(target, tmp_path, machine="a").prepare(1, orders(1, 2))
    HERE.harm(tmp_path, damage)
    assert Writer(target, tmp_path, 2, machine="a").commit(token) is CommitOutcome.DONE
    assert target.read(tmp_path) == orders(1, 2)


@pytest.mark.parametrize(("damage", "told"), [("cut", "damaged"), ("flipped", "damaged"), ("removed", "are gone")])
def test_a_copy_is_compared_before_it_is_shown(tmp_path: Path, target: Target, damage: str, told: str) -> None:
    token = Writer(target, tmp_path, machine="a").prepare(1, orders(1, 2))
    COPIES.harm(tmp_path, damage)
    with pytest.raises(SinkError, match=f"staged rows.*{told}"):
        Writer(target, tmp_path, 2, machine="b").commit(token)
    assert target.read(tmp_path) == []


@pytest.mark.parametrize("part", ["staged", "file"])
def test_a_token_that_leads_elsewhere_is_refused(tmp_path: Path, target: Target, part: str) -> None:
    """A checkpoint may have been imported, and what its tokens name is removed once it is shown."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    writer = Writer(target, tmp_path, machine="a")
    token = writer.prepare(1, orders(1))
    if part == "staged":
        token.payload["staged"] = "../mine"
    else:
        token.payload["files"][0]["path"] = "../../mine/file"
    with pytest.raises(SinkError, match="is no name of staged rows"):
        writer.commit(token)
    assert (tmp_path / "mine" / "file").exists()
    assert target.read(tmp_path) == []


def test_copies_of_dead_attempts_go_with_them(tmp_path: Path, target: Target) -> None:
    first = Writer(target, tmp_path, machine="a")
    first.prepare(1, orders(1))
    kept = first.prepare(1, orders(1), 1)
    first.sink.abort(first.ref(1, 1))
    assert len(HERE.staged(tmp_path)) == len(COPIES.staged(tmp_path)) == 1
    second = Writer(target, tmp_path, 2, machine="b")
    assert len(COPIES.staged(tmp_path)) == 1, "what is sealed may be of an older generation"
    second.commit(kept)
    second.prepare(2, orders(2))
    second.sink.abort(Writer(target, tmp_path, 3, machine="b").ref(2))
    assert COPIES.staged(tmp_path) == THERE.staged(tmp_path) == []


def test_copies_of_epochs_that_passed_go_at_a_start(tmp_path: Path, target: Target) -> None:
    first = Writer(target, tmp_path, machine="a")
    first.prepare(1, orders(1))
    first.write(1, orders(1), 1)
    assert len(COPIES.staged(tmp_path)) == 1
    Writer(target, tmp_path, 2, machine="b")
    assert COPIES.staged(tmp_path) == []


def test_staged_rows_can_be_read_on_another_machine(tmp_path: Path, target: Target) -> None:
    token = Writer(target, tmp_path, machine="a").prepare(1, orders(1, 2))
    assert bound(target, tmp_path, machine="b").staged(token).to_pylist() == orders(1, 2)


def test_storage_that_does_not_answer_is_asked_again(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(target, tmp_path, machine="a")
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryMaterials, "put_file", silent)
        with pytest.raises(RetryableSinkError, match="no answer"):
            writer.prepare(1, orders(1))
    writer.write(1, orders(1), 1)
    assert target.read(tmp_path) == orders(1)


def test_storage_that_does_not_answer_does_not_undo_a_commit(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(target, tmp_path, machine="a")
    token = writer.prepare(1, orders(1))
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryMaterials, "remove", silent)
        assert writer.commit(token) is CommitOutcome.DONE
    assert len(COPIES.staged(tmp_path)) == 1
    Writer(target, tmp_path, 2, machine="b")
    assert COPIES.staged(tmp_path) == []


def test_what_spark_wrote_is_taken_from_the_copy_as_well(tmp_path: Path, target: Target, spark: SparkSession) -> None:
    writer = Writer(target, tmp_path, machine="a")
    rows = SparkRows(spark.createDataFrame(pa.Table.from_pylist(orders(1), schema=SCHEMA)).coalesce(1))
    prepared = writer.sink.prepare(rows, writer.ref(1))
    HERE.harm(tmp_path, "flipped")
    token = Token(1, 1, 0, 0, prepared.rows, range_digest(1), prepared.payload)
    assert Writer(target, tmp_path, 2, machine="a").commit(token) is CommitOutcome.DONE
    assert target.read(tmp_path) == orders(1)


def test_a_ledger_without_a_target_goes_where_the_checkpoints_are(tmp_path: Path) -> None:
    """A function that cannot be asked what it has: the next machine must not hand over what was handed over."""
    calls: list[int] = []
    target = Target(
        "foreach", lambda _: sinks.foreach_batch(lambda table, key: calls.append(key.epoch)), lambda _: [], ""
    )
    Writer(target, tmp_path, machine="a").write(1, orders(1))
    second = Writer(target, tmp_path, 2, machine="b")
    assert second.opened == LedgerState(TIMELINE, 2, 1, second.opened.range_digest)
    second.write(2, orders(2))
    assert Writer(target, tmp_path, 3, machine="a").opened.epoch == 2, "what this machine remembers is older"
    assert calls == [1, 2]


def test_old_ledgers_are_read_as_they_are(tmp_path: Path) -> None:
    """Goal: a ledger from before processes had names goes on. Method: one without the keys of later."""
    target = BY_NAME["foreach-batch"]
    Writer(target, tmp_path, 3).write(1, orders(1))
    path = tmp_path / "spool" / "ledger.json"
    old = json.loads(path.read_bytes())
    for name in ("nonce", "rewound_in", "rewound_to"):
        del old[name]
    path.write_text(json.dumps(old))
    owner = Owner("shop", TIMELINE, 4, "0000000a")
    expected = LedgerState(TIMELINE, 4, 1, range_digest(1), "0000000a")
    assert bound(target, tmp_path).can_claim(owner) == bound(target, tmp_path).open(owner) == expected


def test_a_rewind_is_asked_about_as_the_claim_would_leave_the_target(tmp_path: Path, target: Target) -> None:
    """Goal: epochs of another timeline do not refuse `--fresh --sinks append`. Method: ask for both, then do it."""
    old = Writer(target, tmp_path, timeline=OTHER_TIMELINE)
    for epoch in (1, 2, 3):
        old.write(epoch, orders(epoch))
    assert bound(target, tmp_path).can_rewind(0) is RewindOutcome.IMPOSSIBLE
    for on_foreign, epoch in ((OnForeign.APPEND, 0), (OnForeign.ADOPT, 2)):
        asked = bound(target, tmp_path)
        asked.can_claim(Owner("shop", TIMELINE, 1), on_foreign=on_foreign, adopt_epoch=epoch)
        assert asked.can_rewind(epoch) is RewindOutcome.DONE
    new = Writer(target, tmp_path, on_foreign=OnForeign.ADOPT, adopt_epoch=2)
    assert new.rewind(2) is RewindOutcome.DONE


def test_a_spool_that_cannot_be_written_to_is_found_before_anything_happens(tmp_path: Path, target: Target) -> None:
    (tmp_path / "in_the_way").touch()
    for place in ("in_the_way", "in_the_way/spool"):
        with pytest.raises(RetryableSinkError, match="in_the_way is no folder that can be written to"):
            bound(target, tmp_path, machine=place).can_claim(Owner("shop", TIMELINE, 1))


def test_a_damaged_ledger_says_where_it_is(tmp_path: Path) -> None:
    target = BY_NAME["foreach-batch"]
    Writer(target, tmp_path, machine="a").write(1, orders(1))
    (tmp_path / BESIDE / "ledger.json").write_text("{")
    with pytest.raises(SinkError, match=r"beside/ledger\.json is damaged"):
        bound(target, tmp_path, machine="b").ledger()
