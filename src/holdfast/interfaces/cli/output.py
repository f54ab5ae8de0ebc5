"""What a command says, apart from how: one abstract `Output`, a human one and a JSON one.

A command never asks which of the two it has.
"""

import contextlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from holdfast.interfaces.cli.phrases import printable
from holdfast.interfaces.comparison import Difference
from holdfast.interfaces.exit_codes import ExitCode
from holdfast.interfaces.history import EpochHistory, StartHistory, StartRecord
from holdfast.interfaces.reports import (
    CheckpointReport,
    ExportReceipt,
    ImportReceipt,
    Listing,
    OrphanOutcome,
    PruneOutcome,
    Record,
    RecoveryPreview,
    SavepointReceipt,
    StateFileList,
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

ByteProgress = Callable[[int], None]


class Output(ABC):
    """Where answers go. `redact` is applied to error messages; a command sets it once it knows what to hide."""

    redact: Callable[[str], str] = staticmethod(str)

    @abstractmethod
    def listing(self, listing: Listing) -> None:
        """Show the checkpoints of a store."""

    @abstractmethod
    def report(self, report: CheckpointReport) -> None:
        """Show one checkpoint."""

    @abstractmethod
    def state_files(self, files: StateFileList) -> None:
        """Show the state files of one checkpoint."""

    @abstractmethod
    def manifest(self, text: str) -> None:
        """Show a manifest as it stands."""

    @abstractmethod
    def difference(self, difference: Difference) -> None:
        """Show what changed."""

    @abstractmethod
    def epoch_history(self, history: EpochHistory) -> None:
        """Show the epochs of a pipeline."""

    @abstractmethod
    def start_history(self, history: StartHistory) -> None:
        """Show the starts of a pipeline."""

    @abstractmethod
    def start_record(self, start: StartRecord) -> None:
        """Show one start."""

    @abstractmethod
    def health(self, health: StoreHealth) -> None:
        """Show whether we could recover now."""

    @abstractmethod
    def verification(self, verification: Verification) -> None:
        """Show verdicts, the overall one last."""

    @abstractmethod
    def recovery(self, preview: RecoveryPreview) -> None:
        """Show what recovery would do."""

    @abstractmethod
    def pruned(self, outcome: PruneOutcome) -> None:
        """Show what pruning removed or would remove."""

    @abstractmethod
    def orphans(self, outcome: OrphanOutcome) -> None:
        """Show what was left behind."""

    @abstractmethod
    def savepoint(self, receipt: SavepointReceipt) -> None:
        """Show that a name was given or taken away."""

    @abstractmethod
    def savepoints(self, listing: Listing) -> None:
        """Show the named checkpoints."""

    @abstractmethod
    def exported(self, receipt: ExportReceipt) -> None:
        """Show where a checkpoint went."""

    @abstractmethod
    def imported(self, receipt: ImportReceipt) -> None:
        """Show under which id a checkpoint came in, and what that means."""

    @abstractmethod
    def copied(self, action: str, receipt: CopyReceipt) -> None:
        """Show what a push or a pull moved."""

    @abstractmethod
    def sync_status(self, report: SyncReport) -> None:
        """Show how a store and its bucket stand to each other."""

    @abstractmethod
    def progress(self, doing: str, total: Callable[[], int | None]) -> AbstractContextManager[ByteProgress]:
        """Lend a counter of bytes for the time something takes; `total` is asked only if somebody watches."""

    @abstractmethod
    def checked(self, check: PipelineCheck) -> None:
        """Show what a pipeline file says."""

    @abstractmethod
    def planned(self, plan: StartPlan) -> None:
        """Show what a start would do."""

    @abstractmethod
    def starter(self, receipt: StarterReceipt) -> None:
        """Show what was written, and what to do with it."""

    @abstractmethod
    def approved(self, receipt: ApprovalReceipt) -> None:
        """Show that a changed pipeline may go on."""

    @abstractmethod
    def resolved(self, receipt: ResolutionReceipt) -> None:
        """Show what became of a sealed epoch that a sink did not show."""

    @abstractmethod
    def exported_to_spark(self, receipt: SparkExportReceipt) -> None:
        """Show where a Spark checkpoint went."""

    def error(self, message: str, code: ExitCode, *, in_lines: bool = False) -> None:
        """Say on stderr what went wrong: in one line, or in the message's own lines."""
        lines = self.redact(message).splitlines() if in_lines else [self.redact(message)]
        print("holdfast: " + "\n".join(map(printable, lines)), file=sys.stderr)


class JsonOutput(Output):
    """One JSON document on stdout and nothing else, also for errors."""

    def __init__(self, *, in_lines: bool = False) -> None:
        self._indent = None if in_lines else 2

    def listing(self, listing: Listing) -> None:
        """Print the record."""
        self._record(listing)

    def report(self, report: CheckpointReport) -> None:
        """Print the record."""
        self._record(report)

    def state_files(self, files: StateFileList) -> None:
        """Print the names in the form of `PSpineBatches`."""
        self._record(files)

    def manifest(self, text: str) -> None:
        """Print the manifest itself; a damaged one as a string."""
        try:
            document = json.loads(text)
        except ValueError:
            document = {"damaged_manifest": text}
        self._print(document)

    def difference(self, difference: Difference) -> None:
        """Print the record."""
        self._record(difference)

    def epoch_history(self, history: EpochHistory) -> None:
        """Print the record."""
        self._record(history)

    def start_history(self, history: StartHistory) -> None:
        """Print the record."""
        self._record(history)

    def start_record(self, start: StartRecord) -> None:
        """Print the record."""
        self._record(start)

    def health(self, health: StoreHealth) -> None:
        """Print the record."""
        self._record(health)

    def verification(self, verification: Verification) -> None:
        """Print the record."""
        self._record(verification)

    def recovery(self, preview: RecoveryPreview) -> None:
        """Print the record."""
        self._record(preview)

    def pruned(self, outcome: PruneOutcome) -> None:
        """Print the record."""
        self._record(outcome)

    def orphans(self, outcome: OrphanOutcome) -> None:
        """Print the record."""
        self._record(outcome)

    def savepoint(self, receipt: SavepointReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def savepoints(self, listing: Listing) -> None:
        """Print the record."""
        self._record(listing)

    def exported(self, receipt: ExportReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def imported(self, receipt: ImportReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def copied(self, action: str, receipt: CopyReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def sync_status(self, report: SyncReport) -> None:
        """Print the record."""
        self._print({**report.to_json_value(), "in_order": report.in_order})

    @contextlib.contextmanager
    def progress(self, doing: str, total: Callable[[], int | None]) -> Iterator[ByteProgress]:
        """Count silently."""
        yield lambda count: None

    def checked(self, check: PipelineCheck) -> None:
        """Print the record."""
        self._record(check)

    def planned(self, plan: StartPlan) -> None:
        """Print the record."""
        self._record(plan)

    def starter(self, receipt: StarterReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def approved(self, receipt: ApprovalReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def resolved(self, receipt: ResolutionReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def exported_to_spark(self, receipt: SparkExportReceipt) -> None:
        """Print the record."""
        self._record(receipt)

    def error(self, message: str, code: ExitCode, *, in_lines: bool = False) -> None:
        """Print the error as a document, and on stderr."""
        self._print({"error": self.redact(message), "exit_code": int(code)})
        super().error(message, code, in_lines=in_lines)

    def _record(self, record: Record) -> None:
        self._print(record.to_json_value())

    def _print(self, document: Any) -> None:
        print(json.dumps(document, indent=self._indent, ensure_ascii=False))
