"""resolve --to-file: rows that a sink will not show go into a file, and only then is the epoch decided."""

import json
import os
import sqlite3
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.targets import RICH_ROWS, RICH_SCHEMA, SCHEMA, ArrowRows, Row, orders
from holdfast import SinkCommitStatus
from holdfast.connectors.sqlite.sink import SqliteSink
from holdfast.core.contracts import EpochRef, LedgerState, Owner, Sink, SinkContext, Token
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.fencing import take_over
from holdfast.engine.resolution import approve
from holdfast.errors import TransientStoreError
from holdfast.interfaces.pipeline_file import read_pipeline_file
from holdfast.stores.store import DurableCheckpointStore
from interfaces.chains import OTHER_TIMELINE, TIMELINE, Chain
from interfaces.conftest import Ran, Run, writable

FILE = """\
name: orders
store: ./store
sources:
  orders: {{rate: {{}}}}
sinks:
  db:
    takes: orders
    {sink}
"""
SQLITE = "sqlite: {path: ./app.db, table: recent}"
SINKS = {
    "sqlite": SQLITE,
    "delta": "delta: {path: ./lake, partition_by: name}",
    "files": "files: {path: ./out, format: json}",
    "python": "python: target.py:write\n    last_committed: target.py:last_committed",
}
TARGET = """\
from pathlib import Path

def write(rows, key): ...

def last_committed(timeline):
    if Path(__file__).with_name("down").exists():
        raise LookupError("no route to db://me:secret@host")
"""
THIRD = [*orders(1, 2), {"id": None, "name": None, "amount": None}]


@dataclass
class Owing:
    """A pipeline whose sink `db` does not show epoch 2, which is sealed in checkpoint 3."""

    directory: Path
    schema: pa.Schema
    rows: list[Row]
    sink: Sink
    token: Token

    @property
    def store(self) -> DurableCheckpointStore:
        return writable(self.directory / "store")

    @property
    def newest(self) -> CheckpointManifest:
        found = self.store.load_latest()
        assert found is not None
        return found

    @property
    def undecided(self) -> bool:
        return self.newest.checkpoint_id == 3

    def resolved(self) -> dict[str, Any]:
        return dict((self.newest.recovery or {})["resolved"])


def owing(
    directory: Path,
    sink: str = SQLITE,
    schema: pa.Schema = SCHEMA,
    rows: list[Row] = THIRD,
    *,
    tokens_in_manifest: bool = True,
    parts: dict[str, bytes] | None = None,
) -> Owing:
    (directory / "orders.yaml").write_text(FILE.format(sink=sink))
    (directory / "target.py").write_text(TARGET)
    target = read_pipeline_file(str(directory / "orders.yaml")).sinks[0].sink
    target.bind(SinkContext("db", "orders", schema, "append", str(directory / "store" / "spool" / "db")))
    target.open(Owner("orders", TIMELINE, 1))
    prepared = target.prepare(ArrowRows(pa.Table.from_pylist(rows, schema=schema)), EpochRef(TIMELINE, 1, 2, 0))
    token = Token(2, 1, 0, 0, prepared.rows, "r2", prepared.payload)
    store = writable(directory / "store")
    take_over(store)
    chain = Chain(store)
    common = {"sink_names": ["db", "lake"], "sink_epochs": {"db": 0, "lake": 1}}
    settled = {"db": SinkCommitStatus.COMMITTED, "lake": SinkCommitStatus.COMMITTED}
    chain.seal(2, epoch=1, **common, sink_commit_statuses=settled, sink_tokens={})
    tokens = {"db": token.to_json_value(), "lake": {**token.to_json_value(), "payload": {}}}
    sealed = {"tokens": json.dumps(tokens).encode(), "schema/db": schema.serialize().to_pybytes()}
    owed = {"db": SinkCommitStatus.failed("no such column"), "lake": SinkCommitStatus.PENDING}
    chain.seal(
        3,
        epoch=2,
        **common,
        sink_commit_statuses=owed,
        sink_tokens=tokens if tokens_in_manifest else {},
        parts=sealed if parts is None else parts,
    )
    return Owing(directory, schema, rows, target, token)


def ask(run: Run, here: Owing, path: Path | str, *more: object) -> Ran:
    return run("resolve", here.directory / "orders.yaml", "--sink", "db", "--epoch", 2, "--to-file", path, *more)


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["id"] is None, row["id"]))


