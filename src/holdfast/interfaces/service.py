"""The one facade behind every face: what can be asked of a checkpoint store, and what can be done to it.

Answers are records of `holdfast.interfaces.reports`; nothing here prints. Errors are those of `holdfast.errors`,
with a hint what to do.
"""

import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.manifest import CheckpointManifest
from holdfast.core.names import sidecar_id_of
from holdfast.core.sidecar import StateCatalog
from holdfast.engine.recovery import RecoveryDecision, decide_recovery
from holdfast.engine.sync.notes import keeping_copied
from holdfast.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    InvalidRequest,
    NoValidCheckpoint,
    UnsupportedVersion,
)
from holdfast.interfaces import inspection
from holdfast.interfaces.comparison import Difference, Side, compare
from holdfast.interfaces.history import (
    EpochHistory,
    StartHistory,
    StartRecord,
    VerificationHistory,
    epoch_history,
    start_history,
    verification_history,
)
from holdfast.interfaces.inspection import Loaded, Surroundings
from holdfast.interfaces.reports import (
    CheckpointReport,
    ExportReceipt,
    ImportReceipt,
    Listing,
    OrphanOutcome,
    PruneOutcome,
    RecoveryPreview,
    SavepointReceipt,
    Skipped,
    Standing,
    StateFileEntry,
    StateFileList,
    Summary,
    Verdict,
    Verification,
)
from holdfast.interfaces.transfer import export_checkpoint, import_checkpoint
from holdfast.interfaces.verdict import StoreHealth, store_health
from holdfast.stores.store import DurableCheckpointStore
from holdfast.stores.verification import ByteProgress

LATEST = "latest"
_SAVEPOINT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_PARALLEL_READS = 16


def _ignore(count: int) -> None:
    """Nobody watches the progress."""


