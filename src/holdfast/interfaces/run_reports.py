"""What commands about pipelines answer: more records of the kind in `holdfast.interfaces.reports`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.interfaces.pipeline_file import PipelineFile
from holdfast.interfaces.pipeline_file.sinks import SinkEntry
from holdfast.interfaces.pipeline_file.sources import SourceEntry
from holdfast.interfaces.pipeline_file.tables import TableEntry
from holdfast.interfaces.reports import Record, Skipped, time_text


@dataclass(frozen=True)
class PartCheck(Record):
    """One source, table, view or sink of a pipeline file."""

    name: str
    what: str


@dataclass(frozen=True)
class PipelineCheck(Record):
    """A pipeline file that is valid, and what it says."""

    file: str
    name: str
    store: str
    guarantee: str
    sources: tuple[PartCheck, ...]
    tables: tuple[PartCheck, ...]
    views: tuple[PartCheck, ...]
    sinks: tuple[PartCheck, ...]

    @classmethod
    def of(cls, file: PipelineFile) -> "PipelineCheck":
        """Return what a file says."""
        return cls(
            file=file.path,
            name=file.name,
            store=file.store,
            guarantee=file.guarantee,
            sources=tuple(PartCheck(source.name, _source(source)) for source in file.sources),
            tables=tuple(PartCheck(table.name, _table(table)) for table in file.tables),
            views=tuple(PartCheck(v.name, "SQL" if isinstance(v.query, str) else "Python") for v in file.views),
            sinks=tuple(PartCheck(sink.name, _sink(sink)) for sink in file.sinks),
        )


def _source(source: SourceEntry) -> str:
    return source.spec.format + (f", watermark {' '.join(source.watermark)}" if source.watermark else "")


def _table(table: TableEntry) -> str:
    return (
        f"{table.spec.connector}, looked at {'at each start' if table.refresh is None else f'every {table.refresh}'}"
    )


def _sink(sink: SinkEntry) -> str:
    takes = f"takes {sink.takes}" if sink.select is None else f"selects from {sink.takes}"
    return f"{takes}, {sink.kind}, {'exactly' if sink.sink.guarantee.exactly_once else 'at least'} once"


@dataclass(frozen=True)
class SinkPlan(Record):
    """What a start would do about a sink."""

    name: str
    epoch: int | None
    """What its target shows now; None when that knows nothing of this sink."""
    timeline: str | None
    commits: tuple[int, ...]
    """Epochs that are sealed for it and would be shown."""
    rewind_to: int | None
    what: str
    """All of it in words."""


@dataclass(frozen=True)
class ReplayPlan(Record):
    """An epoch that a start would compute again."""

    epoch: int
    found_in: str


@dataclass(frozen=True)
class SourcePlan(Record):
    """From where a source would be read on; `offsets` None is its beginning."""

    name: str
    asked: bool
    """Whether it said that this can be read: others are only read, by Spark."""
    offsets: Mapping[str, str] | None


@dataclass(frozen=True)
class StartPlan(Record):
    """What the next start would do, when everybody was asked and nobody refused."""

    pipeline: str
    store: str
    store_exists: bool
    outcome: str
    chosen_id: int | None
    epoch: int
    sealed_at: str | None
    examined: int
    skipped: tuple[Skipped, ...]
    abandons: tuple[int, ...]
    fence_id: int
    generation: int
    timeline: str | None
    """None: a new one."""
    sinks: tuple[SinkPlan, ...]
    replays: tuple[ReplayPlan, ...]
    sources: tuple[SourcePlan, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> "StartPlan":
        """Return what `Pipeline.plan` answered."""
        values = {key: value for key, value in plan.items() if key != "sealed_ms"}
        parts = {"skipped": Skipped, "sinks": SinkPlan, "replays": ReplayPlan, "sources": SourcePlan}
        lists = {key: tuple(part(**entry) for entry in plan[key]) for key, part in parts.items()}
        return cls(**{**values, **lists, "sealed_at": time_text(plan["sealed_ms"])})


@dataclass(frozen=True)
class StarterReceipt(Record):
    """A starter was written."""

    file: str
    sample: str | None
    """The sample input beside it; None when there was input already."""


@dataclass(frozen=True)
class ApprovalReceipt(Record):
    """A changed pipeline may go on."""

    store: str
    fingerprint: str
    checkpoint_id: int
    """The fence that records it."""
    epoch: int


@dataclass(frozen=True)
class SavedRows(Record):
    """Rows of an epoch, in a file."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ResolutionReceipt(Record):
    """A sealed epoch that a sink did not show was given up, is in a file, or is shown now."""

    store: str
    sink: str
    epoch: int
    action: str
    outcome: str
    checkpoint_id: int
    """The fence that records it."""
    file: SavedRows | None = None
    note: str | None = None
    """What a person should know besides."""


@dataclass(frozen=True)
class SparkExportReceipt(Record):
    """A checkpoint was written as a plain Spark checkpoint directory."""

    store: str
    checkpoint_id: int
    epoch: int
    directory: str
    files: int
    bytes: int
