"""A sink whose target is a value in memory: it keeps every promise of the contract, and fails when it is told to.

target = RecordedTarget()
sink = RecordingSink(target)              # one process's hold on it; the target outlives the sink
target.trouble("commit", Trouble.UNKNOWN_AFTER)
...                                       # the next commit takes effect and raises UnknownOutcome
assert target.rows == [...]
target.lose_last_commit()                 # a backup was put back
"""

import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

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
from holdfast.core.forms import COLUMNS, FORM, packed, unpacked
from holdfast.errors import Fenced, ForeignTimeline, RetryableSinkError, SinkError, UnknownOutcome

Row = dict[str, Any]
_Result = TypeVar("_Result")
_REWINDS = "rewinds"


class Trouble(StrEnum):
    """What goes wrong in a call."""

    BUSY = "busy"
    """`RetryableSinkError`, and nothing was done."""
    BROKEN = "broken"
    """`SinkError`, and nothing was done."""
    UNKNOWN_BEFORE = "unknown before"
    """`UnknownOutcome`, and nothing was done."""
    UNKNOWN_AFTER = "unknown after"
    """`UnknownOutcome`, and it was done."""
    HANG_BEFORE = "hang before"
    """No answer until `RecordedTarget.let_go`; only then it is done."""
    HANG_AFTER = "hang after"
    """It is done at once, and there is no answer until `RecordedTarget.let_go`."""


@dataclass(frozen=True)
class SinkCall:
    """One call of a sink, by the generation that owned it."""

    action: str
    epoch: int = 0
    generation: int = 0
    attempt: int = 0


@dataclass(frozen=True)
class ShownEpoch:
    """One epoch as readers of the target see it."""

    timeline: UUID
    epoch: int
    rows: tuple[Row, ...]
    range_digest: str | None


@dataclass(frozen=True)
class TargetState:
    """Everything in a target. Keep one as a backup; put it back by assigning it."""

    ledger: LedgerState | None = None
    rewinds: int = 0
    """A token that was prepared before a rewind never fits again."""
    shown: tuple[ShownEpoch, ...] = ()
    staged: Mapping[EpochRef, tuple[Row, ...]] = field(default_factory=dict)


class RecordedTarget:
    """What a `RecordingSink` writes to. Every change is one atomic act."""

    def __init__(self, *, rewindable: bool = True) -> None:
        self.rewindable = rewindable
        self.state = TargetState()
        self.calls: list[SinkCall] = []
        self.lock = threading.RLock()
        self._before_commits: list[TargetState] = []
        self._troubles: list[tuple[str, Trouble]] = []
        self._released = threading.Event()

    @property
    def rows(self) -> list[Row]:
        """Every row that readers see, in the order in which they were committed."""
        return [row for shown in self.state.shown for row in shown.rows]

    def actions(self, action: str) -> list[SinkCall]:
        """Return the calls of one kind."""
        return [call for call in self.calls if call.action == action]

    def trouble(self, action: str, kind: Trouble, times: int = 1) -> None:
        """Let the next calls of that kind go wrong."""
        self._troubles += [(action, kind)] * times

    def calm(self) -> None:
        """Let nothing go wrong any more."""
        self._troubles.clear()

    def let_go(self) -> None:
        """Let calls that hang go on, now and from now on."""
        self._released.set()

    def lose_last_commit(self, *, staged_rows_too: bool = False) -> None:
        """Put the target back to just before its last commit, as a restored backup does."""
        with self.lock:
            self.state = self._before_commits.pop()
            if staged_rows_too:
                self.state = replace(self.state, staged={})

    def next_trouble(self, action: str) -> Trouble | None:
        """Return what goes wrong in the call that begins now."""
        with self.lock:
            found = next((entry for entry in self._troubles if entry[0] == action), None)
            if found is None:
                return None
            self._troubles.remove(found)
            return found[1]

    def wait_for_release(self) -> None:
        """Hang."""
        self._released.wait()

    def show(self, shown: ShownEpoch, ledger: LedgerState, ref: EpochRef) -> None:
        """Make staged rows visible and move the ledger, in one act. Hold the lock."""
        self._before_commits.append(self.state)
        staged = {key: rows for key, rows in self.state.staged.items() if key != ref}
        self.state = replace(self.state, shown=(*self.state.shown, shown), ledger=ledger, staged=staged)


