"""Numbers, times and foreign text in words for people."""

from collections.abc import Iterable

from holdfast.interfaces.reports import time_text

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def printable(text: object) -> str:
    """Return text on one line without control characters: it may come from anybody's manifest."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(text))


def size_text(size: int | None) -> str:
    """Return a number of bytes with a unit; `-` when it is not known."""
    if size is None:
        return "-"
    value, unit = float(abs(size)), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = f"{value:.0f}" if unit == 0 else f"{value:.1f}"
    return f"{'-' if size < 0 else ''}{digits} {_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units."""
    rest = int(abs(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def stopwatch_text(seconds: float) -> str:
    """Return how long something took."""
    return f"{seconds:.1f}s" if seconds < 60 else duration_text(seconds)


def age_text(seconds: float | None) -> str:
    """Return how long ago; a stamp from the future is named as such."""
    if seconds is None:
        return "-"
    return duration_text(seconds) if seconds >= 0 else f"{duration_text(seconds)} in the future"


def moment_text(timestamp_ms: int | None) -> str:
    """Return a millisecond stamp as a date and as the number itself."""
    if timestamp_ms is None:
        return "none"
    date = time_text(timestamp_ms)
    return str(timestamp_ms) if date is None else f"{date} ({timestamp_ms})"


def signed(number: int) -> str:
    """Return a difference with its sign."""
    return f"{number:+d}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural where due."""
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def sink_summary(sinks: dict[str, str]) -> str:
    """Return how many sinks have committed, and how many failed."""
    statuses = list(sinks.values())
    if not statuses:
        return "-"
    failed = f", {statuses.count('Failed')} failed" if "Failed" in statuses else ""
    return f"{statuses.count('Committed')}/{len(statuses)} committed{failed}"


def span_text(seconds: float | None) -> str:
    """Return how long a step took: in milliseconds below a second; `-` when it is not known."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else stopwatch_text(seconds)


def count_text(number: int) -> str:
    """Return a number with its thousands apart."""
    return f"{number:,}"


def folded_ids(ids: Iterable[int]) -> str:
    """Return ids with runs folded: 1-4, 7."""
    runs: list[list[int]] = []
    for id in sorted(ids):
        if runs and id == runs[-1][1] + 1:
            runs[-1][1] = id
        else:
            runs.append([id, id])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