@pytest.mark.parametrize("kind", SINKS)
def test_the_rows_are_in_the_file_and_the_sink_is_owed_nothing(
    tmp_path: Path, run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    here = owing(tmp_path, SINKS[kind])
    path = tmp_path / "rows.parquet"
    ran = ask(run, here, path, "--reason", "the column was dropped")
    assert (ran.code, ran.err) == (0, "")
    first, second, third = ran.out.splitlines()
    assert first == f"sink db, epoch 2: not shown there, its rows are in {path}"
    assert second.startswith("3 rows, ")
    assert third == f"recorded in fence 4 of {tmp_path}/store"
    found = pq.read_table(path)
    assert (found.schema, in_order(found.to_pylist())) == (SCHEMA, in_order(THIRD))
    fence = here.newest
    assert (fence.kind, fence.epoch, fence.checkpoint_id) == ("fence", 2, 4)
    assert fence.sink_commit_statuses == {"db": SinkCommitStatus.COMMITTED, "lake": SinkCommitStatus.PENDING}
    assert fence.sink_tokens == {"db": None, "lake": {**here.token.to_json_value(), "payload": {}}}
    assert here.resolved() == {
        "sink": "db",
        "epoch": 2,
        "action": "to-file",
        "path": str(path),
        "rows": 3,
        "sha256": second.rsplit(" ", 1)[1],
        "asked": True,
        "reason": "the column was dropped",
    }
    assert here.sink.ledger() == LedgerState(TIMELINE, 1, 0, None)


def test_json_output_names_file_rows_and_digest(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    receipt = ask(run, here, tmp_path / "rows.jsonl", "--json").json
    assert (receipt["action"], receipt["checkpoint_id"], receipt["note"]) == ("to-file", 4, None)
    assert receipt["file"] == {
        "path": str(tmp_path / "rows.jsonl"),
        "rows": 3,
        "bytes": os.path.getsize(tmp_path / "rows.jsonl"),
        "sha256": here.resolved()["sha256"],
    }


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "json"])
def test_rows_of_every_type_are_written(tmp_path: Path, run: Run, ending: str) -> None:
    here = owing(tmp_path, "files: {path: ./out}", RICH_SCHEMA, RICH_ROWS)
    assert ask(run, here, tmp_path / f"rows.{ending}").code == 0
    if ending == "parquet":
        assert pq.read_table(tmp_path / "rows.parquet").to_pylist(maps_as_pydicts="strict") == RICH_ROWS