class CheckpointService:
    """Questions and actions on one store."""

    def __init__(self, store: DurableCheckpointStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self.store = store
        self._clock = clock

    # Looking

    def listing(self, last: int | None = None, before: int | None = None) -> Listing:
        """Return one line for every checkpoint, damaged ones included.

        Or for the newest `last`, or of those with ids below `before`, which is how to go through many.
        """
        ids = self.store.list_ids()
        older = ids if before is None else [id for id in ids if id < before]
        shown = older if last is None else older[max(len(older) - last, 0) :]
        return Listing(self.store.describe(), self._summaries(shown, ids[-1:]), len(ids))

    def _summaries(self, ids: Sequence[int], newest: Sequence[int] = ()) -> tuple[Summary, ...]:
        """Return lines about some; the newest of all knows which of them were given up."""
        loaded = self._load([*ids, *(id for id in newest if id not in ids)])
        around = self._surroundings(loaded)
        return tuple(inspection.summarize(id, loaded[id], around) for id in ids)

    def _load(self, ids: Sequence[int]) -> dict[int, Loaded]:
        """Read many manifests at once: on object storage each is a round trip."""
        with ThreadPoolExecutor(_PARALLEL_READS) as readers:
            return dict(zip(ids, readers.map(self._load_one, ids), strict=True))

    def _load_one(self, checkpoint_id: int) -> Loaded:
        try:
            return self.store.load_by_id(checkpoint_id)
        except CorruptCheckpoint as damage:
            return damage

    def _surroundings(self, loaded: dict[int, Loaded]) -> Surroundings:
        return Surroundings(
            store=self.store.describe(),
            now_ms=self._clock.now_ms(),
            sidecar_sizes=self.store.sidecars(),
            abandoned_by=inspection.abandoned_by(loaded),
        )

    def restorable(self) -> list[CheckpointManifest]:
        """Return what a start could go on from, as far as that shows without reading state; oldest first."""
        loaded = self._load(self.store.list_ids())
        given_up, sizes = inspection.abandoned_by(loaded), self.store.sidecars()
        return [
            manifest
            for id, manifest in loaded.items()
            if isinstance(manifest, CheckpointManifest)
            and id not in given_up
            and inspection.judge(manifest, sizes)[0] is Standing.VALID
        ]

    def resolve(self, reference: str) -> int:
        """Return the id that `latest`, a number or a savepoint's name stands for. The id may be a damaged one."""
        ids = self.store.list_ids()
        if reference == LATEST:
            if not ids:
                raise InvalidRequest(f"there are no checkpoints in {self.store.describe()}")
            return ids[-1]
        if reference.isascii() and reference.isdigit():
            return self._existing(int(reference), ids)
        for summary in reversed(self._summaries(ids)):
            if summary.name == reference:
                return summary.checkpoint_id
        raise CheckpointNotFound(
            reference, "give an id, 'latest' or the name of a savepoint; 'holdfast list' shows them"
        )

    @staticmethod
    def _existing(checkpoint_id: int, ids: Sequence[int]) -> int:
        if checkpoint_id in ids:
            return checkpoint_id
        newest = f"the newest is {ids[-1]}; 'holdfast list' shows all" if ids else "the store is empty"
        raise CheckpointNotFound(checkpoint_id, newest)

    def manifest(self, reference: str) -> CheckpointManifest:
        """Return the manifest that a reference stands for; CorruptCheckpoint when it is damaged."""
        checkpoint_id = self.resolve(reference)
        try:
            manifest = self.store.load_by_id(checkpoint_id)
        except UnsupportedVersion:
            raise
        except CorruptCheckpoint as error:
            hint = "'holdfast recover --dry-run' shows what can still be restored"
            raise CorruptCheckpoint(f"{error}; {hint}") from None
        if manifest is None:
            raise CheckpointNotFound(checkpoint_id, "it has no manifest; 'holdfast orphans' cleans up")
        return manifest

    def manifest_text(self, reference: str) -> str:
        """Return a manifest as it stands, even a damaged one."""
        checkpoint_id = self.resolve(reference)
        data = self.store.manifest_bytes(checkpoint_id)
        if data is None:
            raise CheckpointNotFound(checkpoint_id, "it has no manifest; 'holdfast orphans' cleans up")
        return data.decode(errors="backslashreplace")

    def report(self, reference: str) -> CheckpointReport:
        """Return everything about one checkpoint."""
        manifest = self.manifest(reference)
        newer = [id for id in self.store.list_ids() if id > manifest.checkpoint_id]
        catalog, problem = self._catalog(manifest)
        return inspection.report(manifest, catalog, problem, self._surroundings(self._load(newer)))

    def _catalog(self, manifest: CheckpointManifest) -> tuple[StateCatalog | None, str | None]:
        """Return the state files of a checkpoint, or why its indexes cannot be read."""
        if manifest.sidecar is None and any(state.external for state in manifest.operator_states.values()):
            return None, "operators are external, but there is no sidecar"
        try:
            return self.store.state_reader.catalog(manifest), None
        except CorruptCheckpoint as error:
            return None, str(error)

    def state_files(self, reference: str) -> StateFileList:
        """Return every state file of a checkpoint."""
        manifest = self.manifest(reference)
        catalog, problem = self._catalog(manifest)
        if catalog is None:
            raise CorruptCheckpoint(f"checkpoint {manifest.checkpoint_id}: {problem}")
        entries = (
            StateFileEntry(
                file.operator, file.path, file.size, file.sha256, file.location.sidecar if file.location else None
            )
            for file in catalog.files
        )
        return StateFileList(manifest.checkpoint_id, tuple(entries))

    def compare(self, before: str, after: str) -> Difference:
        """Return what changed from one checkpoint to another."""
        sides = [Side(manifest, self._catalog(manifest)[0]) for manifest in map(self.manifest, (before, after))]
        return compare(self.store.describe(), sides[0], sides[1], self.store.sidecars())

    def history(self, last: int | None = None) -> EpochHistory:
        """Return the epochs that history knows, or the newest `last`: also those whose checkpoints were pruned."""
        return epoch_history(self.store, last)

    def recoveries(self, last: int | None = None) -> StartHistory:
        """Return the starts that history knows, or the newest `last`."""
        return start_history(self.store, last)

    def recovery(self, reference: str) -> StartRecord:
        """Return the start whose fence has this id, or the `latest`."""
        for start in reversed(self.recoveries().recoveries):
            if start.fence_id is not None and reference in (LATEST, str(start.fence_id)):
                return start
        raise InvalidRequest(
            f"history knows no start that sealed fence {reference}; 'holdfast recoveries' shows those it knows"
        )

    def verifications(self, last: int | None = None) -> VerificationHistory:
        """Return what verification in the background found, or the newest `last` of it."""
        return verification_history(self.store, last)

    # Judging

    def health(self) -> StoreHealth:
        """Return whether we could recover now, from where, and how well that is known. Reads no state."""
        return store_health(self.store, self._clock.now_ms())

    def references_to_ids(self, references: Iterable[str]) -> list[int]:
        """Return the ids of several references, each once; all ids when none is given."""
        wanted = [self.resolve(reference) for reference in references] or self.store.list_ids()
        if not wanted:
            raise InvalidRequest(f"there are no checkpoints in {self.store.describe()}: nothing to verify")
        return list(dict.fromkeys(wanted))

    def bytes_to_verify(self, ids: Iterable[int]) -> int:
        """Return how many bytes verifying will read, as far as manifests and indexes tell."""
        sizes = self.store.sidecars()
        return sum(self._bytes_of(loaded, sizes) for loaded in self._load(list(ids)).values())

    def _bytes_of(self, loaded: Loaded, sizes: dict[str, int]) -> int:
        if not isinstance(loaded, CheckpointManifest):
            return 0
        own = sizes.get(loaded.sidecar or "", 0)
        catalog, _ = self._catalog(loaded)
        others = (
            f for f in (catalog.files if catalog else ()) if not f.location or f.location.sidecar != loaded.sidecar
        )
        return own + sum(file.size for file in others)

    def verify(self, ids: Sequence[int], on_bytes: ByteProgress = _ignore) -> Verification:
        """Read every byte of these checkpoints and return a verdict on each."""
        start, read = self._clock.monotonic(), 0

        def count(bytes_read: int) -> None:
            nonlocal read
            read += bytes_read
            on_bytes(bytes_read)

        newest = self.store.list_ids()[-1:]
        given_up = inspection.abandoned_by(self._load(sorted({*ids, *newest})))
        verdicts = tuple(self._verdict(id, given_up.get(id), count) for id in ids)
        return Verification(self.store.describe(), verdicts, read, self._clock.monotonic() - start)

    def _verdict(self, checkpoint_id: int, given_up_by: int | None, on_bytes: ByteProgress) -> Verdict:
        loaded = self._load_one(checkpoint_id)
        if isinstance(loaded, CheckpointManifest) and inspection.is_start(loaded):
            return Verdict(checkpoint_id, "start")
        result = self.store.validate_checkpoint(checkpoint_id, on_bytes)
        problems = tuple(failure.message for failure in result.failures)
        warnings = tuple(issue.message for issue in result.issues if issue not in result.failures)
        if given_up_by is not None:
            warnings += (f"checkpoint {given_up_by} says that it was given up: no start goes on from it",)
        return Verdict(checkpoint_id, "valid" if result.valid else "damaged", problems, warnings)

    def preview_recovery(self) -> RecoveryPreview:
        """Return what recovery would choose if the pipeline started now. Reads, and writes nothing."""
        try:
            return self._previewed(decide_recovery(self.store))
        except NoValidCheckpoint as refusal:
            report = self.store.recover_latest_validated()
            return RecoveryPreview(
                store=self.store.describe(),
                outcome="refuse",
                chosen=None,
                skipped=tuple(Skipped(id, reason) for id, reason in report.skipped),
                examined=report.examined,
                reason=str(refusal),
                fence_id=None,
                generation=None,
                timeline=None,
                abandons=(),
                sinks_to_commit=(),
            )

    def _previewed(self, decision: RecoveryDecision) -> RecoveryPreview:
        chosen = decision.chosen
        statuses = chosen.sink_commit_statuses if chosen else {}
        summary = self._summaries([chosen.checkpoint_id])[0] if chosen else None
        return RecoveryPreview(
            store=self.store.describe(),
            outcome="restore" if chosen else "fresh",
            chosen=summary,
            skipped=tuple(Skipped(id, reason) for id, reason in decision.report.skipped),
            examined=decision.report.examined,
            reason=None,
            fence_id=decision.newest_id + 1,
            generation=decision.generation + 1,
            timeline=decision.timeline,
            abandons=decision.abandons,
            sinks_to_commit=tuple(sorted(sink for sink, s in statuses.items() if s.kind != "Committed")),
        )

    # Tidying

    def plan_prune(self, keep: int) -> PruneOutcome:
        """Return what pruning to `keep` checkpoints would remove."""
        with keeping_copied(self.store):
            plan = self.store.plan_prune(_checked_keep(keep))
        return self._prune_outcome(keep, plan.remove, plan.keep, freed=None)

    def prune(self, keep: int) -> PruneOutcome:
        """Remove old checkpoints and what they alone needed."""
        before = sum(self.store.sidecars().values())
        with keeping_copied(self.store):
            removed = self.store.prune_ids(_checked_keep(keep))
        freed = before - sum(self.store.sidecars().values())
        return self._prune_outcome(keep, tuple(removed), tuple(self.store.list_ids()), freed=max(freed, 0))

    def _prune_outcome(
        self, keep: int, removed: tuple[int, ...], remaining: tuple[int, ...], *, freed: int | None
    ) -> PruneOutcome:
        names = tuple(summary.name for summary in self._summaries(remaining) if summary.name is not None)
        return PruneOutcome(self.store.describe(), keep, freed is None, removed, remaining, names, freed)

    def find_orphans(self) -> OrphanOutcome:
        """Return which ids and sidecars nobody needs. Temporary files of dead writers show only when removed."""
        summaries = self._summaries(self.store.list_ids())
        sizes = self.store.sidecars()
        blocked = _why_nothing_may_go(summaries)
        if blocked:
            return OrphanOutcome(self.store.describe(), True, (), 0, 0, blocked)
        newest_valid = max(s.checkpoint_id for s in summaries if s.condition is Standing.VALID)
        orphans = {s.checkpoint_id for s in summaries if s.condition is Standing.ORPHAN}
        doomed = self._unneeded_sidecars(sizes, newest_valid)
        found = [f"checkpoint {id} (no manifest)" for id in sorted(orphans) if id < newest_valid]
        found += [name for name in doomed if sidecar_id_of(name) not in orphans]
        freed = sum(sizes[name] for name in doomed)
        return OrphanOutcome(self.store.describe(), True, tuple(found), 0, freed, None)

    def _unneeded_sidecars(self, sizes: dict[str, int], newest_valid: int) -> list[str]:
        needed = {name for manifest in self.store.manifests() for name in manifest.needed_sidecars}
        return sorted(name for name in sizes.keys() - needed if (sidecar_id_of(name) or 0) <= newest_valid)

    def remove_orphans(self) -> OrphanOutcome:
        """Remove what dead writers left behind."""
        blocked = _why_nothing_may_go(self._summaries(self.store.list_ids()))
        before = sum(self.store.sidecars().values())
        removed = self.store.cleanup_orphans()
        freed = before - sum(self.store.sidecars().values())
        return OrphanOutcome(self.store.describe(), False, (), removed, max(freed, 0), blocked)

    # Savepoints

    def savepoints(self) -> Listing:
        """Return the named checkpoints."""
        summaries = self._summaries(self.store.list_ids())
        named = tuple(summary for summary in summaries if summary.name is not None)
        return Listing(self.store.describe(), named, len(named))

    def create_savepoint(
        self, name: str, reference: str, *, verify: bool = True, on_bytes: ByteProgress = _ignore
    ) -> SavepointReceipt:
        """Name a checkpoint, which pins it against pruning. It is verified first unless the caller did."""
        _check_name(name)
        manifest = self.manifest(reference)
        taken = [
            s for s in self.savepoints().checkpoints if s.name == name and s.checkpoint_id != manifest.checkpoint_id
        ]
        if taken:
            raise InvalidRequest(
                f"savepoint '{name}' exists: it is checkpoint {taken[0].checkpoint_id}; "
                f"choose another name or release it first"
            )
        if manifest.identifier not in (None, name):
            raise InvalidRequest(
                f"checkpoint {manifest.checkpoint_id} already is savepoint '{manifest.identifier}'; "
                f"release that first, or name another checkpoint"
            )
        self._refuse_worthless(manifest, on_bytes if verify else None)
        self.store.set_identifier(manifest.checkpoint_id, name)
        return self._savepoint_receipt("created", name, manifest)

    def _refuse_worthless(self, manifest: CheckpointManifest, on_bytes: ByteProgress | None) -> None:
        standing, problem = inspection.judge(manifest, self.store.sidecars())
        if standing is Standing.VALID and on_bytes is not None:
            verdict = self._verdict(manifest.checkpoint_id, None, on_bytes)
            problem = "; ".join(verdict.problems)
        if problem:
            raise CorruptCheckpoint(f"checkpoint {manifest.checkpoint_id} cannot be a savepoint: {problem}")

    def release_savepoint(self, name: str) -> SavepointReceipt:
        """Take a name away; the checkpoint becomes an ordinary one."""
        _check_name(name)
        for summary in reversed(self.savepoints().checkpoints):
            if summary.name == name:
                manifest = self.store.set_identifier(summary.checkpoint_id, None)
                return self._savepoint_receipt("released", name, manifest)
        raise CheckpointNotFound(name, "'holdfast savepoint list' shows the names")

    def _savepoint_receipt(self, action: str, name: str, manifest: CheckpointManifest) -> SavepointReceipt:
        return SavepointReceipt(self.store.describe(), action, name, manifest.checkpoint_id, manifest.epoch)

    # Carrying

    def export_file(
        self, reference: str, path: str, *, overwrite: bool = False, on_bytes: ByteProgress = _ignore
    ) -> ExportReceipt:
        """Write a checkpoint and all the bytes it depends on into one file."""
        manifest = self.manifest(reference)
        if os.path.lexists(path) and not overwrite:
            raise InvalidRequest(f"{path} exists; give --overwrite to replace it, or another name")
        return export_checkpoint(self.store, manifest, path, on_bytes)

    def import_file(self, path: str, *, force: bool = False, on_bytes: ByteProgress = _ignore) -> ImportReceipt:
        """Verify an archive or a foreign checkpoint directory, then seal it as the newest checkpoint."""
        return import_checkpoint(self.store, path, force=force, clock=self._clock, on_bytes=on_bytes)


def _checked_keep(keep: int) -> int:
    if keep < 1:
        raise InvalidRequest(f"cannot keep {keep} checkpoints: the newest valid one always stays, so give 1 or more")
    return keep


def _check_name(name: str) -> None:
    if not _SAVEPOINT_NAME.fullmatch(name):
        raise InvalidRequest(f"'{name}' cannot name a savepoint: use 1 to 63 of A-Z a-z 0-9 _ . -")
    if name == LATEST or name.isdigit():
        raise InvalidRequest(f"'{name}' cannot name a savepoint: it would be taken for an id; add a letter")


def _why_nothing_may_go(summaries: Sequence[Summary]) -> str | None:
    """Return why no sidecar may be removed, as the store sees it, or None."""
    for summary in summaries:
        if summary.condition in (Standing.CORRUPT, Standing.UNSUPPORTED):
            return (
                f"the manifest of checkpoint {summary.checkpoint_id} cannot be read, so nobody knows which sidecars "
                "it needs: none is removed"
            )
    if not any(summary.condition is Standing.VALID for summary in summaries):
        return "there is no valid checkpoint: no sidecar is removed"
    return None
