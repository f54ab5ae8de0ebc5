"""The SQLite sink: staged rows become visible in ONE transaction that also moves the ledger.

`prepare` ingests the epoch through ADBC into a database file of its own beside the target, then tries the rows
against the target (keys, and every rule the table has, by a rehearsal that is rolled back). `commit` attaches that
file and, in one transaction, checks ledger and row count, inserts or upserts, and moves the ledger row.

Why a file of its own: ADBC brings its own copy of SQLite, and two copies of SQLite in one process must not open one
database (closing a file in one drops the locks of the other). Only the standard library's copy touches the target.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from holdfast.connectors.arrow_types import key_columns, plain_schema
from holdfast.connectors.extras import adbc_sqlite, pa
from holdfast.connectors.forms import Form
from holdfast.connectors.keys import repeated_key
from holdfast.connectors.ledger import REWINDS, LedgerRecord, must_commit
from holdfast.connectors.parquet_files import (
    StagedFile,
    check_staged,
    describe,
    expect_rows,
    read_batches,
    write_with_spark,
)
from holdfast.connectors.sql_ledger import LEDGER, LedgerPlace, SqlLedger
from holdfast.connectors.sql_sink import TableSink, chosen_mode, form_of, refuse_updates
from holdfast.connectors.sqlite.columns import sqlite_columns, sqlite_rows, sqlite_schema
from holdfast.connectors.sqlite.staged import read_staged
from holdfast.connectors.sqlite.target import SqliteConnection, SqliteTable, ensure_table, has_table, is_plain
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import (
    CommitOutcome,
    EpochRef,
    Guarantee,
    Owner,
    Prepared,
    Rows,
    SinkContext,
    Token,
)
from holdfast.errors import PipelineDefinitionError, RetryableSinkError, SinkError, UnknownOutcome
from holdfast.stores import durable

_STAGED_ROWS = 'holdfast_staged."rows"'
_NOWHERE = ":memory:"
_BUSY_SECONDS = 5.0
_TRY_AGAIN = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}


class SqliteSink(TableSink):
    """Exactly-once into a table of a SQLite database, appending or upserting by key."""

    guarantee = Guarantee(
        exactly_once=True, how="rows and ledger change in one SQLite transaction, flushed before it counts"
    )
    _target: SqliteTable

    def __init__(
        self,
        path: str,
        *,
        table: str,
        key: tuple[str, ...] = (),
        epoch_column: bool = False,
        mode: str | None = None,
    ) -> None:
        adbc_sqlite.require()
        if path == ":memory:" or "://" in path:
            raise PipelineDefinitionError("the sqlite sink needs the path of a database file")
        self._mode = chosen_mode("sqlite", mode, key)
        if table.lower().startswith(("_holdfast", "sqlite_")):
            raise PipelineDefinitionError(f"'{table}' is not a name for a table of yours")
        self._path, self._table = os.path.abspath(path), table
        self._key, self._epoch_column = key, epoch_column
        self._staging = f"{self._path}.holdfast-staging"
        self._prepared: set[StagedName] = set()

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {
            "kind": "sqlite",
            "path": self._path,
            "table": self._table,
            "mode": self._mode,
            "key": list(self._key),
            "epoch_column": self._epoch_column,
        }

    def bind(self, context: SinkContext) -> None:
        """Take the context; refuse columns and modes that do not fit."""
        refuse_updates("sqlite", self._mode, context.output_mode)
        self._name, self._pipeline = context.name, context.pipeline
        self._schema = plain_schema(context.schema)
        key_columns(self._schema, self._key)
        settings = {"mode": self._mode, "key": list(self._key), "epoch_column": self._epoch_column}
        self._today = Form(self._schema, settings)
        self._target = self._table_for(self._today)
        # SQLite does not tell upper from lower case in names.
        place = LedgerPlace(fold="lower", columns="SELECT name FROM pragma_table_info(trim($1, '\"'))")
        self._ledger = SqlLedger(place, self._pipeline, self._name, self._table)

    @contextlib.contextmanager
    def _claiming(self, owner: Owner, *, keep: bool = True) -> Iterator[SqliteConnection]:
        path = self._path
        with _translated():
            if keep:
                durable.make_directories(os.path.dirname(path))
            elif not os.path.exists(path):
                durable.refuse_unwritable(os.path.dirname(path))
                path = _NOWHERE
        with self._database(path, create=keep) as connection, self._transaction(connection, keep=keep):
            self._ledger.create(connection)
            ensure_table(connection, self._target)
            yield connection

    @contextlib.contextmanager
    def _changing(self) -> Iterator[SqliteConnection]:
        with self._database() as connection, self._transaction(connection):
            yield connection

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Stage the rows in a database of their own, flushed, and try them against the target."""
        staged = self._staged_name(ref)
        file = self._staged(staged)
        with _translated():
            durable.make_directories(self._staging)
            durable.remove(file)
            self._ingest(rows, file)
            durable.sync_file(file)
            durable.sync_file(self._staging)
        with self._database(attach=file) as connection:
            self._check_rows(connection, rows.count)
        self._prepared.add(staged)
        facts = describe(self._staging, os.path.basename(file), digest=rows.small)
        payload = {REWINDS: self._rewinds, "file": asdict(facts), **self._today.to_payload()}
        return Prepared(rows.count, payload)

    def _ingest(self, rows: Rows, file: str) -> None:
        with contextlib.ExitStack() as stack:
            source = self._arrow_rows(rows, file, stack)
            try:
                connection = stack.enter_context(adbc_sqlite.connect(file, autocommit=True))
                cursor = stack.enter_context(connection.cursor())
                # The file is flushed once, as a whole; until then nobody depends on it.
                for pragma in ("journal_mode=OFF", "synchronous=OFF"):
                    cursor.execute(f"PRAGMA {pragma}")
                    cursor.fetchall()
                cursor.adbc_ingest("rows", source, mode="create")
            except adbc_sqlite.OperationalError as error:
                raise RetryableSinkError(f"staging rows: {error}") from error

    def _arrow_rows(self, rows: Rows, file: str, stack: contextlib.ExitStack) -> Any:
        if rows.small:
            return sqlite_rows(rows.arrow(), self._schema)
        # Spark writes and we read back in batches: the epoch is never in memory as a whole.
        spool = f"{file}.parquet"
        stack.callback(durable.remove, spool)
        paths = [os.path.join(spool, path) for path in write_with_spark(rows.dataframe(), spool)]
        batches = read_batches(paths, self._schema)
        flat = (
            batch
            for found in batches
            for batch in sqlite_rows(pa.Table.from_batches([found]), self._schema).to_batches()
        )
        return pa.RecordBatchReader.from_batches(sqlite_schema(self._schema), flat)

    def _check_rows(self, connection: SqliteConnection, expected: int) -> None:
        """Find now what the target would refuse, so that a sealed epoch can be committed."""
        expect_rows(_count(connection), expected)
        if self._key and connection.run(self._target.repeated_keys(_STAGED_ROWS)):
            raise SinkError(repeated_key(self._key))
        if not is_plain(connection, self._target):
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._show(connection, self._target, 0)
            finally:
                connection.rollback()

    def commit(self, token: Token) -> CommitOutcome:
        """Show staged rows and move the ledger, in one transaction."""
        staged = StagedName.of_token(self._name, self._owner.timeline, token)
        file = self._staged(staged)
        outcome = CommitOutcome.ALREADY_DONE
        if self._is_open(token):
            try:
                check_staged(
                    self._staging, [StagedFile(**token.payload["file"])], deeply=staged not in self._prepared
                )
                with self._database(attach=file) as connection:
                    outcome = self._commit_staged(connection, token)
            except SinkError:
                # Another process may have committed the token and removed its rows since we looked.
                if self._is_open(token):
                    raise
        self._prepared.discard(staged)
        durable.remove(file)
        return outcome

    def _is_open(self, token: Token) -> bool:
        with self._database() as connection:
            return must_commit(self._read(connection), self._owner, token)

    def _commit_staged(self, connection: SqliteConnection, token: Token) -> CommitOutcome:
        with self._transaction(connection):
            record = self._ledger.read(connection)
            if not must_commit(record, self._owner, token):
                return CommitOutcome.ALREADY_DONE
            assert record is not None
            expect_rows(_count(connection), token.rows)
            target = self._table_for(form_of(token, self._today))
            self._show(connection, target, record.base + token.epoch)
            self._ledger.move(connection, record, token, not target.keeps_apart)
        return CommitOutcome.DONE

    def _table_for(self, form: Form) -> SqliteTable:
        """Return the table as rows of a form get there."""
        columns = sqlite_columns(form.schema)
        key = [column.name for column in columns if column.source in form.settings["key"]]
        return SqliteTable(self._table, columns, key, self._epoch_column or form.settings["epoch_column"])

    @staticmethod
    def _show(connection: SqliteConnection, target: SqliteTable, number: int) -> None:
        for statement in target.show(_STAGED_ROWS, number):
            connection.run(statement)

    def staged(self, token: Token) -> Any:
        """Read a staging database, verified. The target is not touched."""
        with _translated():
            return read_staged(self._staging, token, Form.of(token, self._today).schema)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[tuple[SqliteConnection, SqlLedger] | None]:
        if not os.path.exists(self._path):
            yield None
            return
        with self._database() as connection:
            yield (connection, self._ledger) if has_table(connection, LEDGER) else None

    def _read(self, connection: SqliteConnection) -> LedgerRecord | None:
        return self._ledger.read(connection) if has_table(connection, LEDGER) else None

    def close(self) -> None:
        """Nothing is held between calls: a database that was put back to a copy is met as it is."""

    def _staged_name(self, ref: EpochRef) -> StagedName:
        return StagedName.of(self._name, ref)

    def _staged(self, staged: StagedName) -> str:
        return os.path.join(self._staging, f"{staged}.db")

    def _all_staged(self) -> set[StagedName]:
        names = (name.removesuffix(".parquet").removesuffix(".db") for name in durable.names_in(self._staging))
        parsed = {StagedName.parse(name) for name in names}
        return {staged for staged in parsed if staged is not None}

    def _remove_staged(self, names: Iterable[StagedName]) -> None:
        for staged in names:
            durable.remove(self._staged(staged))
            durable.remove(f"{self._staged(staged)}.parquet")

    @contextlib.contextmanager
    def _database(
        self, path: str | None = None, *, attach: str | None = None, create: bool = False
    ) -> Iterator[SqliteConnection]:
        """Open the target for a moment. Every commit is flushed, in every journal mode."""
        uri = f"file:{quote(path or self._path)}?mode={'rwc' if create else 'rw'}"
        with _translated():
            connection = sqlite3.connect(
                uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, factory=SqliteConnection
            )
            with contextlib.closing(connection):
                connection.execute("PRAGMA synchronous = EXTRA")
                if attach is not None:
                    connection.execute("ATTACH ? AS holdfast_staged", (f"file:{quote(attach)}?immutable=1",))
                yield connection

    @contextlib.contextmanager
    def _transaction(self, connection: SqliteConnection, *, keep: bool = True) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        if not keep:
            connection.rollback()
            return
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
                raise
            raise UnknownOutcome(f"committing: {error}") from error


def _count(connection: SqliteConnection) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {_STAGED_ROWS}").fetchone()[0])


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn SQLite's and the disk's errors into ours: busy and full may pass, the rest needs a person."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        kind = RetryableSinkError if code in _TRY_AGAIN else SinkError
        raise kind(f"SQLite: {error}") from error
    except sqlite3.Error as error:
        raise SinkError(f"SQLite: {error}") from error
    except OSError as error:
        raise RetryableSinkError(f"the disk: {error}") from error
