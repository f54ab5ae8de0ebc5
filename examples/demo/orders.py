"""The demo's deterministic stream of orders, and what every sink must hold in the end."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

FILES = 12
ROWS_PER_FILE = 400
SCHEMA = "id long, customer string, amount double, ts timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = timedelta(minutes=1)


@dataclass(frozen=True)
class Order:
    """One order."""

    id: int
    customer: str
    amount: float
    ts: datetime


def orders(first: int = 0, last: int = FILES * ROWS_PER_FILE) -> Iterator[Order]:
    """Yield orders by number; order i is the same on every machine."""
    for i in range(first, last):
        yield Order(i, f"customer-{i * 7919 % 11:02d}", (i * 37 % 1000) / 4, START + timedelta(seconds=i))


def write_files(folder: Path) -> None:
    """Write the input, one file per epoch, each moved into place whole."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        rows = orders(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        lines = [json.dumps({**vars(order), "ts": order.ts.isoformat()}) for order in rows]
        hidden = folder / f".{number:04d}.json"
        hidden.write_text("\n".join(lines) + "\n")
        # Spark reads files in the order of their times.
        os.utime(hidden, (1_767_225_600 + number, 1_767_225_600 + number))
        hidden.rename(folder / f"{number:04d}.json")


def expected_rows() -> dict[int, float]:
    """Return id -> amount of every order."""
    return {order.id: order.amount for order in orders()}


def expected_revenue() -> dict[tuple[datetime, str], float]:
    """Return (window start, customer) -> total of every window that is closed when the input ends."""
    totals: dict[tuple[datetime, str], float] = defaultdict(float)
    newest = START
    for order in orders():
        totals[order.ts.replace(second=0), order.customer] += order.amount
        newest = max(newest, order.ts)
    closed = newest - LATENESS
    return {key: total for key, total in totals.items() if key[0] + timedelta(minutes=1) <= closed}