def test_a_relative_path_is_recorded_as_a_whole_one(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = owing(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert ask(run, here, "rows.csv").code == 0
    assert here.resolved()["path"] == str(tmp_path / "rows.csv")


# doing it again


def test_a_crash_before_the_record_leaves_the_file_and_repeating_goes_on_from_there(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = owing(tmp_path)

    def unreachable(*_: object) -> None:
        raise TransientStoreError("the storage did not answer")

    with monkeypatch.context() as patch:
        patch.setattr(DurableCheckpointStore, "save", unreachable)
        assert ask(run, here, tmp_path / "rows.parquet").code == 4
    assert here.undecided
    written = (tmp_path / "rows.parquet").read_bytes()
    ran = ask(run, here, tmp_path / "rows.parquet")
    assert ran.code == 0
    assert "rows.parquet, which was there already with the same content" in ran.out
    assert (tmp_path / "rows.parquet").read_bytes() == written
    assert not here.undecided


def test_a_file_with_something_else_is_not_touched_and_nothing_is_decided(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    path = tmp_path / "rows.parquet"
    path.write_text("precious")
    ran = ask(run, here, path)
    assert (ran.code, path.read_text()) == (2, "precious")
    assert "exists and does not hold these rows" in ran.err
    assert here.undecided
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


def test_what_is_decided_is_decided(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    assert ask(run, here, tmp_path / "rows.csv").code == 0
    again = ask(run, here, tmp_path / "more.csv")
    assert again.code == 2
    assert "sink 'db' is owed nothing of epoch 2" in again.err
    assert not (tmp_path / "more.csv").exists()


# when nothing may be decided


def test_rows_that_are_gone_leave_no_file_and_no_decision(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    for path in (tmp_path / "app.db.holdfast-staging").iterdir():
        path.unlink()
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 7
    assert ran.err.startswith("holdfast: sink 'db', epoch 2: staged rows are gone: ")
    assert ran.err.endswith("Nothing was decided; --discard gives the epoch up\n")
    assert here.undecided
    assert not (tmp_path / "rows.csv").exists()


def test_a_file_that_lost_rows_is_no_decision(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    here = owing(tmp_path)
    complete = SqliteSink.staged
    monkeypatch.setattr(SqliteSink, "staged", lambda sink, token: complete(sink, token).slice(1))
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 7
    assert "rows.csv has 2 rows, expected 3; nothing was decided" in ran.err
    assert here.undecided


def test_rows_that_the_sink_shows_after_all_are_not_written_again(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    here.sink.commit(here.token)
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 2
    assert "sink 'db' stands at epoch 2, so it shows the rows of epoch 2: start the pipeline" in ran.err
    assert here.undecided
    assert not (tmp_path / "rows.csv").exists()


def test_rows_of_another_range_in_the_sink_are_not_these(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    here.sink.commit(here.token)
    staged = here.sink.prepare(ArrowRows(pa.Table.from_pylist(THIRD, schema=SCHEMA)), EpochRef(TIMELINE, 1, 2, 0))
    assert staged.payload == here.token.payload
    with sqlite3.connect(tmp_path / "app.db") as database:
        database.execute("UPDATE _holdfast_ledger SET range_digest = 'other'")
    assert ask(run, here, tmp_path / "rows.csv").code == 0


def test_a_target_that_another_timeline_took_over_does_not_show_our_rows(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    with sqlite3.connect(tmp_path / "app.db") as database:
        database.execute("UPDATE _holdfast_ledger SET timeline = ?, epoch = 9", (str(OTHER_TIMELINE),))
    assert ask(run, here, tmp_path / "rows.csv").code == 0


def test_a_target_that_cannot_be_asked_does_not_keep_the_rows(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    (tmp_path / "app.db").write_bytes(b"no database any more")
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 0
    assert "note: the target could not be asked whether it shows the epoch: SQLite: file is not a database" in ran.out
    assert here.resolved()["asked"] is False


def test_a_users_own_question_may_fail_as_it_likes(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    here = owing(tmp_path, SINKS["python"])
    (tmp_path / "down").touch()
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 0
    assert "could not be asked whether it shows the epoch: no route to db://" in ran.out
    assert "secret" not in ran.out


def test_whoever_starts_the_pipeline_meanwhile_wins(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = owing(tmp_path)
    complete = SqliteSink.staged

    def disturbed(sink: SqliteSink, token: Token) -> Any:
        take_over(here.store)
        return complete(sink, token)

    monkeypatch.setattr(SqliteSink, "staged", disturbed)
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 5
    assert ran.err.endswith(f"; the rows are in {tmp_path}/rows.csv, and nothing was decided\n")
    assert here.newest.sink_commit_statuses["db"] != SinkCommitStatus.COMMITTED


# tokens and what stands beside them


WAYS = [["--to-file", "{}/rows.csv"], ["--discard", "--reason", "x"]]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way[0]))
def test_large_tokens_which_only_the_sidecar_has_are_found_and_kept_for_the_other_sinks(
    tmp_path: Path, run: Run, way: list[str]
) -> None:
    here = owing(tmp_path, tokens_in_manifest=False)
    assert here.newest.sink_tokens == {}
    options = [option.format(tmp_path) for option in way]
    assert run("resolve", tmp_path / "orders.yaml", "--sink", "db", "--epoch", 2, *options).code == 0
    assert here.newest.sink_tokens["db"] is None
    assert Token.from_json_value(here.newest.sink_tokens["lake"]).epoch == 2
    if way[0] == "--discard":
        assert Token.from_json_value(here.resolved()["token"]) == here.token


def test_an_approval_outlives_a_resolution(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    approve(here.store, 0xAB)
    assert ask(run, here, tmp_path / "rows.csv").code == 0
    assert (here.newest.recovery or {})["approved"] == ["00000000000000ab"]


def test_a_checkpoint_that_does_not_say_enough_is_refused(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path, parts={"offsets": b"{}"})
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 1
    assert "checkpoint 3 does not say which columns the rows of sink 'db' have" in ran.err
    other = tmp_path / "other"
    other.mkdir()
    schema = {"schema/db": SCHEMA.serialize().to_pybytes()}
    lost = owing(other, parts=schema, tokens_in_manifest=False)
    ran = ask(run, lost, other / "rows.csv")
    assert ran.code == 1
    assert "checkpoint 3 does not say where the rows of sink 'db' are" in ran.err


# usage


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rows.xlsx", "rows.xlsx: the ending says the format, and must be one of .parquet, .jsonl, .json, .csv"),
        ("none/rows.csv", "none/rows.csv: there is no directory "),
    ],
)
def test_a_path_that_cannot_work_is_refused_first(tmp_path: Path, run: Run, path: str, message: str) -> None:
    here = owing(tmp_path)
    ran = ask(run, here, tmp_path / path)
    assert ran.code == 2
    assert message in ran.err


def test_csv_is_refused_where_it_cannot_hold_the_rows(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path, SQLITE, RICH_SCHEMA, RICH_ROWS)
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 2
    assert "column 'w' has type struct" in ran.err
    assert here.undecided


def test_the_pipeline_file_is_needed_and_must_have_the_sink(tmp_path: Path, run: Run) -> None:
    here = owing(tmp_path)
    ran = run("resolve", tmp_path / "store", "--sink", "db", "--epoch", 2, "--to-file", tmp_path / "rows.csv")
    assert ran.code == 2
    assert "--to-file reads the rows through the sink: give the pipeline file; " in ran.err
    text = (tmp_path / "orders.yaml").read_text()
    (tmp_path / "orders.yaml").write_text(text.replace("  db:", "  database:"))
    ran = ask(run, here, tmp_path / "rows.csv")
    assert ran.code == 2
    assert "orders.yaml has no sink 'db', whose settings say where its rows are" in ran.err
