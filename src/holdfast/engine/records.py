"""What can still be read of epochs that were decided: their tokens, and the exact ranges of damaged checkpoints.

A manifest that can be read is a decision, even if its state is damaged: what is sealed in it will be shown. Without
it the progress chunk tells the range, and nobody knows whether that attempt was sealed: it counts only if a sink
shows the epoch, and rows that are missing elsewhere are computed again.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from holdfast.core.contracts import LedgerState, Token
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.forms import FORM, with_columns
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.core.tables import TABLES_PART, pins_to_part
from holdfast.engine.coordinator import SCHEMA_PARTS, TOKENS_PART, RecordedEpoch
from holdfast.engine.recovery import RecoveryDecision
from holdfast.engine.sequel import Sequel, progress_without_manifest
from holdfast.errors import CorruptCheckpoint
from holdfast.stores.store import DurableCheckpointStore


@dataclass(frozen=True)
class FoundRange:
    """What a process was about to read as an epoch; nobody knows whether that was decided."""

    parts: Mapping[str, bytes]
    digest: str | None = None
    """Of the exact range; None: it cannot be told."""


RangeLookup = Callable[[int], Sequence[FoundRange]]
"""Epoch -> the ranges that are recorded outside the store (in old working directories), the newest first."""


def sealed_tokens(store: DurableCheckpointStore, manifest: CheckpointManifest) -> dict[str, Token] | None:
    """Return what is sealed for each sink and was not given up; None when it cannot be read."""
    if not manifest.sink_tokens:
        progress = progress_of(store, manifest)
        return None if progress is None else _tokens_in(progress)
    tokens = _tokens(manifest.sink_tokens)
    if all(FORM in token.payload for token in tokens.values()):
        return tokens
    progress = progress_of(store, manifest)
    return tokens if progress is None else _with_columns(tokens, progress)


def _with_columns(tokens: Mapping[str, Token], progress: ProgressRecord) -> dict[str, Token]:
    """Complete tokens that were sealed before they had a form with the columns that are recorded beside them."""
    return {name: with_columns(token, progress.parts.get(f"{SCHEMA_PARTS}{name}")) for name, token in tokens.items()}


@dataclass(frozen=True)
class Replay:
    """What is to be done again on top of the chosen checkpoint, in order."""

    epochs: tuple[RecordedEpoch, ...]
    reached: int
    """The epoch that the pipeline stands at afterwards."""
    lost: bool
    """Whether more epochs happened, and nobody knows their ranges."""
    sequel: Sequel
    """What a fence has to say of it."""


def find_replay(
    store: DurableCheckpointStore,
    decision: RecoveryDecision,
    ledgers: Mapping[str, LedgerState],
    elsewhere: RangeLookup,
) -> Replay:
    """Return the epochs that follow the chosen checkpoint without a hole, as far as their ranges are known.

    What was decided is replayed in any case; a range that somebody only was about to read, if a sink shows that epoch
    or a decided one came after it.
    """
    sealed = _sealed(store, decision, ledgers)
    reached = decision.chosen.epoch if decision.chosen else 0
    wanted = max(
        [ledger.epoch for ledger in ledgers.values()] + [r.epoch for r in sealed.values() if r.decided] + [0]
    )
    if decision.sequel.given_up_after is not None:
        wanted = min(wanted, decision.sequel.given_up_after)
    found: list[RecordedEpoch] = []
    for epoch in range(reached + 1, wanted + 1):
        record = sealed.get(epoch) or RecordedEpoch(epoch, {}, "the old working directory")
        if not _has_range(record):
            record = replace(record, parts={**record.parts, **_fitting(elsewhere(epoch), record, ledgers)})
        if not _has_range(record):
            break
        found.append(record)
        reached = epoch
    while found and _is_passed(reached, ledgers) and not _is_vouched_for(found[-1], ledgers):
        reached = found.pop().epoch - 1
    lost = reached < wanted
    known = {epoch: id for epoch, id in decision.sequel.checkpoints.items() if epoch in sealed and epoch <= reached}
    sequel = Sequel(known, reached if lost else decision.sequel.given_up_after)
    epochs = tuple(replace(record, sequel=sequel.after(record.epoch)) for record in found)
    return Replay(epochs, reached, lost, sequel)


def passed_over(store: DurableCheckpointStore, decision: RecoveryDecision, after: int) -> list[RecordedEpoch]:
    """Return what is known of later epochs that are not gone on from: what they read will be read anew."""
    found = (_record(store, id, decision.timeline) for id in sorted(id for id, _ in decision.report.skipped))
    return [record for record in found if record is not None and record.epoch > after]


def _fitting(
    found: Iterable[FoundRange], record: RecordedEpoch, ledgers: Mapping[str, LedgerState]
) -> Mapping[str, bytes]:
    """Return the newest range that is the one which was sealed, or is shown, as far as anybody knows that."""
    sealed = {token.range_digest for token in (record.tokens or {}).values()}
    shown = {ledger.range_digest for ledger in ledgers.values() if ledger.epoch == record.epoch} - {None}
    known = sealed or shown
    return next((each.parts for each in found if not known or each.digest is None or each.digest in known), {})


def _is_passed(epoch: int, ledgers: Mapping[str, LedgerState]) -> bool:
    """Whether some sink shows more, and will be rewound."""
    return any(ledger.epoch > epoch for ledger in ledgers.values())


def _is_vouched_for(record: RecordedEpoch, ledgers: Mapping[str, LedgerState]) -> bool:
    """Whether it is certain that the epoch had this range: it was decided, or a sink stands there and can compare.

    A sink that is rewound to an epoch knows no range of it: it would take any for the one that it shows.
    """
    return record.decided or any(ledger.epoch == record.epoch for ledger in ledgers.values())


def _has_range(record: RecordedEpoch) -> bool:
    return any(name.startswith("offsets/") for name in record.parts)


def _sealed(
    store: DurableCheckpointStore, decision: RecoveryDecision, ledgers: Mapping[str, LedgerState]
) -> dict[int, RecordedEpoch]:
    """Return what can still be read, by epoch."""
    found = (_record(store, id, decision.timeline) for id in decision.sequel.checkpoints.values())
    return {record.epoch: record for record in found if record is not None and not _contradicted(record, ledgers)}


def _contradicted(record: RecordedEpoch, ledgers: Mapping[str, LedgerState]) -> bool:
    """Whether a sink shows the epoch of another range: then it was decided again, and that decision is lost."""
    ranges = {token.range_digest for token in (record.tokens or {}).values()}
    at_epoch = {ledger.range_digest for ledger in ledgers.values() if ledger.epoch == record.epoch} - {None}
    return bool(ranges and at_epoch - ranges)


def _record(store: DurableCheckpointStore, id: int, timeline: UUID | None) -> RecordedEpoch | None:
    try:
        manifest = store.load_by_id(id)
    except CorruptCheckpoint:
        manifest = None
    if manifest is not None:
        return _decided(store, manifest)
    progress = progress_without_manifest(store, id, timeline)
    if progress is None:
        return None
    tokens = _tokens_in(progress)
    return RecordedEpoch(
        progress.epoch,
        dict(progress.parts),
        f"the sidecar of checkpoint {id}",
        tokens,
        owed=frozenset(tokens or ()),
        given_up=_given_up(token_values(progress)),
    )


def _decided(store: DurableCheckpointStore, manifest: CheckpointManifest) -> RecordedEpoch:
    progress = progress_of(store, manifest)
    tokens, given_up = sealed_tokens(store, manifest), _given_up(manifest.sink_tokens)
    without = {name for name, epoch in manifest.sink_epochs.items() if epoch < manifest.epoch}
    statuses = manifest.sink_commit_statuses
    return RecordedEpoch(
        manifest.epoch,
        dict(progress.parts) if progress else _table_pins(manifest),
        f"checkpoint {manifest.checkpoint_id}",
        tokens,
        without_rows=frozenset(without - (tokens or {}).keys() - given_up),
        owed=frozenset(name for name, status in statuses.items() if status != SinkCommitStatus.COMMITTED),
        given_up=given_up,
        decided=True,
    )


def _table_pins(manifest: CheckpointManifest) -> dict[str, bytes]:
    """Return what the manifest repeats of its progress record: the versions of tables."""
    return {TABLES_PART: pins_to_part(manifest.table_offsets)} if manifest.table_offsets else {}


def progress_of(store: DurableCheckpointStore, manifest: CheckpointManifest) -> ProgressRecord | None:
    """Return a checkpoint's progress record; None for damage, and for one of another system, which has none."""
    try:
        return None if manifest.sidecar is None else store.state_reader.progress(manifest.sidecar)
    except CorruptCheckpoint:
        return None


def token_values(progress: ProgressRecord) -> dict[str, Any]:
    """Return the tokens of every sink as they stand there; null for one that was given up."""
    values: dict[str, Any] = json.loads(progress.parts.get(TOKENS_PART, b"{}"))
    return values


def _tokens_in(progress: ProgressRecord) -> dict[str, Token] | None:
    if TOKENS_PART not in progress.parts:
        return None
    return _with_columns(_tokens(token_values(progress)), progress)


def _tokens(values: Mapping[str, Any]) -> dict[str, Token]:
    return {name: Token.from_json_value(value) for name, value in values.items() if value is not None}


def _given_up(values: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, value in values.items() if value is None)


def sealed_range(store: DurableCheckpointStore, decision: RecoveryDecision, epoch: int) -> str | None:
    """Return the digest of the range that an epoch had; None when no checkpoint of it is left, or it gave no rows."""
    for manifest in reversed(list(store.manifests())):
        ours = manifest.timeline == decision.timeline and not manifest.withdrawn
        if ours and manifest.epoch == epoch and manifest.checkpoint_id not in decision.abandons:
            ranges = [token.range_digest for token in (sealed_tokens(store, manifest) or {}).values()]
            return ranges[0] if ranges else None
    return None
