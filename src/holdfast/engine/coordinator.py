"""The protocol of one epoch. All its branching is here.

    1 begin     remove staged rows of dead attempts at this epoch
    2 prepare   every sink: rows durable, invisible
    3 capture   offsets, watermark, state files
    4 seal      sidecar, then the manifest at our last id + 1: THE decision
    5 commit    every sink: rows visible
    6 record    statuses into the manifest; losing this costs nothing

A crash before 4 means the epoch never happened; after 4, whoever starts next commits what is not committed.
"""

import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.core.contracts import EpochRef, Owner, Prepared, Rows, Sink, Token
from holdfast.core.entries import ConnectorCheckpoint, SinkCommitStatus
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.progress import ABANDONS_PART, ProgressRecord
from holdfast.core.sidecar import CapturedFile
from holdfast.engine.branches import Branches
from holdfast.engine.checkpoints import CheckpointWriter, SealedCheckpoint
from holdfast.engine.delivery import Delivery, DeliverySettings, raise_first
from holdfast.engine.events import CheckpointFailed, EpochCommitted, EpochReplayed, Observer
from holdfast.engine.events import step as report_step
from holdfast.engine.sequel import NOTHING_FOLLOWED, Sequel
from holdfast.errors import PipelineError, ReplayMismatch, SinkError, TransientStoreError
from holdfast.stores.store import DurableCheckpointStore

_log = logging.getLogger(__name__)

TOKENS_PART = "tokens"
SCHEMA_PARTS = "schema/"
"""With a sink's name behind it: the columns of its rows, so that staged rows can be read without the query."""
_LARGE_TOKENS = 256 * 1024


@dataclass(frozen=True)
class CapturedEpoch:
    """What the runner knows of an epoch once its rows were computed."""

    parts: dict[str, bytes]
    operators: Mapping[str, list[CapturedFile]]
    source_offsets: dict[str, ConnectorCheckpoint]
    source_watermarks: dict[str, int]
    watermark_ms: int | None
    rows_in: int
    table_offsets: dict[str, ConnectorCheckpoint] = field(default_factory=dict)
    tables_path: str | None = None
    """Where copies of reference tables are, below the store."""


class EpochWork(Protocol):
    """One epoch as the runner brings it. Called in this order, each once."""

    epoch: int

    def range_digest(self) -> str:
        """Return the digest of the source range, known before anything is computed."""
        ...

    def rows(self) -> Mapping[str, Rows]:
        """Compute the epoch, once, and return its rows for each sink; sinks without rows are left out."""
        ...

    def capture(self) -> CapturedEpoch:
        """Return offsets and state files. Only after `rows`."""
        ...

    def sealed(self) -> None:
        """Hear that the epoch was decided."""
        ...


@dataclass(frozen=True)
class RecordedEpoch:
    """An epoch that was decided or shown before, whose exact range is known: it is replayed, not done again."""

    epoch: int
    parts: Mapping[str, bytes]
    found_in: str
    tokens: Mapping[str, Token] | None = None
    """What was sealed for each sink; None when only the range is known."""
    without_rows: frozenset[str] = frozenset()
    """Sinks that are known to have had no rows of it."""
    owed: frozenset[str] = frozenset()
    """Sinks that are not known to show it."""
    given_up: frozenset[str] = frozenset()
    """Sinks that will never show it, on a person's word."""
    decided: bool = False
    """Whether its manifest could be read: then what is sealed in it is shown as it is."""
    sequel: Sequel = NOTHING_FOLLOWED
    """What is to follow once it was replayed."""


@dataclass
class SinkPosition:
    """Where a sink's ledger stands."""

    epoch: int = 0
    range_digest: str | None = None


@dataclass(frozen=True)
class PipelineFacts:
    """What every manifest of a pipeline says the same."""

    source_names: tuple[str, ...]
    sink_names: tuple[str, ...]
    fingerprint: int
    vnode_count: int
    identity: dict[str, Any]
    as_sealed: dict[str, Any] | None = None
    """The identity in the form of the checkpoint that is gone on from; None where that has the present form."""


