"""The checkers: they know rows, and nothing of the code under test or of who made the rows.

The generator uses them, and so do the kill matrix and chaos.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

Values = tuple[Any, ...]
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z?")
_SHOWN = 3


def normal(value: Any) -> Any:
    """Return what two values have in common that are equal to a person, whoever brings them here."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else value + 0.0  # There is one zero.
        case datetime():
            plain = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
            return plain.isoformat(timespec="microseconds")
        case date() | Decimal():
            return str(value)
        case bytearray():
            return bytes(value)
        case Mapping():
            return tuple(normal(item) for item in value.values())
        case list() | tuple():
            return tuple(map(normal, value))
    return value


def as_sqlite(value: Any) -> Any:
    """Return a normal value as SQLite keeps it: without NaN and booleans, and with times as text."""
    if isinstance(value, str):
        return None if value == "NaN" else value.removesuffix("Z") if _INSTANT.fullmatch(value) else value
    return int(value) if isinstance(value, bool) else value


def as_json(value: Any) -> Any:
    """Return a normal value as JSON has it: numbers that are none, and times, as text."""
    if isinstance(value, tuple):
        return tuple(map(as_json, value))
    if isinstance(value, str) and _INSTANT.fullmatch(value):
        return value.removesuffix("Z")
    infinite = isinstance(value, float) and math.isinf(value)
    return ("Infinity" if value > 0 else "-Infinity") if infinite else value


def difference(expected: Iterable[Values], found: Iterable[Values]) -> str | None:
    """Return which rows are lost, doubled, or nobody's; None when all are there, each as often as it should."""
    wanted, shown = Counter(expected), Counter(found)
    if wanted == shown:
        return None
    lost, strange = wanted - shown, shown - wanted
    repeated = Counter({row: times for row, times in strange.items() if row in wanted})
    parts = [("lost", lost), ("repeated", repeated), ("unexpected", strange - repeated)]
    said = [f"{sum(rows.values())} {what}, such as {_first(rows)}" for what, rows in parts if rows]
    return f"{sum(shown.values())} rows for {sum(wanted.values())}: {'; '.join(said)}"


def differences(expected: Mapping[str, Iterable[Values]], found: Mapping[str, Iterable[Values]]) -> list[str]:
    """Return what is wrong with each of several sinks; one that nobody expects shows nobody's rows."""
    said = {sink: difference(expected.get(sink, ()), found.get(sink, ())) for sink in {**expected, **found}}
    return [f"{sink}: {wrong}" for sink, wrong in said.items() if wrong is not None]


def _first(rows: Counter[Values]) -> str:
    return ", ".join(map(repr, sorted(rows, key=repr)[:_SHOWN]))


def newest_by_key(rows: Iterable[Values], places: Sequence[int]) -> list[Values]:
    """Return what a table shows in which a row replaces the one with the same key."""
    newest = {tuple(row[place] for place in places): row for row in rows}
    return list(newest.values())


def without(rows: Iterable[Values], places: Collection[int]) -> list[Values]:
    """Return rows without some columns."""
    return [tuple(value for place, value in enumerate(row) if place not in places) for row in rows]


def disagreement(sinks: Mapping[str, Sequence[Values]]) -> str | None:
    """Return which two sinks show different rows of one view, down to what differs from run to run."""
    names = list(sinks)
    for name in names[1:]:
        said = difference(sinks[names[0]], sinks[name])
        if said is not None:
            return f"{names[0]} and {name} do not agree: {said}"
    return None


@dataclass(frozen=True)
class Refusal:
    """What a start said that did not start, and which files it left changed; or what a run said that ended early."""

    error: str
    said: str
    ours: bool
    changed: Collection[str] = ()
    started: bool = False


def bad_refusal(refusal: Refusal) -> str | None:
    """Return what is wrong with a refusal; None when it is one line of ours and changed nothing."""
    if not refusal.ours:
        return f"an error that is not ours: {refusal.error}: {refusal.said[:300]}"
    if "\n" in refusal.said.strip():
        return f"more than one line: {refusal.said[:300]}"
    if refusal.changed:
        return f"refused ({refusal.said[:200]}), and yet changed: {', '.join(sorted(refusal.changed)[:5])}"
    return None
