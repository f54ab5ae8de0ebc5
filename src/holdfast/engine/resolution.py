"""A person's word, recorded: approving a changed pipeline, deciding about what a sink will not take.

All of them seal the newest good checkpoint again, as a fence does, with the decision in its `recovery` key: whoever
starts next goes on from there and finds it. A pipeline that is still running is fenced by that, so stop it first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.contracts import Sink, Token
from holdfast.core.entries import SinkCommitStatus
from holdfast.core.forms import with_columns
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ProgressRecord
from holdfast.engine.coordinator import SCHEMA_PARTS
from holdfast.engine.fencing import build_fence, take_over
from holdfast.engine.records import progress_of, token_values
from holdfast.engine.recovery import APPROVED, RecoveryDecision, decide_recovery
from holdfast.errors import CorruptCheckpoint, Fenced, InvalidRequest, NoValidCheckpoint, SinkError
from holdfast.secrets import scrub
from holdfast.stores.store import DurableCheckpointStore

RESOLVED = "resolved"


def approve(store: DurableCheckpointStore, fingerprint: int, *, clock: Clock = SYSTEM_CLOCK) -> CheckpointManifest:
    """Let the pipeline with this fingerprint go on from the newest good checkpoint."""
    decision = decide_recovery(store)
    if decision.chosen is None:
        raise NoValidCheckpoint(f"{store.describe()} has no checkpoint that a pipeline could go on from")
    return take_over(store, plan=lambda _: {APPROVED: [f"{fingerprint:016x}"]}, clock=clock).fence


@dataclass(frozen=True)
class OwedEpoch:
    """An epoch that is sealed, and that a sink is not known to show."""

    sink: str
    decision: RecoveryDecision
    manifest: CheckpointManifest
    tokens: Mapping[str, Any]
    """What was sealed, for every sink."""
    progress: ProgressRecord | None
    """None in a checkpoint that another system wrote."""

    @property
    def token(self) -> Token:
        """What was sealed for the sink."""
        parts = self.progress.parts if self.progress else {}
        try:
            token = Token.from_json_value(self.tokens[self.sink])
            return with_columns(token, parts.get(f"{SCHEMA_PARTS}{self.sink}"))
        except (KeyError, TypeError) as error:
            raise CorruptCheckpoint(
                f"checkpoint {self.manifest.checkpoint_id} does not say where the rows of sink '{self.sink}' are"
            ) from error

    @property
    def schema(self) -> bytes:
        """The columns of the sink's rows, as Arrow writes a schema."""
        parts = self.progress.parts if self.progress else {}
        if f"{SCHEMA_PARTS}{self.sink}" not in parts:
            raise CorruptCheckpoint(
                f"checkpoint {self.manifest.checkpoint_id} does not say which columns the rows of sink "
                f"'{self.sink}' have"
            )
        return parts[f"{SCHEMA_PARTS}{self.sink}"]


def owed_epoch(store: DurableCheckpointStore, sink: str, epoch: int) -> OwedEpoch:
    """Return what a sink is owed; refuse unless the newest good checkpoint is of that epoch and leaves it open."""
    decision = decide_recovery(store)
    chosen = decision.chosen
    status = None if chosen is None else chosen.sink_commit_statuses.get(sink)
    if chosen is None or status is None:
        raise InvalidRequest(f"the newest checkpoint knows no sink '{sink}'")
    if chosen.epoch != epoch or status == SinkCommitStatus.COMMITTED:
        raise InvalidRequest(
            f"sink '{sink}' is owed nothing of epoch {epoch}: the newest checkpoint is of epoch {chosen.epoch} "
            f"and says {status}"
        )
    progress = progress_of(store, chosen)
    tokens = chosen.sink_tokens or (token_values(progress) if progress else {})
    return OwedEpoch(sink, decision, chosen, tokens, progress)


def discard_epoch(
    store: DurableCheckpointStore, sink: str, epoch: int, *, reason: str, clock: Clock = SYSTEM_CLOCK
) -> CheckpointManifest:
    """Give up what was sealed for one sink: it will never show that epoch, and the pipeline can go on.

    The rows are lost for that sink, and the record says so. The sink's ledger is not touched: the next epoch
    follows the one it stands at.
    """
    owed = owed_epoch(store, sink, epoch)
    return _resolve(store, owed, {"action": "discard", "reason": reason, "token": owed.tokens.get(sink, {})}, clock)


