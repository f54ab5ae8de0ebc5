"""The view of a run on a terminal: a few lines that stay in place, and what happened above them."""

from collections.abc import Callable
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.engine.events import EpochCommitted, Event, Recovered, Stopped
from holdfast.interfaces.cli.event_lines import lines_of, recovery_lines
from holdfast.interfaces.cli.phrases import (
    age_text,
    count_text,
    counted,
    duration_text,
    printable,
    size_text,
    span_text,
)
from holdfast.interfaces.cli.screen import console_on, styled
from holdfast.interfaces.cli.watching import Watcher
from holdfast.interfaces.http.settings import HttpListening
from holdfast.interfaces.progress import RunProgress, SinkProgress, Snapshot
from holdfast.interfaces.redaction import Redact
from holdfast.interfaces.reports import time_text

_PER_SECOND = 4
_STATES = {"running": "bold green", "waiting for data": "green", "failed": "bold red", "stopping": "yellow"}
_STEPS = ("begin", "compute", "prepare", "capture", "seal", "commit", "record")


class LiveWatcher(Watcher):
    """Keeps the view up to date a few times per second; retries, warnings and recovery scroll by above it."""

    def __init__(
        self, name: str, progress: RunProgress, redact: Redact = str, console: Console | None = None
    ) -> None:
        super().__init__(redact)
        self._name, self._progress = name, progress
        self._console = console or console_on("stdout")
        self._live = Live(
            console=self._console,
            get_renderable=self._render,
            refresh_per_second=_PER_SECOND,
            transient=True,
            vertical_overflow="crop",
        )

    def __enter__(self) -> "LiveWatcher":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the view down and leave one line that sums the run up."""
        self._live.stop()
        snapshot = self._progress.snapshot()
        if error is None and snapshot.recovery is not None:
            self._console.print(Text(summary(self._name, snapshot)))

    def entering(self, state: str) -> None:
        """Show it as the state."""
        self._progress.enter(state)

    def on_event(self, event: Event) -> None:
        """Count it; print what should not be missed."""
        self._progress.on_event(event)
        if not isinstance(event, EpochCommitted | Stopped):
            for line in lines_of(event):
                self._print(line, "default" if isinstance(event, Recovered | HttpListening) else "yellow")

    def note(self, text: str) -> None:
        """Print it above the view."""
        self._print(f"warning: {text}", "yellow")

    def _print(self, line: str, style: str) -> None:
        self._console.print(styled(self._redact(line), style))

    def _render(self) -> RenderableType:
        return render(self._name, self._progress.snapshot(), self._redact)


def summary(name: str, snapshot: Snapshot) -> str:
    """Return a run in one line."""
    out = ", ".join(f"{sink} {count_text(progress.rows)}" for sink, progress in snapshot.sinks.items())
    return (
        f"{name}: {counted(snapshot.epochs, 'epoch')} in {duration_text(snapshot.uptime_seconds)}, "
        f"{counted(snapshot.rows_in, 'row')} in, out: {out or 'nothing'}; at epoch {snapshot.epoch}"
    )


def render(name: str, snapshot: Snapshot, redact: Callable[[str], str] = str) -> RenderableType:
    """Return the view of a moment."""
    parts: list[RenderableType] = [_title(name, snapshot), _facts(snapshot)]
    if snapshot.sinks:
        parts.append(_sinks(snapshot, redact))
    return Group(*parts)


def _title(name: str, snapshot: Snapshot) -> Text:
    style = _STATES.get(snapshot.state, "cyan")
    step = f", {_where(snapshot.step, snapshot.epoch + 1)}" if snapshot.step else ""
    return Text.assemble(
        (printable(name), "bold"), "  ", (snapshot.state, style), step, "  ",
        (f"up {duration_text(snapshot.uptime_seconds)}", "dim"), overflow="ellipsis", no_wrap=True,
    )  # fmt: skip


def _where(step: str, epoch: int) -> str:
    return step.removeprefix("recovery.") if step.startswith("recovery.") else f"epoch {epoch}: {step}"


def _facts(snapshot: Snapshot) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=len("checkpoint"))
    table.add_column(no_wrap=True, overflow="ellipsis")
    last = snapshot.last
    table.add_row("epoch", str(snapshot.epoch) + (f", last took {span_text(last.seconds)}" if last else ""))
    table.add_row("rows in", f"{count_text(snapshot.rows_in)}, {count_text(round(snapshot.rows_per_second))} rows/s")
    if last is not None:
        table.add_row("checkpoint", _checkpoint(last, snapshot))
        table.add_row("steps", " ".join(f"{s} {span_text(last.steps[s])}" for s in _STEPS if s in last.steps))
        table.add_row("watermark", _watermark(last, snapshot))
    if snapshot.recovery is not None:
        table.add_row("start", printable(recovery_lines(snapshot.recovery)[0]))
    return table


def _checkpoint(last: EpochCommitted, snapshot: Snapshot) -> str:
    age = age_text(snapshot.checkpoint_age_seconds)
    return f"{last.checkpoint_id}, {age} old, state {size_text(last.total_bytes)} ({size_text(last.new_bytes)} new)"


def _watermark(last: EpochCommitted, snapshot: Snapshot) -> str:
    if last.watermark_ms is None or snapshot.watermark_lag_seconds is None:
        return "none"
    lag = snapshot.watermark_lag_seconds
    place = f"{duration_text(lag)} {'behind' if lag >= 0 else 'ahead of'} now"
    return f"{time_text(last.watermark_ms) or last.watermark_ms}, {place}"


def _sinks(snapshot: Snapshot, redact: Callable[[str], str]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("SINK", no_wrap=True)
    for name in ("EPOCH", "ROWS OUT", "LAST", "PREPARE", "COMMIT"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", style="yellow")
    for name, sink in snapshot.sinks.items():
        table.add_row(*_sink_row(name, sink, redact))
    return table


def _sink_row(name: str, sink: SinkProgress, redact: Callable[[str], str]) -> tuple[str, ...]:
    return (
        printable(name),
        "-" if sink.epoch is None else str(sink.epoch),
        count_text(sink.rows),
        count_text(sink.last_rows),
        span_text(sink.prepare_seconds),
        span_text(sink.commit_seconds),
        printable(redact(sink.trouble)) if sink.trouble else "",
    )
