"""What a start would do, in plain values: for whoever asks first. Everybody was asked already, nothing is changed."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.contracts import LedgerState, OnForeign
from holdfast.core.sources import Offsets
from holdfast.engine.settling import Settlement
from holdfast.engine.startup import Intent


def preview(
    intent: Intent, on_foreign: OnForeign, sources: Mapping[str, Offsets | None], asked: Iterable[str]
) -> dict[str, Any]:
    """Return the values. `sources` says from where each is read on; None is its beginning, not decided yet."""
    decision, settling = intent.decision, intent.settling
    chosen, report, timeline, asked = decision.chosen, decision.report, decision.timeline, set(asked)
    return {
        "outcome": "restore" if chosen else "fresh",
        "chosen_id": chosen.checkpoint_id if chosen else None,
        "epoch": intent.epoch,
        "sealed_ms": chosen.timestamp_ms if chosen else None,
        "examined": report.examined,
        "skipped": [{"checkpoint_id": id, "reason": reason} for id, reason in report.skipped],
        "abandons": list(decision.abandons),
        "fence_id": intent.fence.checkpoint_id,
        "generation": intent.owner.generation,
        "timeline": str(timeline) if timeline else None,  # A new one gets its name from the start itself.
        "sinks": [_sink(name, settlement, intent, on_foreign) for name, settlement in sorted(settling.sinks.items())],
        "replays": [{"epoch": record.epoch, "found_in": record.found_in} for record in settling.replay.epochs],
        "sources": [
            {"name": name, "asked": name in asked, "offsets": None if offsets is None else dict(offsets)}
            for name, offsets in sorted(sources.items())
        ],
    }


def _sink(name: str, settlement: Settlement, intent: Intent, on_foreign: OnForeign) -> dict[str, Any]:
    before = intent.ledgers.states.get(name)
    return {
        "name": name,
        "epoch": before.epoch if before else None,
        "timeline": str(before.timeline) if before else None,
        "commits": [token.epoch for token in settlement.commits],
        "rewind_to": settlement.rewind_to if settlement.ahead else None,
        "what": f"{_stands(before, settlement, intent, on_foreign)}; {_needs(settlement, intent)}",
    }


def _stands(before: LedgerState | None, settlement: Settlement, intent: Intent, on_foreign: OnForeign) -> str:
    found = settlement.found.epoch
    if before is None:
        return f"says nothing of itself, is taken to show epoch {found}" if found else "knows nothing of us yet"
    if before.timeline == intent.owner.timeline:
        return f"shows epoch {before.epoch}"
    becomes = {
        OnForeign.REWIND: "would be removed",
        OnForeign.ADOPT: f"would be taken for ours up to epoch {found}",
        OnForeign.APPEND: "would stay",
    }
    return f"shows epoch {before.epoch} of timeline {before.timeline}, which {becomes.get(on_foreign, 'is not ours')}"


def _needs(settlement: Settlement, intent: Intent) -> str:
    if settlement.ahead:
        return f"would be rewound to epoch {settlement.rewind_to}"
    if settlement.commits:
        epochs = ", ".join(str(token.epoch) for token in settlement.commits)
        return f"would be given what is sealed for it: epoch {epochs}"
    if settlement.found.epoch > intent.epoch:
        return "stays ahead: of what is replayed it has that already"
    return settlement.report
