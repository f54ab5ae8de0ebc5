"""What the SQLite sink promises beyond the contract: rules of the target met at prepare, types, locks, sizes."""

import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.targets import (
    BY_NAME,
    NOON,
    RICH_ROWS,
    RICH_SCHEMA,
    TIMELINE,
    WINDOW,
    SparkRows,
    Target,
    Writer,
    bound,
    orders,
    range_digest,
    read_sqlite,
    rich_frame,
)
from holdfast import sinks
from holdfast.connectors.sqlite import sink as sqlite_module
from holdfast.connectors.sqlite.target import SqliteConnection
from holdfast.core.contracts import CommitOutcome, LedgerState, Owner, Token
from holdfast.errors import PipelineDefinitionError, RetryableSinkError, SinkError, UnknownOutcome

APPEND, UPSERT = BY_NAME["sqlite-append"], BY_NAME["sqlite-upsert"]


def target(**options: Any) -> Target:
    """Return a SQLite target with other options."""
    mode = "update" if "key" in options else "append"
    make = lambda path: sinks.sqlite(str(path / "target" / "app.db"), **{"table": "orders", **options})  # noqa: E731
    return Target("sqlite", make, read_sqlite, "", mode)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Return the user's own connection to the target."""
    (tmp_path / "target").mkdir()
    connection = sqlite3.connect(tmp_path / "target" / "app.db", isolation_level=None)
    yield connection
    connection.close()


# --- what the table refuses


@pytest.mark.parametrize(
    ("ddl", "rows", "message"),
    [
        ("id INTEGER, name TEXT NOT NULL, amount REAL", [{"id": 1, "name": None, "amount": 1.0}], "NOT NULL"),
        ("id INTEGER UNIQUE, name TEXT, amount REAL", orders(1, 1), "UNIQUE"),
        ("id INTEGER UNIQUE, name TEXT, amount REAL", orders(50), "UNIQUE"),
        ("id INTEGER PRIMARY KEY, name TEXT, amount REAL", orders(50), "UNIQUE"),
        ("id INTEGER, name TEXT, amount REAL CHECK (amount > 2)", orders(1), "CHECK"),
    ],
)
def test_rows_the_table_would_refuse_are_refused_at_prepare(
    tmp_path: Path, database: sqlite3.Connection, ddl: str, rows: Any, message: str
) -> None:
    database.execute(f"CREATE TABLE orders ({ddl})")
    database.execute("INSERT INTO orders VALUES (50, 'there', 50.0)")
    writer = Writer(target(), tmp_path)
    with pytest.raises(SinkError, match=message):
        writer.prepare(1, rows)
    assert database.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    writer.write(1, orders(7), attempt=1)
    assert database.execute("SELECT count(*) FROM orders").fetchone() == (2,)


