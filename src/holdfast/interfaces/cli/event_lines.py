"""What happens in a run, in words: the lines of a log."""

from collections.abc import Mapping
from typing import Any

from holdfast.engine.events import (
    CheckpointVerified,
    EpochCommitted,
    EpochReplayed,
    Event,
    Recovered,
    SinkRetry,
    Stopped,
    SyncFailed,
)
from holdfast.interfaces.cli.phrases import count_text, counted, folded_ids, span_text
from holdfast.interfaces.http.settings import HttpListening

_NOTHING_THERE = "nothing to restore"
_GIVEN_UP = "abandoned"


def lines_of(event: Event) -> list[str]:
    """Return what people want to read of an event; nothing for the steps of an epoch."""
    match event:
        case Recovered():
            return recovery_lines(event.report)
        case EpochCommitted():
            return [_committed(event)]
        case EpochReplayed():
            return [f"epoch {event.epoch} was computed again to rebuild state; sinks that had it kept theirs"]
        case SinkRetry():
            return [
                f"sink {event.sink}: {event.action} of epoch {event.epoch} failed ({event.error}), "
                f"trying again in {event.pause_seconds:.1f} s"
            ]
        case CheckpointVerified() if event.problems:
            return [f"checkpoint {event.checkpoint_id} is damaged: {'; '.join(event.problems)}"]
        case SyncFailed():
            return [f"{event.action} failed ({event.error}), {_next_try(event.pause_seconds)}"]
        case HttpListening():
            taken = f", because {event.instead_of} is taken" if event.instead_of else ""
            return [f"HTTP API on {event.url}{taken}"]
        case Stopped(error=None):
            return [f"stopped after epoch {event.epoch}"]
    return []


def _next_try(pause_seconds: float | None) -> str:
    return "not tried again by itself" if pause_seconds is None else f"trying again in {pause_seconds:.1f} s"


def _committed(event: EpochCommitted) -> str:
    out = ", ".join(f"{sink} {count_text(rows)}" for sink, rows in sorted(event.rows_out.items()))
    return (
        f"epoch {event.epoch}: checkpoint {event.checkpoint_id}, {counted(event.rows_in, 'row')} in, "
        f"out: {out or 'nothing'}, {span_text(event.seconds)}"
    )


def recovery_lines(report: Mapping[str, Any]) -> list[str]:
    """Return what a start found: the choice, the sinks, and a line for each checkpoint that was passed over."""
    lines = [_choice(report)]
    if sinks := report.get("sinks"):
        lines.append("sinks: " + "; ".join(f"{name} {action}" for name, action in sinks.items()))
    lines += [f"replaying epoch {item['epoch']} from {item['found_in']}" for item in report.get("replays", [])]
    given_up = [item["checkpoint_id"] for item in report["skipped"] if item["reason"].startswith(_GIVEN_UP)]
    if given_up:
        lines.append(f"abandoned checkpoints: {folded_ids(given_up)}")
    for item in report["skipped"]:
        if item["checkpoint_id"] not in given_up and not item["reason"].endswith(_NOTHING_THERE):
            lines.append(f"skipped checkpoint {item['checkpoint_id']}: {item['reason']}")
    return lines


def _choice(report: Mapping[str, Any]) -> str:
    who = f"generation {report['generation']} of timeline {report['timeline']}"
    if report["chosen_id"] is None:
        return f"fresh start, {who}"
    return f"recovered from checkpoint {report['chosen_id']} (epoch {report['epoch']}), {who}"
