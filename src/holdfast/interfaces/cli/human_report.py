"""The two long answers: one checkpoint in full, and what changed between two."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from holdfast.core.sidecar import PROGRESS_OPERATOR
from holdfast.interfaces.cli.phrases import age_text, duration_text, moment_text, printable, signed, size_text
from holdfast.interfaces.cli.screen import Cell, Screen, styled
from holdfast.interfaces.comparison import Change, Difference, SourceChange
from holdfast.interfaces.reports import CheckpointReport, OperatorState, SidecarUse, SourcePosition, Standing

_STATUS_STYLES = {"Committed": "green", "Pending": "yellow", "Failed": "bold red"}


def print_report(screen: Screen, report: CheckpointReport) -> None:
    """Print one checkpoint in sections."""
    screen.line(styled(f"checkpoint {report.checkpoint_id}", "bold"), f" of {report.store}")
    screen.fields(_identity(report))
    _print_positions(screen, "sources", report.sources)
    _print_positions(screen, "reference tables", report.tables)
    _print_sinks(screen, report)
    _print_operators(screen, report.operators)
    _print_dependencies(screen, report.depends_on)
    _print_recovery(screen, report)
    for warning in report.warnings:
        screen.line(styled("warning", "yellow"), f": {warning}")


def _identity(report: CheckpointReport) -> list[tuple[str, Cell | None]]:
    return [
        ("age", f"{age_text(report.age_seconds)} (sealed {report.created_at or report.timestamp_ms})"),
        ("condition", _condition(report)),
        ("epoch", str(report.epoch)),
        ("id", str(report.checkpoint_id)),
        ("uuid", _optional(report.uuid)),
        ("kind", report.kind),
        ("savepoint", report.name),
        ("timeline", _optional(report.timeline)),
        ("generation", _optional(report.generation)),
        ("parent", "none" if report.parent is None else f"checkpoint {report.parent}"),
        ("abandons", ", ".join(map(str, report.abandons)) or None),
        ("watermark", moment_text(report.watermark)),
        ("records", _optional(report.processed_records)),
        ("steps", _optional(report.steps)),
        ("fingerprint", _optional(report.fingerprint)),
        ("pipeline hash", _optional(report.pipeline_hash)),
        ("vnodes", str(report.vnode_count)),
    ]


def _optional(value: object) -> str | None:
    return None if value is None else str(value)


def _condition(report: CheckpointReport) -> Text:
    good = report.condition in (Standing.VALID, Standing.START)
    text = styled(report.condition.value, "green" if good else "bold red")
    if report.problem:
        text.append(f": {printable(report.problem)}", style="default")
    elif report.condition is Standing.VALID:
        text.append(" (manifest true, sidecars there; 'holdfast verify' reads every byte)", style="dim")
    if report.abandoned_by is not None:
        text.append(f" (abandoned by checkpoint {report.abandoned_by}: recovery will not choose it)", style="default")
    return text


def _print_positions(screen: Screen, title: str, positions: Sequence[SourcePosition]) -> None:
    if not positions:
        return
    screen.heading(title)
    rows = [
        (
            position.name,
            key,
            value,
            moment_text(position.watermark) if position.watermark is not None else "-",
            _lag_text(position),
        )
        for position in positions
        for key, value in sorted(position.offsets.items()) or [("-", "-")]
    ]
    screen.table(("NAME", "OFFSET", "NEXT", "WATERMARK", "LAG"), rows, numeric=("NEXT",))


def _lag_text(position: SourcePosition) -> str:
    """Return the lag of a whole source: with several offsets it is their sum."""
    return "-" if position.lag is None else f"{position.lag.amount:,} {printable(position.lag.unit)}"


def _print_sinks(screen: Screen, report: CheckpointReport) -> None:
    if not report.sinks:
        return
    screen.heading("sinks")
    rows = (
        (
            sink.name,
            styled(sink.status or "unknown", _STATUS_STYLES.get(sink.status or "", "default")),
            "-" if sink.epoch is None else str(sink.epoch),
            "yes" if sink.has_token else "-",
            sink.message or "",
        )
        for sink in report.sinks
    )
    screen.table(("NAME", "STATUS", "EPOCH", "TOKEN", ""), rows, numeric=("EPOCH",))


def _print_operators(screen: Screen, operators: Sequence[OperatorState]) -> None:
    if not operators:
        return
    screen.heading("operators")
    rows = [_operator_row(state) for state in operators]
    state_operators = [state for state in operators if state.name != PROGRESS_OPERATOR and state.bytes is not None]
    if len(state_operators) > 1:
        totals = (
            sum(getattr(state, key) or 0 for state in state_operators)
            for key in ("files", "bytes", "new_bytes", "referenced_bytes")
        )
        files, total, new, referenced = totals
        rows.append(("all state", "", str(files or "-"), size_text(total), size_text(new), size_text(referenced)))
    columns = ("NAME", "PLACE", "FILES", "SIZE", "NEW HERE", "FROM EARLIER")
    screen.table(columns, rows, numeric=columns[2:])


def _operator_row(state: OperatorState) -> tuple[Cell, ...]:
    return (
        state.name,
        state.placement,
        "-" if state.files is None else str(state.files),
        size_text(state.bytes),
        size_text(state.new_bytes),
        size_text(state.referenced_bytes),
    )


def _print_dependencies(screen: Screen, sidecars: Sequence[SidecarUse]) -> None:
    screen.heading("depends on")
    if not sidecars:
        screen.line("  nothing but its manifest")
        return
    rows = (
        (
            sidecar.name,
            "own" if sidecar.own else "earlier",
            styled("missing", "bold red") if sidecar.size is None else size_text(sidecar.size),
            size_text(sidecar.used_bytes),
        )
        for sidecar in sidecars
    )
    screen.table(("SIDECAR", "WHOSE", "SIZE", "USED"), rows, numeric=("SIZE", "USED"))


def _print_recovery(screen: Screen, report: CheckpointReport) -> None:
    """Print what a fence recorded: which checkpoint was chosen and why newer ones were not."""
    recorded = (report.recovery or {}).get("report")
    if not isinstance(recorded, dict):
        return
    screen.heading("recovery that sealed this fence")
    screen.line(f"  chose {recorded.get('chosen_id') or 'a fresh start'}")
    for skipped in recorded.get("skipped") or ():
        if isinstance(skipped, dict):
            screen.line(f"  skipped {skipped.get('checkpoint_id')}: {skipped.get('reason')}")


def print_difference(screen: Screen, difference: Difference) -> None:
    """Print what changed from one checkpoint to another; sections without a change are left out."""
    screen.line(styled(f"checkpoint {difference.before} -> {difference.after}", "bold"), f" of {difference.store}")
    elapsed = difference.elapsed_ms / 1000
    screen.line(
        f"  {signed(difference.epochs)} epochs, {duration_text(elapsed)} {'later' if elapsed >= 0 else 'earlier'}"
    )
    _print_changes(screen, "identity", difference.identity)
    if difference.definition:
        screen.heading("definition")
        for line in difference.definition:
            screen.line(f"  {line}")
    _print_source_changes(screen, "sources", difference.sources)
    _print_source_changes(screen, "reference tables", difference.tables)
    _print_watermarks(screen, difference)
    _print_sink_changes(screen, difference.sinks)
    _print_operator_changes(screen, difference.operators)
    screen.heading("bytes added to the store")
    added = difference.added_bytes
    screen.line(f"  {size_text(added.before)} -> {size_text(added.after)}")
    if difference.shared_bytes is not None:
        screen.line(f"  {size_text(difference.shared_bytes)} of state files are the same in both")


def _print_changes(screen: Screen, title: str, changes: Sequence[Change]) -> None:
    if changes:
        screen.heading(title)
        screen.table((), [(change.name, f"{_value(change.before)} -> {_value(change.after)}") for change in changes])


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def _print_source_changes(screen: Screen, title: str, sources: Sequence[SourceChange]) -> None:
    if not sources:
        return
    screen.heading(title)
    rows: list[tuple[Cell, ...]] = []
    for source in sources:
        note = "" if source.presence == "both" else source.presence
        rows.append((source.name, "", note, "" if source.moved is None else f"{signed(source.moved)} in all"))
        rows += [
            (
                "",
                change.name,
                f"{_value(change.before)} -> {_value(change.after)}",
                "" if change.moved is None else signed(change.moved),
            )
            for change in source.offsets
        ]
    screen.table((), rows)


def _print_watermarks(screen: Screen, difference: Difference) -> None:
    changes = [*([difference.watermark] if difference.watermark else []), *difference.source_watermarks]
    if not changes:
        return
    screen.heading("watermarks")
    rows = [
        (
            "all" if change is difference.watermark else change.name,
            f"{moment_text(change.before)} -> {moment_text(change.after)}",
            "" if change.moved is None else f"{signed(change.moved)} ms",
        )
        for change in changes
    ]
    screen.table((), rows)


def _print_sink_changes(screen: Screen, sinks: Sequence[Change]) -> None:
    if sinks:
        screen.heading("sinks")
        screen.table((), [(sink.name, f"{_sink(sink.before)} -> {_sink(sink.after)}") for sink in sinks])


def _sink(state: Any) -> str:
    if state is None:
        return "none"
    return f"epoch {_value(state['epoch'])}, {_value(state['status'])}"


def _print_operator_changes(screen: Screen, operators: Sequence[Change]) -> None:
    if not operators:
        return
    screen.heading("operators")
    rows = []
    for change in operators:
        moved = change.moved or 0
        verb = "added" if change.before is None else "removed" if change.after is None else ""
        verb = verb or ("grown" if moved > 0 else "shrunk")
        by = "" if change.moved is None else f"by {size_text(abs(moved))}"
        rows.append((change.name, f"{size_text(change.before)} -> {size_text(change.after)}", f"{verb} {by}".strip()))
    screen.table((), rows)