def test_triggers_count_as_rules(tmp_path: Path, database: sqlite3.Connection) -> None:
    writer = Writer(target(), tmp_path)
    database.execute(
        "CREATE TRIGGER no_ones BEFORE INSERT ON orders WHEN NEW.id = 1 BEGIN SELECT RAISE(ABORT, 'no ones'); END"
    )
    with pytest.raises(SinkError, match="no ones"):
        writer.prepare(1, orders(1))


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        ("CREATE TABLE orders (id, name)", {}, "no column amount"),
        ("CREATE TABLE orders (id, name, amount, more NOT NULL)", {}, "'more' .* must not be NULL"),
        ("CREATE TABLE orders (id, name, amount)", {"key": "id"}, "CREATE UNIQUE INDEX"),
        ("CREATE VIEW orders AS SELECT 1 id, 2 name, 3 amount", {}, "is a view"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_open(
    tmp_path: Path, database: sqlite3.Connection, ddl: str, options: dict[str, Any], message: str
) -> None:
    database.execute(ddl)
    with pytest.raises(SinkError, match=message):
        Writer(target(**options), tmp_path)


def test_a_users_own_table_is_used_as_it_is(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute(
        'CREATE TABLE orders (n INTEGER PRIMARY KEY, Name TEXT, ID INTEGER, amount REAL, note TEXT DEFAULT "x", '
        "UNIQUE (ID, Name))"
    )
    writer = Writer(target(key=["id", "name"], epoch_column=True), tmp_path)
    writer.write(1, orders(1, 2))
    writer.write(2, [{"id": 1, "name": "anna", "amount": 9.0}])
    found = database.execute("SELECT id, name, amount, note, _holdfast_epoch FROM orders ORDER BY id").fetchall()
    assert found == [(1, "anna", 9.0, "x", 2), (2, "anna", 2.5, "x", 1)]


# --- types


def test_values_of_every_type_have_a_place(tmp_path: Path, database: sqlite3.Connection) -> None:
    Writer(target(), tmp_path, schema=RICH_SCHEMA).write(1, RICH_ROWS)
    cursor = database.execute("SELECT * FROM orders ORDER BY id")
    names = [column[0] for column in cursor.description]
    full, null, hollow = (dict(zip(names, row, strict=True)) for row in cursor.fetchall())
    assert full == {
        "id": 1,
        "at": "2024-01-31T12:00:00.123456Z",
        "local": "2024-01-31T12:00:00.123456",
        "day": "2024-01-31",
        "price": "1234567890123.4500",
        "w_start": "2024-01-31T12:00:00.123456Z",
        "w_end": "2024-01-31T12:01:00.123456Z",
        "tags": '["a",null,""]',
        "counts": '{"x":1}',
        "data": b"\x00\xff",
        "flag": 1,
        "ratio": 0.1,
        "tiny": -7,
        "text": 'say "ä, b"\nnext',
    }
    assert null == {**dict.fromkeys(names), "id": 2}
    assert hollow == {**dict.fromkeys(names), "id": 3, "tags": "[]", "counts": "{}", "text": ""}
    assert database.execute("SELECT unixepoch(at) FROM orders WHERE id = 1").fetchone() == (int(NOON.timestamp()),)


def test_a_window_can_be_the_key(tmp_path: Path, database: sqlite3.Connection) -> None:
    schema = pa.schema([("w", WINDOW), ("customer", pa.string()), ("total", pa.int64())])
    window = {"start": NOON, "end": NOON}
    writer = Writer(target(key=["w", "customer"]), tmp_path, schema=schema)
    writer.write(1, [{"w": window, "customer": name, "total": 1} for name in ("a", None)])
    writer.write(2, [{"w": window, "customer": name, "total": 2} for name in (None, "b")])
    found = database.execute("SELECT customer, total FROM orders ORDER BY customer").fetchall()
    assert found == [(None, 2), ("a", 1), ("b", 2)]


def test_names_that_need_quoting_work(tmp_path: Path, database: sqlite3.Connection) -> None:
    schema = pa.schema([('a "b" c', pa.int64()), ("select", pa.string()), ("ö%s", pa.float64())])
    row = {'a "b" c': 1, "select": "x", "ö%s": 2.0}
    odd = target(table='my "orders" table', key='a "b" c', epoch_column=True)
    writer = Writer(odd, tmp_path, schema=schema)
    writer.write(1, [row])
    writer.write(2, [{**row, "select": "y"}])
    assert database.execute('SELECT * FROM "my ""orders"" table"').fetchall() == [(1, "y", 2.0, 2)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("w", WINDOW), ("w_start", pa.string())], "both become 'w_start'"),
        ([("a", pa.int64()), ("A", pa.int64())], "both become"),
    ],
)
def test_names_that_meet_are_refused_at_bind(tmp_path: Path, columns: Any, message: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=message):
        Writer(target(), tmp_path, schema=pa.schema(columns))


# --- asking before a start acts


def asked(directory: Path, **options: Any) -> LedgerState:
    return bound(target(**options), directory).can_claim(Owner("shop", TIMELINE, 1))


