"""What every ledger decides alike: who may claim a target, and whether a token fits it.

Pure decisions. A sink reads its record, asks here, and carries the answer out in one atomic act with the record's
successor (or under the lock that guards it).

`rewinds` closes a gap that epoch numbers leave open. After a rewind to epoch 4 the stale token of epoch 5 says
"after 4", just like the new one. So a prepared epoch carries the number of rewinds the ledger had seen, and a token
from before a rewind never fits again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from holdfast.core.contracts import LedgerState, OnForeign, Owner, RewindOutcome, Token
from holdfast.errors import Fenced, ForeignTimeline, SinkError

REWINDS = "rewinds"
"""Key in a prepared epoch's payload."""


@dataclass(frozen=True)
class LedgerRecord:
    """One sink's entry in a target's ledger."""

    timeline: UUID
    generation: int
    epoch: int = 0
    range_digest: str | None = None
    rewinds: int = 0
    base: int = 0
    """Added to an epoch where its number is visible to readers; not 0 when rows of an earlier timeline were kept."""
    nonce: str = ""
    """The process that claimed the target last."""
    rewound_in: int = 0
    """The generation that rewound the target last."""
    rewound_to: int = 0
    """The epoch that it was rewound to."""

    def state(self) -> LedgerState:
        """Return what the engine is told."""
        rewound = self.rewound_in, self.rewound_to
        return LedgerState(self.timeline, self.generation, self.epoch, self.range_digest, self.nonce, *rewound)

    def belongs_to(self, owner: Owner) -> bool:
        """Whether this very process claimed the target last."""
        return self.state().belongs_to(owner)

    def after(self, token: Token) -> "LedgerRecord":
        """Return the record once `token` is committed."""
        return replace(self, epoch=token.epoch, range_digest=token.range_digest)

    def rewound(self, to_epoch: int, range_digest: str | None) -> "LedgerRecord":
        """Return the record after a rewind. Never moves forward; always makes older tokens unfit."""
        noted = replace(self, rewinds=self.rewinds + 1, rewound_in=self.generation, rewound_to=to_epoch)
        return noted if to_epoch >= self.epoch else replace(noted, epoch=to_epoch, range_digest=range_digest)

    def to_json_value(self) -> dict[str, Any]:
        """Return plain values for a ledger that is a JSON document."""
        return {**self.__dict__, "timeline": str(self.timeline)}

    @classmethod
    def from_json_value(cls, value: Mapping[str, Any]) -> "LedgerRecord":
        """Read a record back; keys that are not the record's are ignored."""
        names = cls.__dataclass_fields__
        fields = {key: field for key, field in value.items() if key in names}
        return cls(**{**fields, "timeline": UUID(fields["timeline"])})


@dataclass(frozen=True)
class Claim:
    """What claiming a target comes to."""

    record: LedgerRecord
    """The record to write."""
    takes_over: UUID | None = None
    """The other timeline whose target this was, when a person allowed to take it."""


def claim(
    found: LedgerRecord | None, others: UUID | None, owner: Owner, on_foreign: OnForeign, adopt_epoch: int
) -> Claim:
    """Decide a claim. `found` is this sink's record, `others` a timeline that wrote to the target as another sink.

    Raises `Fenced` when a newer generation or another process of our own generation owns the target,
    `ForeignTimeline` when another timeline does and `on_foreign` does not say what to do about it.
    """
    if found is not None and found.timeline == owner.timeline:
        if found.generation > owner.generation:
            raise fenced(found, owner)
        if found.generation == owner.generation and found.nonce != owner.nonce:
            raise fenced(found, owner)
        return Claim(replace(found, generation=owner.generation, nonce=owner.nonce))
    foreign = found.timeline if found is not None else others
    if foreign in (None, owner.timeline):
        return Claim(LedgerRecord(owner.timeline, owner.generation, nonce=owner.nonce))
    if on_foreign is OnForeign.REFUSE:
        raise ForeignTimeline(
            f"the target was written by another timeline ({foreign}; this is {owner.timeline} of pipeline "
            f"'{owner.pipeline}'). Choose what to do with its rows: --sinks rewind removes them, adopt takes them "
            "for our own, append leaves them and writes behind them"
        )
    epoch = adopt_epoch if on_foreign is OnForeign.ADOPT else 0
    return Claim(LedgerRecord(owner.timeline, owner.generation, epoch, nonce=owner.nonce), takes_over=foreign)


def must_commit(record: LedgerRecord | None, owner: Owner, token: Token) -> bool:
    """Whether `token` is to be committed now; False when it was committed before.

    Raises `Fenced` when the target is not ours any more, `SinkError` when the token does not follow the record.
    """
    if record is None or not record.belongs_to(owner):
        raise fenced(record, owner)
    if record.epoch == token.epoch:
        # An unknown range was vouched for: by a rewind to this epoch, or by a person who adopted it.
        if record.range_digest not in (None, token.range_digest):
            raise SinkError(
                f"epoch {token.epoch} was committed here from another source range: the ledger has "
                f"{record.range_digest}, the token {token.range_digest}"
            )
        return False
    if record.epoch != token.previous or token.epoch < token.previous:
        raise SinkError(
            f"the token of epoch {token.epoch} follows epoch {token.previous}, but the ledger is at {record.epoch}"
        )
    if token.payload.get(REWINDS) != record.rewinds:
        raise SinkError(f"the token of epoch {token.epoch} was prepared before the target was rewound")
    return True


def rewind_forward_only(record: LedgerRecord | None, to_epoch: int) -> RewindOutcome:
    """Say how a rewind ends of a target from which nothing can be taken back."""
    ahead = record is not None and to_epoch < record.epoch
    return RewindOutcome.IMPOSSIBLE if ahead else RewindOutcome.DONE


def fenced(record: LedgerRecord | None, owner: Owner) -> Fenced:
    """Return the error for a target that another writer owns."""
    if record is None:
        return Fenced("the target's ledger has no entry of this timeline any more", checkpoint_id=0)
    same = (record.timeline, record.generation) == (owner.timeline, owner.generation)
    if same:
        return Fenced(
            f"the target belongs to another process of generation {record.generation} of timeline "
            f"{record.timeline}: was the store copied, and are both copies started?",
            checkpoint_id=0,
            owner={"timeline": str(record.timeline), "generation": record.generation, "nonce": record.nonce},
        )
    return Fenced(
        f"the target belongs to generation {record.generation} of timeline {record.timeline}; "
        f"this is generation {owner.generation} of {owner.timeline}",
        checkpoint_id=0,
        owner={"timeline": str(record.timeline), "generation": record.generation},
    )