class Coordinator:
    """Drives epochs through the protocol, one after the other."""

    def __init__(
        self,
        store: DurableCheckpointStore,
        sinks: Mapping[str, Sink],
        positions: dict[str, SinkPosition],
        facts: PipelineFacts,
        owner: Owner,
        writer: CheckpointWriter,
        delivery: Delivery,
        settings: DeliverySettings,
        observer: Observer,
        clock: Clock,
    ) -> None:
        self._store, self._sinks, self._positions = store, sinks, positions
        self._facts, self._owner, self._writer = facts, owner, writer
        self._delivery, self._settings = delivery, settings
        self._observer, self._clock = observer, clock
        self._steps: dict[str, float] = {}
        self._dead_attempts = True
        self._failed = False

    def run_epoch(self, work: EpochWork, recorded: RecordedEpoch | None = None) -> None:
        """Take one epoch from its rows to committed sinks. `recorded`: what it was before, when it is replayed.

        After an error the coordinator is of no use: what is sealed and not shown is for the next start to settle.
        """
        if self._failed:
            raise PipelineError(f"epoch {work.epoch} cannot follow one that failed: start again, which recovers")
        self._failed = True
        try:
            self._run(work, recorded)
        except Exception as error:
            self._observer.on_event(CheckpointFailed(work.epoch, str(error)))
            raise
        self._failed = False

    def _run(self, work: EpochWork, recorded: RecordedEpoch | None) -> None:
        started = self._clock.monotonic()
        self._steps = {}
        epoch, digest = work.epoch, work.range_digest()
        with self._step(epoch, "begin"):
            self._begin(epoch, last=recorded is None)
        with self._step(epoch, "compute"):
            rows = work.rows()
        behind = self._sinks_without(epoch, digest)
        if recorded is not None:
            _compare_with_record(recorded, rows, digest, self._sinks.keys())
            behind = [name for name in behind if name not in recorded.given_up]
        with self._step(epoch, "prepare"):
            tokens, captured = self._prepare(work, digest, {name: rows[name] for name in behind if name in rows})
        with self._step(epoch, "seal"):
            sealed = self._seal(epoch, captured, tokens, recorded)
        work.sealed()
        with self._step(epoch, "commit"):
            self._commit(epoch, tokens)
        self._writer.afterwards(lambda: self._record(sealed.manifest, tokens))
        self._report(epoch, sealed, captured, rows, self._clock.monotonic() - started)
        if recorded is not None:
            self._observer.on_event(EpochReplayed(epoch))

    def _begin(self, epoch: int, *, last: bool) -> None:
        """Remove what earlier generations staged for this epoch; our own retries clean up themselves.

        Dead attempts are of replayed epochs and of the first new one: that is the `last` to look for.
        """
        if not self._dead_attempts:
            return
        ref = self._ref(epoch, 0)
        _, failures = self._delivery.on_all(
            list(self._sinks), epoch, "abort", self._settings.prepare_seconds, lambda _, sink, __: sink.abort(ref)
        )
        raise_first(failures)
        self._dead_attempts = not last

    def _sinks_without(self, epoch: int, digest: str) -> list[str]:
        """Return the sinks that do not have this epoch yet. Having it under another range is no reason to skip."""
        behind = []
        for name, position in self._positions.items():
            if position.epoch < epoch:
                behind.append(name)
            elif position.epoch == epoch and position.range_digest not in (None, digest):
                raise ReplayMismatch(
                    f"sink '{name}' has epoch {epoch} already, but of another source range: "
                    "going on would lose rows or show them twice"
                )
        return behind

    def _prepare(
        self, work: EpochWork, digest: str, rows: Mapping[str, Rows]
    ) -> tuple[dict[str, Token], CapturedEpoch]:
        """Stage the rows in every sink, and beside that take what Spark left: neither needs the other."""
        attempts: dict[str, int] = {}
        epoch = work.epoch

        def prepare(name: str, sink: Sink, attempt: int) -> Prepared:
            attempts[name] = attempt
            ref = self._ref(epoch, attempt)
            if attempt > 0:
                sink.abort(ref)
            with self._step(epoch, "prepare", name):
                prepared = sink.prepare(rows[name], ref)
            if prepared.rows != rows[name].count:
                raise SinkError(f"{prepared.rows} rows are staged, expected {rows[name].count}")
            return prepared

        limit = self._settings.prepare_seconds
        with (
            self._delivery.begun(list(rows), epoch, "prepare", limit, prepare) as preparing,
            self._step(epoch, "capture"),
        ):
            captured = work.capture()
        raise_first(preparing.failures)
        tokens = {
            name: Token(
                epoch=epoch,
                generation=self._owner.generation,
                attempt=attempts[name],
                previous=self._positions[name].epoch,
                rows=result.rows,
                range_digest=digest,
                payload=result.payload,
                nonce=self._owner.nonce,
            )
            for name, result in preparing.results.items()
        }
        return tokens, captured

    def _seal(
        self, epoch: int, captured: CapturedEpoch, tokens: Mapping[str, Token], recorded: RecordedEpoch | None
    ) -> SealedCheckpoint:
        self._writer.settle()
        documents: dict[str, Any] = dict.fromkeys(recorded.given_up) if recorded else {}
        documents |= {name: token.to_json_value() for name, token in tokens.items()}
        text = json.dumps(documents, sort_keys=True).encode()
        progress = ProgressRecord(
            timeline=self._owner.timeline,
            checkpoint_id=self._writer.next_id,
            epoch=epoch,
            generation=self._owner.generation,
            created_ms=self._clock.now_ms(),
            parts={**captured.parts, TOKENS_PART: text, **self._abandons()},
        )
        draft = self._draft(epoch, captured, tokens)
        # Tokens always stand in the progress chunk; the manifest repeats them while they are small.
        draft.sink_tokens = documents if len(text) <= _LARGE_TOKENS else {}
        followed = recorded.sequel.to_json_value() if recorded else {}
        draft.recovery = {**Branches.of(self._writer.last).to_json_value(), **followed} or None
        return self._writer.seal(draft, progress.to_bytes(), captured.operators)

    def _abandons(self) -> dict[str, bytes]:
        """Say what was given up also where it can be read without the manifest."""
        abandons = self._writer.last.abandons
        return {ABANDONS_PART: json.dumps(abandons).encode()} if abandons else {}

    def _draft(self, epoch: int, captured: CapturedEpoch, tokens: Mapping[str, Token]) -> CheckpointManifest:
        last, facts = self._writer.last, self._facts
        draft = CheckpointManifest.new_with_vnode_count(self._writer.next_id, epoch, facts.vnode_count)
        draft.source_offsets = captured.source_offsets
        draft.source_watermarks = captured.source_watermarks
        draft.table_offsets = captured.table_offsets
        draft.table_store_checkpoint_path = captured.tables_path
        draft.watermark = captured.watermark_ms
        draft.source_names = list(facts.source_names)
        draft.sink_names = list(facts.sink_names)
        draft.pipeline_hash = draft.fingerprint = facts.fingerprint
        draft.identity = facts.identity
        draft.sink_epochs = self._sink_epochs(epoch)
        draft.sink_commit_statuses = {
            name: SinkCommitStatus.PENDING if name in tokens else SinkCommitStatus.COMMITTED
            for name in self._positions
        }
        draft.steps = (last.steps or 0) + 1
        draft.processed_records = (last.processed_records or 0) + captured.rows_in
        return draft

    def _sink_epochs(self, epoch: int) -> dict[str, int]:
        """Return where the sinks stand as far as this epoch goes: in a replay one may be ahead."""
        return {name: min(position.epoch, epoch) for name, position in self._positions.items()}

    def _commit(self, epoch: int, tokens: Mapping[str, Token]) -> None:
        failures = self._delivery.commit(tokens, self._owner, lambda name: self._step(epoch, "commit", name))
        for name in tokens.keys() - failures.keys():
            self._positions[name] = SinkPosition(epoch, tokens[name].range_digest)
        if failures:
            with contextlib.suppress(Exception):  # The statuses are for people; the failure itself matters more.
                self._write_statuses(self._writer.last, tokens, failures)
            raise_first(failures)

    def _record(self, manifest: CheckpointManifest, tokens: Mapping[str, Token]) -> None:
        with report_step(self._observer, self._clock, manifest.epoch, "record"):
            if tokens:
                self._write_statuses(manifest, tokens, {})

    def _write_statuses(
        self, manifest: CheckpointManifest, tokens: Mapping[str, Token], failures: Mapping[str, Exception]
    ) -> None:
        statuses = dict.fromkeys(tokens, SinkCommitStatus.COMMITTED)
        statuses |= {name: SinkCommitStatus.failed(str(error)) for name, error in failures.items()}
        update = manifest.model_copy(
            update={
                "sink_commit_statuses": {**manifest.sink_commit_statuses, **statuses},
                "sink_epochs": self._sink_epochs(manifest.epoch),
            }
        )
        try:
            self._writer.updated(self._store.update_manifest(update))
        except TransientStoreError as error:
            _log.warning("statuses of epoch %d were not recorded, recovery asks the sinks: %s", manifest.epoch, error)

    def _report(
        self,
        epoch: int,
        sealed: SealedCheckpoint,
        captured: CapturedEpoch,
        rows: Mapping[str, Rows],
        seconds: float,
    ) -> None:
        self._observer.on_event(
            EpochCommitted(
                epoch=epoch,
                checkpoint_id=sealed.manifest.checkpoint_id,
                rows_in=captured.rows_in,
                rows_out={name: batch.count for name, batch in rows.items()},
                new_bytes=sealed.new_bytes,
                total_bytes=sealed.total_bytes,
                watermark_ms=captured.watermark_ms,
                seconds=seconds,
                steps=dict(self._steps),
            )
        )

    def _ref(self, epoch: int, attempt: int) -> EpochRef:
        return EpochRef(self._owner.timeline, self._owner.generation, epoch, attempt, self._owner.nonce)

    @contextlib.contextmanager
    def _step(self, epoch: int, step: str, sink: str | None = None) -> Iterator[None]:
        with report_step(self._observer, self._clock, epoch, step, sink) as elapsed:
            yield
            self._steps[step if sink is None else f"{step}:{sink}"] = elapsed()


def _compare_with_record(
    recorded: RecordedEpoch, rows: Mapping[str, Rows], digest: str, sinks: Collection[str]
) -> None:
    """Stop a replay that reads another range, or gives another number of rows, than what was sealed."""
    if recorded.tokens is None:
        return
    expected = dict.fromkeys(recorded.without_rows, 0)
    for name, token in recorded.tokens.items():
        expected[name] = token.rows
        if token.range_digest != digest:
            raise ReplayMismatch(f"epoch {recorded.epoch} would be replayed with another source range than it had")
    for name in expected.keys() & set(sinks):
        found = rows[name].count if name in rows else 0
        if found != expected[name]:
            raise ReplayMismatch(
                f"replaying epoch {recorded.epoch} gave {found} rows for sink '{name}', which was given "
                f"{expected[name]} of it: the query is not deterministic, or its input changed"
            )
