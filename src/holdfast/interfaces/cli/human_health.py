"""The verdict on a store for people: yes or no first, then why, then what it rests on."""

from holdfast.interfaces.cli.phrases import age_text, counted, duration_text, folded_ids, size_text
from holdfast.interfaces.cli.screen import Cell, Screen, styled
from holdfast.interfaces.verdict import Recoverable, StoreHealth

_STYLES = {Recoverable.YES: "bold green", Recoverable.DEGRADED: "bold yellow", Recoverable.NO: "bold red"}


def print_health(screen: Screen, health: StoreHealth) -> None:
    """Print everything that is known."""
    screen.line("can we recover now: ", styled(health.recoverable.value, _STYLES[health.recoverable]))
    for reason in health.reasons:
        screen.line(styled("  because ", "dim"), reason)
    screen.fields(
        [
            ("from", _from(health)),
            ("verified", _verified(health)),
            ("in about", _estimate(health)),
            ("if that fails", _fallbacks(health)),
            ("writer", _holder(health)),
            ("store", f"{counted(health.checkpoints, 'checkpoint')}, {size_text(health.bytes)}, {health.store}"),
        ]
    )
    if health.sinks_in_doubt:
        screen.heading("sinks in doubt")
        rows = [(sink.name, sink.status or "-", sink.message or "") for sink in health.sinks_in_doubt]
        screen.table(("NAME", "STATUS", "MESSAGE"), rows)
    if health.skipped:
        screen.heading("skipped")
        screen.table(("ID", "REASON"), [(str(s.checkpoint_id), s.reason) for s in health.skipped], numeric=("ID",))


def _from(health: StoreHealth) -> Cell | None:
    point = health.checkpoint
    if point is None:
        return None
    return (
        f"checkpoint {point.checkpoint_id}, epoch {point.epoch}, {age_text(point.age_seconds)} old, "
        f"{size_text(point.state_bytes)} of state"
    )


def _verified(health: StoreHealth) -> Cell:
    verified = health.verified
    if verified is None:
        return styled("never, as far as history knows", "yellow")
    how = "in the background" if verified.by == "verification" else "by a start"
    return f"checkpoint {verified.checkpoint_id}, {age_text(verified.seconds_ago)} ago, {how}"


def _estimate(health: StoreHealth) -> Cell | None:
    if health.checkpoint is None:
        return None
    seconds = health.estimate.seconds
    known = "unknown" if seconds is None else duration_text(max(seconds, 1))
    return f"{known}: {health.estimate.basis}"


def _fallbacks(health: StoreHealth) -> Cell | None:
    if health.checkpoint is None:
        return None
    if not health.fallbacks:
        return styled("nothing is left", "yellow")
    apart = health.independent_fallback
    shared = "all of them share bytes with it" if apart is None else f"{apart} shares no bytes with it"
    return f"{counted(len(health.fallbacks), 'checkpoint')} ({folded_ids(health.fallbacks)}); {shared}"


def _holder(health: StoreHealth) -> Cell | None:
    holder = health.holder
    if holder is None:
        return None
    where = "" if holder.host is None else f", process {holder.process} on {holder.host}"
    since = "" if holder.since is None else f" since {holder.since}"
    ended = "" if holder.ended_at is None else f", ended at {holder.ended_at}"
    return f"generation {holder.generation} of timeline {holder.timeline or 'none'}{where}{since}{ended}"
