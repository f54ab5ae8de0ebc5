"""The Delta sink: one log entry per epoch, with the epoch's files and the ledger in it.

`prepare` puts Parquet files into the table's folder, where no reader looks before a log entry names them. `commit`
adds one entry: the files, and app transactions for generation and epoch. Delta's optimistic concurrency lets one of
two such entries win, so an epoch appears once, whole, or not at all; a writer of an older generation loses even when
the newer one's claim falls between its check and its entry. The ledger is described in `delta_log`.

Merge mode stages its rows the same way and merges them by key at commit, in one entry with the same transactions.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import UUID

from holdfast.connectors.arrow_types import key_columns, plain_schema
from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.delta.history import LookBack, look_back, look_before
from holdfast.connectors.delta.log import TransactionLedger, entry_metadata, read_entry
from holdfast.connectors.delta.modes import (
    APPEND,
    MERGE,
    Entry,
    LostRace,
    form_of,
    mode_name,
    mode_of,
    partition_columns,
    write_entry,
)
from holdfast.connectors.delta.table import (
    check_names,
    check_partitioning,
    check_table,
    create_table,
    first_line,
    has_entry,
    open_table,
    required_columns,
    sync_log,
    unanswered,
)
from holdfast.connectors.delta.undoing import Undoing
from holdfast.connectors.delta.writing import check_files, read_files, unpack_files
from holdfast.connectors.extras import delta_exceptions, deltalake
from holdfast.connectors.forms import Form
from holdfast.connectors.ledger import REWINDS, Claim, LedgerRecord, claim, fenced, must_commit
from holdfast.connectors.staging import StagedName, reading_back, timeline_tag
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
from holdfast.secrets import scrub
from holdfast.stores import durable

_ROUNDS = 20
"""How often to look at the table again when other writers get in the way, before asking the engine for a pause."""

_Result = TypeVar("_Result")


def _cannot_be_removed(foreign: UUID) -> SinkError:
    return SinkError(
        f"rows of timeline {foreign} cannot be removed from the Delta table: they were rewritten, others "
        "wrote since, or its log does not reach back that far. Remove them by hand and choose --sinks append"
    )


class DeltaSink:
    """Exactly-once into a Delta table, on a local disk or on object storage, appending or merging by key."""

    guarantee = Guarantee(
        exactly_once=True,
        how="the epoch's files and the ledger (app transactions) become visible in one Delta log entry",
    )

    def __init__(
        self,
        path: str,
        *,
        mode: str = "append",
        key: tuple[str, ...] = (),
        partition_by: tuple[str, ...] = (),
        storage_options: dict[str, str] | None = None,
    ) -> None:
        deltalake.require()
        if mode not in (APPEND, MERGE):
            raise PipelineDefinitionError(f"a delta sink's mode is 'append' or 'merge', not '{mode}'")
        if (mode == MERGE) != bool(key):
            raise PipelineDefinitionError("a delta sink with mode 'merge' needs a key, and only that mode has one")
        self._target, self._mode_name, self._key = path, mode, key
        self._partition_by, self._options = partition_by, storage_options
        self._table: Any = None
        self._checked: Any = None
        self._rewinds = 0
        self._prepared: set[StagedName] = set()

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {
            "kind": "delta",
            "path": scrub(self._target),
            "mode": self._mode_name,
            "key": list(self._key),
            "partition_by": list(self._partition_by),
        }

    def bind(self, context: SinkContext) -> None:
        """Take the context; refuse columns and modes that do not fit."""
        if context.output_mode == "update" and self._mode_name != MERGE:
            raise PipelineDefinitionError("output mode 'update' replaces rows: use mode='merge' and a key")
        self._name = context.name
        self._schema = plain_schema(context.schema)
        key_columns(self._schema, self._key)
        check_names(self._schema)
        check_partitioning(self._schema, self._partition_by)
        self._form = form_of(self._schema, self._mode_name, self._key, self._partition_by)
        self._folder = TableFolder(self._target, self._options)
        self._ledger = TransactionLedger(context.pipeline, context.name)
        self._mode = mode_of(self._form, self._folder, self._name)

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Decide the claim as `open` will, and whether another timeline's rows can be removed if they have to."""
        if self._folder.root is not None:
            with unanswered("looking at the table's folder"):
                durable.refuse_unwritable(self._folder.root)
        table = open_table(self._folder, self._options)
        if table is None:
            return claim(None, None, owner, on_foreign, adopt_epoch).record.state()
        self._check_table(table, self._form)
        _, decided = self._decide(table, owner, on_foreign, adopt_epoch)
        if decided.takes_over is not None and on_foreign is OnForeign.REWIND:
            undoing = self._undoing_of(decided.takes_over, self._history(table))
            with unanswered("reading the log"):
                if undoing is None or not undoing.is_possible(table):
                    raise _cannot_be_removed(decided.takes_over)
        return decided.record.state()

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Look whether every epoch behind can be undone on the table as it is."""
        table = open_table(self._folder, self._options)
        if table is None:
            return RewindOutcome.DONE
        with unanswered("reading the log"):
            record = self._ledger.read(table)
            if record is None:
                return RewindOutcome.DONE
            since = self._since(table, record, to_epoch)
            possible = since is not None and self._undoing(since, record.timeline).is_possible(table)
        return RewindOutcome.DONE if possible else RewindOutcome.IMPOSSIBLE

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Create the table when missing and claim it with a log entry that only moves the ledger."""
        self._owner = owner
        record = self._in_rounds(lambda: self._claim(on_foreign, adopt_epoch))
        self._rewinds = record.rewinds
        self._forget_settled(record)
        return record.state()

    def _claim(self, on_foreign: OnForeign, adopt_epoch: int) -> LedgerRecord:
        table = self._newest_or_created()
        self._check_table(table, self._form)
        found, decided = self._decide(table, self._owner, on_foreign, adopt_epoch)
        if decided.record != found:
            version = table.version()
            self._write_claim(table, decided, on_foreign, of_this_sink=found is not None)
            sync_log(self._folder, version)
        return decided.record

    def _decide(
        self, table: Any, owner: Owner, on_foreign: OnForeign, adopt_epoch: int
    ) -> tuple[LedgerRecord | None, Claim]:
        """Return this sink's record, and what claiming it comes to."""
        with unanswered("reading the ledger"):
            found = self._ledger.read(table)
            others = self._ledger.last_claimant(table) if found is None else None
        return found, claim(found, others, owner, on_foreign, adopt_epoch)

    def _check_table(self, table: Any, form: Form) -> None:
        """Refuse a table that rows of a form do not fit, whenever either is another one than last time."""
        metadata = table.metadata()
        needs = table.protocol().min_writer_version, table.protocol().writer_features
        looks_like = (table.schema().to_json(), metadata.partition_columns, metadata.configuration, needs, form)
        if looks_like == self._checked:
            return
        check_table(table, form.schema, partition_columns(form), merges=mode_name(form) == MERGE)
        self._required = required_columns(table)
        self._checked = looks_like

    def _write_claim(self, table: Any, decided: Claim, on_foreign: OnForeign, *, of_this_sink: bool) -> None:
        transactions = self._ledger.claimed(decided.record)
        metadata = entry_metadata("claim", self._name, decided.record)
        foreign = decided.takes_over
        if foreign is None:
            return self._write(table, Entry(transactions, metadata))
        history = self._history(table)
        # After an append another pipeline may go on writing as its own sink; otherwise the other timeline is over.
        closing = {self._name} if of_this_sink else set()
        if on_foreign is not OnForeign.APPEND:
            entries = filter(None, map(read_entry, history))
            closing |= {entry.sink for entry in entries if entry.timeline == str(foreign)}
        entry = Entry(transactions + self._ledger.closed(foreign, closing), metadata)
        if on_foreign is not OnForeign.REWIND:
            return self._write(table, entry)
        undoing = self._undoing_of(foreign, history)
        if undoing is None or not self._undo(table, undoing, entry):
            raise _cannot_be_removed(foreign)

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Write Parquet files that no log entry names yet, flushed on a local disk."""
        staged = StagedName.of(self._name, ref)
        with unanswered("writing data files"):
            payload = self._mode.prepare(rows, staged, self._required)
        self._prepared.add(staged)
        return Prepared(rows.count, {REWINDS: self._rewinds, **payload, **self._form.to_payload()})

    def commit(self, token: Token) -> CommitOutcome:
        """Add one log entry with the files, or merge them; both move the ledger."""
        outcome = self._in_rounds(lambda: self._commit_once(token))
        staged = StagedName.of_token(self._name, self._owner.timeline, token)
        self._prepared.discard(staged)
        with contextlib.suppress(OSError):
            self._folder.forget(staged)
        return outcome

    def _commit_once(self, token: Token) -> CommitOutcome:
        table = self._newest()
        with unanswered("reading the ledger"):
            record = self._ledger.read_of(table, self._owner.timeline, whole=False)
            if record is not None and record.epoch == token.epoch:
                record = self._ledger.read_of(table, self._owner.timeline)
        if not must_commit(record, self._owner, token):
            return CommitOutcome.ALREADY_DONE
        assert record is not None
        form = Form.of(token, self._form)
        with unanswered("reading the table"):
            self._check_table(table, form)
        version = table.version()
        try:
            self._show(table, record, token, form)
            outcome = CommitOutcome.DONE
        except LostRace:
            raise
        except Exception as error:
            self._explain(error, token)
            outcome = CommitOutcome.ALREADY_DONE
        sync_log(self._folder, version)
        return outcome

    def _show(self, table: Any, record: LedgerRecord, token: Token, form: Form) -> None:
        staged = StagedName.of_token(self._name, record.timeline, token)
        mode = self._mode if form == self._form else mode_of(form, self._folder, self._name)
        files = mode.check(token, deeply=staged not in self._prepared)
        moved = record.after(token)
        facts = {"files": files, "rows": token.rows, "mode": mode_name(form)}
        metadata = entry_metadata("commit", self._name, moved, **facts)
        mode.show(table, token, Entry(self._ledger.moved(moved), metadata))

    def _explain(self, error: Exception, token: Token) -> None:
        """Ask the table what a failure left behind; return when the epoch is there, whoever put it there."""
        try:
            found = self.ledger()
        except SinkError:
            raise UnknownOutcome(f"adding the log entry: {first_line(error)}") from error
        if found is not None and (found.epoch, found.range_digest) == (token.epoch, token.range_digest):
            return
        if isinstance(error, SinkError):
            raise error
        raise RetryableSinkError(f"adding the log entry: {first_line(error)}") from error

    def abort(self, ref: EpochRef) -> None:
        """Remove files of lower attempts at the epoch, unless the ledger is at or past it: then one was committed."""
        ours = StagedName.of(self._name, ref)
        with unanswered("looking for dead attempts"):
            dead = [staged for staged in self._folder.noted() if staged.precedes(ours)]
            if not dead:
                return
            record = self._ledger.read_of(self._newest(), ref.timeline, whole=False)
            if record is not None and record.epoch >= ref.epoch:
                return
            for staged in dead:
                self._folder.remove(self._folder.noted_files(staged))
                self._folder.forget(staged)

    def staged(self, token: Token) -> Any:
        """Read the files that the token names, verified, as its form says. The table's log is not asked."""
        files = unpack_files(token.payload["files"])
        with unanswered("reading data files"), reading_back(scrub(self._target)):
            check_files(self._folder, files, token.rows, deeply=True)
            return read_files(self._folder, files, Form.of(token, self._form).schema)

    def ledger(self) -> LedgerState | None:
        """Read the table's log anew."""
        with unanswered("reading the ledger"):
            table = open_table(self._folder, self._options)
            record = None if table is None else self._ledger.read(table)
        return None if record is None else record.state()

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Remove later epochs' files unless some were rewritten; a merge is restored unless others wrote since."""
        return self._in_rounds(lambda: self._rewind_once(to_epoch))

    def _rewind_once(self, to_epoch: int) -> RewindOutcome:
        table = self._newest()
        with unanswered("reading the log"):
            record = self._ledger.read_of(table, self._owner.timeline)
        if record is None or not record.belongs_to(self._owner):
            raise fenced(record, self._owner)
        since = self._since(table, record, to_epoch)
        if since is None:
            return RewindOutcome.IMPOSSIBLE
        self._forget_settled(record)
        moved = record.rewound(to_epoch, since.range_digest)
        entry = Entry(self._ledger.rewound(moved), entry_metadata("rewind", self._name, moved))
        version = table.version()
        if not self._undo(table, self._undoing(since, record.timeline), entry):
            return RewindOutcome.IMPOSSIBLE
        sync_log(self._folder, version)
        self._rewinds = moved.rewinds
        return RewindOutcome.DONE

    def close(self) -> None:
        """Let go of the table."""
        self._table = None

    def _since(self, table: Any, record: LedgerRecord, to_epoch: int) -> LookBack | None:
        """Return what happened since an epoch; nothing, however far the log reaches, if the ledger is not past it."""
        if to_epoch >= record.epoch:
            return LookBack()
        return look_back(self._history(table), str(record.timeline), self._name, to_epoch)

    def _undoing(self, since: LookBack, timeline: UUID) -> Undoing:
        return Undoing(self._folder, since, timeline_tag(timeline), self._mode_name)

    def _undoing_of(self, foreign: UUID, history: list[dict[str, Any]]) -> Undoing | None:
        """Return what undoes all that another timeline wrote; None when the log does not reach back that far."""
        since = look_before(history, str(foreign))
        return None if since is None else self._undoing(since, foreign)

    def _undo(self, table: Any, undoing: Undoing, entry: Entry) -> bool:
        with unanswered("taking epochs back"):
            return undoing.act(table, entry)

    def _history(self, table: Any) -> list[dict[str, Any]]:
        with unanswered("reading the log"):
            return list(table.history())

    def _write(self, table: Any, entry: Entry) -> None:
        # A rewind that was found possible before the claim may follow it, and reads the log.
        with unanswered("writing the ledger"):
            write_entry(table, [], entry, strict=True, keep_log=True)

    def _forget_settled(self, record: LedgerRecord) -> None:
        """Drop notes of epochs the ledger has passed: their files are committed or harmless, and stay."""
        mine = StagedName.of(self._name, EpochRef(record.timeline, 0, 0, 0))
        with unanswered("looking for dead attempts"):
            for staged in self._folder.noted():
                if staged.is_same_sink(mine) and staged.epoch <= record.epoch:
                    self._folder.forget(staged)

    def _newest_or_created(self) -> Any:
        self._table = open_table(self._folder, self._options)
        if self._table is None:
            self._table = create_table(self._folder, self._schema, self._partition_by, self._options)
        return self._table

    def _newest(self) -> Any:
        """Return the table at its newest version. A table that was put back to an older copy is read anew."""
        try:
            if self._table is not None:
                self._table.update_incremental()
        except delta_exceptions.DeltaError:
            self._table = None
        if self._table is None or not has_entry(self._folder, self._table.version()):
            self._table = open_table(self._folder, self._options)
        if self._table is None:
            raise SinkError(f"there is no Delta table at {scrub(self._target)} any more")
        return self._table

    def _in_rounds(self, attempt: Callable[[], _Result]) -> _Result:
        """Try again on the newest state for as long as other writers get in the way."""
        lost: LostRace | None = None
        for _ in range(_ROUNDS):
            try:
                return attempt()
            except LostRace as error:
                lost = error
        raise RetryableSinkError(f"other writers keep changing the table: {lost}")