def test_a_place_where_no_file_can_be_is_refused_when_asked(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("a file, no folder")
    for refused in (lambda: asked(tmp_path), lambda: Writer(target(), tmp_path)):
        with pytest.raises(RetryableSinkError, match=r"Not a directory|unable to open"):
            refused()
    (tmp_path / "target").unlink()
    assert asked(tmp_path) == LedgerState(TIMELINE, 1, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_refused_when_asked(tmp_path: Path, database: sqlite3.Connection) -> None:
    (tmp_path / "target" / "app.db").write_bytes(b"a letter to a friend" * 100)
    with pytest.raises(SinkError, match="not a database"):
        asked(tmp_path)


@pytest.mark.parametrize("mode", ["wal", "delete", "persist"])
def test_asking_leaves_a_database_as_it_is_in_every_journal_mode(tmp_path: Path, mode: str) -> None:
    (tmp_path / "target").mkdir()
    path = tmp_path / "target" / "app.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
        connection.execute("CREATE TABLE orders (id, name, amount)")
    before = path.read_bytes()
    asked(tmp_path, epoch_column=True)
    assert path.read_bytes() == before


def test_a_database_that_somebody_writes_to_asks_for_patience(
    tmp_path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_BUSY_SECONDS", 0.05)
    database.execute("BEGIN IMMEDIATE")
    with pytest.raises(RetryableSinkError, match="locked"):
        asked(tmp_path)


# --- locks and durability


def test_a_busy_database_asks_for_patience(
    tmp_path: Path, database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_BUSY_SECONDS", 0.05)
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    database.execute("BEGIN IMMEDIATE")
    with pytest.raises(RetryableSinkError, match="locked"):
        writer.commit(token)
    database.execute("ROLLBACK")
    assert writer.commit(token) is CommitOutcome.DONE


def test_a_reader_does_not_keep_the_ledger_from_answering(tmp_path: Path, database: sqlite3.Connection) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    database.execute("BEGIN IMMEDIATE")
    assert writer.sink.ledger() is not None


@pytest.mark.parametrize("mode", ["wal", "delete", "truncate"])
def test_every_journal_mode_works(tmp_path: Path, database: sqlite3.Connection, mode: str) -> None:
    database.execute(f"PRAGMA journal_mode={mode}")
    writer = Writer(UPSERT, tmp_path)
    writer.write(1, orders(1))
    writer.write(2, orders(1, 2))
    assert database.execute("PRAGMA journal_mode").fetchone() == (mode,)
    assert read_sqlite(tmp_path) == orders(1, 2)


def test_a_lost_database_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    token = writer.prepare(1, orders(1))
    (tmp_path / "target" / "app.db").unlink()
    with pytest.raises(RetryableSinkError, match="unable to open"):
        writer.commit(token)
    assert not (tmp_path / "target" / "app.db").exists()


FLUSHED_EXTRA = 3


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_every_commit_is_flushed_before_it_counts(tmp_path: Path, database: sqlite3.Connection, mode: str) -> None:
    """The table itself notes what its rows were written with: less would lose a committed epoch with the power."""
    database.execute(f"PRAGMA journal_mode={mode}")
    database.execute("CREATE TABLE orders (id INTEGER, name TEXT, amount REAL, flushed INTEGER)")
    database.execute(
        "CREATE TRIGGER noted AFTER INSERT ON orders BEGIN "
        "UPDATE orders SET flushed = (SELECT synchronous FROM pragma_synchronous) WHERE rowid = NEW.rowid; END"
    )
    Writer(target(), tmp_path).write(1, orders(1))
    assert database.execute("SELECT flushed FROM orders").fetchall() == [(FLUSHED_EXTRA,)]


class FailingDisk(SqliteConnection):
    """A connection whose file cannot grow while a transaction is committed."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement != "COMMIT":
            return super().execute(statement, *parameters)
        (path,) = {row[2] for row in super().execute("PRAGMA database_list") if row[1] == "main"}
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path).st_size, before[1]))
        try:
            return super().execute(statement)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fails_at_the_commit_leaves_the_ledger_to_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What of a COMMIT reached the disk, SQLite does not say: to try again blindly could show the rows twice."""
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    token = writer.prepare(2, orders(*range(2, 5000)))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_module, "SqliteConnection", FailingDisk)
        with pytest.raises(UnknownOutcome, match="committing: disk I/O error"):
            writer.commit(token)
    assert writer.sink.ledger() == LedgerState(TIMELINE, 1, 1, range_digest(1))
    assert read_sqlite(tmp_path) == orders(1)
    assert writer.commit(token) is CommitOutcome.DONE
    assert len(read_sqlite(tmp_path)) == 4999


def test_nothing_staged_is_left_after_a_commit(tmp_path: Path) -> None:
    writer = Writer(APPEND, tmp_path)
    writer.write(1, orders(1))
    assert list((tmp_path / "target").glob("*.holdfast-staging/*")) == []


# --- large epochs


@pytest.mark.parametrize("options", [{"epoch_column": True}, {"key": "id"}])
def test_spark_stages_large_epochs(spark: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    frame = spark.range(0, 5000, 1, 3).selectExpr("id", "'anna' name", "id + 0.5D amount")
    writer = Writer(target(**options), tmp_path)
    prepared = writer.sink.prepare(SparkRows(frame), writer.ref(1))
    assert read_sqlite(tmp_path) == []
    assert len(list((tmp_path / "target").glob("*.holdfast-staging/*"))) == 1
    assert writer.commit(Token(1, 1, 0, 0, prepared.rows, "r", prepared.payload)) is CommitOutcome.DONE
    assert sorted(read_sqlite(tmp_path), key=lambda row: row["id"]) == orders(*range(5000))


def test_large_and_small_epochs_lie_alike(spark: Any, tmp_path: Path, database: sqlite3.Connection) -> None:
    writer = Writer(target(epoch_column=True), tmp_path, schema=RICH_SCHEMA)
    writer.write(1, RICH_ROWS)
    prepared = writer.sink.prepare(SparkRows(rich_frame(spark)), writer.ref(2))
    writer.commit(Token(2, 1, 0, 1, prepared.rows, "r", prepared.payload))
    for epoch in (1, 2):
        database.execute(f"CREATE TEMP TABLE e{epoch} AS SELECT * FROM orders WHERE _holdfast_epoch = {epoch}")
        database.execute(f"UPDATE e{epoch} SET _holdfast_epoch = 0")
    assert database.execute("SELECT * FROM e1 EXCEPT SELECT * FROM e2").fetchall() == []
    assert database.execute("SELECT count(*) FROM e2").fetchone() == (3,)


# --- what is refused


@pytest.mark.parametrize("path", [":memory:", "postgresql://host/db"])
def test_only_database_files_are_taken(path: str) -> None:
    with pytest.raises(PipelineDefinitionError, match="path of a database file"):
        sinks.sqlite(path, table="orders")
