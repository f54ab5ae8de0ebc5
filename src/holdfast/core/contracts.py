"""What a sink promises the engine, and what the engine promises a sink.

One epoch at a sink: `prepare` makes its rows durable but invisible and returns what is needed to show them;
the engine seals that in the manifest; `commit` shows them, in one atomic act together with the sink's ledger.
The ledger lives in the target itself, one entry per (timeline, sink): which generation owns it, which epoch was
committed last, and which source range that epoch had. After any crash the target, not our memory, says what
happened.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from holdfast.core.sources import Materials


@dataclass(frozen=True)
class Guarantee:
    """What a sink can keep, and how, in a sentence that is shown to people."""

    exactly_once: bool
    how: str
    fences: bool = True
    """Whether the target itself refuses a writer of an older generation, on whatever machine that runs."""
    spools: bool = False
    """Whether staged rows are beside the checkpoints: who goes on from a copy of those cannot show them."""


@dataclass(frozen=True)
class Owner:
    """Who may write: one process of a timeline's newest generation."""

    pipeline: str
    timeline: UUID
    generation: int
    nonce: str = ""
    """Names the process. On a copied store two processes may have one generation: only one of them may write."""


@dataclass(frozen=True)
class EpochRef:
    """One attempt at one epoch. Every retry is a new attempt, so two attempts never share staged rows."""

    timeline: UUID
    generation: int
    epoch: int
    attempt: int
    nonce: str = ""
    """The process that stages the rows (`Owner.nonce`)."""

    def precedes(self, other: "EpochRef") -> bool:
        """Whether this is an older attempt at the same epoch, whose staged rows `other` may remove."""
        if self.timeline != other.timeline or self.epoch != other.epoch:
            return False
        if self.generation != other.generation:
            return self.generation < other.generation
        return self.nonce == other.nonce and self.attempt < other.attempt


@dataclass(frozen=True)
class Prepared:
    """What `prepare` returns: how many rows are staged, and a small JSON payload that finds them again."""

    rows: int
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Token:
    """A staged epoch of one sink, as sealed in the manifest. Commit needs nothing else."""

    epoch: int
    generation: int
    attempt: int
    previous: int
    """The epoch the sink's ledger stands at before this commit; 0 when it never committed."""
    rows: int
    range_digest: str
    """Digest of the source range: a sink may skip an epoch only if the range is the same."""
    payload: dict[str, Any] = field(default_factory=dict)
    """The sink's own, with the form of the rows (`core.forms`): it is shown as it was prepared."""
    nonce: str = ""
    """The process that staged the rows; empty in tokens that were sealed before processes had one."""

    def to_json_value(self) -> dict[str, Any]:
        """Return plain values for the manifest."""
        return asdict(self)

    @classmethod
    def from_json_value(cls, value: Mapping[str, Any]) -> "Token":
        """Read a token from a manifest."""
        return cls(**value)


@dataclass(frozen=True)
class LedgerState:
    """What the target says: who owns it and what was committed last. Epoch 0 means nothing yet."""

    timeline: UUID
    generation: int
    epoch: int
    range_digest: str | None = None
    nonce: str = ""
    """The process that claimed the target last; empty when it was claimed before processes had one."""
    rewound_in: int = 0
    """The generation that rewound the target last; 0 when none did, or when that was before this was noted."""
    rewound_to: int = 0
    """The epoch it was rewound to: whatever earlier generations sealed after that was given up."""

    def gives_up(self, timeline: UUID | None, generation: int | None, epoch: int) -> bool:
        """Whether a rewind of this target gave up what was sealed there: the word that outlives a lost fence."""
        return timeline == self.timeline and (generation or 0) < self.rewound_in and epoch > self.rewound_to

    def belongs_to(self, owner: Owner) -> bool:
        """Whether this very process claimed the target last."""
        ours = (owner.timeline, owner.generation, owner.nonce)
        return (self.timeline, self.generation, self.nonce) == ours


class CommitOutcome(StrEnum):
    """How a commit ended. A third answer, that nobody knows, is the exception `UnknownOutcome`."""

    DONE = "done"
    ALREADY_DONE = "already done"


class RewindOutcome(StrEnum):
    """How a rewind ended."""

    DONE = "done"
    IMPOSSIBLE = "impossible"


class OnForeign(StrEnum):
    """What a person chose for a target that another timeline wrote to."""

    REFUSE = "refuse"
    REWIND = "rewind"
    """Remove what the other timeline wrote, then begin at epoch 0."""
    ADOPT = "adopt"
    """Take what is there for our own output up to the epoch we go on from."""
    APPEND = "append"
    """Leave what is there and begin at epoch 0 behind it."""


