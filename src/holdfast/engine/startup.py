"""Start and recovery, in the order that makes them safe.

    choose    read-only: the newest checkpoint that holds, and what the sinks will need
    fence     seal it again under the next id and a higher generation: from now on we own the store
    claim     every sink: our generation goes into its ledger
    settle    ask every sink where it stands: commit what was sealed, find who is ahead, refuse gaps
    replay    epochs that were decided or shown after the chosen checkpoint: their recorded ranges

Nothing is committed, aborted or rewound before the fence is sealed. Every step can be repeated after a crash.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import Clock
from holdfast.core.contracts import LedgerState, OnForeign, Owner, RewindOutcome, Sink, Token
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.engine.coordinator import TOKENS_PART, PipelineFacts, SinkPosition
from holdfast.engine.delivery import Delivery, DeliverySettings
from holdfast.engine.events import Observer, step
from holdfast.engine.fencing import take_over
from holdfast.engine.identity import OnChange, compare
from holdfast.engine.recovery import RecoveryDecision
from holdfast.engine.resolution import APPROVED
from holdfast.errors import (
    ApprovalNeeded,
    CorruptCheckpoint,
    PipelineError,
    SinkBehind,
    SinkError,
)
from holdfast.stores.store import DurableCheckpointStore


@dataclass(frozen=True)
class StartOptions:
    """What a person said about this start."""

    fresh: bool = False
    from_id: int | None = None
    on_foreign: OnForeign = OnForeign.REFUSE
    on_change: OnChange = OnChange.APPROVE


@dataclass(frozen=True)
class RecordedEpoch:
    """An epoch after the chosen checkpoint whose exact range is known."""

    epoch: int
    parts: dict[str, bytes]
    tokens: dict[str, Token] | None
    """What was sealed for each sink; None when only the range is known."""
    found_in: str


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


RangeLookup = Callable[[int], dict[str, bytes] | None]
"""Epoch -> the parts of its recorded range, from somewhere outside the store (an old working directory)."""


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
    ) -> None:
        self._observer = observer
        self._pipeline, self._store, self._sinks, self._facts = pipeline, store, sinks, facts
        self._options, self._delivery, self._settings, self._clock = options, delivery, settings, clock
        self._actions: dict[str, str] = {}

    def run(self, range_elsewhere: RangeLookup = lambda epoch: None) -> Start:
        """Go through all the steps and return what was decided."""
        with self._step(0, "fence"):
            taken = take_over(
                self._store,
                fresh=self._options.fresh,
                from_id=self._options.from_id,
                plan=self._check_identity,
                clock=self._clock,
            )
        fence, decision = taken.fence, taken.decision
        assert fence.timeline is not None
        assert fence.generation is not None
        owner = Owner(self._pipeline, fence.timeline, fence.generation)
        with self._step(fence.epoch, "claim"):
            ledgers = self._claim(owner, decision)
        with self._step(fence.epoch, "settle"):
            self._settle(decision.chosen, ledgers)
            replays = self._replays(decision, ledgers, range_elsewhere)
        positions = {name: SinkPosition(ledger.epoch, ledger.range_digest) for name, ledger in ledgers.items()}
        return Start(fence, decision.chosen, owner, positions, replays, self._report(decision, owner, replays))

    def _step(self, epoch: int, name: str) -> contextlib.AbstractContextManager[object]:
        return step(self._observer, self._clock, epoch, f"recovery.{name}")

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
            hint = (
                f"approve it with: holdfast approve {self._store.describe()} {self._facts.fingerprint:016x}"
                if self._options.on_change is OnChange.APPROVE
                else "on_change is 'reject': undo it, or start over with --fresh"
            )
            raise ApprovalNeeded(
                f"pipeline '{self._pipeline}' changed since checkpoint {chosen.checkpoint_id}:\n{difference}\n"
                f"Its state may not fit any more; {hint}"
            )
        # An approval stays until an epoch is sealed by the pipeline that was approved.
        plan: dict[str, Any] = {APPROVED: [f"{value:016x}" for value in sorted(_approvals(chosen))]}
        plan["changes"] = change.lines()
        return {key: value for key, value in plan.items() if value}

    # claim

    def _claim(self, owner: Owner, decision: RecoveryDecision) -> dict[str, LedgerState]:
        epoch = decision.chosen.epoch if decision.chosen else 0

        def claim(name: str, sink: Sink, attempt: int) -> LedgerState:
            return sink.open(owner, on_foreign=self._options.on_foreign, adopt_epoch=epoch)

        ledgers, failures = self._delivery.on_all(
            list(self._sinks), epoch, "claim", self._settings.commit_seconds, claim
        )
        for error in failures.values():
            raise error
        return ledgers

    # settle

    def _settle(self, chosen: CheckpointManifest | None, ledgers: dict[str, LedgerState]) -> None:
        """Bring every sink to the chosen checkpoint; those that are ahead are left for the replay."""
        if chosen is not None:
            self._refuse_removed(chosen)
        tokens = self._tokens(chosen) if chosen else {}
        for name, ledger in ledgers.items():
            known = chosen is not None and name in chosen.sink_epochs
            token = tokens.get(name)
            epoch = chosen.epoch if chosen else 0
            if ledger.epoch > epoch:
                self._actions[name] = f"ahead: at epoch {ledger.epoch}"
            elif not known:
                self._actions[name] = "new" if ledger.epoch == 0 else f"joins again after epoch {ledger.epoch}"
            elif token is not None and ledger.epoch < token.epoch:
                ledgers[name] = self._drive(name, token, ledger)
            elif token is None and chosen is not None and ledger.epoch < chosen.sink_epochs[name]:
                raise _gap(name, ledger.epoch, chosen.sink_epochs[name])
            else:
                self._actions[name] = "has everything"

    def _refuse_removed(self, chosen: CheckpointManifest) -> None:
        """Refuse to go on without a sink that is owed an epoch."""
        for name, status in chosen.sink_commit_statuses.items():
            if name not in self._sinks and status != SinkCommitStatus.COMMITTED:
                raise PipelineError(
                    f"sink '{name}' was removed from the pipeline, but epoch {chosen.epoch} is sealed and not known "
                    f"to be shown there ({status}). Start once with the sink, or give the epoch up with "
                    f"'holdfast resolve --sink {name} --epoch {chosen.epoch} --discard'"
                )

    def _drive(self, name: str, token: Token, ledger: LedgerState) -> LedgerState:
        """Commit what was sealed for a sink that does not show it yet."""
        if ledger.epoch != token.previous:
            raise _gap(name, ledger.epoch, token.previous)
        _, failures = self._delivery.on_all(
            [name], token.epoch, "commit", self._settings.commit_seconds, lambda _, sink, __: sink.commit(token)
        )
        for error in failures.values():
            raise SinkError(
                f"{error}. Epoch {token.epoch} is sealed and must be shown: repair the target and start again, "
                "or see 'holdfast resolve'"
            ) from error
        self._actions[name] = f"committed epoch {token.epoch}"
        return LedgerState(ledger.timeline, ledger.generation, token.epoch, token.range_digest)

    def _tokens(self, manifest: CheckpointManifest) -> dict[str, Token]:
        if manifest.sink_tokens:
            return {name: Token.from_json_value(value) for name, value in manifest.sink_tokens.items()}
        settled = all(status == SinkCommitStatus.COMMITTED for status in manifest.sink_commit_statuses.values())
        if settled or manifest.sidecar is None:
            return {}
        try:
            return _tokens_in(self._store.state_reader.progress(manifest.sidecar)) or {}
        except CorruptCheckpoint:
            return {}  # A checkpoint of another system, or one that was imported without a progress chunk.

    # replay

    def _replays(
        self, decision: RecoveryDecision, ledgers: dict[str, LedgerState], elsewhere: RangeLookup
    ) -> tuple[RecordedEpoch, ...]:
        """Return what to replay, after every sink was brought to where the replay expects it."""
        epoch = decision.chosen.epoch if decision.chosen else 0
        records = self._records(decision, ledgers, elsewhere)
        replays: list[RecordedEpoch] = []
        for record in records:
            for name, token in (record.tokens or {}).items():
                if name in ledgers and ledgers[name].epoch < token.epoch:
                    ledgers[name] = self._drive(name, token, ledgers[name])
            replays.append(record)
        reached = replays[-1].epoch if replays else epoch
        for name, ledger in ledgers.items():
            if ledger.epoch > reached:
                ledgers[name] = self._rewind(name, ledger, reached)
        return tuple(replays)

    def _records(
        self, decision: RecoveryDecision, ledgers: Mapping[str, LedgerState], elsewhere: RangeLookup
    ) -> list[RecordedEpoch]:
        """Return the recorded epochs that follow the chosen checkpoint without a hole.

        One that was sealed was decided, so it is replayed in any case; one that is known only from a working
        directory is replayed if a sink already shows it.
        """
        if self._options.fresh or self._options.from_id is not None:
            return []
        sealed = self._sealed_records(decision)
        shown = max((ledger.epoch for ledger in ledgers.values()), default=0)
        epoch = (decision.chosen.epoch if decision.chosen else 0) + 1
        records: list[RecordedEpoch] = []
        while True:
            record = sealed.get(epoch)
            if record is None and epoch <= shown and (parts := elsewhere(epoch)) is not None:
                record = RecordedEpoch(epoch, parts, None, "the old working directory")
            if record is not None and not any(name.startswith("offsets/") for name in record.parts):
                parts_found = elsewhere(epoch)
                record = RecordedEpoch(epoch, parts_found, record.tokens, record.found_in) if parts_found else None
            if record is None:
                return records
            records.append(record)
            epoch += 1

    def _sealed_records(self, decision: RecoveryDecision) -> dict[int, RecordedEpoch]:
        """Return what can still be read of damaged checkpoints newer than the chosen one."""
        records: dict[int, RecordedEpoch] = {}
        first = decision.chosen.checkpoint_id if decision.chosen else 0
        earlier = set(decision.chosen.abandons) if decision.chosen else set()
        for id, reason in sorted(decision.report.skipped):
            if id <= first or id in earlier or reason.startswith("abandoned"):
                continue
            record = self._record_of(id, decision)
            if record is not None:
                records[record.epoch] = record
        return records

    def _record_of(self, id: int, decision: RecoveryDecision) -> RecordedEpoch | None:
        try:
            manifest = self._store.load_by_id(id)
        except CorruptCheckpoint:
            manifest = None
        progress = self._progress_of(id, manifest, decision)
        if manifest is not None and manifest.epoch > 0:
            tokens = self._tokens(manifest)
            return RecordedEpoch(manifest.epoch, dict(progress.parts) if progress else {}, tokens, f"checkpoint {id}")
        if progress is not None:
            return RecordedEpoch(
                progress.epoch, dict(progress.parts), _tokens_in(progress), f"the sidecar of checkpoint {id}"
            )
        return None

    def _progress_of(
        self, id: int, manifest: CheckpointManifest | None, decision: RecoveryDecision
    ) -> ProgressRecord | None:
        timeline = decision.timeline
        if manifest is not None and manifest.sidecar is not None:
            try:
                found: Iterable[ProgressRecord] = [self._store.state_reader.progress(manifest.sidecar)]
            except CorruptCheckpoint:
                found = []
        else:
            found = self._store.state_reader.progress_records(id)
        return next((record for record in found if timeline in (None, record.timeline)), None)

    def _rewind(self, name: str, ledger: LedgerState, to_epoch: int) -> LedgerState:
        outcomes, failures = self._delivery.on_all(
            [name],
            ledger.epoch,
            "rewind",
            self._settings.commit_seconds,
            lambda _, sink, __: sink.rewind(to_epoch),
        )
        for error in failures.values():
            raise error
        if outcomes[name] is RewindOutcome.IMPOSSIBLE:
            raise SinkError(
                f"sink '{name}' shows epoch {ledger.epoch}, the newest usable checkpoint is of epoch {to_epoch}, "
                "the source ranges in between are lost, and this sink cannot be rewound. Going on would show rows of "
                f"epochs {to_epoch + 1} to {ledger.epoch} twice. Restore the target to epoch {to_epoch} by hand, "
                "or start over with --fresh and --sinks append"
            )
        self._actions[name] = f"rewound from epoch {ledger.epoch} to {to_epoch}"
        return LedgerState(ledger.timeline, ledger.generation, to_epoch, None)

    def _report(self, decision: RecoveryDecision, owner: Owner, replays: Iterable[RecordedEpoch]) -> dict[str, Any]:
        return {
            **decision.report.to_json_value(),
            "epoch": decision.chosen.epoch if decision.chosen else 0,
            "generation": owner.generation,
            "timeline": str(owner.timeline),
            "abandons": list(decision.abandons),
            "sinks": dict(sorted(self._actions.items())),
            "replays": [{"epoch": record.epoch, "found_in": record.found_in} for record in replays],
        }


def _tokens_in(progress: ProgressRecord) -> dict[str, Token] | None:
    text = progress.parts.get(TOKENS_PART)
    if text is None:
        return None
    return {name: Token.from_json_value(value) for name, value in json.loads(text).items()}


def _approvals(manifest: CheckpointManifest) -> set[int]:
    found = (manifest.recovery or {}).get(APPROVED, [])
    return {int(value, 16) for value in found}


def _gap(name: str, found: int, expected: int) -> SinkBehind:
    return SinkBehind(
        f"sink '{name}' stands at epoch {found}, but epoch {expected} was committed there: epochs {found + 1} to "
        f"{expected} are missing from the target (was it restored from a backup?). Bring the target to epoch "
        f"{expected}, or go back with --from to a checkpoint of epoch {found}"
    )
