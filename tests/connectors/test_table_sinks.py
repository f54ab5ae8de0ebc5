"""What sinks into a table of a SQL database do alike, beyond the contract: rewinds, owners, a ledger to look at."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectors import postgres_target
from connectors.targets import BY_NAME, OTHER_TIMELINE, SCHEMA, TIMELINE, Target, Writer, orders
from holdfast import sinks
from holdfast.connectors.sql_ledger import SqlLedger
from holdfast.core.contracts import CommitOutcome, LedgerState, OnForeign, RewindOutcome, SinkContext
from holdfast.errors import Fenced, PipelineDefinitionError


@dataclass(frozen=True)
class Database:
    """A database, as its sink and as its user see it."""

    make: Callable[..., Any]
    directory: Path
    append: Target
    run: Callable[[str], list[tuple[Any, ...]]]

    def target(self, **options: Any) -> Target:
        make = lambda directory: self.make(**{"table": self.table, **options})  # noqa: E731
        return Target("table", make, self.append.read, output_mode="update" if "key" in options else "append")

    @property
    def table(self) -> str:
        in_schema = self.append.name.startswith("postgres")
        return f"{postgres_target.schema_of(self.directory)}.orders" if in_schema else "orders"

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run SQL as the user; {s} stands before names of tables."""
        return self.run(statement.replace("{s}", self.table.removesuffix("orders")))

    def ids(self) -> list[int]:
        return [id for (id,) in self.query("SELECT id FROM {s}orders ORDER BY id")]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    append = BY_NAME[f"{request.param}-append"]
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        postgres_target.sql(f"CREATE SCHEMA {postgres_target.schema_of(tmp_path)}")
        return Database(lambda **options: sinks.postgres(url, **options), tmp_path, append, postgres_target.sql)
    (tmp_path / "target").mkdir()
    path = str(tmp_path / "target" / "app.db")

    def run(statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    return Database(lambda **options: sinks.sqlite(path, **options), tmp_path, append, run)


@pytest.mark.parametrize("options", [{}, {"key": "id", "epoch_column": True}])
def test_only_append_tables_with_the_epoch_column_can_be_rewound(database: Database, options: dict[str, Any]) -> None:
    writer = Writer(database.target(**options), database.directory)
    writer.write(1, orders(1))
    writer.write(2, orders(2))
    assert writer.rewind(1) is RewindOutcome.IMPOSSIBLE
    assert database.ids() == [1, 2]
    found = writer.sink.ledger()
    assert found is not None
    assert found.epoch == 2


def test_a_table_that_two_sinks_write_to_is_not_rewound(database: Database) -> None:
    first = Writer(database.append, database.directory)
    first.write(1, orders(1))
    Writer(database.append, database.directory, pipeline="second").write(1, orders(2))
    assert first.rewind(0) is RewindOutcome.IMPOSSIBLE
    assert database.ids() == [1, 2]


def test_the_users_own_rows_stay_when_another_timelines_rows_go(database: Database) -> None:
    database.query("CREATE TABLE {s}orders (id bigint, name text, amount double precision)")
    database.query("INSERT INTO {s}orders VALUES (50, 'mine', 1.0)")
    old = Writer(database.append, database.directory)
    old.write(1, orders(1))
    late = old.prepare(2, orders(2))
    new = {"timeline": OTHER_TIMELINE, "pipeline": "other", "on_foreign": OnForeign.REWIND}
    Writer(database.append, database.directory, **new)  # type: ignore[arg-type]
    assert database.ids() == [50]
    with pytest.raises(Fenced):
        old.commit(late)


def test_the_ledger_is_a_table_people_can_read(database: Database) -> None:
    Writer(database.append, database.directory, 3).write(7, orders(1, 2))
    assert database.query("SELECT sink, generation, epoch FROM {s}_holdfast_ledger") == [("out", 3, 7)]
    assert database.query("SELECT epoch, rows FROM {s}_holdfast_epochs") == [(7, 2)]


def test_rows_and_ledger_move_together_or_not_at_all(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(database.append, database.directory)
    token = writer.prepare(1, orders(1))
    with monkeypatch.context() as patch:
        patch.setattr(SqlLedger, "move", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.commit(token)
    assert database.ids() == []
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 0, None)
    assert writer.commit(token) is CommitOutcome.DONE


def test_the_token_is_small_and_plain(database: Database) -> None:
    token = Writer(database.append, database.directory).prepare(1, orders(*range(1000)))
    assert len(json.dumps(token.to_json_value())) < 1000


@pytest.mark.parametrize(
    "options",
    [{"mode": "upsert"}, {"mode": "append", "key": "id"}, {"mode": "merge"}, {"table": "_holdfast_ledger"}],
)
def test_options_that_contradict_each_other_are_refused(database: Database, options: dict[str, Any]) -> None:
    with pytest.raises(PipelineDefinitionError):
        database.make(**{"table": "orders", **options})


def test_updates_need_a_key(database: Database) -> None:
    with pytest.raises(PipelineDefinitionError, match=r"replaces rows: give the .* sink a key"):
        database.make(table="orders").bind(SinkContext("out", "shop", SCHEMA, "update", str(database.directory)))