class Rows(Protocol):
    """The rows of one epoch for one sink, computed once and lent to `prepare` only."""

    @property
    def count(self) -> int:
        """How many rows there are. Known before `prepare`; never 0: an epoch without rows skips the sink."""
        ...

    @property
    def small(self) -> bool:
        """Whether the rows are in this process already, so that writing them from here is quicker than with Spark."""
        ...

    def arrow(self) -> Any:
        """Return a `pyarrow.Table`. For an epoch that is not small this collects it: avoid."""
        ...

    def dataframe(self) -> Any:
        """Return a cached `pyspark.sql.DataFrame`; actions on it do not compute the epoch again."""
        ...


@dataclass(frozen=True)
class SinkContext:
    """What a sink is told about its place in the pipeline, once, before anything else."""

    name: str
    pipeline: str
    schema: Any
    """The rows' `pyarrow.Schema`."""
    output_mode: str
    """`append`, or `update` (a row replaces the earlier one with its key)."""
    spool: str
    """A local directory for sinks whose target cannot hold staged rows; survives a restart on this machine."""
    spool_copies: Materials | None = None
    """Where staged rows must be as well, because the checkpoints are not on a disk of this machine."""


class Sink(Protocol):
    """A target that rows go to.

    Methods are called from worker threads, never two at once for one sink; only `ledger` is also asked beside a call
    that does not return.

    Errors: `RetryableSinkError` = try again later; `UnknownOutcome` = ask `ledger` and go by its answer;
    `Fenced` = another generation owns the target, stop; anything else stops the pipeline and needs a person, so
    rows that the target will not take should be refused at `prepare`, before the epoch is decided.
    """

    guarantee: Guarantee

    def identity(self) -> dict[str, Any]:
        """Return what makes this sink this sink (kind, target, key, mode), without credentials."""
        ...

    def bind(self, context: SinkContext) -> None:
        """Take the context, refuse what cannot work (a key column that is not there, a mode without key)."""
        ...

    def can_claim(
        self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0
    ) -> LedgerState:
        """Return the ledger that `open` would leave behind, without changing or creating anything.

        Raises what `open` would raise: `Fenced`, `ForeignTimeline`, and `SinkError` for a target that these rows
        cannot be written to, or that cannot be taken over as `on_foreign` says. Called after `bind` and before the
        fence is sealed, with the generation that the fence will have: a start that is refused has changed nothing.
        """
        ...

    def can_rewind(self, to_epoch: int) -> RewindOutcome:
        """Return how `rewind` would end, without changing anything. Called after `bind`, before `open`."""
        ...

    def open(self, owner: Owner, *, on_foreign: OnForeign = OnForeign.REFUSE, adopt_epoch: int = 0) -> LedgerState:
        """Claim the target: write timeline and generation into its ledger, atomically, and return the ledger.

        Creates target and ledger when missing. A ledger of this sink with a higher generation: `Fenced`. One of
        another timeline: `ForeignTimeline`, unless a person chose otherwise. Called once per start, after the
        fence; afterwards commits of older generations fail.
        """
        ...

    def prepare(self, rows: Rows, ref: EpochRef) -> Prepared:
        """Make rows durable (flushed on local disks) but invisible. Checks types and constraints of the target.

        Not called for an epoch without rows. After a crash the same epoch may be prepared again, as a higher
        attempt, while staged rows of the dead attempt still lie around.
        """
        ...

    def commit(self, token: Token) -> CommitOutcome:
        """Show prepared rows. One atomic act: the ledger's generation is ours AND its epoch is `token.previous`.

        The rows are shown as they were prepared (columns, types, mode, key: the token's form), not as the pipeline
        is defined now.

        Idempotent: when the ledger already stands at `token.epoch` with the same range it is ALREADY_DONE. Checks
        the token's row count (and files) against what is staged. The token may come from an older generation's
        `prepare`: it was sealed, so it is committed by whoever owns the target now.
        """
        ...

    def abort(self, ref: EpochRef) -> None:
        """Remove staged rows of the same epoch with a lower (generation, attempt); never committed rows."""
        ...

    def staged(self, token: Token) -> Any:
        """Return the rows of a sealed token as a `pyarrow.Table` with the columns and types of its form. Reads only.

        For a person who wants them elsewhere because the target will not show them. Called after `bind`, without
        `open`, in a process that did not prepare them: the token alone says where they are. Ask `ledger` first: what
        comes of a token that is committed is not promised. `SinkError` when the rows are gone, damaged, or not as
        many as the token says.
        """
        ...

    def ledger(self) -> LedgerState | None:
        """Ask the target itself; None when it has no ledger for this sink. Reads only; callable before `open`."""
        ...

    def rewind(self, to_epoch: int) -> RewindOutcome:
        """Make the target look as it did after `to_epoch` and move the ledger there, or say that it cannot.

        After DONE a stale token of a later epoch does not fit the ledger any more, and the ledger says which
        generation rewound it and to which epoch. Also asked of a target that is not ahead, which only notes that.
        """
        ...

    def close(self) -> None:
        """Let go of connections. The sink is not used afterwards."""
        ...
