"""Targets in memory, with the real decisions of a ledger (`connectors.ledger`): SQL sinks without a database."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

from holdfast.connectors.ledger import REWINDS, LedgerRecord, claim, fenced, must_commit
from holdfast.core.contracts import (
    CommitOutcome,
    EpochRef,
    LedgerState,
    OnForeign,
    Owner,
    Prepared,
    RewindOutcome,
    Rows,
    Token,
)
from holdfast.errors import RetryableSinkError, SinkError
from holdfast.testing import RecordedTarget, RecordingSink
from holdfast.testing.recording_sink import Row
from simulate.gates import Gate

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Shown:
    """One epoch as readers see it."""

    timeline: UUID
    epoch: int
    rows: tuple[Row, ...]
    range_digest: str


@dataclass(frozen=True)
class Held:
    """Everything in a target."""

    record: LedgerRecord | None = None
    shown: tuple[Shown, ...] = ()
    staged: Mapping[EpochRef, tuple[Row, ...]] = field(default_factory=dict)

    def visible(self) -> object:
        """Return what a refused start must not change: all but rows that nobody sees."""
        return self.record, self.shown


class Target(RecordedTarget):
    """What a `LedgerSink` writes to."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.held = name, Held()
        self.failing: dict[str, str] = {}
        """Action -> how it fails until somebody repairs the target: broken or busy."""
        self.spools = False
        """Whether staged rows are on the machine that prepared them, beside the checkpoints."""
        self.spooled: dict[EpochRef, int] = {}
        """On which machine what is staged was prepared."""

    @property
    def rows(self) -> list[Row]:
        return [row for shown in self.held.shown for row in shown.rows]

    def ours(self) -> list[Row]:
        """Return the rows of the timeline that owns the target."""
        record = self.held.record
        return [
            row for shown in self.held.shown if record and shown.timeline == record.timeline for row in shown.rows
        ]

    def move_spool(self, machine: int, to: int) -> None:
        """Bring what was staged on a machine to another place, where it may be out of reach."""
        self.spooled = {ref: to if where == machine else where for ref, where in self.spooled.items()}

    def put_back(self, epoch: int) -> None:
        """Do by hand what a rewind would do, as from a backup: rows and ledger as they were after that epoch."""
        record = self.held.record
        assert record is not None
        shown = tuple(s for s in self.held.shown if s.timeline != record.timeline or s.epoch <= epoch)
        last = shown[-1] if shown and shown[-1].timeline == record.timeline else None
        digest = last.range_digest if last and last.epoch == epoch else None
        self.held = replace(self.held, shown=shown, record=replace(record, epoch=epoch, range_digest=digest))


class LedgerSink(RecordingSink):
    """One process's hold on a target. Every call passes the process's gate."""

    def __init__(self, target: Target, gate: Gate, machine: int = 0) -> None:
        super().__init__(target)
        self.target, self._gate, self._machine = target, gate, machine
        self.guarantee = replace(self.guarantee, spools=target.spools)
        self._claimed_by: Owner | None = None

    def identity(self) -> dict[str, Any]:
        return {"kind": "simulated"}

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        return self._asked("can_claim", lambda: self._claim(owner, on_foreign, adopt_epoch).record.state())

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        record = self.target.held.record
        possible = record is None or record.epoch <= to_epoch or self.target.rewindable
        return self._asked("can_rewind", lambda: RewindOutcome.DONE if possible else RewindOutcome.IMPOSSIBLE)

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        self._claimed_by = owner
        return self._act("open", lambda: self._open(owner, on_foreign, adopt_epoch))

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        def stage() -> Prepared:
            held, values = self.target.held, tuple(rows.arrow().to_pylist())
            self.target.held = replace(held, staged={**held.staged, ref: values})
            self.target.spooled[ref] = self._machine
            assert held.record is not None
            return Prepared(len(values), {REWINDS: held.record.rewinds})

        return self._act("prepare", stage)

    def commit(self, token: Token) -> CommitOutcome:
        return self._act("commit", lambda: self._commit(token))

    def abort(self, ref: EpochRef) -> None:
        def remove() -> None:
            held = self.target.held
            staged = {key: rows for key, rows in held.staged.items() if not key.precedes(ref)}
            self.target.held = replace(held, staged=staged)

        self._act("abort", remove)

    def ledger(self) -> LedgerState | None:
        record = self.target.held.record
        return self._asked("ledger", lambda: record.state() if record else None)

    def rewind(self, to_epoch: int) -> RewindOutcome:
        return self._act("rewind", lambda: self._rewind(to_epoch))

    def close(self) -> None:
        """Nothing is held."""

    def _act(self, action: str, effect: Callable[[], _Result]) -> _Result:  # type: ignore[override]
        def carried_out() -> _Result:
            how = self.target.failing.get(action)
            if how == "busy":
                raise RetryableSinkError("the target is busy")
            if how is not None:
                raise SinkError("the target is broken")
            return effect()

        return self._gate.call(f"sink {action} {self.target.name}", True, carried_out)

    def _asked(self, action: str, answer: Callable[[], _Result]) -> _Result:
        return self._gate.call(f"sink {action} {self.target.name}", False, answer)

    def _claim(self, owner: Owner, on_foreign: OnForeign, adopt_epoch: int) -> Any:
        claimed = claim(self.target.held.record, None, owner, on_foreign, adopt_epoch)
        if claimed.takes_over and on_foreign is OnForeign.REWIND and not self.target.rewindable:
            raise SinkError(f"rows of timeline {claimed.takes_over} cannot be removed here")
        return claimed

    def _open(self, owner: Owner, on_foreign: OnForeign, adopt_epoch: int) -> LedgerState:
        claimed, held = self._claim(owner, on_foreign, adopt_epoch), self.target.held
        emptied = claimed.takes_over and on_foreign is OnForeign.REWIND
        self.target.held = replace(held, record=claimed.record, shown=() if emptied else held.shown)
        state: LedgerState = claimed.record.state()
        return state

    def _commit(self, token: Token) -> CommitOutcome:
        held, owner = self.target.held, self._claimed_by
        assert owner is not None
        if not must_commit(held.record, owner, token):
            return CommitOutcome.ALREADY_DONE
        assert held.record is not None
        ref = EpochRef(owner.timeline, token.generation, token.epoch, token.attempt, token.nonce)
        rows = held.staged.get(ref)
        elsewhere = self.target.spools and self.target.spooled.get(ref) != self._machine
        if rows is None or elsewhere or len(rows) != token.rows:
            raise SinkError(f"staged rows of epoch {token.epoch} are gone")
        shown = Shown(owner.timeline, token.epoch, rows, token.range_digest)
        staged = {key: value for key, value in held.staged.items() if key != ref}
        self.target.held = Held(held.record.after(token), (*held.shown, shown), staged)
        return CommitOutcome.DONE

    def _rewind(self, to_epoch: int) -> RewindOutcome:
        held, owner = self.target.held, self._claimed_by
        record = held.record
        if owner is None or record is None or not record.belongs_to(owner):
            raise fenced(record, owner or Owner("shop", UUID(int=0), 0))
        if to_epoch < record.epoch and not self.target.rewindable:
            return RewindOutcome.IMPOSSIBLE
        shown = tuple(s for s in held.shown if s.timeline != record.timeline or s.epoch <= to_epoch)
        found = [s.range_digest for s in shown if s.timeline == record.timeline and s.epoch == to_epoch]
        moved = record.rewound(to_epoch, found[0] if found else None)
        self.target.held = replace(held, shown=shown, record=moved)
        return RewindOutcome.DONE
