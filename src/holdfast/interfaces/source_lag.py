"""How far a checkpoint is behind its sources now."""

from dataclasses import replace

from holdfast.clock import Clock
from holdfast.errors import HoldfastError
from holdfast.interfaces.pipeline_file import PipelineFile
from holdfast.interfaces.reports import CheckpointReport, SourceLag, SourcePosition


def with_lag_now(report: CheckpointReport, file: PipelineFile, clock: Clock) -> CheckpointReport:
    """Ask the sources of a pipeline file where they end now. One that does not answer keeps what was recorded."""
    controls = {entry.name: entry.spec.control for entry in file.sources}
    silent: list[str] = []

    def asked(position: SourcePosition) -> SourcePosition:
        control = controls.get(position.name)
        if control is None or not position.offsets:
            return position
        try:
            head = control.head()
            lag = control.lag(position.offsets, head)
        except HoldfastError as error:
            silent.append(f"source {position.name}: {error}")
            return position
        finally:
            control.close()
        return replace(position, lag=SourceLag(lag.amount, lag.unit, dict(head), clock.now_ms()))

    sources = tuple(asked(position) for position in report.sources)
    return replace(report, sources=sources, warnings=(*report.warnings, *silent))