class SavedRows(Protocol):
    """A file with rows, durable under its name and counted."""

    @property
    def path(self) -> str:
        """Where it is."""
        ...

    @property
    def rows(self) -> int:
        """How many rows were found in it."""
        ...

    @property
    def sha256(self) -> str:
        """Digest of its bytes."""
        ...


_Saved = TypeVar("_Saved", bound=SavedRows)


@dataclass(frozen=True)
class FileResolution(Generic[_Saved]):
    """An epoch whose rows are in a file instead of a sink."""

    file: _Saved
    fence: CheckpointManifest
    doubt: str | None
    """Why nobody knows whether the sink shows the rows after all; None when it was asked and does not."""


def epoch_to_file(
    store: DurableCheckpointStore,
    owed: OwedEpoch,
    sink: Sink,
    write: Callable[[Any], _Saved],
    *,
    reason: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> FileResolution[_Saved]:
    """Have `write` put what was sealed for a sink into a file, then let the pipeline go on without showing it there.

    `sink` is bound, not opened. A crash before the record leaves the file and no decision: do it again.
    """
    token = owed.token
    doubt = _refuse_shown(owed, token, sink)
    saved = write(_staged(owed, token, sink))
    if saved.rows != token.rows:
        raise SinkError(f"{saved.path} has {saved.rows} rows, expected {token.rows}; nothing was decided")
    record: dict[str, Any] = {"action": "to-file", "path": saved.path, "rows": saved.rows, "sha256": saved.sha256}
    record |= {"asked": doubt is None} | ({} if reason is None else {"reason": reason})
    try:
        return FileResolution(saved, _resolve(store, owed, record, clock), doubt)
    except Fenced as error:
        message = f"{error}; the rows are in {saved.path}, and nothing was decided"
        raise Fenced(message, checkpoint_id=error.checkpoint_id, owner=error.owner) from error


def _staged(owed: OwedEpoch, token: Token, sink: Sink) -> Any:
    try:
        return sink.staged(token)
    except SinkError as error:
        raise SinkError(
            f"sink '{owed.sink}', epoch {token.epoch}: {error}. Nothing was decided; --discard gives the epoch up"
        ) from error


def _refuse_shown(owed: OwedEpoch, token: Token, sink: Sink) -> str | None:
    """Ask the target itself; return why it has no answer. Not answering may be why a person decides."""
    try:
        ledger = sink.ledger()
    except Exception as error:  # It may come from a user's own function.
        said = (str(error).splitlines() or [type(error).__name__])[0]
        return f"the target could not be asked whether it shows the epoch: {scrub(said)}"
    if ledger is None or ledger.timeline != owed.manifest.timeline or ledger.epoch < token.epoch:
        return None
    if ledger.epoch == token.epoch and ledger.range_digest not in (None, token.range_digest):
        return None
    raise InvalidRequest(
        f"sink '{owed.sink}' stands at epoch {ledger.epoch}, so it shows the rows of epoch {token.epoch}: "
        "start the pipeline, and it goes on"
    )


def _resolve(
    store: DurableCheckpointStore, owed: OwedEpoch, record: Mapping[str, Any], clock: Clock
) -> CheckpointManifest:
    """Seal a decision: the sink is owed nothing any more. `Fenced` when anybody sealed since we looked."""
    chosen, sink = owed.manifest, owed.sink
    plan = {RESOLVED: {"sink": sink, "epoch": chosen.epoch, **record}}
    if APPROVED in (chosen.recovery or {}):
        plan[APPROVED] = (chosen.recovery or {})[APPROVED]
    update = {
        "sink_commit_statuses": {**chosen.sink_commit_statuses, sink: SinkCommitStatus.COMMITTED},
        # Null stays with every copy: also a replay skips the sink. Large tokens, which stood in the progress chunk
        # only, move here with it: there the sink's own cannot be taken out.
        "sink_tokens": {**owed.tokens, sink: None},
    }
    return store.save(build_fence(store, owed.decision, plan, clock).model_copy(update=update))
