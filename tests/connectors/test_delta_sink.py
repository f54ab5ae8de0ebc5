"""What the Delta sink promises beyond the contract: one log entry, other writers, merges, rewinds, object storage."""

import json
import os
import shutil
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake

from connectors.delta_tables import Table, reading
from connectors.targets import (
    BY_NAME,
    NOON,
    RICH_ROWS,
    RICH_SCHEMA,
    SCHEMA,
    TIMELINE,
    WINDOW,
    ArrowRows,
    Row,
    SparkRows,
    Target,
    Writer,
    bound,
    contents,
    ledger,
    orders,
    range_digest,
    with_only_columns,
    without_form,
)
from holdfast import sinks
from holdfast.connectors.delta import modes as delta_modes
from holdfast.connectors.delta import undoing
from holdfast.connectors.delta.folder import DataFile, TableFolder
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
from holdfast.core.forms import FORM
from holdfast.errors import Fenced, ForeignTimeline, PipelineDefinitionError, RetryableSinkError, SinkError

APPEND, MERGE = BY_NAME["delta-append"], BY_NAME["delta-merge"]
MAPPING = "delta.columnMapping.mode"


def target(**options: Any) -> Target:
    """Return a Delta target with other options."""
    mode = "update" if options.get("mode") == "merge" else "append"
    return Target("delta", lambda path: sinks.delta(str(path / "target"), **options), APPEND.read, "", mode)


def table(directory: Path) -> DeltaTable:
    return DeltaTable(str(directory / "target"))


def seen(directory: Path) -> list[Row]:
    return sorted(APPEND.read(directory), key=lambda row: row["id"])


