"""Start and recovery, in the order that makes them safe.

    choose    read-only: the newest checkpoint that holds, as the store and the ledgers of the targets tell
    ask       read-only: whether every sink can be claimed and brought to where we go on from, and every source read
    fence     seal it again under the next id and a higher generation: from now on we own the store
    claim     every sink: our generation goes into its ledger
    settle    commit what was sealed, rewind who is beyond what is known
    replay    epochs that were decided or shown after the chosen checkpoint: their recorded ranges

Whoever refuses does so before the fence: then nothing was changed anywhere. Every later step can be repeated after a
crash.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.core.contracts import LedgerState, OnForeign, Owner, RewindOutcome, Sink
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.coordinator import PipelineFacts, RecordedEpoch, SinkPosition
from holdfast.engine.delivery import Delivery, DeliverySettings, raise_first
from holdfast.engine.events import Observer, step
from holdfast.engine.fencing import TakeOver, build_fence, decide, followed_by, process_nonce, seal_fence
from holdfast.engine.identity import OnChange, compare
from holdfast.engine.ledgers import Ledgers
from holdfast.engine.records import RangeLookup, Replay
from holdfast.engine.recovery import APPROVED, RecoveryDecision
from holdfast.engine.settling import Settler, Settling, only_adopt
from holdfast.engine.witness import NO_WITNESS, Witness
from holdfast.errors import ApprovalNeeded, ForeignTimeline, HoldfastError, PipelineError, SinkError
from holdfast.stores.store import DurableCheckpointStore

Result = TypeVar("Result")
_ROUNDS = 5
"""How often a start decides anew because others act at the same time."""


@dataclass(frozen=True)
class StartOptions:
    """What a person said about this start."""

    fresh: bool = False
    from_id: int | None = None
    on_foreign: OnForeign = OnForeign.REFUSE
    on_change: OnChange = OnChange.APPROVE
    moved: bool = False
    """Whether the store was brought here from another machine: what sinks had spooled there is not here."""


@dataclass(frozen=True)
class Intent(TakeOver):
    """What a start is about to do, when nothing was changed yet."""

    owner: Owner
    settler: Settler
    settling: Settling
    ledgers: Ledgers
    """What the targets said before anything was decided."""

    @property
    def epoch(self) -> int:
        """The epoch of the chosen checkpoint; 0 on a fresh start."""
        return self.decision.chosen.epoch if self.decision.chosen else 0


AskOthers = Callable[[Intent], None]
"""Refuses a start, by an error, that somebody else than the sinks cannot go along with. Changes nothing."""


FactsFor = Callable[[CheckpointManifest | None], PipelineFacts]
"""The checkpoint to go on from -> the pipeline as it fits that one; an error where it cannot. Changes nothing."""


@dataclass(frozen=True)
class Start:
    """Everything decided: where to go on from, who we are, where the sinks stand, what to replay first."""

    fence: CheckpointManifest
    chosen: CheckpointManifest | None
    owner: Owner
    positions: dict[str, SinkPosition]
    replays: tuple[RecordedEpoch, ...]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The epoch of the chosen checkpoint; 0 on a fresh start."""
        return self.chosen.epoch if self.chosen else 0


