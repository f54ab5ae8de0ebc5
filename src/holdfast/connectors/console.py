"""Sinks for trying things: rows on the terminal, or in a list. They remember nothing beyond this process."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TextIO
from uuid import UUID

from holdfast.connectors.extras import pa
from holdfast.connectors.forms import Form
from holdfast.connectors.ledger import REWINDS, LedgerRecord, fenced, must_commit
from holdfast.connectors.parquet_files import expect_rows
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
from holdfast.errors import Fenced, SinkError

_WIDEST = 40
_SHOWN = "rows"
"""Key in the form of an epoch: how many of its rows are in the text."""


class _Forgetful:
    """A ledger in memory. A new process takes the engine's word for where it stands."""

    guarantee = Guarantee(
        exactly_once=False, how="nothing survives the process: an epoch may be missing or come twice", fences=False
    )

    def __init__(self) -> None:
        self._record: LedgerRecord | None = None

    def bind(self, context: SinkContext) -> None:
        """Take any rows."""
        self._schema = context.schema

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Return where `open` would begin."""
        return self._claimed(owner, adopt_epoch).state()

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Say that this process can count from any epoch."""
        return RewindOutcome.DONE

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Begin at the epoch the pipeline goes on from, or where this process stands."""
        self._owner = owner
        self._record = self._claimed(owner, adopt_epoch)
        return self._record.state()

    def _claimed(self, owner: Owner, adopt_epoch: int) -> LedgerRecord:
        record = self._record
        if record is None or record.timeline != owner.timeline:
            return LedgerRecord(owner.timeline, owner.generation, adopt_epoch, nonce=owner.nonce)
        if record.generation > owner.generation:
            raise fenced(record, owner)
        return replace(record, generation=owner.generation, nonce=owner.nonce)

    def ledger(self) -> LedgerState | None:
        """Return what this process remembers."""
        return None if self._record is None else self._record.state()

    def close(self) -> None:
        """Nothing is held."""

    def _opened(self) -> LedgerRecord:
        if self._record is None:
            raise Fenced("the sink was not opened", checkpoint_id=0)
        return self._record


class ConsoleSink(_Forgetful):
    """Prints the first rows of each epoch once it is committed."""

    def __init__(self, *, rows: int = 20, file: TextIO | None = None) -> None:
        super().__init__()
        self._shown, self._file = rows, file

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {"kind": "console"}

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Keep the text in the token, so that it is printed even if another process commits."""
        table = rows.arrow() if rows.small else rows.dataframe().limit(self._shown).toArrow()
        text = _as_text(table.schema.names, table.slice(0, self._shown).to_pylist())
        form = Form(table.schema, {_SHOWN: self._shown})
        return Prepared(rows.count, {REWINDS: self._opened().rewinds, "text": text, **form.to_payload()})

    def commit(self, token: Token) -> CommitOutcome:
        """Print."""
        if not must_commit(self._record, self._owner, token):
            return CommitOutcome.ALREADY_DONE
        shown = Form.of(token, Form(self._schema, {_SHOWN: self._shown})).settings[_SHOWN]
        hidden = token.rows - min(token.rows, shown)
        more = f"\n... and {hidden} more" if hidden else ""
        print(f"epoch {token.epoch}: {token.rows} rows\n{token.payload['text']}{more}", file=self._file or sys.stdout)
        self._record = self._opened().after(token)
        return CommitOutcome.DONE

    def abort(self, ref: EpochRef) -> None:
        """Nothing was staged."""

    def staged(self, token: Token) -> Any:
        """Refuse: there is nothing but the text of the first rows."""
        raise SinkError("a console keeps no rows, only the text of the first ones")

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Count from `to_epoch` again; what was printed stays printed."""
        self._record = self._opened().rewound(to_epoch, None)
        return RewindOutcome.DONE


class MemorySink(_Forgetful):
    """Keeps the rows of committed epochs in this process."""

    def __init__(self) -> None:
        super().__init__()
        self._staged: dict[EpochRef, Any] = {}
        self._epochs: dict[int, Any] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return every committed row, in the order of epochs."""
        return [row for table in self.tables() for row in table.to_pylist()]

    def tables(self) -> list[Any]:
        """Return the committed epochs as `pyarrow.Table`s, in order."""
        return [self._epochs[epoch] for epoch in sorted(self._epochs)]

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {"kind": "memory"}

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Keep the rows aside."""
        self._staged[ref] = rows.arrow()
        return Prepared(rows.count, {REWINDS: self._opened().rewinds})

    def commit(self, token: Token) -> CommitOutcome:
        """Show the rows; those that another process staged are gone with it."""
        if not must_commit(self._record, self._owner, token):
            return CommitOutcome.ALREADY_DONE
        ref = _ref_of(token, self._owner.timeline)
        self._epochs[token.epoch] = self._staged.pop(ref, pa.table({}))
        self._record = self._opened().after(token)
        return CommitOutcome.DONE

    def abort(self, ref: EpochRef) -> None:
        """Drop rows of lower attempts at the epoch."""
        self._staged = {other: rows for other, rows in self._staged.items() if not other.precedes(ref)}

    def staged(self, token: Token) -> Any:
        """Return rows that this process keeps aside."""
        ref = self._record and _ref_of(token, self._record.timeline)
        if ref is None or ref not in self._staged:
            raise SinkError("staged rows are gone: they were in the memory of another process")
        expect_rows(self._staged[ref].num_rows, token.rows)
        return self._staged[ref]

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Drop later epochs."""
        self._epochs = {epoch: rows for epoch, rows in self._epochs.items() if epoch <= to_epoch}
        self._record = self._opened().rewound(to_epoch, None)
        return RewindOutcome.DONE


def _ref_of(token: Token, timeline: UUID) -> EpochRef:
    return EpochRef(timeline, token.generation, token.epoch, token.attempt, token.nonce)


def _as_text(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    lines = [list(names), *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(names))]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cell(value: Any) -> str:
    text = "NULL" if value is None else str(value).replace("\n", " ")
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
