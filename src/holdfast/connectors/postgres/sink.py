"""The PostgreSQL sink: staged rows become visible in ONE transaction that also moves the ledger.

`prepare` copies the epoch through ADBC into a table of its own beside the ledger, in one transaction; for a large
epoch Spark's tasks copy their partitions at once (`postgres_copy`). What the target would refuse is found there
(`postgres_staging`). `commit` locks the sink's entry in the ledger and, in one transaction, checks it and the number
of staged rows, inserts or upserts, moves the entry and drops the staging table.

When the answer to a COMMIT is lost, the entry's lock tells how it ended: whoever gets the lock sees the truth.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.clock import SYSTEM_CLOCK
from holdfast.connectors.arrow_types import is_nested, key_columns, plain_schema
from holdfast.connectors.extras import adbc_postgres, adbc_postgres_package
from holdfast.connectors.forms import Form
from holdfast.connectors.ledger import REWINDS, LedgerRecord, must_commit
from holdfast.connectors.parquet_files import expect_rows
from holdfast.connectors.postgres.address import Address, TableName, refuse_long_name, refuse_name
from holdfast.connectors.postgres.columns import encoded, natural_type
from holdfast.connectors.postgres.copying import PartitionCopy, copy_with_spark
from holdfast.connectors.postgres.errors import LOCK_NOT_GIVEN, ServerError
from holdfast.connectors.postgres.session import Session, Transaction
from holdfast.connectors.postgres.staging import (
    Changes,
    StagingTable,
    create_parts,
    find_staged,
    read_staged,
    staged_name,
)
from holdfast.connectors.postgres.table import (
    columns_of,
    ensure_table,
    exists,
    refuse_differences,
    resolve_schema,
    wires_into,
)
from holdfast.connectors.sql_ledger import LEDGER, LedgerPlace, SqlLedger
from holdfast.connectors.sql_sink import TableSink, chosen_mode, form_of, refuse_updates
from holdfast.connectors.sql_statements import Column, TargetTable, quoted
from holdfast.connectors.staging import STAGED, StagedName, reading_back
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
from holdfast.errors import (
    MissingExtra,
    PipelineDefinitionError,
    RetryableSinkError,
    SinkBehind,
    SinkError,
    UnknownOutcome,
)

_CLAIM_LOCK = int.from_bytes(b"holdfast")
"""Advisory lock of everybody who claims something in a database: tables that are missing are created by one."""
_PAUSES = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
"""How long to wait for a server that went away during a COMMIT."""
_OLDEST_DRIVER = (1, 13)


class PostgresSink(TableSink):
    """Exactly-once into a table of a PostgreSQL database: appending, upserting by key, deleting by key."""

    guarantee = Guarantee(exactly_once=True, how="rows and ledger change in one PostgreSQL transaction")

    def __init__(
        self,
        url: str,
        *,
        table: str,
        key: tuple[str, ...] = (),
        mode: str | None = None,
        order_by: str | None = None,
        delete_when: str | None = None,
        omit: tuple[str, ...] = (),
        epoch_column: bool = False,
        create: bool = True,
        ledger_schema: str | None = None,
        statement_seconds: float = 300.0,
    ) -> None:
        _require_driver()
        self._mode = chosen_mode("postgres", mode, key)
        if not key and (order_by or delete_when):
            raise PipelineDefinitionError("order_by and delete_when decide between rows with one key: give a key")
        refuse_long_name(ledger_schema or "", "schema")
        self._address, self._table = Address(url), TableName.parse(table)
        self._key, self._order_by, self._delete_when, self._omit = key, order_by, delete_when, omit
        self._epoch_column, self._create, self._given_schema = epoch_column, create, ledger_schema
        self._statement_seconds = statement_seconds
        self._session = self._new_session()

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {
            "kind": "postgres",
            "server": self._address.server,
            "database": self._address.database,
            "table": self._table.sql,
            **self._settings(),
        }

    def _settings(self) -> dict[str, Any]:
        """Return what the way that rows are shown depends on, beside their columns."""
        return {
            "mode": self._mode,
            "key": list(self._key),
            "order_by": self._order_by,
            "delete_when": self._delete_when,
            "omit": list(self._omit),
            "epoch_column": self._epoch_column,
        }

    def bind(self, context: SinkContext) -> None:
        """Take the context; refuse columns and modes that do not fit."""
        refuse_updates("postgres", self._mode, context.output_mode)
        self._name, self._pipeline = context.name, context.pipeline
        self._rows = plain_schema(context.schema)
        for name in self._rows.names:
            refuse_name(name, "column")
        key_columns(self._rows, self._key)
        self._check_steering()
        self._today = Form(self._rows, self._settings())

    def _check_steering(self) -> None:
        for name in (*self._omit, *([self._order_by] if self._order_by else [])):
            if name not in self._rows.names:
                raise PipelineDefinitionError(f"column '{name}' is not among {', '.join(self._rows.names)}")
        if self._order_by and is_nested(self._rows.field(self._order_by).type):
            raise PipelineDefinitionError(f"column '{self._order_by}' is nested and gives no order")
        if set(self._omit) & set(self._key):
            raise PipelineDefinitionError("a column of the key cannot be left out")
        if set(self._rows.names) <= set(self._omit):
            raise PipelineDefinitionError("no column is left to be written")

    # open, abort, ledger, rewind: TableSink

    @contextlib.contextmanager
    def _claiming(self, owner: Owner, *, keep: bool = True) -> Iterator[Transaction]:
        with self._session.transaction(keep=keep) as connection:
            connection.run("SELECT pg_advisory_xact_lock($1)", _CLAIM_LOCK)
            self._schema, self._target, self._ledger = self._located(connection)
            if not connection.run("SELECT 1 FROM pg_namespace WHERE nspname = $1", self._schema):
                connection.run(f"CREATE SCHEMA {quoted(self._schema)}")
            self._ledger.create(connection)
            create_parts(connection, self._schema)
            self._refuse_lost_table(connection, owner)
            ensure_table(connection, self._target, create=self._create)
            refuse_differences(self._target, columns_of(connection, self._target.sql), self._rows, self._omit)
            self._try_staging(connection, owner)
            yield connection

    def _refuse_lost_table(self, connection: Transaction, owner: Owner) -> None:
        """Refuse to go on behind rows that are not there any more."""
        record = self._ledger.read(connection)
        ours = record is not None and record.timeline == owner.timeline and record.epoch > 0
        if ours and not exists(connection, self._target.sql):
            assert record is not None
            raise SinkBehind(
                f"table {self._target.sql} is gone, but the ledger says that it has epoch {record.epoch}: "
                "restore it, or start over with --fresh"
            )

    def _try_staging(self, connection: Transaction, owner: Owner) -> None:
        """Find out before the first epoch whether rows can be staged: privileges, and a `delete_when` that is SQL."""
        staging = self._staging(self._staged_name(EpochRef(owner.timeline, owner.generation, 0, 0)))
        try:
            staging.create(connection)
        except ServerError as error:
            steering = f' with delete_when "{self._delete_when}"' if self._delete_when else ""
            raise SinkError(f"rows for table {self._target.sql} cannot be staged{steering}: {error}") from error
        staging.drop(connection)

    def _located(self, connection: Transaction) -> tuple[str, TargetTable, SqlLedger]:
        """Return the schema of the ledger, the table and the ledger itself, as this connection finds them."""
        schema = resolve_schema(connection, self._table)
        ours = self._given_schema or schema
        target = self._table_for(self._today, schema)
        columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND NOT attisdropped"
        place = LedgerPlace(prefix=f"{quoted(ours)}.", lock=" FOR UPDATE", columns=columns)
        return ours, target, SqlLedger(place, self._pipeline, self._name, target.sql)

    def _changing(self) -> contextlib.AbstractContextManager[Transaction]:
        return self._session.transaction()

    def _is_settled(self, staged: StagedName, record: LedgerRecord) -> bool:
        mine = self._staged_name(EpochRef(record.timeline, 0, 0, 0))
        # The entry that another timeline had for this sink is ours now: what it staged can never be committed.
        return staged.sink == mine.sink and (staged.timeline != mine.timeline or staged.epoch <= record.epoch)

    def _staged_name(self, ref: EpochRef) -> StagedName:
        return staged_name(self._pipeline, self._name, ref)

    def _staging(self, name: StagedName, form: Form | None = None) -> StagingTable:
        form = form or self._today
        left_out = tuple(column for column in _columns(form) if column.name in form.settings["omit"])
        changes = Changes(form.settings["order_by"], form.settings["delete_when"], left_out)
        return StagingTable(self._schema, name, self._table_for(form, self._target.schema), changes)

    def _table_for(self, form: Form, schema: str | None) -> TargetTable:
        """Return the table as rows of a form get there."""
        columns = [column for column in _columns(form) if column.name not in form.settings["omit"]]
        with_epoch = self._epoch_column or form.settings["epoch_column"]
        key = form.settings["key"]
        return TargetTable(self._table.name, columns, key, with_epoch, schema, epoch_type="bigint")

    def _all_staged(self) -> list[StagedName]:
        with self._changing() as connection:
            return find_staged(connection, self._schema)

    def _remove_staged(self, names: Iterable[StagedName]) -> None:
        for name in names:
            try:
                with self._changing() as connection:
                    self._staging(name).drop(connection)
            except RetryableSinkError as error:
                # A writer that vanished may hold it until the server notices; a later start removes it.
                if getattr(error.__cause__, "state", None) != LOCK_NOT_GIVEN:
                    raise

    # one epoch

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Copy the rows into a table of their own, and try them against the target."""
        staging = self._staging(self._staged_name(ref))
        try:
            self._stage(rows, staging)
        except SinkError as error:
            # Nobody but us knows the staging table.
            raise type(error)(str(error).replace(staging.name, self._target.name)) from error
        payload = {REWINDS: self._rewinds, STAGED: staging.sql, **self._today.to_payload()}
        return Prepared(rows.count, payload)

    def _stage(self, rows: Rows, staging: StagingTable) -> None:
        if rows.small:
            with self._changing() as connection:
                wires = wires_into(staging.create(connection), self._rows)
                connection.copy(staging.schema, staging.name, encoded(rows.arrow(), self._rows, wires))
                staging.check(connection, rows.count)
            return
        with self._changing() as connection:
            wires = wires_into(staging.create(connection), self._rows)
        copy = PartitionCopy(self._address, self._statement_seconds, staging.schema, staging.name, self._rows, wires)
        copy_with_spark(rows.dataframe(), copy)
        with self._changing() as connection:
            staging.check(connection, rows.count)

    def commit(self, token: Token) -> CommitOutcome:
        """Show staged rows and move the ledger, in one transaction."""
        ref = EpochRef(self._owner.timeline, token.generation, token.epoch, token.attempt, token.nonce)
        try:
            with self._session.transaction(decides=True) as connection:
                return self._commit(connection, token, self._staged_name(ref))
        except UnknownOutcome as lost:
            return self._outcome(token, lost)

    def _commit(self, connection: Transaction, token: Token, name: StagedName) -> CommitOutcome:
        record = self._ledger.read(connection)
        if not must_commit(record, self._owner, token):
            return CommitOutcome.ALREADY_DONE
        assert record is not None
        form = form_of(token, self._today)
        staging = self._staging(name, form)
        if not exists(connection, staging.sql):
            raise SinkError(f"staged rows are gone: {staging.sql}")
        if form != self._today:
            self._refuse_unfit(connection, token, form)
        staging.expect(connection, token.rows)
        staging.show(connection, record.base + token.epoch)
        self._ledger.move(connection, record, token, not self._table_for(form, self._target.schema).keeps_apart)
        staging.drop(connection)
        return CommitOutcome.DONE

    def _refuse_unfit(self, connection: Transaction, token: Token, form: Form) -> None:
        """Refuse a table that was changed since, so that the rows would change on their way into it."""
        target = self._table_for(form, self._target.schema)
        columns = columns_of(connection, target.sql)
        try:
            refuse_differences(target, columns, form.schema, ())
        except SinkError as error:
            raise SinkError(f"the rows of epoch {token.epoch} were prepared for another view: {error}") from error

    def _outcome(self, token: Token, lost: UnknownOutcome) -> CommitOutcome:
        """Find out how a COMMIT ended whose answer was lost."""
        for pause in _PAUSES:
            SYSTEM_CLOCK.sleep(pause)
            committed = self._is_committed(token)
            if committed:
                return CommitOutcome.DONE
            if committed is False:
                raise RetryableSinkError(f"{lost}; the ledger says that nothing was committed")
        raise lost

    def _is_committed(self, token: Token) -> bool | None:
        """Ask under the lock that the lost transaction holds until it has ended; None when nobody answers."""
        try:
            with self._changing() as connection:
                return not must_commit(self._ledger.read(connection), self._owner, token)
        except RetryableSinkError:
            return None

    # looking

    @contextlib.contextmanager
    def _looking(self) -> Iterator[tuple[Transaction, SqlLedger] | None]:
        with self._asking() as connection:
            schema, _, ledger = self._located(connection)
            yield (connection, ledger) if exists(connection, f"{quoted(schema)}.{quoted(LEDGER)}") else None

    def staged(self, token: Token) -> Any:
        """Read a staging table, on a connection of its own."""
        table = token.payload[STAGED]
        with self._asking() as connection, reading_back(table):
            if not exists(connection, table):
                raise SinkError(f"staged rows are gone: {table}")
            rows = read_staged(connection, table, form_of(token, self._today).schema)
        expect_rows(rows.num_rows, token.rows)
        return rows

    @contextlib.contextmanager
    def _asking(self) -> Iterator[Transaction]:
        with contextlib.closing(self._new_session()) as session, session.transaction() as connection:
            yield connection

    def _new_session(self) -> Session:
        return Session(self._address, self._statement_seconds)

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()


def _columns(form: Form) -> list[Column]:
    return [Column(field.name, natural_type(field.type), field.name) for field in form.schema]


def _require_driver() -> None:
    adbc_postgres.require()
    version = str(adbc_postgres_package.__version__)
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_DRIVER:
        raise MissingExtra(
            f"adbc-driver-postgresql {version} writes some decimals and lists wrongly; the postgres sink needs 1.13 "
            "or newer: pip install --upgrade 'holdfast[postgres]'"
        )