class Startup:
    """One start of a pipeline."""

    def __init__(
        self,
        pipeline: str,
        store: DurableCheckpointStore,
        sinks: Mapping[str, Sink],
        facts: PipelineFacts,
        options: StartOptions,
        delivery: Delivery,
        settings: DeliverySettings,
        observer: Observer,
        clock: Clock,
        witness: Witness = NO_WITNESS,
        fit: FactsFor | None = None,
    ) -> None:
        self._observer, self._witness, self._fit = observer, witness, fit
        self._pipeline, self._store, self._sinks, self._facts = pipeline, store, sinks, facts
        self._options, self._delivery, self._settings, self._clock = options, delivery, settings, clock

    def run(
        self, range_elsewhere: RangeLookup = lambda epoch: (), ask_others: AskOthers = lambda intent: None
    ) -> Start:
        """Go through all the steps and return what was decided.

        `range_elsewhere` knows of ranges outside the store, `ask_others` refuses what cannot be read or restored.
        """
        options = self._options
        for _ in range(_ROUNDS):
            with self._step(0, "fence"):
                intent = seal_fence(
                    self._store, partial(self._propose, options, range_elsewhere, ask_others), self._witness
                )
            with self._step(intent.epoch, "claim"):
                ledgers = self._claim(intent)
            others = _otherwise(intent, ledgers)
            if not others:
                break
            # Whom we replaced has just shown what it had sealed. What a person said stands in the fence by now.
            options = replace(options, fresh=False, from_id=None)
        else:
            raise SinkError(f"sink '{others[0]}' stands elsewhere whenever it is claimed than when it was asked")
        with self._step(intent.epoch, "settle"):
            ledgers = self._settle(intent, ledgers)
            fence = self._recorded(intent.fence, ledgers)
        positions = {name: SinkPosition(ledger.epoch, ledger.range_digest) for name, ledger in ledgers.items()}
        replays, chosen = intent.settling.replay.epochs, intent.decision.chosen
        return Start(fence, chosen, intent.owner, positions, replays, self._report(intent))

    def ask(
        self, range_elsewhere: RangeLookup = lambda epoch: (), ask_others: AskOthers = lambda intent: None
    ) -> Intent:
        """Return what `run` would do now, or raise what it would raise. Nothing is changed."""
        return self._propose(self._options, range_elsewhere, ask_others)

    def _step(self, epoch: int, name: str, sink: str | None = None) -> contextlib.AbstractContextManager[object]:
        return step(self._observer, self._clock, epoch, f"recovery.{name}", sink)

    # ask

    def _propose(self, options: StartOptions, elsewhere: RangeLookup, ask_others: AskOthers) -> Intent:
        """Decide, and ask everybody whether that can be carried out. What cannot is refused here.

        A refusal is true only of a world that stood still meanwhile: when it did not, we decide again.
        """
        rounds = 0
        while True:
            rounds += 1
            with self._step(0, "ask"):
                newest_id, ledgers = self._store.newest_id(), self._ledgers()
                try:
                    return self._intent(options, ledgers, elsewhere, ask_others)
                except HoldfastError:
                    stood_still = (self._store.newest_id(), self._ledgers()) == (newest_id, ledgers)
                    if stood_still or rounds == _ROUNDS:
                        raise
        raise AssertionError("unreachable")

    def _intent(
        self, options: StartOptions, ledgers: Ledgers, elsewhere: RangeLookup, ask_others: AskOthers
    ) -> Intent:
        decision = decide(self._store, self._witness, fresh=options.fresh, from_id=options.from_id, ledgers=ledgers)
        fence = build_fence(self._store, decision, self._check_identity(decision), self._clock)
        owner = self._owner(fence)
        settler = Settler(self._store, decision, ledgers, elsewhere, self._staged_here())
        settling = settler.settle(self._claimable(owner, fence.epoch))
        self._refuse_what_cannot_be_rewound(settling)
        intent = Intent(followed_by(fence, settling.replay.sequel), decision, owner, settler, settling, ledgers)
        ask_others(intent)
        return intent

    def _ledgers(self) -> Ledgers:
        found = self._on_sinks("ask", 0, lambda sink: sink.ledger())
        return Ledgers({name: ledger for name, ledger in found.items() if ledger is not None})

    def _owner(self, fence: CheckpointManifest) -> Owner:
        assert fence.timeline is not None
        assert fence.generation is not None
        return Owner(self._pipeline, fence.timeline, fence.generation, process_nonce(fence))

    def _claimable(self, owner: Owner, epoch: int) -> dict[str, LedgerState]:
        """Return what every ledger will say once it is claimed."""
        on_foreign = self._options.on_foreign
        try:
            return self._on_sinks(
                "can_claim", epoch, lambda sink: sink.can_claim(owner, on_foreign=on_foreign, adopt_epoch=epoch)
            )
        except ForeignTimeline as error:
            if epoch == 0:
                raise
            raise ForeignTimeline(f"{error}. {only_adopt(epoch)}") from error

    def _staged_here(self) -> dict[str, bool]:
        """Whether rows staged before this start can be shown; if not, the replay computes them again."""
        return {name: not (self._options.moved and sink.guarantee.spools) for name, sink in self._sinks.items()}

    def _refuse_what_cannot_be_rewound(self, settling: Settling) -> None:
        ahead = [name for name, settlement in settling.sinks.items() if settlement.ahead]
        to_epoch = settling.replay.reached
        outcomes = self._on_sinks("can_rewind", to_epoch, lambda sink: sink.can_rewind(to_epoch), ahead)
        for name, outcome in outcomes.items():
            if outcome is RewindOutcome.IMPOSSIBLE:
                raise _cannot_be_rewound(name, settling.sinks[name].found, settling.replay)

    def _on_sinks(
        self, action: str, epoch: int, work: Callable[[Sink], Result], names: Iterable[str] | None = None
    ) -> dict[str, Result]:
        """Do the same with every sink, each in its own thread; raise the worst of what they raise."""

        def reported(name: str, sink: Sink, attempt: int) -> Result:
            with self._step(epoch, action, name):
                return work(sink)

        chosen = list(self._sinks if names is None else names)
        results, failures = self._delivery.on_all(chosen, epoch, action, self._settings.commit_seconds, reported)
        raise_first(failures)
        return results

    def _check_identity(self, decision: RecoveryDecision) -> Mapping[str, Any]:
        chosen = decision.chosen
        if self._fit is not None:
            self._facts = self._fit(chosen)
        if chosen is None or chosen.identity is None:
            return {}
        change = compare(chosen.identity, self._facts.as_sealed or self._facts.identity)
        difference = "\n".join(f"  - {line}" for line in change.lines())
        if change.impossible:
            raise PipelineError(
                f"pipeline '{self._pipeline}' cannot go on from checkpoint {chosen.checkpoint_id}:\n{difference}\n"
                "Undo the change, or start over with --fresh"
            )
        approved = self._facts.fingerprint in _approvals(chosen)
        if change.questionable and not approved and self._options.on_change is not OnChange.ALLOW:
            fingerprint = f"{self._facts.fingerprint:016x}" if self._options.on_change is OnChange.APPROVE else None
            hint = (
                f"approve it with: holdfast approve {self._store.describe()} {fingerprint}"
                if fingerprint
                else "on_change is 'reject': undo it, or start over with --fresh"
            )
            raise ApprovalNeeded(
                f"pipeline '{self._pipeline}' changed since checkpoint {chosen.checkpoint_id}:\n{difference}\n"
                f"Its state may not fit any more; {hint}",
                fingerprint=fingerprint,
                changes=change.lines(),
            )
        # An approval stays until an epoch is sealed by the pipeline that was approved.
        plan: dict[str, Any] = {APPROVED: [f"{value:016x}" for value in sorted(_approvals(chosen))]}
        plan["changes"] = change.lines()
        return {key: value for key, value in plan.items() if value}

    # act

    def _claim(self, intent: Intent) -> dict[str, LedgerState]:
        options, owner, epoch = self._options, intent.owner, intent.fence.epoch
        return self._on_sinks(
            "claim", epoch, lambda sink: sink.open(owner, on_foreign=options.on_foreign, adopt_epoch=epoch)
        )

    def _settle(self, intent: Intent, ledgers: Mapping[str, LedgerState]) -> dict[str, LedgerState]:
        """Bring every sink to where the replay expects it: first what is sealed, in order, then what has to go."""
        settled, sinks = dict(ledgers), intent.settling.sinks
        owed = sorted({token.epoch for settlement in sinks.values() for token in settlement.commits})
        for epoch in owed:
            tokens = {name: token for name, s in sinks.items() for token in s.commits if token.epoch == epoch}
            raise_first(self._delivery.commit(tokens, intent.owner, partial(self._step, epoch, "commit")))
            for name, token in tokens.items():
                settled[name] = replace(settled[name], epoch=epoch, range_digest=token.range_digest)
        replay = intent.settling.replay
        going_back = [name for name, settlement in sinks.items() if settlement.rewind_to is not None]
        if going_back:
            settled |= self._rewound(going_back, settled, replay)
        for name, ledger in settled.items():
            intent.settler.refuse_other_range(name, ledger)
        return settled

    def _rewound(
        self, names: Iterable[str], ledgers: Mapping[str, LedgerState], replay: Replay
    ) -> dict[str, LedgerState]:
        """Rewind sinks; one that is not ahead only takes note that what followed was given up."""
        to_epoch = replay.reached
        outcomes = self._on_sinks("rewind", to_epoch, lambda sink: (sink.rewind(to_epoch), sink.ledger()), names)
        after = {}
        for name, (outcome, ledger) in outcomes.items():
            ahead = ledgers[name].epoch > to_epoch
            if ahead and (outcome is RewindOutcome.IMPOSSIBLE or ledger is None):
                raise _cannot_be_rewound(name, ledgers[name], replay)
            after[name] = ledger or ledgers[name]
        return after

    def _recorded(self, fence: CheckpointManifest, ledgers: Mapping[str, LedgerState]) -> CheckpointManifest:
        """Write what was done about the sinks into the fence, so that it reads as true."""
        settled = [name for name in fence.sink_epochs if name in ledgers]
        if not settled:
            return fence
        update = {
            "sink_epochs": {name: min(ledgers[name].epoch, fence.epoch) for name in settled},
            "sink_commit_statuses": dict.fromkeys(settled, SinkCommitStatus.COMMITTED),
        }
        return self._store.update_manifest(fence.model_copy(update=update, deep=True))

    def _report(self, intent: Intent) -> dict[str, Any]:
        decision, settling = intent.decision, intent.settling
        return {
            **decision.report.to_json_value(),
            "fence_id": intent.fence.checkpoint_id,
            "epoch": intent.epoch,
            "generation": intent.owner.generation,
            "timeline": str(intent.owner.timeline),
            "abandons": list(decision.abandons),
            "sinks": {name: settlement.report for name, settlement in sorted(settling.sinks.items())},
            "replays": [{"epoch": r.epoch, "found_in": r.found_in} for r in settling.replay.epochs],
            "sealed_ms": decision.chosen.timestamp_ms if decision.chosen else None,
            "state_bytes": self._state_bytes(decision.chosen),
            "host": socket.gethostname(),
            "process": os.getpid(),
        }

    def _state_bytes(self, chosen: CheckpointManifest | None) -> int:
        """Return how much state there is to restore: with the time it took, that tells how long the next takes."""
        return sum(file.size for file in self._store.state_reader.catalog(chosen).files) if chosen else 0


def _approvals(manifest: CheckpointManifest) -> set[int]:
    found = (manifest.recovery or {}).get(APPROVED, [])
    return {int(value, 16) for value in found}


def _otherwise(intent: Intent, ledgers: Mapping[str, LedgerState]) -> list[str]:
    """Return the sinks that do not stand any more where they stood when they were asked."""
    asked = {name: settlement.found for name, settlement in intent.settling.sinks.items()}
    return [
        name
        for name, ledger in ledgers.items()
        if (ledger.epoch, ledger.range_digest) != (asked[name].epoch, asked[name].range_digest)
    ]


def _cannot_be_rewound(name: str, ledger: LedgerState, replay: Replay) -> SinkError:
    to_epoch = replay.reached
    why = "the source ranges in between are lost" if replay.lost else "what followed was given up"
    return SinkError(
        f"sink '{name}' shows epoch {ledger.epoch}, the pipeline goes on from epoch {to_epoch} "
        f"because {why}, and this sink cannot be rewound. Going on would show rows of epochs {to_epoch + 1} "
        f"to {ledger.epoch} twice. Restore the target to epoch {to_epoch} by hand, or start over with "
        "--fresh and --sinks append"
    )
