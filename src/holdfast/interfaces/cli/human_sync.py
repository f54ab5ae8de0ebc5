"""Copies in a bucket, for people."""

from holdfast.engine.sync.standing import Standing
from holdfast.interfaces.cli.phrases import age_text, counted, moment_text, size_text, stopwatch_text
from holdfast.interfaces.cli.screen import Cell, Screen, styled
from holdfast.interfaces.syncing import CopyReceipt, CopyState, SyncReport

_MEANINGS = {
    Standing.FIRST: "nothing was ever copied there",
    Standing.OURS: "the bucket follows this store",
    Standing.BEHIND: "the bucket has more: a start here would go on from it",
    Standing.REPLACED: "another machine took over: this store cannot go on",
}


def print_copied(screen: Screen, action: str, receipt: CopyReceipt) -> None:
    """Print what was moved, and what was passed over."""
    for id, reason in receipt.skipped:
        screen.line(styled("passed over ", "yellow"), f"checkpoint {id}: {reason}")
    there = "to" if action == "pushed" else "from"
    moved = f"{counted(receipt.objects, 'object')}, {size_text(receipt.bytes)}, {stopwatch_text(receipt.seconds)}"
    screen.line(
        f"{action} checkpoint {receipt.checkpoint_id} (epoch {receipt.epoch}) {there} {receipt.bucket}: "
        f"{moved if receipt.objects else 'everything was there'}"
    )
    if receipt.followed_by:
        screen.line(f"with {counted(receipt.followed_by, 'later decision')}, which a start replays")


def print_sync_status(screen: Screen, report: SyncReport) -> None:
    """Print whether the copies are in order, then both sides."""
    verdict = styled("yes", "bold green") if report.in_order else styled("no", "bold red")
    screen.line("are the copies in order: ", verdict)
    failure = report.last_failure
    screen.fields(
        [
            ("standing", _MEANINGS[Standing(report.standing)]),
            ("here", _state(report.local)),
            ("bucket", _state(report.remote)),
            ("holds", f"{counted(report.remote_checkpoints, 'checkpoint')}, {report.bucket}"),
            ("after it", counted(report.recorded_after, "recorded decision") if report.recorded_after else None),
            ("owner", report.owner),
            ("last push", None if report.last_push_ms is None else moment_text(report.last_push_ms)),
            ("failed", None if failure is None else f"{moment_text(report.last_failure_ms)}: {failure}"),
        ]
    )


def _state(state: CopyState | None) -> Cell:
    if state is None:
        return styled("no checkpoint", "yellow")
    return f"checkpoint {state.checkpoint_id}, epoch {state.epoch}, {age_text(state.age_seconds)} old, {state.uuid}"
