"""What sinks into a table of a SQL database do alike: claim it, take epochs back, remove dead attempts."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.forms import Form
from holdfast.connectors.ledger import Claim, LedgerRecord, claim, fenced
from holdfast.connectors.sql_ledger import SqlLedger, Statements
from holdfast.connectors.sql_statements import TargetTable
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import EpochRef, LedgerState, OnForeign, Owner, RewindOutcome, Token
from holdfast.errors import PipelineDefinitionError, SinkError


def chosen_mode(kind: str, mode: str | None, key: tuple[str, ...]) -> str:
    """Return `append` or `upsert`, whichever was asked for or follows from the key."""
    chosen = mode or ("upsert" if key else "append")
    if chosen not in ("append", "upsert"):
        raise PipelineDefinitionError(f"a {kind} sink's mode is 'append' or 'upsert', not '{mode}'")
    if (chosen == "upsert") != bool(key):
        raise PipelineDefinitionError(f"a {kind} sink with mode 'upsert' needs a key, and only that mode has one")
    return chosen


def refuse_updates(kind: str, mode: str, output_mode: str) -> None:
    """Refuse to append what is meant to replace rows."""
    if output_mode == "update" and mode != "upsert":
        raise PipelineDefinitionError(f"output mode 'update' replaces rows: give the {kind} sink a key")


def form_of(token: Token, today: Form) -> Form:
    """Return what a token's rows were prepared as; refuse rows that do not have what steers them."""
    form = Form.of(token, today)
    form = replace(form, schema=plain_schema(form.schema))  # Recorded beside a token, it has Spark's own spelling.
    lost = [name for name in form.settings["key"] if name not in form.schema.names]
    if lost:
        raise SinkError(
            f"the rows of epoch {token.epoch} have no column '{lost[0]}', which the sink has as its key now: start "
            "once as the pipeline was when they were prepared"
        )
    return form


class TableSink(ABC):
    """A sink whose table and ledger change in one transaction."""

    _owner: Owner
    _key: tuple[str, ...]
    _epoch_column: bool
    _target: TargetTable
    _ledger: SqlLedger
    _rewinds: int

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Begin to claim the target and roll that back: what would refuse the claim has refused it."""
        with self._claiming(owner, keep=False) as connection:
            return self._decide(connection, owner, on_foreign, adopt_epoch).record.state()

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Create table and ledger when missing and claim them in one transaction."""
        self._owner = owner
        with self._claiming(owner) as connection:
            decided = self._decide(connection, owner, on_foreign, adopt_epoch)
            record, fixed_to = decided.record, self._fixed_by(connection, decided)
            if decided.takes_over is not None:
                record = self._take_over(connection, decided, on_foreign)
            self._ledger.write(connection, record, fixed_to)
        self._rewinds = record.rewinds
        self._remove_staged(staged for staged in self._all_staged() if self._is_settled(staged, record))
        return record.state()

    def _decide(self, connection: Statements, owner: Owner, on_foreign: OnForeign, adopt_epoch: int) -> Claim:
        """Return what the claim comes to, or refuse it; nothing is changed."""
        others = self._ledger.other_timelines(connection) - {owner.timeline}
        other = min(others, default=None, key=str)
        decided = claim(self._ledger.read(connection), other, owner, on_foreign, adopt_epoch)
        removes = decided.takes_over is not None and on_foreign is OnForeign.REWIND
        if removes and not (self._knows_epochs and self._ledger.fixed_to(connection) == 0):
            raise SinkError(
                f"rows of timeline {decided.takes_over} cannot be told from others in table "
                f"'{self._target.name}': only an append table with epoch_column=True can be rewound. Remove them "
                "by hand and choose --sinks append"
            )
        return decided

    def _take_over(self, connection: Statements, decided: Claim, on_foreign: OnForeign) -> LedgerRecord:
        if on_foreign is OnForeign.REWIND:
            connection.run(self._target.remove_after(0))
        if on_foreign is not OnForeign.APPEND:
            self._ledger.end_others(connection, decided.record.timeline)
        if not self._target.with_epoch:
            return decided.record
        highest = connection.run(self._target.highest_epoch())[0][0]
        return replace(decided.record, base=highest - decided.record.epoch)

    def _fixed_by(self, connection: Statements, decided: Claim) -> int | None:
        """Return the last epoch that cannot be taken back once another timeline's table is ours."""
        if decided.takes_over is None:
            return None
        return decided.record.epoch if self._ledger.fixed_to(connection) else 0

    def abort(self, ref: EpochRef) -> None:
        """Remove what lower attempts at the epoch staged."""
        ours = self._staged_name(ref)
        self._remove_staged(staged for staged in self._all_staged() if staged.precedes(ours))

    def ledger(self) -> LedgerState | None:
        """Ask the database, on a connection of its own, without locks: another may hang in a commit."""
        with self._looking() as found:
            record = found and found[1].read(found[0], to_write=False)
        return record.state() if record else None

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Ask the database, as `ledger` does."""
        with self._looking() as found:
            record = found and found[1].read(found[0], to_write=False)
            if not found or not record or to_epoch >= record.epoch:
                return RewindOutcome.DONE
            shared = found[1].other_timelines(found[0], to_write=False)
            possible = self._knows_epochs and not shared and to_epoch >= found[1].fixed_to(found[0])
        return RewindOutcome.DONE if possible else RewindOutcome.IMPOSSIBLE

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Delete rows of later epochs; only in an append table with the epoch column that no other sink writes to."""
        with self._changing() as connection:
            record = self._ledger.read(connection)
            if record is None or not record.belongs_to(self._owner):
                raise fenced(record, self._owner)
            if to_epoch < record.epoch:
                shared = self._ledger.other_timelines(connection)
                if not self._knows_epochs or shared or to_epoch < self._ledger.fixed_to(connection):
                    return RewindOutcome.IMPOSSIBLE
                connection.run(self._target.remove_after(record.base + to_epoch))
            moved = self._ledger.go_back(connection, record, to_epoch)
            self._ledger.write(connection, moved)
        self._rewinds = moved.rewinds
        return RewindOutcome.DONE

    @property
    def _knows_epochs(self) -> bool:
        """Whether the table says of every row that is written now which epoch it came with."""
        return self._epoch_column and not self._key

    def _is_settled(self, staged: StagedName, record: LedgerRecord) -> bool:
        """Whether nobody can need these rows any more: the ledger has passed their epoch."""
        mine = self._staged_name(EpochRef(record.timeline, 0, 0, 0))
        return staged.is_same_sink(mine) and staged.epoch <= record.epoch

    @abstractmethod
    def _claiming(self, owner: Owner, *, keep: bool = True) -> contextlib.AbstractContextManager[Statements]:
        """Open a transaction that holds other claims off, with table and ledger there; roll it back unless `keep`."""

    @abstractmethod
    def _looking(self) -> contextlib.AbstractContextManager[tuple[Statements, SqlLedger] | None]:
        """Open a transaction that only reads, on a connection of its own; None where there is no ledger."""

    @abstractmethod
    def _changing(self) -> contextlib.AbstractContextManager[Statements]:
        """Open a transaction."""

    @abstractmethod
    def _staged_name(self, ref: EpochRef) -> StagedName:
        """Return what an attempt's staged rows are called."""

    @abstractmethod
    def _all_staged(self) -> Iterable[StagedName]:
        """Return whatever is staged beside the table, by whomever."""

    @abstractmethod
    def _remove_staged(self, names: Iterable[StagedName]) -> None:
        """Remove staged rows."""