def log_entry(directory: Path, version: int) -> list[dict[str, Any]]:
    lines = (directory / "target" / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


# --- one entry


def test_a_commit_is_one_log_entry_with_files_statistics_and_ledger(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    before = table(tmp_path).version()
    writer.write(1, orders(3, 1, 2))
    assert table(tmp_path).version() == before + 1
    entry = log_entry(tmp_path, before + 1)
    (added,) = [line["add"] for line in entry if "add" in line]
    stats = json.loads(added["stats"])
    assert stats["numRecords"] == 3
    assert (stats["minValues"], stats["maxValues"]) == (
        {"id": 1, "name": "anna", "amount": 1.5},
        {"id": 3, "name": "anna", "amount": 3.5},
    )
    assert stats["nullCount"] == {"id": 0, "name": 0, "amount": 0}
    transactions = {line["txn"]["appId"]: line["txn"]["version"] for line in entry if "txn" in line}
    assert transactions[f"holdfast:{TIMELINE}:out:epoch"] == 1
    assert transactions[f"holdfast:{TIMELINE}:out:generation"] == 1
    assert table(tmp_path).history(1)[0]["holdfast"]["rows"] == 3


@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
def test_the_entry_and_its_files_are_flushed_when_commit_returns(
    kind: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (fsync(descriptor), flushed.add(os.fstat(descriptor).st_ino)))
    writer = Writer(kind, tmp_path)
    for epoch in range(1, 12):
        writer.write(epoch, orders(epoch))
    log = tmp_path / "target" / "_delta_log"
    wanted = [log, *log.iterdir(), *(Path(path) for path in table(tmp_path).file_uris())]
    assert [path.name for path in wanted if path.stat().st_ino not in flushed] == []
    assert list(log.glob("*.checkpoint.parquet"))


def test_a_claim_is_an_entry_without_files(tmp_path: Path) -> None:
    Writer(APPEND, tmp_path)
    entry = log_entry(tmp_path, 1)
    assert [line for line in entry if "add" in line or "remove" in line] == []
    assert any("txn" in line for line in entry)


def test_the_ledger_survives_log_checkpoints_and_log_clean_up(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    expected = writer.sink.ledger()
    table(tmp_path).create_checkpoint()
    for path in sorted((tmp_path / "target" / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    heir = Writer(APPEND, tmp_path, 2)
    assert expected is not None
    assert heir.opened == LedgerState(TIMELINE, 2, 1, expected.range_digest)
    assert heir.rewind(0) is RewindOutcome.IMPOSSIBLE
    heir.write(2, orders(2))
    assert seen(tmp_path) == orders(1, 2)


@pytest.mark.parametrize("digest", ["", "range 7: ä", "0a1b2c", "f" * 64, "ABC", "a" * 63])
def test_the_ledger_returns_the_digest_it_was_given(tmp_path: Path, digest: str) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.commit(writer.prepare(1, orders(1), digest=digest or "x"))
    found = writer.sink.ledger()
    assert found is not None
    assert found.range_digest == (digest or "x")


# --- two writers


@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
def test_a_claim_between_check_and_entry_fences_the_zombie(
    kind: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = Writer(kind, tmp_path, 1)
    zombie.write(1, orders(1))
    token = zombie.prepare(2, orders(2))
    show = type(zombie.sink._mode).show  # type: ignore[attr-defined]

    def claimed_first(mode: Any, *arguments: Any) -> None:
        monkeypatch.setattr(type(mode), "show", show)
        Writer(kind, tmp_path, 2)
        show(mode, *arguments)

    monkeypatch.setattr(type(zombie.sink._mode), "show", claimed_first)  # type: ignore[attr-defined]
    with pytest.raises(Fenced, match="generation 2"):
        zombie.commit(token)
    assert seen(tmp_path) == orders(1)
    heir = Writer(kind, tmp_path, 2)
    assert heir.commit(token) is CommitOutcome.DONE
    assert seen(tmp_path) == orders(1, 2)


@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
def test_the_same_token_committed_between_check_and_entry_is_done_once(
    kind: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Writer(kind, tmp_path), Writer(kind, tmp_path)
    token = first.prepare(1, orders(1, 2))
    show = type(first.sink._mode).show  # type: ignore[attr-defined]

    def committed_first(mode: Any, *arguments: Any) -> None:
        monkeypatch.setattr(type(mode), "show", show)
        assert second.commit(token) is CommitOutcome.DONE
        show(mode, *arguments)

    monkeypatch.setattr(type(first.sink._mode), "show", committed_first)  # type: ignore[attr-defined]
    assert first.commit(token) is CommitOutcome.ALREADY_DONE
    assert seen(tmp_path) == orders(1, 2)


def test_writers_of_other_rows_do_not_get_in_the_way(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    others = pa.Table.from_pylist(orders(*range(100, 110)), schema=SCHEMA)
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            write_deltalake(str(tmp_path / "target"), others, mode="append")

    thread = threading.Thread(target=append)
    thread.start()
    try:
        for epoch in range(1, 16):
            writer.write(epoch, orders(epoch))
    finally:
        stop.set()
        thread.join()
    assert [row["id"] for row in seen(tmp_path) if row["id"] < 100] == list(range(1, 16))


def test_merges_beside_another_writer_are_done_again_until_they_fit(tmp_path: Path) -> None:
    writer = Writer(MERGE, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(1, name="new"))
    stale = table(tmp_path)
    writer.sink._table = stale  # type: ignore[attr-defined]
    write_deltalake(str(tmp_path / "target"), pa.Table.from_pylist(orders(50), schema=SCHEMA), mode="append")
    assert writer.commit(token) is CommitOutcome.DONE
    assert seen(tmp_path) == [*orders(1, name="new"), *orders(50)]


def test_an_entry_that_arrived_although_the_call_failed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(APPEND, tmp_path)
    write_entry = delta_modes.write_entry

    def arrives_and_fails(*arguments: Any, **options: Any) -> None:
        write_entry(*arguments, **options)
        raise OSError("connection reset")

    monkeypatch.setattr(delta_modes, "write_entry", arrives_and_fails)
    assert writer.commit(writer.prepare(1, orders(1))) is CommitOutcome.ALREADY_DONE
    assert seen(tmp_path) == orders(1)


def test_an_entry_that_never_arrived_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    with monkeypatch.context() as patch:
        patch.setattr(delta_modes, "write_entry", _fails)
        with pytest.raises(RetryableSinkError, match="connection reset"):
            writer.commit(token)
    assert seen(tmp_path) == []
    assert writer.commit(token) is CommitOutcome.DONE


def _fails(*arguments: Any, **options: Any) -> None:
    raise OSError("connection reset")


def test_an_empty_last_entry_left_by_a_power_loss_does_not_stop_the_sink(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2))
    (tmp_path / "target" / "_delta_log" / f"{table(tmp_path).version() + 1:020d}.json").touch()
    assert Writer(APPEND, tmp_path, 2).commit(token) is CommitOutcome.DONE
    assert seen(tmp_path) == orders(1, 2)


# --- rewinds


def test_a_rewind_goes_around_other_writers_rows(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    write_deltalake(str(tmp_path / "target"), pa.Table.from_pylist(orders(50), schema=SCHEMA), mode="append")
    assert writer.rewind(1) is RewindOutcome.DONE
    assert seen(tmp_path) == orders(1, 50)


def test_an_append_table_that_was_optimized_cannot_be_rewound(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    for epoch in (1, 2, 3):
        writer.write(epoch, orders(epoch))
    table(tmp_path).optimize.compact()
    assert writer.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert seen(tmp_path) == orders(1, 2, 3)
    writer.write(4, orders(4))
    assert writer.rewind(3) is RewindOutcome.DONE
    assert seen(tmp_path) == orders(1, 2, 3)


def test_an_optimize_that_slips_in_before_the_rewinds_entry_makes_it_impossible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(APPEND, tmp_path)
    for epoch in (1, 2):
        writer.write(epoch, orders(epoch))
    write_entry = undoing.write_entry

    def optimized_first(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(undoing, "write_entry", write_entry)
        table(tmp_path).optimize.compact()
        write_entry(*arguments, **options)

    monkeypatch.setattr(undoing, "write_entry", optimized_first)
    assert writer.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert seen(tmp_path) == orders(1, 2)


def test_a_merge_table_is_not_restored_over_other_writers_rows(tmp_path: Path) -> None:
    writer = Writer(MERGE, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(1, name="new"))
    write_deltalake(str(tmp_path / "target"), pa.Table.from_pylist(orders(50), schema=SCHEMA), mode="append")
    assert writer.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert seen(tmp_path) == [*orders(1, name="new"), *orders(50)]


def test_a_merge_table_is_restored_to_the_epochs_values(tmp_path: Path) -> None:
    writer = Writer(MERGE, tmp_path)
    writer.write(1, orders(1, 2))
    writer.write(2, orders(1, name="new"))
    writer.write(3, orders(2, 3, name="newer"))
    assert writer.rewind(2) is RewindOutcome.DONE
    assert seen(tmp_path) == [*orders(1, name="new"), *orders(2)]


def test_a_rewind_leaves_files_for_time_travel(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    version = table(tmp_path).version()
    writer.rewind(1)
    writer.sink.abort(writer.ref(2, 9))
    old = DeltaTable(str(tmp_path / "target"), version=version).to_pyarrow_table()
    assert sorted(old["id"].to_pylist()) == [1, 2]


def test_rewritten_rows_of_another_timeline_are_not_removed(tmp_path: Path) -> None:
    old = Writer(APPEND, tmp_path)
    old.write(1, orders(1))
    old.write(2, orders(2))
    table(tmp_path).optimize.compact()
    with pytest.raises(SinkError, match="cannot be removed"):
        Writer(APPEND, tmp_path, timeline=uuid.uuid4(), on_foreign=OnForeign.REWIND)
    assert seen(tmp_path) == orders(1, 2)


def test_a_note_that_outlived_its_commit_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(APPEND, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(TableFolder, "forget", _fails)
        writer.write(1, orders(1))
    writer.sink.abort(writer.ref(1, 5))
    assert seen(tmp_path) == orders(1)
    heir = Writer(APPEND, tmp_path, 2)
    assert heir.rewind(0) is RewindOutcome.DONE
    version = table(tmp_path).version()
    heir.sink.abort(heir.ref(1, 5))
    assert DeltaTable(str(tmp_path / "target"), version=version - 2).to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("choice", [OnForeign.ADOPT, OnForeign.REWIND, OnForeign.APPEND])
def test_a_table_of_another_pipeline_is_refused_until_a_person_chooses(tmp_path: Path, choice: OnForeign) -> None:
    old = Writer(APPEND, tmp_path, pipeline="north")
    old.write(1, orders(1))
    late = old.prepare(2, orders(2))
    south = {"timeline": uuid.uuid4(), "pipeline": "south"}
    with pytest.raises(ForeignTimeline):
        Writer(APPEND, tmp_path, **south)
    Writer(APPEND, tmp_path, on_foreign=choice, **south)
    if choice is OnForeign.APPEND:
        assert old.commit(late) is CommitOutcome.DONE
        return
    with pytest.raises(Fenced):
        old.commit(late)
    assert seen(tmp_path) == (orders(1) if choice is OnForeign.ADOPT else [])


def test_pipelines_that_share_a_table_keep_their_own_ledgers(tmp_path: Path) -> None:
    first = Writer(APPEND, tmp_path, 3, pipeline="north")
    first.write(1, orders(1))
    second = Writer(APPEND, tmp_path, 1, timeline=uuid.uuid4(), pipeline="south", on_foreign=OnForeign.APPEND)
    second.write(1, orders(2))
    first.write(2, orders(3))
    assert Writer(APPEND, tmp_path, 4, pipeline="north").opened.epoch == 2
    assert Writer(APPEND, tmp_path, 2, timeline=second.timeline, pipeline="south").opened.epoch == 1
    assert seen(tmp_path) == orders(1, 2, 3)


# --- rewinds: what is left behind


@pytest.mark.parametrize("partition_by", [(), ("name",)], ids=["plain", "partitioned"])
def test_a_change_feed_is_read_over_a_rewind(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    DeltaTable.create(
        str(tmp_path / "target"),
        SCHEMA,
        partition_by=list(partition_by),
        configuration={"delta.enableChangeDataFeed": "true"},
    )
    source = reading(Table(tmp_path / "target"), tmp_path / "materials", change_feed=True, starting="latest")
    start = source.begin()
    writer = Writer(target(partition_by=partition_by), tmp_path)
    rows = [{"id": 1, "name": "bert", "amount": 1.5}, {"id": 2, "name": None, "amount": 2.5}]
    writer.write(1, orders(9))
    writer.write(2, rows)
    assert writer.rewind(1) is RewindOutcome.DONE
    version = table(tmp_path).version()
    removed = [line["remove"] for line in log_entry(tmp_path, version) if "remove" in line]
    assert all(action["extendedFileMetadata"] and action["size"] for action in removed)
    values = [action["partitionValues"] for action in removed]
    assert sorted(values, key=str) == ([{"name": "bert"}, {"name": None}] if partition_by else [{}])
    feed = table(tmp_path).load_cdf(starting_version=version).read_all()
    assert sorted(pa.table(feed)["id"].to_pylist()) == [1, 2]
    changes = [(row["id"], row["_change_type"]) for row in source.everything(start)]
    expected = [(9, "insert"), (1, "insert"), (2, "insert"), (1, "delete"), (2, "delete")]
    assert sorted(changes) == sorted(expected)


@pytest.mark.parametrize("name", ["id", "day", "flag", "tiny", "text"])
def test_a_removal_names_partitions_as_the_file_was_added(tmp_path: Path, name: str) -> None:
    schema = pa.schema([RICH_SCHEMA.field(name) for name in ("id", "day", "flag", "tiny", "text", "price")])
    writer = Writer(target(partition_by=name), tmp_path, schema=schema)
    writer.write(1, [{key: row[key] for key in schema.names} for row in RICH_ROWS])
    added = [line["add"] for line in log_entry(tmp_path, table(tmp_path).version()) if "add" in line]
    assert writer.rewind(0) is RewindOutcome.DONE
    removed = [line["remove"] for line in log_entry(tmp_path, table(tmp_path).version()) if "remove" in line]
    said = [
        sorted((action["path"], action["size"], action["partitionValues"][name]) for action in actions)
        for actions in (added, removed)
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
def test_a_rewind_is_noted_in_the_ledger_until_the_next(kind: Target, tmp_path: Path) -> None:
    writer = Writer(kind, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    heir = Writer(kind, tmp_path, 2, nonce="0a0b0c0d")
    assert heir.rewind(1) is RewindOutcome.DONE
    expected = LedgerState(TIMELINE, 2, 1, range_digest(1), "0a0b0c0d", 2, 1)
    assert heir.sink.ledger() == ledger(kind, tmp_path) == expected
    heir.write(2, orders(20))
    table(tmp_path).create_checkpoint()
    late = Writer(kind, tmp_path, 3)
    assert late.opened == LedgerState(TIMELINE, 3, 2, range_digest(2), "", 2, 1)
    assert late.opened.gives_up(TIMELINE, 1, 2)
    assert late.rewind(2) is RewindOutcome.DONE
    assert ledger(kind, tmp_path) == LedgerState(TIMELINE, 3, 2, range_digest(2), "", 3, 2)


@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
def test_a_rewind_of_a_table_that_is_not_ahead_is_noted_whatever_became_of_its_log(
    kind: Target, tmp_path: Path
) -> None:
    writer = Writer(kind, tmp_path)
    writer.write(1, orders(1))
    stale = writer.prepare(2, orders(2))
    table(tmp_path).alter.set_table_properties({"delta.appendOnly": "true"} if kind is APPEND else {})
    table(tmp_path).create_checkpoint()
    for path in sorted((tmp_path / "target" / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    for epoch in (1, 4):
        assert bound(kind, tmp_path).can_rewind(epoch) is RewindOutcome.DONE
        assert writer.sink.rewind(epoch) is RewindOutcome.DONE
        assert ledger(kind, tmp_path) == LedgerState(TIMELINE, 1, 1, range_digest(1), "", 1, epoch)
    with pytest.raises(SinkError, match="before the target was rewound"):
        writer.sink.commit(stale)
    assert seen(tmp_path) == orders(1)


def test_a_ledger_of_an_earlier_version_is_read_and_gets_what_it_lacks(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    for path in (tmp_path / "target" / "_delta_log").glob("*.json"):
        kept = [line for line in path.read_text().splitlines() if ":process" not in line]
        path.write_text("\n".join(kept).replace('"mode":"append",', "").replace(',"mode":"append"', ""))
    heir = Writer(APPEND, tmp_path, 2, nonce="0a0b0c0d")
    assert heir.opened == LedgerState(TIMELINE, 2, 2, range_digest(2), "0a0b0c0d")
    assert heir.rewind(1) is RewindOutcome.DONE
    assert ledger(APPEND, tmp_path) == LedgerState(TIMELINE, 2, 1, range_digest(1), "0a0b0c0d", 2, 1)
    assert seen(tmp_path) == orders(1)


# --- asking first


@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
@pytest.mark.parametrize("on_foreign", [OnForeign.REWIND, OnForeign.ADOPT, OnForeign.APPEND])
def test_what_a_claim_would_come_to_is_told_without_making_anything(
    kind: Target, tmp_path: Path, on_foreign: OnForeign
) -> None:
    sink, owner = bound(kind, tmp_path), Owner("shop", TIMELINE, 1, "0a0b0c0d")
    assert sink.can_claim(owner) == LedgerState(TIMELINE, 1, 0, None, "0a0b0c0d")
    assert sink.can_rewind(0) is RewindOutcome.DONE
    assert contents(tmp_path) == {}
    Writer(kind, tmp_path, nonce="0a0b0c0d").write(3, orders(1))
    heir, stranger = Owner("shop", TIMELINE, 2, "00000001"), Owner("shop", uuid.uuid4(), 1, "00000002")
    before = contents(tmp_path)
    assert sink.can_claim(heir) == LedgerState(TIMELINE, 2, 3, range_digest(3), "00000001")
    found = sink.can_claim(stranger, on_foreign=on_foreign, adopt_epoch=5)
    assert contents(tmp_path) == before
    assert bound(kind, tmp_path).open(stranger, on_foreign=on_foreign, adopt_epoch=5) == found


def test_a_claim_that_would_be_refused_is_refused_without_changing_anything(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path, 2, nonce="0a0b0c0d")
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    table(tmp_path).optimize.compact()
    stranger = Owner("shop", uuid.uuid4(), 9)
    refusals: list[tuple[type[Exception], Owner, OnForeign]] = [
        (Fenced, Owner("shop", TIMELINE, 1, "0a0b0c0d"), OnForeign.REFUSE),
        (Fenced, Owner("shop", TIMELINE, 2, "00000001"), OnForeign.REFUSE),
        (ForeignTimeline, stranger, OnForeign.REFUSE),
        (SinkError, stranger, OnForeign.REWIND),
    ]
    before = contents(tmp_path)
    for error, owner, on_foreign in refusals:
        with pytest.raises(error) as asked:
            bound(APPEND, tmp_path).can_claim(owner, on_foreign=on_foreign)
        with pytest.raises(error) as opened:
            bound(APPEND, tmp_path).open(owner, on_foreign=on_foreign)
        assert str(asked.value) == str(opened.value)
    with pytest.raises(SinkError, match="no column 'more'"):
        bound(APPEND, tmp_path, WIDE).can_claim(Owner("shop", TIMELINE, 3))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", [".", "target", "target/_delta_log"])
def test_a_place_that_cannot_be_used_is_told_before_the_claim(tmp_path: Path, name: str) -> None:
    file = tmp_path / "shop" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    before = contents(tmp_path)
    for ask in (bound(APPEND, tmp_path / "shop").can_claim, bound(APPEND, tmp_path / "shop").open):
        with pytest.raises(RetryableSinkError):
            ask(Owner("shop", TIMELINE, 1))
        assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("kind", "meanwhile", "outcome"),
    [
        (APPEND, "nothing", RewindOutcome.DONE),
        (APPEND, "others append", RewindOutcome.DONE),
        (APPEND, "optimized", RewindOutcome.IMPOSSIBLE),
        (APPEND, "append only", RewindOutcome.IMPOSSIBLE),
        (APPEND, "log cleaned up", RewindOutcome.IMPOSSIBLE),
        (MERGE, "nothing", RewindOutcome.DONE),
        (MERGE, "others append", RewindOutcome.IMPOSSIBLE),
        (MERGE, "files gone", RewindOutcome.IMPOSSIBLE),
        (MERGE, "log cleaned up", RewindOutcome.IMPOSSIBLE),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_how_a_rewind_would_end_is_told_and_comes_true(
    kind: Target, tmp_path: Path, meanwhile: str, outcome: RewindOutcome
) -> None:
    writer = Writer(kind, tmp_path)
    writer.write(1, orders(1, 2))
    old_files = [Path(path) for path in table(tmp_path).file_uris()]
    writer.write(2, orders(1, 3, name="new"))
    match meanwhile:
        case "others append":
            write_deltalake(str(tmp_path / "target"), pa.Table.from_pylist(orders(50), schema=SCHEMA), mode="append")
        case "optimized":
            table(tmp_path).optimize.compact()
        case "append only":
            table(tmp_path).alter.set_table_properties({"delta.appendOnly": "true"})
        case "files gone":
            for path in old_files:
                path.unlink()
        case "log cleaned up":
            table(tmp_path).create_checkpoint()
            for path in sorted((tmp_path / "target" / "_delta_log").glob("*.json"))[:-1]:
                path.unlink()
    before, asked = contents(tmp_path), bound(kind, tmp_path)
    assert asked.can_rewind(1) is outcome
    assert asked.can_rewind(2) is RewindOutcome.DONE
    assert contents(tmp_path) == before
    assert Writer(kind, tmp_path, 2).rewind(1) is outcome


@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
def test_a_claim_does_not_remove_the_log_by_which_a_rewind_was_found_possible(kind: Target, tmp_path: Path) -> None:
    """The claim is a version with a log checkpoint, after which Delta removes entries older than a month."""
    writer = Writer(kind, tmp_path)
    for epoch in range(1, 9):
        writer.write(epoch, orders(epoch))
    assert table(tmp_path).version() == 9
    for path in (tmp_path / "target" / "_delta_log").iterdir():
        os.utime(path, (NOON.timestamp(), NOON.timestamp()))
    assert bound(kind, tmp_path).can_rewind(1) is RewindOutcome.DONE
    heir = Writer(kind, tmp_path, 2)
    assert (tmp_path / "target" / "_delta_log" / "_last_checkpoint").exists()
    assert heir.rewind(1) is RewindOutcome.DONE
    assert seen(tmp_path) == orders(1)


# --- rows are shown as they were prepared

NARROW = pa.schema([SCHEMA.field("id"), SCHEMA.field("name")])
WIDE = pa.schema([*SCHEMA, pa.field("more", pa.string())])


@pytest.mark.parametrize("options", [{}, {"mode": "merge", "key": "id"}], ids=["append", "merge"])
def test_a_column_that_the_view_got_since_is_null_in_rows_that_were_prepared_without_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    writer = Writer(target(**options), tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2))
    table(tmp_path).alter.add_columns([Field("more", "string")])
    heir = Writer(target(**options), tmp_path, 2, schema=WIDE)
    assert heir.sink.staged(token).schema.equals(SCHEMA)
    assert heir.commit(token) is CommitOutcome.DONE
    heir.epoch = 2
    heir.write(3, [{**orders(3)[0], "more": "x"}])
    assert [row["more"] for row in seen(tmp_path)] == [None, None, "x"]
    assert [row["amount"] for row in seen(tmp_path)] == [1.5, 2.5, 3.5]


@pytest.mark.parametrize("options", [{}, {"mode": "merge", "key": "id"}], ids=["append", "merge"])
def test_a_column_that_the_view_lost_since_is_shown_with_rows_that_have_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    writer = Writer(target(**options), tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2))
    heir = Writer(target(**options), tmp_path, 2, schema=NARROW)
    assert heir.sink.staged(token).to_pylist() == orders(2)
    assert heir.commit(token) is CommitOutcome.DONE
    assert seen(tmp_path) == orders(1, 2)


@pytest.mark.parametrize("options", [{}, {"mode": "merge", "key": "id"}], ids=["append", "merge"])
def test_a_column_that_view_and_table_lost_since_is_not_dropped_from_the_rows(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    token = Writer(target(**options), tmp_path).prepare(1, orders(1))
    narrow = pa.table({"id": [7], "name": ["x"]})
    write_deltalake(str(tmp_path / "target"), narrow, mode="overwrite", schema_mode="overwrite")
    heir = Writer(target(**options), tmp_path, 2, schema=NARROW)
    with pytest.raises(SinkError, match="no column 'amount'"):
        heir.commit(token)
    assert [row["id"] for row in seen(tmp_path)] == [7]


def test_a_partition_column_that_is_only_in_the_token_is_read_back(tmp_path: Path) -> None:
    token = Writer(target(partition_by="name"), tmp_path).prepare(1, orders(1, 2))
    assert bound(target(), tmp_path, SCHEMA.remove(1)).staged(token).to_pylist() == orders(1, 2)


def test_a_merge_uses_the_key_it_was_prepared_with(tmp_path: Path) -> None:
    writer = Writer(MERGE, tmp_path)
    writer.write(1, orders(1, name="anna"))
    token = writer.prepare(2, orders(2, name="anna"))
    heir = Writer(target(mode="merge", key="name"), tmp_path, 2)
    assert heir.commit(token) is CommitOutcome.DONE
    assert seen(tmp_path) == orders(1, 2, name="anna")


def test_rows_are_appended_or_merged_as_it_was_when_they_were_prepared(tmp_path: Path) -> None:
    writer = Writer(MERGE, tmp_path)
    writer.write(1, orders(1, 2))
    merged = writer.prepare(2, orders(2, name="new"))
    heir = Writer(APPEND, tmp_path, 2)
    assert heir.commit(merged) is CommitOutcome.DONE
    assert seen(tmp_path) == [*orders(1), *orders(2, name="new")]
    appended = heir.prepare(3, orders(3))
    assert Writer(MERGE, tmp_path, 3).commit(appended) is CommitOutcome.DONE
    assert seen(tmp_path) == [*orders(1), *orders(2, name="new"), *orders(3)]


def test_epochs_are_taken_back_as_they_were_shown(tmp_path: Path) -> None:
    """Files that were added are removed from beside those of others; rows that were merged are restored."""
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    write_deltalake(str(tmp_path / "target"), pa.Table.from_pylist(orders(50), schema=SCHEMA), mode="append")
    heir = Writer(MERGE, tmp_path, 2)
    assert bound(MERGE, tmp_path).can_rewind(1) is RewindOutcome.DONE
    assert heir.rewind(1) is RewindOutcome.DONE
    assert seen(tmp_path) == orders(1, 50)
    heir.write(2, orders(1, name="new"))
    late = Writer(APPEND, tmp_path, 3)
    assert late.rewind(1) is RewindOutcome.DONE
    assert seen(tmp_path) == orders(1, 50)


@pytest.mark.parametrize("older", [without_form, with_only_columns])
@pytest.mark.parametrize("kind", [APPEND, MERGE], ids=lambda kind: kind.name)
def test_a_token_from_before_there_were_forms_is_shown_as_the_sink_is_today(
    kind: Target, tmp_path: Path, older: Any
) -> None:
    writer = Writer(kind, tmp_path)
    writer.write(1, orders(1))
    token = older(writer.prepare(2, orders(1 if kind is MERGE else 2, name="new")))
    heir = Writer(kind, tmp_path, 2)
    assert heir.sink.staged(token).to_pylist() == orders(1 if kind is MERGE else 2, name="new")
    assert heir.commit(token) is CommitOutcome.DONE
    assert seen(tmp_path) == (orders(1, name="new") if kind is MERGE else [*orders(1), *orders(2, name="new")])


def test_a_mode_of_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    strange = replace(token, payload={**token.payload, FORM: {**token.payload[FORM], "mode": "replace"}})
    with pytest.raises(SinkError, match="prepared for mode 'replace'"):
        Writer(APPEND, tmp_path, 2).commit(strange)
    assert seen(tmp_path) == []


# --- tables


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    writer = Writer(target(), tmp_path, schema=RICH_SCHEMA)
    writer.write(1, RICH_ROWS)
    found = sorted(table(tmp_path).to_pyarrow_table().to_pylist(maps_as_pydicts="strict"), key=lambda row: row["id"])
    assert found == RICH_ROWS
    types = {field["name"]: field["type"] for field in json.loads(table(tmp_path).schema().to_json())["fields"]}
    assert (types["at"], types["local"], types["price"]) == ("timestamp", "timestamp_ntz", "decimal(20,4)")


def test_statistics_let_readers_skip_files_and_never_hide_rows(tmp_path: Path) -> None:
    writer = Writer(target(), tmp_path, schema=RICH_SCHEMA)
    writer.write(1, RICH_ROWS)
    dataset = table(tmp_path).to_pyarrow_dataset()
    at, price = pa.dataset.field("at"), pa.dataset.field("price")
    assert dataset.to_table(filter=at == pa.scalar(NOON)).num_rows == 1
    assert dataset.to_table(filter=price > pa.scalar(RICH_ROWS[0]["price"]).cast(pa.decimal128(20, 4))).num_rows == 0
    assert dataset.to_table(filter=price == pa.scalar(RICH_ROWS[0]["price"])).num_rows == 1


def test_partition_values_with_odd_characters_come_back_and_can_be_rewound(tmp_path: Path) -> None:
    names = ["a b", "ä/ö", "50%", "x=y?", "#1", "Ünï", None]
    rows = [{"id": index, "name": name, "amount": 1.0} for index, name in enumerate(names)]
    writer = Writer(target(partition_by="name"), tmp_path)
    writer.write(1, rows)
    writer.write(2, [{**row, "id": row["id"] + 100} for row in rows])
    assert [row["name"] for row in seen(tmp_path)] == names * 2
    assert writer.rewind(1) is RewindOutcome.DONE
    assert seen(tmp_path) == rows
    found = pa.dataset.field("name") == "ä/ö"
    assert table(tmp_path).to_pyarrow_dataset().to_table(filter=found)["id"].to_pylist() == [1]


def test_a_merge_key_may_be_a_window(tmp_path: Path) -> None:
    schema = pa.schema([("w", WINDOW), ("customer", pa.string()), ("total", pa.int64())])
    window = {"start": NOON, "end": NOON}
    writer = Writer(target(mode="merge", key=["w", "customer"]), tmp_path, schema=schema)
    writer.write(1, [{"w": window, "customer": None, "total": 1}, {"w": window, "customer": "a", "total": 1}])
    writer.write(2, [{"w": window, "customer": None, "total": 2}])
    found = sorted(APPEND.read(tmp_path), key=lambda row: row["total"])
    assert found == [{"w": window, "customer": "a", "total": 1}, {"w": window, "customer": None, "total": 2}]
    with pytest.raises(SinkError, match="same key"):
        writer.prepare(3, [{"w": window, "customer": None, "total": total} for total in (1, 2)])


def test_nulls_are_refused_at_prepare_where_the_table_forbids_them(tmp_path: Path) -> None:
    fields = [field.with_nullable(field.name != "name") for field in SCHEMA]
    DeltaTable.create(str(tmp_path / "target"), pa.schema(fields))
    writer = Writer(APPEND, tmp_path)
    with pytest.raises(SinkError, match="must not be NULL: name"):
        writer.prepare(1, [{"id": 1, "name": None, "amount": 1.0}])
    writer.write(1, orders(1), attempt=1)
    assert seen(tmp_path) == orders(1)


@pytest.mark.parametrize("options", [{}, {"partition_by": "name"}], ids=["in files", "partition"])
def test_nulls_are_not_committed_into_a_column_that_forbids_them_since(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    writer = Writer(target(**options), tmp_path)
    writer.write(1, orders(1))
    nobody = writer.prepare(2, [{"id": 2, "name": None, "amount": 1.0}])
    somebody = writer.prepare(2, orders(2), 1)
    (metadata,) = (line["metaData"] for line in log_entry(tmp_path, 0) if "metaData" in line)
    schema = json.loads(metadata["schemaString"])
    schema["fields"][1]["nullable"] = False
    Table(tmp_path / "target").commit({"metaData": {**metadata, "schemaString": json.dumps(schema)}})
    with pytest.raises(SinkError, match="must not be NULL: name"):
        writer.commit(nobody)
    writer.epoch = 1
    assert seen(tmp_path) == orders(1)
    assert writer.commit(somebody) is CommitOutcome.DONE
    with pytest.raises(SinkError, match="must not be NULL: name"):
        writer.prepare(3, [{"id": 3, "name": None, "amount": 1.0}])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ({"schema": pa.schema([("id", pa.int64()), ("name", pa.string())])}, "no column 'amount'"),
        ({"schema": SCHEMA.set(0, pa.field("id", pa.string()))}, "column 'id' is long, but string"),
        ({"schema": SCHEMA.append(pa.field("more", pa.int32(), False))}, "column 'more' .* must not be NULL"),
        ({"schema": SCHEMA, "partition_by": ["name"]}, "is partitioned by"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_open(tmp_path: Path, make: dict[str, Any], message: str) -> None:
    DeltaTable.create(str(tmp_path / "target"), **make)
    with pytest.raises(SinkError, match=message):
        Writer(APPEND, tmp_path)


def test_a_table_that_forgets_ledgers_is_refused_at_open(tmp_path: Path) -> None:
    settings = {"delta.setTransactionRetentionDuration": "interval 7 days"}
    DeltaTable.create(str(tmp_path / "target"), SCHEMA, configuration=settings, raise_if_key_not_exists=False)
    with pytest.raises(SinkError, match="setTransactionRetentionDuration"):
        Writer(APPEND, tmp_path)


def test_a_table_with_constraints_is_refused_at_open(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "target"), SCHEMA).alter.add_constraint({"positive": "amount > 0"})
    with pytest.raises(SinkError, match=r"delta\.constraints\.positive"):
        Writer(APPEND, tmp_path)


@pytest.mark.parametrize(
    ("protocol", "named"),
    [
        (
            {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["invariants", "rowTracking"]},
            "rowTracking",
        ),
        (
            {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]},
            "inCommitTimestamp",
        ),
        ({"minReaderVersion": 1, "minWriterVersion": 6}, "identityColumns"),
    ],
)
def test_a_table_that_needs_a_writer_who_knows_more_is_refused_by_name(
    tmp_path: Path, protocol: dict[str, Any], named: str
) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2))
    entry = tmp_path / "target" / "_delta_log" / f"{table(tmp_path).version() + 1:020d}.json"
    entry.write_text(json.dumps({"protocol": protocol}))
    for refused in (bound(APPEND, tmp_path).can_claim, bound(APPEND, tmp_path).open):
        with pytest.raises(SinkError, match=f"cannot honour: {named}"):
            refused(Owner("shop", TIMELINE, 2))
    with pytest.raises(SinkError, match=f"cannot honour: {named}"):
        writer.commit(token)
    assert seen(tmp_path) == orders(1)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_table_whose_columns_have_other_names_in_files_is_refused_at_open(tmp_path: Path, mode: str) -> None:
    DeltaTable.create(str(tmp_path / "target"), SCHEMA)
    entry = tmp_path / "target" / "_delta_log" / f"{0:020d}.json"
    entry.write_text(entry.read_text().replace('"configuration":{', f'"configuration":{{"{MAPPING}":"{mode}"'))
    with pytest.raises(SinkError, match=MAPPING):
        Writer(APPEND, tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        pa.struct([pa.field("x", pa.int64(), nullable=False)]),
        pa.list_(pa.field("element", pa.int64(), nullable=False)),
        pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
        pa.list_(pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    ],
)
def test_a_table_that_forbids_nulls_within_a_column_is_refused_at_open(tmp_path: Path, part: pa.DataType) -> None:
    """Such a NULL in a file makes the whole table unreadable."""
    schema = pa.schema([("id", pa.int64()), ("part", part)])
    DeltaTable.create(str(tmp_path / "target"), schema)
    with pytest.raises(SinkError, match="'part' of the Delta table forbids NULL within it"):
        Writer(target(), tmp_path, schema=schema)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_mode": "overwrite", "partition_by": ["name"]}, "is partitioned by"),
        (
            {"schema_mode": "overwrite", "data": pa.table({"id": ["a"], "name": ["b"], "amount": [1.0]})},
            "'id' is long",
        ),
    ],
)
def test_an_epoch_does_not_go_into_a_table_that_became_another_one_meanwhile(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Its files would be read as what they are not: without their partition, every row has NULL in that column."""
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(2))
    rows = pa.Table.from_pylist(orders(50), schema=SCHEMA)
    write_deltalake(str(tmp_path / "target"), mode="overwrite", **{"data": rows, **change})
    before = table(tmp_path).version()
    with pytest.raises(SinkError, match=message):
        writer.commit(token)
    assert table(tmp_path).version() == before
    table(tmp_path).restore(before - 1)
    assert writer.commit(token) is CommitOutcome.DONE
    assert seen(tmp_path) == orders(1, 2)


def test_an_epoch_does_not_go_into_a_table_that_got_a_constraint_meanwhile(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    table(tmp_path).alter.add_constraint({"positive": "amount > 0"})
    with pytest.raises(SinkError, match=r"delta\.constraints\.positive"):
        writer.write(2, orders(2))


def test_a_table_may_get_more_columns_meanwhile(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    more = pa.table({"id": [7], "more": ["x"]})
    write_deltalake(str(tmp_path / "target"), more, mode="append", schema_mode="merge")
    writer.write(2, orders(2))
    assert [row["id"] for row in seen(tmp_path)] == [1, 2, 7]


def test_a_table_from_which_nothing_may_be_removed_cannot_be_rewound(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "target"), SCHEMA, configuration={"delta.appendOnly": "true"})
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    assert writer.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert seen(tmp_path) == orders(1, 2)


def test_a_table_that_was_there_keeps_its_rows(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "target"), pa.Table.from_pylist(orders(50), schema=SCHEMA))
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    writer.rewind(0)
    assert seen(tmp_path) == orders(50)


def test_a_table_that_vanished_is_said_so(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    shutil.rmtree(tmp_path / "target")
    with pytest.raises(SinkError, match="no Delta table"):
        writer.commit(token)


def test_ledgers_of_other_programs_in_the_table_are_left_alone(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "target"), SCHEMA)
    mine = CommitProperties(app_transactions=[Transaction("my-job", 7)])
    table(tmp_path).create_write_transaction([], "append", table(tmp_path).schema(), commit_properties=mine)
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    assert table(tmp_path).transaction_version("my-job") == 7


def bind(sink: Any, schema: pa.Schema = SCHEMA, output_mode: str = "append") -> None:
    sink.bind(SinkContext("out", "shop", schema, output_mode, "spool"))


@pytest.mark.parametrize(
    ("options", "schema", "output_mode", "message"),
    [
        ({}, SCHEMA, "update", "mode='merge'"),
        ({"mode": "merge", "key": "nothing"}, SCHEMA, "append", "key column 'nothing'"),
        ({"mode": "merge", "key": "tags"}, RICH_SCHEMA, "append", "cannot be a key"),
        ({"partition_by": "nothing"}, SCHEMA, "append", "partition column 'nothing'"),
        ({"partition_by": "amount"}, SCHEMA, "append", "has type double"),
        ({"partition_by": SCHEMA.names[:2]}, pa.schema(list(SCHEMA)[:2]), "append", "every column"),
        ({}, pa.schema([("id", pa.int64()), ("ID", pa.int64())]), "append", "'id', 'ID' are one"),
        ({}, pa.schema([("x", pa.null())]), "append", "no type"),
        ({}, pa.schema([("x", pa.struct([]))]), "append", "without fields"),
        ({}, pa.schema([("x", pa.duration("us"))]), "append", "cannot be stored"),
    ],
)
def test_what_cannot_work_is_refused_at_bind(
    tmp_path: Path, options: dict[str, Any], schema: pa.Schema, output_mode: str, message: str
) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        bind(sinks.delta(str(tmp_path), **options), schema, output_mode)


@pytest.mark.parametrize("options", [{"mode": "merge"}, {"key": "id"}, {"mode": "overwrite"}])
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineDefinitionError):
        sinks.delta("somewhere", **options)


# --- large epochs


@pytest.mark.parametrize("partition_by", [(), ("kind",)], ids=["plain", "partitioned"])
def test_spark_writes_large_epochs(spark: Any, tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr(
        "id",
        "CASE WHEN id % 3 = 0 THEN NULL ELSE concat('a/', id % 3) END kind",
        "timestamp_micros(1700000000000000 + id) at",
        "named_struct('start', timestamp_micros(id), 'end', CAST(NULL AS TIMESTAMP)) w",
        "CAST(id AS DECIMAL(10, 2)) price",
        "array(id, NULL) tags",
    )
    rows = SparkRows(frame)
    writer = Writer(target(partition_by=partition_by), tmp_path, schema=frame.toArrow().schema)
    prepared = writer.sink.prepare(rows, writer.ref(1))
    assert not DeltaTable(str(tmp_path / "target")).file_uris()
    token = Token(1, 1, 0, 0, prepared.rows, "r1", prepared.payload)
    assert Writer(target(partition_by=partition_by), tmp_path, 2, schema=frame.toArrow().schema).commit(token)
    found = table(tmp_path).to_pyarrow_table().sort_by("id")
    expected = frame.toArrow().sort_by("id")
    assert found.cast(expected.schema).select(expected.schema.names).equals(expected)
    actions = pa.table(table(tmp_path).get_add_actions(flatten=True))
    assert sum(actions["num_records"].to_pylist()) == 1000
    assert min(actions["min.id"].to_pylist()) == 0
    assert max(actions["max.w.start"].to_pylist()) is not None
    assert len(table(tmp_path).file_uris()) == (3 if partition_by else 4)
    leftovers = [
        path for path in (tmp_path / "target").rglob("*") if path.name.endswith(".crc") or "spark" in path.name
    ]
    assert leftovers == []


def test_spark_stages_large_merges_and_finds_repeated_keys(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(0, 100, 1, 3).selectExpr("id", "'anna' name", "id + 0.5D amount")
    writer = Writer(MERGE, tmp_path)
    writer.write(1, orders(5, 200, name="old"))
    prepared = writer.sink.prepare(SparkRows(frame), writer.ref(2))
    writer.commit(Token(2, 1, 0, 1, prepared.rows, "r2", prepared.payload))
    assert seen(tmp_path) == [*orders(*range(100)), *orders(200, name="old")]
    with pytest.raises(SinkError, match="same key"):
        writer.sink.prepare(SparkRows(frame.union(frame.limit(1))), writer.ref(3))


def test_an_aborted_large_epoch_leaves_no_files(spark: Any, tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    frame = spark.range(0, 10, 1, 2).selectExpr("id", "'anna' name", "1.5D amount")
    writer.sink.prepare(SparkRows(frame), writer.ref(1))
    assert any(DataFile.parse(path.name) for path in (tmp_path / "target").iterdir())
    writer.sink.abort(writer.ref(1, 1))
    assert [path.name for path in (tmp_path / "target").iterdir() if DataFile.parse(path.name)] == []


# --- object storage


def test_the_sink_works_on_object_storage(s3_options: dict[str, str]) -> None:
    url, options = "s3://lake/orders", s3_options

    def opened(generation: int, **more: Any) -> Any:
        sink = sinks.delta(url + str(more.get("mode", "")), storage_options=options, **more)
        bind(sink)
        owner = Owner("shop", TIMELINE, generation)
        before = sink.ledger()
        would_be = sink.can_claim(owner)
        assert sink.can_rewind(0) is RewindOutcome.DONE
        assert sink.ledger() == before
        assert sink.open(owner) == would_be
        return sink

    for more in ({"partition_by": "name"}, {"mode": "merge", "key": "id"}):
        sink = opened(1, **more)
        rows = ArrowRows(pa.Table.from_pylist(orders(1, 2), schema=SCHEMA))
        sink.prepare(rows, EpochRef(TIMELINE, 1, 1, 0))
        sink.abort(EpochRef(TIMELINE, 1, 1, 1))
        prepared = sink.prepare(rows, EpochRef(TIMELINE, 1, 1, 1))
        token = Token(1, 1, 1, 0, prepared.rows, "aa", prepared.payload)
        heir = opened(2, **more)
        with pytest.raises(Fenced):
            sink.commit(token)
        assert heir.staged(token).to_pylist() == orders(1, 2)
        assert heir.commit(token) is CommitOutcome.DONE
        assert heir.commit(token) is CommitOutcome.ALREADY_DONE
        assert heir.ledger() == LedgerState(TIMELINE, 2, 1, "aa")
        stored = DeltaTable(url + str(more.get("mode", "")), storage_options=options)
        assert sorted(stored.to_pyarrow_table()["id"].to_pylist()) == [1, 2]
        assert heir.can_rewind(0) is heir.rewind(0) is RewindOutcome.DONE
        assert heir.ledger() == LedgerState(TIMELINE, 2, 0, None, "", 2, 0)
        stored = DeltaTable(url + str(more.get("mode", "")), storage_options=options)
        assert stored.to_pyarrow_table().num_rows == 0
        assert json.dumps(heir.identity()).find("testing") == -1
