"""What a start would do, for people: the choice first, then what it means for every sink and source."""

from collections.abc import Iterator, Mapping

from holdfast.interfaces.cli.phrases import folded_ids
from holdfast.interfaces.cli.screen import Cell, Screen, styled
from holdfast.interfaces.run_reports import SourcePlan, StartPlan

_MOST_OFFSETS = 4


def print_plan(screen: Screen, plan: StartPlan) -> None:
    """Print it."""
    screen.line(*_choice(plan))
    timeline = "a new timeline" if plan.timeline is None else f"timeline {plan.timeline}"
    screen.line(f"it would seal fence {plan.fence_id} with generation {plan.generation} on {timeline}")
    if plan.abandons:
        screen.line(f"ids it would abandon: {folded_ids(plan.abandons)}")
    for skipped in plan.skipped:
        screen.line(f"skipped {skipped.checkpoint_id}: {skipped.reason}")
    screen.table((), list(_rows(plan)))
    for note in plan.notes:
        screen.line(styled("note", "yellow"), f": {note}")
    screen.line("every sink and source that can be asked was asked; nothing was changed")


def _choice(plan: StartPlan) -> tuple[Cell, ...]:
    if plan.outcome == "restore":
        chosen = styled(f"a start would go on from checkpoint {plan.chosen_id}", "bold")
        return chosen, f": epoch {plan.epoch}, sealed {plan.sealed_at or 'at a time nobody knows'}"
    afresh = styled("a start would begin afresh", "bold")
    if not plan.store_exists:
        return afresh, f" and make the store, {plan.store}, which is not there yet"
    holds = "of what is there nothing would be restored" if plan.abandons else "nothing is there to restore"
    return afresh, f" in {plan.store}: {holds}"


def _rows(plan: StartPlan) -> Iterator[tuple[Cell, ...]]:
    for sink in plan.sinks:
        yield "sink", sink.name, sink.what
    for replay in plan.replays:
        yield "replay", f"epoch {replay.epoch}", f"computed again from the range in {replay.found_in}"
    for source in plan.sources:
        yield "source", source.name, _source(source)


def _source(source: SourcePlan) -> str:
    where = "its beginning" if source.offsets is None else _offsets(source.offsets)
    return f"can be read from {where}" if source.asked else f"goes on from {where}; only reading it tells more"


def _offsets(offsets: Mapping[str, str]) -> str:
    shown = [f"{name} {value}" for name, value in sorted(offsets.items())]
    more = len(shown) - _MOST_OFFSETS
    return ", ".join(shown[:_MOST_OFFSETS]) + (f" and {more} more" if more > 0 else "")
