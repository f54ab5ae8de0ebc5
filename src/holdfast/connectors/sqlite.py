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
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import quote
from uuid import UUID

from holdfast.connectors import durable
from holdfast.connectors import sqlite_statements as sql
from holdfast.connectors.arrow_types import key_columns, plain_schema
from holdfast.connectors.extras import adbc_sqlite, pa
from holdfast.connectors.keys import repeated_key
from holdfast.connectors.ledger import REWINDS, Claim, LedgerRecord, claim, fenced, must_commit
from holdfast.connectors.parquet_files import (
    StagedFile,
    check_staged,
    describe,
    expect_rows,
    read_batches,
    write_with_spark,
)
from holdfast.connectors.sqlite_columns import sqlite_columns, sqlite_rows, sqlite_schema
from holdfast.connectors.sqlite_target import ensure_table, is_plain
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import (
    CommitOutcome,
    EpochRef,
    Guarantee,
    LedgerState,
    OnForeign,
    Owner,
    Prepared,
    RewindOutcome,
    Rows,
    SinkContext,
    Token,
)
from holdfast.errors import PipelineDefinitionError, RetryableSinkError, SinkError, UnknownOutcome

_BUSY_SECONDS = 5.0
_TRY_AGAIN = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}


class SqliteSink:
    """Exactly-once into a table of a SQLite database, appending or upserting by key."""

    guarantee = Guarantee(
        exactly_once=True, how="rows and ledger change in one SQLite transaction, flushed before it counts"
    )

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
        self._mode = mode or ("upsert" if key else "append")
        if self._mode not in ("append", "upsert"):
            raise PipelineDefinitionError(f"a sqlite sink's mode is 'append' or 'upsert', not '{mode}'")
        if (self._mode == "upsert") != bool(key):
            raise PipelineDefinitionError("a sqlite sink with mode 'upsert' needs a key, and only that mode has one")
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
        if context.output_mode == "update" and self._mode != "upsert":
            raise PipelineDefinitionError("output mode 'update' replaces rows: give the sqlite sink a key")
        self._name, self._pipeline = context.name, context.pipeline
        self._schema = plain_schema(context.schema)
        key_columns(self._schema, self._key)
        columns = sqlite_columns(self._schema)
        key = [column.name for column in columns if column.source in self._key]
        self._target = sql.TargetTable(self._table, columns, key, self._epoch_column)

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Create table and ledger when missing and claim them in one transaction."""
        self._owner = owner
        durable.make_directories(os.path.dirname(self._path))
        with self._database(create=True) as connection, self._transaction(connection):
            connection.execute(sql.CREATE_LEDGER)
            connection.execute(sql.CREATE_EPOCHS)
            ensure_table(connection, self._target)
            decided = claim(self._read(connection), self._other(connection), owner, on_foreign, adopt_epoch)
            record = decided.record
            if decided.takes_over is not None:
                record = self._take_over(connection, decided, on_foreign)
            self._write(connection, record)
        self._rewinds = record.rewinds
        self._sweep_staged(record)
        return record.state()

    def _take_over(self, connection: sqlite3.Connection, decided: Claim, on_foreign: OnForeign) -> LedgerRecord:
        if on_foreign is OnForeign.REWIND:
            if self._key or not self._epoch_column:
                raise SinkError(
                    f"rows of timeline {decided.takes_over} cannot be told from others in table '{self._table}': "
                    "only an append table with epoch_column=True can be rewound. Remove them by hand and choose "
                    "--sinks append"
                )
            connection.execute(self._target.remove_after(), {"number": 0})
        if on_foreign is not OnForeign.APPEND:
            connection.execute(sql.REMOVE_FOREIGN, (self._table, str(decided.record.timeline)))
        if not self._epoch_column:
            return decided.record
        highest = connection.execute(self._target.highest_epoch()).fetchone()[0]
        return replace(decided.record, base=highest - decided.record.epoch)

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Stage the rows in a database of their own, flushed, and try them against the target."""
        staged = StagedName.of(self._name, ref)
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
        return Prepared(rows.count, {REWINDS: self._rewinds, "file": asdict(facts)})

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

    def _check_rows(self, connection: sqlite3.Connection, expected: int) -> None:
        """Find now what the target would refuse, so that a sealed epoch can be committed."""
        expect_rows(_count(connection), expected)
        if self._key and connection.execute(self._target.repeated_keys()).fetchone():
            raise SinkError(repeated_key(self._key))
        if not is_plain(connection, self._target):
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._show(connection, 0)
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

    def _commit_staged(self, connection: sqlite3.Connection, token: Token) -> CommitOutcome:
        with self._transaction(connection):
            record = self._read(connection)
            if not must_commit(record, self._owner, token):
                return CommitOutcome.ALREADY_DONE
            assert record is not None
            expect_rows(_count(connection), token.rows)
            self._show(connection, record.base + token.epoch)
            self._move(connection, record.after(token), token)
        return CommitOutcome.DONE

    def _show(self, connection: sqlite3.Connection, number: int) -> None:
        for statement in self._target.show():
            connection.execute(statement, {"number": number} if ":number" in statement else {})

    def _move(self, connection: sqlite3.Connection, record: LedgerRecord, token: Token) -> None:
        values = {**self._row(record), "previous": token.previous}
        moved = connection.execute(sql.MOVE_LEDGER, values).rowcount
        if moved != 1:
            raise SinkError(f"the ledger does not stand at epoch {token.previous} any more")
        timeline, epoch = str(record.timeline), token.epoch
        connection.execute(sql.LOG_EPOCH, (timeline, self._name, epoch, token.rows, token.range_digest))
        connection.execute(sql.TRIM_EPOCHS, (timeline, self._name, epoch - sql.KEPT_EPOCHS))

    def abort(self, ref: EpochRef) -> None:
        """Remove staging files of lower attempts at the epoch."""
        ours = StagedName.of(self._name, ref)
        for staged in self._all_staged():
            if staged.precedes(ours):
                self._remove_staged(staged)

    def ledger(self) -> LedgerState | None:
        """Ask the database, on a connection of its own, without locking it."""
        if not os.path.exists(self._path):
            return None
        with self._database() as connection:
            record = self._read(connection)
        return None if record is None else record.state()

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Delete rows of later epochs; only in an append table with the epoch column that no other sink writes to."""
        with self._database() as connection, self._transaction(connection):
            record = self._read(connection)
            if record is None or (record.timeline, record.generation) != (
                self._owner.timeline,
                self._owner.generation,
            ):
                raise fenced(record, self._owner)
            if to_epoch < record.epoch and not self._can_rewind(connection):
                return RewindOutcome.IMPOSSIBLE
            moved = self._rewound(connection, record, to_epoch)
            self._write(connection, moved)
        self._rewinds = moved.rewinds
        return RewindOutcome.DONE

    def _can_rewind(self, connection: sqlite3.Connection) -> bool:
        shared = connection.execute(sql.OTHER_OWNERS, (self._table, self._pipeline, self._name)).fetchone()
        return self._epoch_column and not self._key and shared is None

    def _rewound(self, connection: sqlite3.Connection, record: LedgerRecord, to_epoch: int) -> LedgerRecord:
        if to_epoch >= record.epoch:
            return record.rewound(to_epoch, None)
        timeline = str(record.timeline)
        found = connection.execute(sql.RANGE_OF_EPOCH, (timeline, self._name, to_epoch)).fetchone()
        connection.execute(self._target.remove_after(), {"number": record.base + to_epoch})
        connection.execute(sql.FORGET_EPOCHS, (timeline, self._name, to_epoch))
        return record.rewound(to_epoch, None if found is None else found[0])

    def close(self) -> None:
        """Nothing is held between calls: a database that was put back to a copy is met as it is."""

    def _read(self, connection: sqlite3.Connection) -> LedgerRecord | None:
        try:
            row = connection.execute(sql.READ_LEDGER, (self._pipeline, self._name)).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None
            raise
        return None if row is None else LedgerRecord(UUID(row[0]), *row[1:])

    def _other(self, connection: sqlite3.Connection) -> UUID | None:
        rows = connection.execute(sql.OTHER_OWNERS, (self._table, self._pipeline, self._name)).fetchall()
        timelines = {UUID(row[0]) for row in rows} - {self._owner.timeline}
        return min(timelines, default=None, key=str)

    def _write(self, connection: sqlite3.Connection, record: LedgerRecord) -> None:
        connection.execute(sql.WRITE_LEDGER, self._row(record))

    def _row(self, record: LedgerRecord) -> dict[str, Any]:
        names = {"pipeline": self._pipeline, "sink": self._name, "target": self._table}
        return {**record.to_json_value(), **names}

    def _staged(self, staged: StagedName) -> str:
        return os.path.join(self._staging, f"{staged}.db")

    def _all_staged(self) -> set[StagedName]:
        names = (name.removesuffix(".parquet").removesuffix(".db") for name in durable.names_in(self._staging))
        parsed = {StagedName.parse(name) for name in names}
        return {staged for staged in parsed if staged is not None}

    def _remove_staged(self, staged: StagedName) -> None:
        durable.remove(self._staged(staged))
        durable.remove(f"{self._staged(staged)}.parquet")

    def _sweep_staged(self, record: LedgerRecord) -> None:
        """Remove what is staged for epochs that the ledger has passed."""
        mine = StagedName.of(self._name, EpochRef(record.timeline, 0, 0, 0))
        for staged in self._all_staged():
            if staged.is_same_sink(mine) and staged.epoch <= record.epoch:
                self._remove_staged(staged)

    @contextlib.contextmanager
    def _database(self, *, attach: str | None = None, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the target for a moment. Every commit is flushed, in every journal mode."""
        uri = f"file:{quote(self._path)}?mode={'rwc' if create else 'rw'}"
        with _translated():
            connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                connection.execute("PRAGMA synchronous = EXTRA")
                if attach is not None:
                    connection.execute("ATTACH ? AS holdfast_staged", (f"file:{quote(attach)}?immutable=1",))
                yield connection

    @contextlib.contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
                raise
            raise UnknownOutcome(f"committing: {error}") from error


def _count(connection: sqlite3.Connection) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {sql.STAGED}").fetchone()[0])


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
