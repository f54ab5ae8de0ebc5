"""What commands about pipelines answer: more records of the kind in `holdfast.interfaces.reports`."""

from dataclasses import dataclass

from holdfast.interfaces.pipeline_file import PipelineFile
from holdfast.interfaces.pipeline_file.sinks import SinkEntry
from holdfast.interfaces.pipeline_file.sources import SourceEntry
from holdfast.interfaces.pipeline_file.tables import TableEntry
from holdfast.interfaces.reports import Record


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
