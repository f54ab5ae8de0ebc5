"""Start and recovery, in the order that makes them safe.

    choose    read-only: the newest checkpoint that holds, and what the sinks will need
    fence     seal it again under the next id and a higher generation: from now on we own the store
    claim     every sink: our generation goes into its ledger
    settle    ask every sink where it stands: commit what was sealed, refuse gaps, rewind who is beyond what is known
    replay    epochs that were decided or shown after the chosen checkpoint: their recorded ranges

Nothing is committed, aborted or rewound before the fence is sealed. Every step can be repeated after a crash.
"""

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.clock import Clock
from holdfast.core.contracts import LedgerState, OnForeign, Owner, RewindOutcome, Sink, Token
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.engine.coordinator import PipelineFacts, RecordedEpoch, SinkPosition
from holdfast.engine.delivery import Delivery, DeliverySettings, raise_first
from holdfast.engine.events import Observer, step
from holdfast.engine.fencing import TakeOver, build_fence, process_nonce, take_over
from holdfast.engine.identity import OnChange, compare
from holdfast.engine.records import RangeLookup, Replay, find_replay, sealed_range, sealed_tokens
from holdfast.engine.recovery import APPROVED, RecoveryDecision
from holdfast.engine.witness import NO_WITNESS, Witness
from holdfast.errors import ApprovalNeeded, PipelineError, ReplayMismatch, SinkBehind, SinkError
from holdfast.stores.store import DurableCheckpointStore


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
    ) -> None:
        self._observer, self._witness = observer, witness
        self._pipeline, self._store, self._sinks, self._facts = pipeline, store, sinks, facts
        self._options, self._delivery, self._settings, self._clock = options, delivery, settings, clock
        self._actions: dict[str, str] = {}
        self._owner: Owner

    def run(self, range_elsewhere: RangeLookup = lambda epoch: None) -> Start:
        """Go through all the steps and return what was decided."""
        with self._step(0, "fence"):
            taken = take_over(
                self._store,
                fresh=self._options.fresh,
                from_id=self._options.from_id,
                plan=self._check_identity,
                clock=self._clock,
                witness=self._witness,
            )
        fence, decision = taken.fence, taken.decision
        assert fence.timeline is not None
        assert fence.generation is not None
        self._owner = owner = Owner(self._pipeline, fence.timeline, fence.generation, process_nonce(fence))
        with self._step(fence.epoch, "claim"):
            ledgers = self._claim(fence.epoch)
        with self._step(fence.epoch, "settle"):
            replay = find_replay(self._store, decision, ledgers, range_elsewhere)
            if replay.lost:
                fence = self._give_up_the_rest(taken, replay)
            self._settle(decision, replay, ledgers)
            fence = self._recorded(fence, ledgers)
        positions = {name: SinkPosition(ledger.epoch, ledger.range_digest) for name, ledger in ledgers.items()}
        report = self._report(taken, owner, replay.epochs)
        return Start(fence, decision.chosen, owner, positions, replay.epochs, report)

    def _step(self, epoch: int, name: str, sink: str | None = None) -> contextlib.AbstractContextManager[object]:
        return step(self._observer, self._clock, epoch, f"recovery.{name}", sink)

    # choose

    def _check_identity(self, decision: RecoveryDecision) -> Mapping[str, Any]:
        chosen = decision.chosen
        if chosen is None or chosen.identity is None:
            return {}
        change = compare(chosen.identity, self._facts.identity)
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

    # claim

    def _claim(self, epoch: int) -> dict[str, LedgerState]:
        def claim(name: str, sink: Sink, attempt: int) -> LedgerState:
            with self._step(epoch, "claim", name):
                return sink.open(self._owner, on_foreign=self._options.on_foreign, adopt_epoch=epoch)

        ledgers, failures = self._delivery.on_all(
            list(self._sinks), epoch, "claim", self._settings.commit_seconds, claim
        )
        raise_first(failures)
        return ledgers

    # settle

    def _give_up_the_rest(self, taken: TakeOver, replay: Replay) -> CheckpointManifest:
        """Seal what will be replayed and that the rest is lost, before sinks are rewound: it must not come back."""
        decision = replace(taken.decision, newest_id=taken.fence.checkpoint_id, sequel=replay.sequel)
        plan = self._check_identity(decision)
        fence = self._store.save(build_fence(self._store, decision, plan, self._clock))
        self._witness.record(fence)
        return fence

    def _settle(self, decision: RecoveryDecision, replay: Replay, ledgers: dict[str, LedgerState]) -> None:
        """Bring every sink to where the replay expects it."""
        chosen = decision.chosen
        tokens = (sealed_tokens(self._store, chosen) or {}) if chosen else {}
        if chosen is not None:
            self._refuse_removed(chosen, replay.epochs)
        for name, ledger in ledgers.items():
            ledgers[name] = self._brought(name, ledger, chosen, tokens.get(name))
        for record in replay.epochs:
            for name, token in (record.tokens or {}).items():
                if record.decided and self._staged_here(name) and ledgers[name].epoch < token.epoch:
                    ledgers[name] = self._shown(name, token, ledgers[name])
        for name, ledger in ledgers.items():
            if ledger.epoch > replay.reached:
                ledgers[name] = self._rewound(name, ledger, replay)
        for name, ledger in ledgers.items():
            self._refuse_other_range(name, ledger, decision, tokens)

    def _staged_here(self, name: str) -> bool:
        """Whether rows staged before this start can be shown; if not, the replay computes them again."""
        sink = self._sinks.get(name)
        return sink is not None and not (self._options.moved and sink.guarantee.spools)

    def _brought(
        self, name: str, ledger: LedgerState, chosen: CheckpointManifest | None, token: Token | None
    ) -> LedgerState:
        """Bring a sink to the chosen checkpoint; one that is ahead waits for the replay."""
        epoch = chosen.epoch if chosen else 0
        expected = chosen.sink_epochs.get(name) if chosen else None
        if ledger.epoch > epoch:
            self._actions[name] = f"ahead: at epoch {ledger.epoch}"
        elif expected is None:
            self._actions[name] = "new" if ledger.epoch == 0 else f"joins again after epoch {ledger.epoch}"
        elif token is not None and ledger.epoch < token.epoch:
            return self._shown(name, token, ledger)
        elif token is None and ledger.epoch < expected:
            raise _gap(name, ledger.epoch, expected)
        else:
            self._actions[name] = "has everything"
        return ledger

    def _refuse_removed(self, chosen: CheckpointManifest, replays: Iterable[RecordedEpoch]) -> None:
        """Refuse to go on without a sink that is owed an epoch."""
        for name, status in chosen.sink_commit_statuses.items():
            if name not in self._sinks and status != SinkCommitStatus.COMMITTED:
                raise PipelineError(
                    f"sink '{name}' was removed from the pipeline, but epoch {chosen.epoch} is sealed and not known "
                    f"to be shown there ({status}). Start once with the sink, or give the epoch up with "
                    f"'holdfast resolve --sink {name} --epoch {chosen.epoch} --discard'"
                )
        for record in replays:
            for name in sorted(record.owed - self._sinks.keys()):
                raise PipelineError(
                    f"sink '{name}' was removed from the pipeline, but epoch {record.epoch} is to be replayed and "
                    "not known to be shown there. Start once with the sink"
                )

    def _shown(self, name: str, token: Token, ledger: LedgerState) -> LedgerState:
        """Commit what was sealed for a sink that does not show it yet."""
        if ledger.epoch != token.previous:
            raise _gap(name, ledger.epoch, token.previous)
        raise_first(
            self._delivery.commit({name: token}, self._owner, lambda name: self._step(token.epoch, "commit", name))
        )
        self._actions[name] = f"committed epoch {token.epoch}"
        return replace(ledger, epoch=token.epoch, range_digest=token.range_digest)

    def _rewound(self, name: str, ledger: LedgerState, replay: Replay) -> LedgerState:
        to_epoch = replay.reached

        def rewind(name: str, sink: Sink, attempt: int) -> tuple[RewindOutcome, LedgerState | None]:
            with self._step(to_epoch, "rewind", name):
                return sink.rewind(to_epoch), sink.ledger()

        outcomes, failures = self._delivery.on_all(
            [name], ledger.epoch, "rewind", self._settings.commit_seconds, rewind
        )
        raise_first(failures)
        outcome, after = outcomes[name]
        if outcome is RewindOutcome.IMPOSSIBLE or after is None:
            why = "the source ranges in between are lost" if replay.lost else "what followed was given up"
            raise SinkError(
                f"sink '{name}' shows epoch {ledger.epoch}, the pipeline goes on from epoch {to_epoch} "
                f"because {why}, and this sink cannot be rewound. Going on would show rows of epochs {to_epoch + 1} "
                f"to {ledger.epoch} twice. Restore the target to epoch {to_epoch} by hand, or start over with "
                "--fresh and --sinks append"
            )
        self._actions[name] = f"rewound from epoch {ledger.epoch} to {to_epoch}"
        return after

    def _refuse_other_range(
        self, name: str, ledger: LedgerState, decision: RecoveryDecision, tokens: Mapping[str, Token]
    ) -> None:
        """Refuse a sink that stands on another branch: an epoch of that number was decided twice."""
        chosen = decision.chosen
        expected: str | None = None  # What is ahead is compared when it is replayed.
        if chosen is not None and ledger.epoch == chosen.epoch:
            expected = next((token.range_digest for token in tokens.values()), None)
        elif chosen is not None and 0 < ledger.epoch < chosen.epoch and name not in chosen.sink_epochs:
            expected = sealed_range(self._store, decision, ledger.epoch)
        if None not in (expected, ledger.range_digest) and expected != ledger.range_digest:
            raise ReplayMismatch(
                f"sink '{name}' has epoch {ledger.epoch}, but of another source range than the checkpoint: going on "
                "would lose rows or show them twice. Was it away while the pipeline went back? Restore the target to "
                "an epoch before that, or give the sink another name and an empty target"
            )

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

    def _report(self, taken: TakeOver, owner: Owner, replays: Iterable[RecordedEpoch]) -> dict[str, Any]:
        decision = taken.decision
        return {
            **decision.report.to_json_value(),
            "fence_id": taken.fence.checkpoint_id,
            "epoch": decision.chosen.epoch if decision.chosen else 0,
            "generation": owner.generation,
            "timeline": str(owner.timeline),
            "abandons": list(decision.abandons),
            "sinks": dict(sorted(self._actions.items())),
            "replays": [{"epoch": record.epoch, "found_in": record.found_in} for record in replays],
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


def _gap(name: str, found: int, expected: int) -> Exception:
    if found > expected:
        return ReplayMismatch(
            f"sink '{name}' stands at epoch {found}, but what is sealed for it follows its epoch {expected}: "
            "going on would lose rows or show them twice. Was the checkpoint abandoned before?"
        )
    return SinkBehind(
        f"sink '{name}' stands at epoch {found}, but epoch {expected} was committed there: epochs {found + 1} to "
        f"{expected} are missing from the target (was it restored from a backup?). Bring the target to epoch "
        f"{expected}, or go back with --from to a checkpoint of epoch {found}"
    )
