"""What sinks into a table of a SQL database do alike: claim it, take epochs back, remove dead attempts."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

from holdfast.connectors.ledger import Claim, LedgerRecord, claim, fenced
from holdfast.connectors.sql_ledger import SqlLedger, Statements
from holdfast.connectors.sql_statements import TargetTable
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import EpochRef, LedgerState, OnForeign, Owner, RewindOutcome
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


class TableSink(ABC):
    """A sink whose table and ledger change in one transaction."""

    _owner: Owner
    _target: TargetTable
    _ledger: SqlLedger
    _rewinds: int

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Create table and ledger when missing and claim them in one transaction."""
        self._owner = owner
        with self._claiming() as connection:
            others = self._ledger.other_timelines(connection) - {owner.timeline}
            other = min(others, default=None, key=str)
            decided = claim(self._ledger.read(connection), other, owner, on_foreign, adopt_epoch)
            record = decided.record
            if decided.takes_over is not None:
                record = self._take_over(connection, decided, on_foreign)
            self._ledger.write(connection, record)
        self._rewinds = record.rewinds
        self._remove_staged(staged for staged in self._all_staged() if self._is_settled(staged, record))
        return record.state()

    def _take_over(self, connection: Statements, decided: Claim, on_foreign: OnForeign) -> LedgerRecord:
        if on_foreign is OnForeign.REWIND:
            if not self._knows_epochs:
                raise SinkError(
                    f"rows of timeline {decided.takes_over} cannot be told from others in table "
                    f"'{self._target.name}': only an append table with epoch_column=True can be rewound. Remove them "
                    "by hand and choose --sinks append"
                )
            connection.run(self._target.remove_after(0))
        if on_foreign is not OnForeign.APPEND:
            self._ledger.end_others(connection, decided.record.timeline)
        if not self._target.with_epoch:
            return decided.record
        highest = connection.run(self._target.highest_epoch())[0][0]
        return replace(decided.record, base=highest - decided.record.epoch)

    def abort(self, ref: EpochRef) -> None:
        """Remove what lower attempts at the epoch staged."""
        ours = self._staged_name(ref)
        self._remove_staged(staged for staged in self._all_staged() if staged.precedes(ours))

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Delete rows of later epochs; only in an append table with the epoch column that no other sink writes to."""
        with self._changing() as connection:
            record = self._ledger.read(connection)
            if record is None or not record.belongs_to(self._owner):
                raise fenced(record, self._owner)
            if to_epoch < record.epoch:
                if not self._knows_epochs or self._ledger.other_timelines(connection):
                    return RewindOutcome.IMPOSSIBLE
                connection.run(self._target.remove_after(record.base + to_epoch))
            moved = self._ledger.go_back(connection, record, to_epoch)
            self._ledger.write(connection, moved)
        self._rewinds = moved.rewinds
        return RewindOutcome.DONE

    @property
    def _knows_epochs(self) -> bool:
        """Whether the table says of every row which epoch it came with."""
        return self._target.with_epoch and not self._target.key

    def _is_settled(self, staged: StagedName, record: LedgerRecord) -> bool:
        """Whether nobody can need these rows any more: the ledger has passed their epoch."""
        mine = self._staged_name(EpochRef(record.timeline, 0, 0, 0))
        return staged.is_same_sink(mine) and staged.epoch <= record.epoch

    @abstractmethod
    def _claiming(self) -> contextlib.AbstractContextManager[Statements]:
        """Open a transaction that holds other claims off, with table and ledger there."""

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
