"""Answers for people."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from holdfast.interfaces.cli.human_health import print_health
from holdfast.interfaces.cli.human_history import print_epochs, print_start, print_starts
from holdfast.interfaces.cli.human_plan import print_plan
from holdfast.interfaces.cli.human_report import print_difference, print_report
from holdfast.interfaces.cli.human_sync import print_copied, print_sync_status
from holdfast.interfaces.cli.output import ByteProgress, Output
from holdfast.interfaces.cli.phrases import (
    age_text,
    counted,
    folded_ids,
    printable,
    sink_summary,
    size_text,
    stopwatch_text,
)
from holdfast.interfaces.cli.screen import Cell, Screen, console_on, styled
from holdfast.interfaces.comparison import Difference
from holdfast.interfaces.history import EpochHistory, StartHistory, StartRecord
from holdfast.interfaces.reports import (
    CheckpointReport,
    ExportReceipt,
    ImportReceipt,
    Listing,
    OrphanOutcome,
    PruneOutcome,
    RecoveryPreview,
    SavepointReceipt,
    Standing,
    StateFileList,
    Summary,
    Verification,
)
from holdfast.interfaces.run_reports import (
    ApprovalReceipt,
    PipelineCheck,
    ResolutionReceipt,
    SparkExportReceipt,
    StarterReceipt,
    StartPlan,
)
from holdfast.interfaces.syncing import CopyReceipt, SyncReport
from holdfast.interfaces.verdict import StoreHealth

_STYLES = {
    Standing.VALID: "green",
    Standing.START: "dim",
    Standing.BROKEN: "bold red",
    Standing.CORRUPT: "bold red",
    Standing.UNSUPPORTED: "yellow",
    Standing.FOREIGN: "yellow",
    Standing.ORPHAN: "yellow",
}
_OUTCOMES = {"valid": "green", "start": "dim", "damaged": "bold red"}


class HumanOutput(Output):
    """Reports, tables and a progress bar."""

    def __init__(self) -> None:
        self._screen = Screen()

    def listing(self, listing: Listing) -> None:
        """Print one line per checkpoint, oldest first."""
        if not listing.checkpoints:
            self._screen.line(f"no checkpoints in {listing.store}")
            return
        columns = ("ID", "EPOCH", "AGE", "KIND", "NAME", "SIZE", "SINKS", "CONDITION")
        self._screen.table(columns, map(_row, listing.checkpoints), numeric=("ID", "EPOCH", "AGE", "SIZE"), indent="")

    def report(self, report: CheckpointReport) -> None:
        """Print a report in sections."""
        print_report(self._screen, report)

    def state_files(self, files: StateFileList) -> None:
        """Print one line per file."""
        if not files.entries:
            self._screen.line(f"checkpoint {files.checkpoint_id} has no state files: its operators are plain bytes")
            return
        rows = (
            (entry.operator, entry.path, str(entry.size), entry.sidecar or "inline", entry.sha256)
            for entry in files.entries
        )
        self._screen.table(("OPERATOR", "PATH", "BYTES", "IN", "SHA256"), rows, numeric=("BYTES",), indent="")

    def manifest(self, text: str) -> None:
        """Print the document, with control characters made visible."""
        for line in text.splitlines():
            self._screen.line(line)

    def difference(self, difference: Difference) -> None:
        """Print what changed in sections."""
        print_difference(self._screen, difference)

    def epoch_history(self, history: EpochHistory) -> None:
        """Print one line per epoch."""
        print_epochs(self._screen, history)

    def start_history(self, history: StartHistory) -> None:
        """Print one line per start."""
        print_starts(self._screen, history)

    def start_record(self, start: StartRecord) -> None:
        """Print what a start found and did, in sections."""
        print_start(self._screen, start)

    def health(self, health: StoreHealth) -> None:
        """Print the verdict first, then why, then what it rests on."""
        print_health(self._screen, health)

    def verification(self, verification: Verification) -> None:
        """Print a line per checkpoint, its problems below it, and the verdict last."""
        for verdict in verification.verdicts:
            style = _OUTCOMES[verdict.outcome]
            self._screen.line(f"checkpoint {verdict.checkpoint_id}: ", styled(verdict.outcome, style))
            for problem in verdict.problems:
                self._screen.line("  damage: ", problem)
            for warning in verdict.warnings:
                self._screen.line("  warning: ", warning)
        self._screen.line(*_overall(verification))

    def recovery(self, preview: RecoveryPreview) -> None:
        """Print the choice first, then everything that was passed over and why."""
        if preview.outcome == "restore" and preview.chosen is not None:
            self._chosen(preview, preview.chosen)
        elif preview.outcome == "fresh":
            self._screen.line(f"recovery would start fresh: {preview.store} holds nothing to restore")
        else:
            self._screen.line(styled("recovery would refuse to start", "bold red"), f": {preview.reason}")
        for skipped in preview.skipped:
            self._screen.line(f"skipped {skipped.checkpoint_id}: {skipped.reason}")
        if preview.outcome != "refuse":
            self._screen.line("sinks and sources were not asked: 'holdfast plan FILE' asks them")

    def _chosen(self, preview: RecoveryPreview, chosen: Summary) -> None:
        self._screen.line(
            styled(f"recovery would restore checkpoint {chosen.checkpoint_id}", "bold"),
            f": epoch {chosen.epoch}, {age_text(chosen.age_seconds)} old",
        )
        self._screen.line(
            f"it would seal fence {preview.fence_id} with generation {preview.generation} "
            f"on timeline {preview.timeline or 'none'}"
        )
        if preview.sinks_to_commit:
            self._screen.line(f"sinks it would ask and drive: {', '.join(preview.sinks_to_commit)}")
        if preview.abandons:
            self._screen.line(f"ids it would abandon: {folded_ids(preview.abandons)}")

    def pruned(self, outcome: PruneOutcome) -> None:
        """Print which ids went and which stay."""
        verb = "would remove" if outcome.dry_run else "removed"
        if outcome.removed:
            freed = "" if outcome.freed_bytes is None else f", freed {size_text(outcome.freed_bytes)}"
            count = counted(len(outcome.removed), "checkpoint")
            self._screen.line(f"{verb} {count}: {folded_ids(outcome.removed)}{freed}")
        else:
            self._screen.line(f"{verb} nothing")
        pinned = f" (savepoints: {', '.join(outcome.savepoints)})" if outcome.savepoints else ""
        self._screen.line(f"{'would keep' if outcome.dry_run else 'kept'} {folded_ids(outcome.remaining)}{pinned}")

    def orphans(self, outcome: OrphanOutcome) -> None:
        """Print what was or would be removed, and why nothing may be."""
        for name in outcome.found:
            self._screen.line(f"would remove {name}")
        if outcome.dry_run and not outcome.found:
            self._screen.line("no orphaned sidecars or ids")
        if outcome.dry_run:
            self._screen.line("temporary files of dead writers are found and removed by a real run")
        else:
            freed = f", freed {size_text(outcome.freed_bytes)}" if outcome.removed else ""
            self._screen.line(f"removed {counted(outcome.removed, 'leftover')}{freed}")
        if outcome.blocked:
            self._screen.line(styled("note", "yellow"), f": {outcome.blocked}")

    def savepoint(self, receipt: SavepointReceipt) -> None:
        """Print one line."""
        means = "pruning will keep it" if receipt.action == "created" else "pruning may remove it now"
        self._screen.line(
            f"{receipt.action} savepoint {receipt.name}: checkpoint {receipt.checkpoint_id}, "
            f"epoch {receipt.epoch}; {means}"
        )

    def savepoints(self, listing: Listing) -> None:
        """Print one line per name."""
        if not listing.checkpoints:
            self._screen.line(f"no savepoints in {listing.store}")
            return
        self.listing(listing)

    def exported(self, receipt: ExportReceipt) -> None:
        """Print one line."""
        how = ", put together from several sidecars" if receipt.rebuilt else ""
        how += _with_files(receipt.files)
        self._screen.line(
            f"exported checkpoint {receipt.checkpoint_id} (epoch {receipt.epoch}) to {receipt.file}: "
            f"{size_text(receipt.file_bytes)}{how}, verified"
        )
        self._notes(receipt.notes)

    def imported(self, receipt: ImportReceipt) -> None:
        """Print under which id it came in, and whom that affects."""
        renamed = "" if receipt.checkpoint_id == receipt.original_id else f" (it was {receipt.original_id})"
        self._screen.line(
            f"imported checkpoint {receipt.checkpoint_id}{renamed}, epoch {receipt.epoch}, "
            f"{size_text(receipt.state_bytes)} of state{_with_files(receipt.files)}, verified"
        )
        self._screen.line(f"it is now the newest checkpoint of {receipt.store}: a start goes on from it")
        if not receipt.first:
            self._screen.line("a pipeline that was writing to this store is fenced: it stops at its next checkpoint")
        self._notes(receipt.notes)

    def _notes(self, notes: Iterable[str]) -> None:
        for note in notes:
            self._screen.line(styled("note", "yellow"), f": {note}")

    def copied(self, action: str, receipt: CopyReceipt) -> None:
        """Print what was moved."""
        print_copied(self._screen, action, receipt)

    def sync_status(self, report: SyncReport) -> None:
        """Print both sides."""
        print_sync_status(self._screen, report)

    def checked(self, check: PipelineCheck) -> None:
        """Print what the file says, one line per part."""
        self._screen.line(
            styled(f"{check.file} is valid", "bold green"),
            f": pipeline {check.name}, {check.guarantee}, store {check.store}",
        )
        parts = (("source", check.sources), ("table", check.tables), ("view", check.views), ("sink", check.sinks))
        self._screen.table((), [(kind, part.name, part.what) for kind, group in parts for part in group])

    def planned(self, plan: StartPlan) -> None:
        """Print the choice first, then every sink and source."""
        print_plan(self._screen, plan)

    def starter(self, receipt: StarterReceipt) -> None:
        """Print what was written and how to run it."""
        self._screen.line(f"wrote {receipt.file}" + (f" and {receipt.sample}" if receipt.sample else ""))
        self._screen.line(f"run it with: holdfast run {receipt.file} --once")

    def approved(self, receipt: ApprovalReceipt) -> None:
        """Print what the next start will do."""
        self._screen.line(
            f"approved {receipt.fingerprint}: the pipeline with this fingerprint goes on from epoch {receipt.epoch} "
            f"of {receipt.store} at its next start"
        )
        self._screen.line(
            f"recorded in fence {receipt.checkpoint_id}; a pipeline that is still running on this store is fenced"
        )

    def resolved(self, receipt: ResolutionReceipt) -> None:
        """Print what became of the epoch."""
        self._screen.line(f"sink {receipt.sink}, epoch {receipt.epoch}: {receipt.outcome}")
        if receipt.file is not None:
            size = f"{counted(receipt.file.rows, 'row')}, {size_text(receipt.file.bytes)}"
            self._screen.line(f"{size}, verified, sha256 {receipt.file.sha256}")
        if receipt.note is not None:
            self._screen.line(styled("note", "yellow"), f": {receipt.note}")
        self._screen.line(f"recorded in fence {receipt.checkpoint_id} of {receipt.store}")

    def exported_to_spark(self, receipt: SparkExportReceipt) -> None:
        """Print where to point Spark."""
        self._screen.line(
            f"wrote checkpoint {receipt.checkpoint_id} (epoch {receipt.epoch}) to {receipt.directory}: "
            f"{counted(receipt.files, 'file')}, {size_text(receipt.bytes)}, verified"
        )
        self._screen.line("use it as the checkpointLocation of the same query in plain Spark")

    @contextlib.contextmanager
    def progress(self, doing: str, total: Callable[[], int | None]) -> Iterator[ByteProgress]:
        """Show a bar on stderr, on a terminal only; it disappears when the work is done."""
        console = console_on("stderr")
        if not console.is_terminal:
            yield lambda count: None
            return
        size = total()
        with Progress(*_columns(size), console=console, transient=True) as progress:
            task = progress.add_task(doing, total=size)
            yield lambda count: progress.advance(task, count)


def _columns(size: int | None) -> tuple[ProgressColumn, ...]:
    """Return a bar where the end is known, and a sign of life where it is not."""
    if size is None:
        return SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )


def _row(summary: Summary) -> tuple[Cell, ...]:
    return (
        str(summary.checkpoint_id),
        "-" if summary.epoch is None else str(summary.epoch),
        age_text(summary.age_seconds),
        summary.kind or "-",
        summary.name or "-",
        size_text(summary.size),
        sink_summary(dict(summary.sinks)),
        _condition(summary),
    )


def _condition(summary: Summary) -> Text:
    text = styled(summary.condition.value, _STYLES[summary.condition])
    if summary.problem and summary.condition is not Standing.START:
        # Two digests would fill the line; `verify` shows them.
        text.append(f": {printable(summary.problem.split(': expected ')[0])}", style="default")
    if summary.abandoned_by is not None:
        text.append(f" (abandoned by {summary.abandoned_by})", style="dim")
    return text


def _overall(verification: Verification) -> tuple[Cell, ...]:
    read = f"{size_text(verification.bytes_read)} read in {stopwatch_text(verification.elapsed_seconds)}"
    count = len(verification.verdicts)
    if verification.sound:
        return styled("verdict: sound", "bold green"), f": {counted(count, 'checkpoint')}, {read}"
    damaged = verification.damaged
    return (
        styled("verdict: damaged", "bold red"),
        f": {len(damaged)} of {counted(count, 'checkpoint')} ({folded_ids(damaged)}), {read}",
    )


def _with_files(files: int) -> str:
    return f", with {files} file{'s' if files > 1 else ''} of its sources and tables" if files else ""
