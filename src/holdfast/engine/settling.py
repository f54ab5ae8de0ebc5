"""What is to be done about each sink at a start, decided before anything is touched.

Pure: from what the store holds and what the ledgers say come the epochs to commit, the sinks to rewind, and every
reason to refuse. The same is asked of the ledgers before the fence and carried out by them after it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.core.contracts import LedgerState, Token
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.generations import Overruled
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.coordinator import RecordedEpoch
from holdfast.engine.ledgers import Ledgers
from holdfast.engine.records import RangeLookup, Replay, find_replay, sealed_range, sealed_tokens
from holdfast.engine.recovery import RecoveryDecision
from holdfast.errors import ForeignTimeline, PipelineError, ReplayMismatch, SinkBehind, SinkError
from holdfast.stores.store import DurableCheckpointStore


@dataclass(frozen=True)
class Settlement:
    """What one sink needs before the pipeline goes on, in this order."""

    found: LedgerState
    commits: tuple[Token, ...] = ()
    """What is sealed for it and not shown yet."""
    rewind_to: int | None = None
    """The epoch that it is told of as the one the pipeline went back to; None when nothing was given up."""
    report: str = ""

    @property
    def ahead(self) -> bool:
        """Whether rows have to go."""
        return self.rewind_to is not None and self.found.epoch > self.rewind_to

    @property
    def reached(self) -> LedgerState:
        """Where the ledger will stand, as far as that can be told. A rewound one's range is for the target to say."""
        if self.rewind_to is not None and self.ahead:
            return replace(self.found, epoch=self.rewind_to, range_digest=None)
        if self.commits:
            last = self.commits[-1]
            return replace(self.found, epoch=last.epoch, range_digest=last.range_digest)
        return self.found


@dataclass(frozen=True)
class Settling:
    """Everything that a start will do about the sinks, and what it will replay."""

    replay: Replay
    sinks: Mapping[str, Settlement] = field(default_factory=dict)


class Settler:
    """Decides about the sinks of one start.

    `before` are the ledgers as the last start left them, `staged_here` says whether what a sink staged then can be
    shown.
    """

    def __init__(
        self,
        store: DurableCheckpointStore,
        decision: RecoveryDecision,
        before: Ledgers,
        range_elsewhere: RangeLookup,
        staged_here: Mapping[str, bool],
    ) -> None:
        self._store, self._decision, self._elsewhere = store, decision, range_elsewhere
        self._before, self._staged_here = before, staged_here
        chosen = decision.chosen
        self._tokens = (sealed_tokens(store, chosen) or {}) if chosen else {}

    def _settled_since(self, name: str) -> bool:
        """Whether what came after the checkpoint that we go back to shows that the sink is owed nothing any more.

        It says so, or went on without the sink, which it could do for no other reason. A writer that came too late
        did not go on from there: it may never have heard of the sink.
        """
        chosen, settled = self._decision.chosen, (None, SinkCommitStatus.COMMITTED)
        assert chosen is not None
        manifests = list(self._store.manifests())
        overruled = Overruled.told_by(manifests, {manifest.checkpoint_id for manifest in manifests})
        return any(
            later.sink_commit_statuses.get(name) in settled
            for later in manifests
            if later.checkpoint_id > chosen.checkpoint_id
            and later.checkpoint_id not in overruled
            and later.timeline == chosen.timeline
        )

    def settle(self, ledgers: Mapping[str, LedgerState]) -> Settling:
        """Return what to do, or raise why the pipeline cannot go on. Changes nothing."""
        replay = find_replay(self._store, self._decision, ledgers, self._elsewhere)
        chosen = self._decision.chosen
        if chosen is not None:
            refuse_removed(chosen, replay.epochs, ledgers.keys(), self._settled_since)
        settled = {name: self._settlement(name, ledger, replay) for name, ledger in ledgers.items()}
        for name, settlement in settled.items():
            self._refuse_other_branch(name, settlement.reached)
            self.refuse_other_range(name, settlement.reached)
        return Settling(replay, settled)

    def _settlement(self, name: str, ledger: LedgerState, replay: Replay) -> Settlement:
        chosen = self._decision.chosen
        found = self._brought(name, ledger, chosen, self._tokens.get(name))
        for record in replay.epochs:
            token = (record.tokens or {}).get(name)
            # What does not fit any more is computed again.
            if token is not None and record.decided and self._staged_here.get(name) and _fits(token, ledger):
                found = _with_commit(name, found, token)
        if replay.sequel.given_up_after is None:
            return found
        back = replace(found, rewind_to=replay.reached)
        return replace(back, report=f"rewound from epoch {ledger.epoch} to {replay.reached}") if back.ahead else back

    def _brought(
        self, name: str, ledger: LedgerState, chosen: CheckpointManifest | None, token: Token | None
    ) -> Settlement:
        """Bring a sink to the chosen checkpoint; one that is ahead waits for the replay."""
        epoch = chosen.epoch if chosen else 0
        expected = chosen.sink_epochs.get(name) if chosen else None
        if ledger.epoch > epoch:
            return Settlement(ledger, report=f"ahead: at epoch {ledger.epoch}")
        before = self._before.states.get(name)
        if before is not None and before.timeline != ledger.timeline and None not in (chosen, expected):
            refuse_foreign(name, before, ledger, epoch)
        if expected is None:
            joins = "new" if ledger.epoch == 0 else f"joins again after epoch {ledger.epoch}"
            return Settlement(ledger, report=joins)
        nothing = Settlement(ledger, report="has everything")
        if token is not None:
            found = _with_commit(name, nothing, token)
            if found.commits and not _fits(token, ledger):
                raise SinkError(
                    f"sink '{name}' is owed epoch {token.epoch}, but what was prepared for it is from before "
                    f"generation {ledger.rewound_in} rewound the target: the rows cannot be shown any more. Go back "
                    f"with --from to a checkpoint before epoch {token.epoch}"
                )
            return found
        if ledger.epoch < expected:
            raise _gap(name, ledger.epoch, expected)
        return nothing

    def _refuse_other_branch(self, name: str, reached: LedgerState) -> None:
        """Refuse a sink that was away while the pipeline went back, and will keep rows of what was given up."""
        before = self._before.states.get(name)
        if before is None or before.timeline != self._decision.timeline:
            return
        common = self._decision.branches.common_until(before)
        if min(before.epoch, reached.epoch) > common:
            raise ReplayMismatch(
                f"sink '{name}' was away when the pipeline went back to epoch {common}, and shows epochs "
                f"{common + 1} to {before.epoch} of what was given up then. {_way_out(name, common)}"
            )

    def refuse_other_range(self, name: str, ledger: LedgerState) -> None:
        """Refuse a sink that stands on another branch: an epoch of that number was decided twice."""
        chosen = self._decision.chosen
        expected: str | None = None  # What is ahead is compared when it is replayed.
        if chosen is not None and ledger.epoch == chosen.epoch:
            expected = next((token.range_digest for token in self._tokens.values()), None)
        elif chosen is not None and 0 < ledger.epoch < chosen.epoch and name not in chosen.sink_epochs:
            expected = sealed_range(self._store, self._decision, ledger.epoch)
        if None not in (expected, ledger.range_digest) and expected != ledger.range_digest:
            raise ReplayMismatch(
                f"sink '{name}' has epoch {ledger.epoch}, but of another source range than the checkpoint: going on "
                f"would lose rows or show them twice. {_way_out(name, ledger.epoch - 1)}"
            )


