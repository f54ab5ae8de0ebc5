"""The user's own writer: a function that is called with the rows of each epoch and a key that stays the same.

Rows are spooled at prepare and handed over at commit. If the process dies between the two, or while the function
runs, it is called again with the same rows and the same key. With `last_committed` the function's own target says
which epoch it has, so an epoch that arrived is not handed over again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from holdfast.connectors import disk_trouble
from holdfast.connectors.arrow_types import plain_schema
from holdfast.connectors.extras import pa, spark_sql
from holdfast.connectors.forms import Form
from holdfast.connectors.ledger import REWINDS, LedgerRecord, claim, fenced, must_commit, rewind_forward_only
from holdfast.connectors.parquet_files import expect_rows, read_batches, read_parquet, row_count
from holdfast.connectors.spool import Spool
from holdfast.connectors.spool_ledger import SpoolLedger
from holdfast.connectors.staging import STAGED, reading_back
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
from holdfast.errors import PipelineDefinitionError, SinkError

_AT_LEAST_ONCE = Guarantee(
    exactly_once=False,
    how="your function is called again with the same rows and key after a crash",
    fences=False,
    spools=True,
)
_EXACTLY_ONCE = Guarantee(
    exactly_once=True,
    how="your target says which epoch it has; your function must write rows and key in one act",
    fences=False,
    spools=True,
)


@dataclass(frozen=True)
class BatchKey:
    """Names an epoch's rows for ever: two calls with one key have the same rows."""

    timeline: UUID
    epoch: int

    def __str__(self) -> str:
        return f"{self.timeline}/{self.epoch}"


class ForeachBatchSink:
    """At-least-once through a function, exactly-once when `last_committed` can ask the function's target."""

    def __init__(
        self,
        function: Callable[[Any, BatchKey], object],
        *,
        last_committed: Callable[[UUID], int | None] | None = None,
        rows_as: str = "arrow",
    ) -> None:
        if rows_as not in ("arrow", "spark"):
            raise PipelineDefinitionError(f"rows come as 'arrow' or 'spark', not '{rows_as}'")
        self.guarantee = _AT_LEAST_ONCE if last_committed is None else _EXACTLY_ONCE
        self._function, self._last_committed, self._rows_as = function, last_committed, rows_as

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return {"kind": "foreach_batch", "function": name, "exactly_once": self.guarantee.exactly_once}

    def bind(self, context: SinkContext) -> None:
        """Take the context."""
        self._spool, self._ledger = Spool(context), SpoolLedger(context)
        self._form = Form(plain_schema(context.schema), {})
        self._claimable: LedgerRecord | None = None
        """What `can_claim` was asked about last."""

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Decide as `open` does. Takes no lock, which would be a file: a ledger is replaced as a whole."""
        self._spool.check_writable()
        with disk_trouble.may_pass("claiming the spool"):
            self._claimable = self._claimed(owner, on_foreign, adopt_epoch)
            return self._asked(self._claimable).state()

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Compare with where `open` would leave us: that knows the timeline by which the target is asked."""
        with disk_trouble.may_pass("asking the ledger"):
            record = self._claimable or self._ledger.read()
            return rewind_forward_only(None if record is None else self._asked(record), to_epoch)

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Claim the ledger beside the spool. It cannot remove what the function wrote for another timeline."""
        self._owner, self._claimable = owner, None
        with disk_trouble.may_pass("claiming the spool"), self._ledger.locked():
            record = self._claimed(owner, on_foreign, adopt_epoch)
            self._ledger.write(record)
            self._rewinds = record.rewinds
            self._spool.remove_passed(record)
            return self._asked(record).state()

    def _claimed(self, owner: Owner, on_foreign: OnForeign, adopt_epoch: int) -> LedgerRecord:
        decided = claim(self._ledger.read(), None, owner, on_foreign, adopt_epoch)
        if decided.takes_over is None:
            return decided.record
        if on_foreign is OnForeign.REWIND:
            raise SinkError(f"what your function wrote for timeline {decided.takes_over} cannot be undone here")
        return replace(decided.record, base=decided.record.epoch)

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Spool the rows, flushed."""
        with disk_trouble.may_pass("spooling rows"):
            payload = self._spool.stage(rows, ref, self._form.schema)
        return Prepared(rows.count, {REWINDS: self._rewinds, **payload, **self._form.to_payload()})

    def commit(self, token: Token) -> CommitOutcome:
        """Hand the rows over, unless the target has them; then remember it here."""
        with disk_trouble.may_pass("handing rows over"), self._ledger.locked():
            found = self._ledger.read()
            record = None if found is None else self._asked(found)
            outcome = CommitOutcome.ALREADY_DONE
            if must_commit(record, self._owner, token):
                self._hand_over(token)
                outcome = CommitOutcome.DONE
            assert found is not None
            self._ledger.write(found.after(token))
            self._spool.remove(token)
        return outcome

    def _hand_over(self, token: Token) -> None:
        self._spool.check(token)
        paths = self._spool.paths(token.payload)
        expect_rows(sum(map(row_count, paths)), token.rows)
        key = BatchKey(self._owner.timeline, token.epoch)
        try:
            self._function(self._rows(paths, self._schema_of(token)), key)
        except Exception:
            # A function may fail after its target took the rows: then the target says so.
            if self._last_committed is None or self._last_committed(key.timeline) != key.epoch:
                raise

    def _schema_of(self, token: Token) -> Any:
        return plain_schema(Form.of(token, self._form).schema)

    def _rows(self, paths: list[str], schema: Any) -> Any:
        if self._rows_as == "spark":
            session = spark_sql.SparkSession.builder.getOrCreate()
            return session.read.parquet(*(f"file://{path}" for path in paths))
        return read_batches(paths, schema).read_all()

    def _asked(self, record: LedgerRecord) -> LedgerRecord:
        """Return the record at the epoch that the target has; ours where the target cannot be asked."""
        if self._last_committed is None:
            return record
        # Epochs that a person adopted were not handed over under this timeline.
        epoch = max(self._last_committed(record.timeline) or 0, record.base)
        return replace(record, epoch=epoch, range_digest=record.range_digest if epoch == record.epoch else None)

    def abort(self, ref: EpochRef) -> None:
        """Remove spooled rows of lower attempts at the epoch."""
        self._spool.remove_lower(ref)

    def staged(self, token: Token) -> Any:
        """Read spooled rows, verified."""
        folder = self._spool.folder(token.payload[STAGED])
        with disk_trouble.may_pass("reading spooled rows"), reading_back(folder):
            self._spool.check(token, deeply=True)
            schema = self._schema_of(token)
            rows = pa.concat_tables(read_parquet(path, schema) for path in self._spool.paths(token.payload))
        expect_rows(rows.num_rows, token.rows)
        return rows

    def ledger(self) -> LedgerState | None:
        """Ask the target when it can be asked, else the ledger beside the spool."""
        with disk_trouble.may_pass("asking the ledger"):
            record = self._ledger.read()
        return None if record is None else self._asked(record).state()

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Refuse to go back: what the function did cannot be undone from here."""
        with disk_trouble.may_pass("rewinding"), self._ledger.locked():
            found = self._ledger.read()
            record = None if found is None else self._asked(found)
            if record is None or not record.belongs_to(self._owner):
                raise fenced(record, self._owner)
            outcome = rewind_forward_only(record, to_epoch)
            if outcome is RewindOutcome.IMPOSSIBLE:
                return outcome
            moved = record.rewound(to_epoch, None)
            self._ledger.write(moved)
        self._rewinds = moved.rewinds
        return outcome

    def close(self) -> None:
        """Nothing is held."""
