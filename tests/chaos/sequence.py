"""A dense sequence of orders, so that a lost or repeated row has a name, and what a pipeline on it must give."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

ROWS_PER_FILE = 40
SCHEMA = "id long, customer string, amount double, ts timestamp"
DELAY = timedelta(minutes=1)
WIDTH = timedelta(minutes=1)
_START = datetime(2026, 1, 1, tzinfo=UTC)


def order(number: int) -> dict[str, Any]:
    """Return one order. Amounts are quarters: their sums are exact in any order."""
    return {
        "id": number,
        "customer": f"c{number * 7 % 11}",
        "amount": number % 1000 * 0.25,
        "ts": (_START + timedelta(seconds=number)).isoformat(),
    }


def write_file(folder: Path, index: int) -> None:
    """Add the next input file; its time of change tells Spark the order."""
    rows = (order(number) for number in range(index * ROWS_PER_FILE, (index + 1) * ROWS_PER_FILE))
    hidden = folder / f".{index:06d}.json"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(hidden, (1_700_000_000 + index, 1_700_000_000 + index))
    hidden.rename(folder / f"{index:06d}.json")


def expected_raw(rows: int) -> set[tuple[int, str, float]]:
    """Return every order as the sinks show it."""
    return {(o["id"], o["customer"], o["amount"]) for o in map(order, range(rows))}


def expected_windows(rows: int) -> set[tuple[datetime, str, float]]:
    """Return the windows that are closed after `rows` orders."""
    totals: Counter[tuple[datetime, str]] = Counter()
    watermark = _START + timedelta(seconds=rows - 1) - DELAY
    for number in range(rows):
        begin = _START + (timedelta(seconds=number) // WIDTH) * WIDTH
        if begin + WIDTH <= watermark:
            found = order(number)
            totals[begin, found["customer"]] += found["amount"]
    return {(begin, customer, total) for (begin, customer), total in totals.items()}


def holes(numbers: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return what is missing below the highest number, and what is there more than once."""
    counted = Counter(numbers)
    missing = sorted(set(range(max(counted, default=-1) + 1)) - set(counted))
    return missing, sorted(number for number, times in counted.items() if times > 1)