def refuse_foreign(name: str, before: LedgerState, claimed: LedgerState, epoch: int) -> None:
    """Refuse to go on in the middle of what another timeline left, unless a person took its rows for ours."""
    if claimed.epoch != epoch:
        raise ForeignTimeline(
            f"sink '{name}': the target was written by another timeline ({before.timeline}; this is "
            f"{claimed.timeline}). {only_adopt(epoch)}"
        )


def only_adopt(epoch: int) -> str:
    """Say what can be done about a foreign target when the pipeline does not begin anew."""
    return (
        f"This start goes on from epoch {epoch}, so of these only adopt is possible, and right only if the target "
        "shows exactly what this pipeline gave until then. If the other timeline is a fresh start of this pipeline "
        "whose record is damaged, start over with --fresh"
    )


def _fits(token: Token, ledger: LedgerState) -> bool:
    """Whether no rewind of the target made unfit what was prepared for it before."""
    return token.generation >= ledger.rewound_in


def _way_out(name: str, epoch: int) -> str:
    return (
        f"Restore the target to epoch {epoch}, or give the sink another name and an empty target, after "
        f"'holdfast resolve --sink {name} --discard' if an epoch is still owed to the old name"
    )


def _with_commit(name: str, before: Settlement, token: Token) -> Settlement:
    """Add the commit of what was sealed, unless the sink shows it."""
    at = before.reached.epoch
    if at >= token.epoch:
        return before
    if at != token.previous:
        raise _gap(name, at, token.previous)
    return replace(before, commits=(*before.commits, token), report=f"committed epoch {token.epoch}")


def refuse_removed(
    chosen: CheckpointManifest,
    replays: Iterable[RecordedEpoch],
    sinks: Iterable[str],
    settled_since: Callable[[str], bool] = lambda name: False,
) -> None:
    """Refuse to go on without a sink that is owed an epoch."""
    present = set(sinks)
    for name, status in chosen.sink_commit_statuses.items():
        if name not in present and status != SinkCommitStatus.COMMITTED and not settled_since(name):
            raise PipelineError(
                f"sink '{name}' was removed from the pipeline, but epoch {chosen.epoch} is sealed and not known "
                f"to be shown there ({status}). Start once with the sink, or give the epoch up with "
                f"'holdfast resolve --sink {name} --epoch {chosen.epoch} --discard', and go on from that with a "
                "plain start"
            )
    for record in replays:
        for name in sorted(record.owed - present):
            raise PipelineError(
                f"sink '{name}' was removed from the pipeline, but epoch {record.epoch} is to be replayed and "
                "not known to be shown there. Start once with the sink"
            )


def _gap(name: str, found: int, expected: int) -> Exception:
    if found > expected:
        return ReplayMismatch(
            f"sink '{name}' stands at epoch {found}, but what is sealed for it follows its epoch {expected}: "
            "going on would lose rows or show them twice. Was the checkpoint abandoned before?"
        )
    back = f"go back with --from to a checkpoint of epoch {found}; if none is left, start over with --fresh"
    back = back if found else "start over with --fresh"
    return SinkBehind(
        f"sink '{name}' stands at epoch {found}, but epoch {expected} was committed there: epochs {found + 1} to "
        f"{expected} are missing from the target (was it restored from a backup?). Bring the target to epoch "
        f"{expected}, or {back}"
    )