class RecordingSink:
    """One process's hold on a `RecordedTarget`. `before` is called with each action first, and may raise."""

    guarantee = Guarantee(exactly_once=True, how="rows and ledger change in one act, in memory")

    def __init__(self, target: RecordedTarget, before: Callable[[str], None] = lambda action: None) -> None:
        self._target = target
        self._before = before
        self._owner: Owner | None = None
        self._schema: Any = None
        self._claimable: LedgerState | None = None
        """What `can_claim` answered last."""

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink."""
        return {"kind": "recording"}

    def bind(self, context: SinkContext) -> None:
        """Take the context."""
        self._schema = context.schema

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Claim the target."""

        def claim() -> LedgerState:
            state = self._target.state
            foreign = state.ledger is not None and state.ledger.timeline != owner.timeline
            claimed = self._claimed(owner, on_foreign, adopt_epoch)
            shown = () if foreign and on_foreign is OnForeign.REWIND else state.shown
            self._target.state = replace(state, ledger=claimed, shown=shown)
            return claimed

        self._owner, self._claimable = owner, None
        return self._act(SinkCall("open", generation=owner.generation), claim)

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Return what `open` would leave, or raise what it would raise."""
        call = SinkCall("can_claim", generation=owner.generation)
        self._claimable = self._act(call, lambda: self._claimed(owner, on_foreign, adopt_epoch))
        return self._claimable

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Say whether `rewind` would succeed, once `open` has done what `can_claim` was asked about."""
        return self._act(
            SinkCall("can_rewind", to_epoch),
            lambda: self._outcome(self._claimable or self._target.state.ledger, to_epoch),
        )

    def _outcome(self, ledger: LedgerState | None, to_epoch: int) -> RewindOutcome:
        """Say how a rewind ends."""
        ahead = ledger is not None and to_epoch < ledger.epoch
        return RewindOutcome.IMPOSSIBLE if ahead and not self._target.rewindable else RewindOutcome.DONE

    def _claimed(self, owner: Owner, on_foreign: OnForeign, adopt_epoch: int) -> LedgerState:
        """Decide a claim."""
        found = self._target.state.ledger
        if found is None:
            return LedgerState(owner.timeline, owner.generation, 0, nonce=owner.nonce)
        if found.timeline == owner.timeline:
            if found.generation >= owner.generation and not found.belongs_to(owner):
                raise _fenced(found, owner)
            return replace(found, generation=owner.generation, nonce=owner.nonce)
        if on_foreign is OnForeign.REFUSE:
            raise ForeignTimeline(f"the target was written by timeline {found.timeline}")
        if on_foreign is OnForeign.REWIND and not self._target.rewindable:
            raise SinkError(f"rows of timeline {found.timeline} cannot be removed here")
        epoch = adopt_epoch if on_foreign is OnForeign.ADOPT else 0
        return LedgerState(owner.timeline, owner.generation, epoch, nonce=owner.nonce)

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Stage the rows."""

        def stage() -> Prepared:
            target, values = self._target, tuple(rows.arrow().to_pylist())
            target.state = replace(target.state, staged={**target.state.staged, ref: values})
            columns = {} if self._schema is None else {FORM: {COLUMNS: packed(bytes(self._schema.serialize()))}}
            return Prepared(len(values), {_REWINDS: target.state.rewinds, **columns})

        return self._act(SinkCall("prepare", ref.epoch, ref.generation, ref.attempt), stage)

    def commit(self, token: Token) -> CommitOutcome:
        """Show the staged rows, if the ledger is ours and stands where the token says."""
        owner = self._owned()

        def show() -> CommitOutcome:
            ledger = self._our_ledger(owner)
            if ledger.epoch == token.epoch:
                if ledger.range_digest not in (None, token.range_digest):
                    raise SinkError(f"epoch {token.epoch} was committed here from another source range")
                return CommitOutcome.ALREADY_DONE
            if ledger.epoch != token.previous:
                raise SinkError(f"epoch {token.epoch} follows {token.previous}, but the ledger is at {ledger.epoch}")
            if token.payload[_REWINDS] != self._target.state.rewinds:
                raise SinkError(f"the token of epoch {token.epoch} was prepared before the target was rewound")
            rows = self._staged_rows(token, owner.timeline)
            shown = ShownEpoch(owner.timeline, token.epoch, rows, token.range_digest)
            moved = replace(ledger, epoch=token.epoch, range_digest=token.range_digest)
            self._target.show(shown, moved, _ref_of(token, owner.timeline))
            return CommitOutcome.DONE

        return self._act(SinkCall("commit", token.epoch, owner.generation, token.attempt), show)

    def abort(self, ref: EpochRef) -> None:
        """Remove staged rows of lower attempts at the epoch."""

        def remove() -> None:
            state = self._target.state
            staged = {key: rows for key, rows in state.staged.items() if not key.precedes(ref)}
            self._target.state = replace(state, staged=staged)

        self._act(SinkCall("abort", ref.epoch, ref.generation, ref.attempt), remove)

    def staged(self, token: Token) -> Any:
        """Return the rows of a sealed token as a `pyarrow.Table` with the columns it was prepared with."""
        ledger = self._target.state.ledger
        if ledger is None:
            raise SinkError(f"staged rows of epoch {token.epoch} are gone")
        rows = list(self._staged_rows(token, ledger.timeline))
        columns = token.payload.get(FORM, {}).get(COLUMNS)
        schema = self._schema if columns is None else _read_schema(columns, token.epoch)
        return importlib.import_module("pyarrow").Table.from_pylist(rows, schema=schema)

    def ledger(self) -> LedgerState | None:
        """Ask the target."""
        return self._act(SinkCall("ledger"), lambda: self._target.state.ledger)

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Remove later epochs, or say that this target cannot."""
        owner = self._owned()

        def go_back() -> RewindOutcome:
            ledger, state = self._our_ledger(owner), self._target.state
            if self._outcome(ledger, to_epoch) is RewindOutcome.IMPOSSIBLE:
                return RewindOutcome.IMPOSSIBLE
            shown = tuple(s for s in state.shown if s.timeline != owner.timeline or s.epoch <= to_epoch)
            if to_epoch < ledger.epoch:
                last = shown[-1] if shown and shown[-1].timeline == owner.timeline else None
                digest = last.range_digest if last and last.epoch == to_epoch else None
                ledger = replace(ledger, epoch=to_epoch, range_digest=digest)
            noted = replace(ledger, rewound_in=owner.generation, rewound_to=to_epoch)
            self._target.state = replace(state, shown=shown, ledger=noted, rewinds=state.rewinds + 1)
            return RewindOutcome.DONE

        return self._act(SinkCall("rewind", to_epoch, owner.generation), go_back)

    def close(self) -> None:
        """Nothing is held."""
        self._target.calls.append(SinkCall("close"))

    def _act(self, call: SinkCall, effect: Callable[[], _Result]) -> _Result:
        """Carry a call out, or what goes wrong with it."""
        self._before(call.action)
        target = self._target
        target.calls.append(call)
        match target.next_trouble(call.action):
            case Trouble.BUSY:
                raise RetryableSinkError("the target is busy")
            case Trouble.BROKEN:
                raise SinkError("the target is broken")
            case Trouble.UNKNOWN_BEFORE:
                raise UnknownOutcome("the connection broke")
            case Trouble.UNKNOWN_AFTER:
                self._atomically(effect)
                raise UnknownOutcome("the connection broke")
            case Trouble.HANG_BEFORE:
                target.wait_for_release()
            case Trouble.HANG_AFTER:
                result = self._atomically(effect)
                target.wait_for_release()
                return result
        return self._atomically(effect)

    def _atomically(self, effect: Callable[[], _Result]) -> _Result:
        with self._target.lock:
            return effect()

    def _owned(self) -> Owner:
        if self._owner is None:
            raise SinkError("the sink was not opened")
        return self._owner

    def _our_ledger(self, owner: Owner) -> LedgerState:
        ledger = self._target.state.ledger
        if ledger is None or not ledger.belongs_to(owner):
            raise _fenced(ledger, owner)
        return ledger

    def _staged_rows(self, token: Token, timeline: UUID) -> tuple[Row, ...]:
        rows = self._target.state.staged.get(_ref_of(token, timeline))
        if rows is None:
            raise SinkError(f"staged rows of epoch {token.epoch} are gone")
        if len(rows) != token.rows:
            raise SinkError(f"{len(rows)} rows are staged, expected {token.rows}")
        return rows


def _read_schema(columns: str, epoch: int) -> Any:
    pa = importlib.import_module("pyarrow")
    try:
        return pa.ipc.read_schema(pa.py_buffer(unpacked(columns)))
    except (ValueError, OSError) as error:
        raise SinkError(f"the token of epoch {epoch} does not say which columns its rows have") from error


def _ref_of(token: Token, timeline: UUID) -> EpochRef:
    return EpochRef(timeline, token.generation, token.epoch, token.attempt, token.nonce)


def _fenced(ledger: LedgerState | None, owner: Owner) -> Fenced:
    found = "nobody" if ledger is None else f"generation {ledger.generation} of timeline {ledger.timeline}"
    return Fenced(f"the target belongs to {found}; this is generation {owner.generation}", checkpoint_id=0)
