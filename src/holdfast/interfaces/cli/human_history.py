"""History for people: a line per epoch, a line per start, and one start in full."""

from collections.abc import Sequence

from holdfast.interfaces.cli.phrases import count_text, counted, folded_ids, size_text, span_text
from holdfast.interfaces.cli.screen import Cell, Screen, styled
from holdfast.interfaces.history import EpochHistory, EpochRecord, StartHistory, StartRecord

_FROM: dict[str, Cell] = {"fresh": "fresh", "refuse": styled("refused", "bold red"), "unknown": "-"}


def print_epochs(screen: Screen, history: EpochHistory) -> None:
    """Print one line per epoch, oldest first."""
    if history.epochs:
        columns = ("TIME", "ID", "EPOCH", "ROWS IN", "ROWS OUT", "NEW", "TOTAL", "TOOK", "SLOWEST STEP")
        screen.table(columns, map(_epoch, history.epochs), numeric=columns[1:-1], indent="")
    else:
        screen.line(f"no epochs in the history of {history.store}")
    _print_notes(screen, history.notes)


def _epoch(epoch: EpochRecord) -> tuple[Cell, ...]:
    slowest = epoch.slowest_step
    step = "-" if slowest is None else f"{slowest.replace(':', ' ')} {span_text(epoch.steps[slowest])}"
    retries = "".join(f", {r.sink} tried again {counted(r.times, 'time')}" for r in epoch.retries)
    return (
        _to_the_second(epoch.at),
        str(epoch.checkpoint_id),
        str(epoch.epoch),
        count_text(epoch.rows_in),
        count_text(sum(epoch.rows_out.values())),
        size_text(epoch.new_bytes),
        size_text(epoch.total_bytes),
        span_text(epoch.seconds),
        step + retries,
    )


def print_starts(screen: Screen, history: StartHistory) -> None:
    """Print one line per start, oldest first."""
    if history.recoveries:
        columns = ("TIME", "FENCE", "FROM", "SKIPPED", "REPLAYED", "TOOK", "ENDED")
        screen.table(columns, map(_start, history.recoveries), numeric=columns[1:-1], indent="")
    else:
        screen.line(f"no starts in the history of {history.store}")
    _print_notes(screen, history.notes)


def _start(start: StartRecord) -> tuple[Cell, ...]:
    return (
        _to_the_second(start.at),
        _known(start.fence_id),
        _FROM.get(start.outcome) or _known(start.chosen_id),
        str(len(start.skipped)),
        str(len(start.replays)),
        span_text(start.seconds),
        _end(start),
    )


def _known(number: int | None) -> str:
    return "-" if number is None else str(number)


def _to_the_second(time: str | None) -> str:
    """Return a time as short as a table needs it; JSON has the milliseconds."""
    return "-" if time is None else f"{time.partition('.')[0]}Z"


def _end(start: StartRecord) -> Cell:
    if start.error is not None:
        return styled(f"failed: {start.error.partition(chr(10))[0]}", "red")
    return f"stopped after epoch {start.last_epoch}" if start.ended_at else "-"


def print_start(screen: Screen, start: StartRecord) -> None:
    """Print one start in sections."""
    screen.line(styled(f"start with fence {start.fence_id}", "bold"), f" at {start.at}")
    ended = f"{start.ended_at} after epoch {start.last_epoch}" if start.ended_at else "nobody wrote it down"
    lost = f"{counted(start.lost_entries, 'line')} before they were written" if start.lost_entries else None
    screen.fields(
        [
            ("went on from", _FROM.get(start.outcome) or f"checkpoint {start.chosen_id}, epoch {start.epoch}"),
            ("generation", _known(start.generation)),
            ("timeline", start.timeline),
            ("took", span_text(start.seconds)),
            ("examined", None if start.examined is None else counted(start.examined, "checkpoint")),
            ("abandons", folded_ids(start.abandons) if start.abandons else None),
            ("ended", ended),
            ("lost", lost),
        ]
    )
    if start.error is not None:
        screen.heading("it failed")
        for line in start.error.splitlines():
            screen.line("  ", styled(line, "red"))
    _print_section(screen, "skipped", ("ID", "REASON"), [(str(s.checkpoint_id), s.reason) for s in start.skipped])
    _print_section(screen, "sinks", ("NAME", "WHAT WAS DONE"), sorted(start.sinks.items()))
    replays = [(str(r.epoch), r.found_in, "done" if r.done else "not known to be done") for r in start.replays]
    _print_section(screen, "replays", ("EPOCH", "FOUND IN", ""), replays)
    retries = [(r.sink, r.action, str(r.times), span_text(r.seconds), r.error) for r in start.retries]
    _print_section(screen, "retries", ("SINK", "ACTION", "TIMES", "WAITED", "LAST ERROR"), retries)


def _print_section(screen: Screen, title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    if rows:
        screen.heading(title)
        screen.table(columns, rows, numeric=("ID", "EPOCH", "TIMES", "WAITED"))


def _print_notes(screen: Screen, notes: tuple[str, ...]) -> None:
    for note in notes:
        screen.line(styled("note", "yellow"), f": {note}")
