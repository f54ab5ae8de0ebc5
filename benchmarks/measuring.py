"""Measuring one thing against another on a machine that is never quite quiet.

Both are run in pairs, one right after the other, and who goes first changes from pair to pair. What is reported
is the median of the ratios within the pairs: noise that lasts longer than a pair hits both sides and cancels.
"""

import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import holdfast

RESAMPLES = 2000


@dataclass(frozen=True)
class Target:
    """What a ratio has to reach: a ceiling for time over time, a floor for rate over rate."""

    limit: float
    at_most: bool = True

    def met_by(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio <= self.limit if self.at_most else ratio >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.limit}"


@dataclass(frozen=True)
class Comparison:
    """The outcome of a series of pairs. `ratio` has a 95 % interval from resampling the pairs."""

    name: str
    pairs: int
    store_seconds: float
    floor_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    target: Target | None = None

    @property
    def verdict(self) -> str | None:
        """Whether the target is met; unclear when the median meets it and an end of the interval does not."""
        if self.target is None:
            return None
        if not self.target.met_by(self.ratio):
            return "MISSED"
        clear = self.target.met_by(self.ratio_low) and self.target.met_by(self.ratio_high)
        return "met" if clear else "met, unclear"

    def to_json_value(self) -> dict[str, Any]:
        """Return plain values."""
        value = {key: round(v, 9) if isinstance(v, float) else v for key, v in asdict(self).items()}
        value["target"] = None if self.target is None else str(self.target)
        value["verdict"] = self.verdict
        return value


@dataclass(frozen=True)
class Timing:
    """How long one call takes, with nothing to compare it to."""

    name: str
    calls: int
    median_seconds: float
    p90_seconds: float

    def to_json_value(self) -> dict[str, Any]:
        """Return plain values."""
        return {key: round(v, 9) if isinstance(v, float) else v for key, v in asdict(self).items()}


def compare(
    name: str,
    store: Callable[[], object],
    floor: Callable[[], object],
    *,
    pairs: int,
    generator: random.Random,
    rates: bool = False,
    between: Callable[[], object] = lambda: None,
    target: Target | None = None,
    clock: Callable[[Callable[[], Any]], float] | None = None,
) -> Comparison:
    """Run `pairs` pairs after one that does not count; `between` runs before each side, unmeasured.

    The ratio is store time over floor time; with `rates` it is store rate over floor rate. `clock` runs a side and
    returns its seconds, for sides that know better than a stopwatch.
    """
    store_seconds, floor_seconds = [], []
    for pair in range(-1, pairs):
        sides = [(store, store_seconds), (floor, floor_seconds)]
        for run, seconds in sides if pair % 2 else reversed(sides):
            between()
            elapsed = (clock or seconds_of)(run)
            if pair >= 0:
                seconds.append(elapsed)
    ratios = [f / s if rates else s / f for s, f in zip(store_seconds, floor_seconds, strict=True)]
    low, high = interval(ratios, generator)
    return Comparison(
        name=name,
        pairs=pairs,
        store_seconds=statistics.median(store_seconds),
        floor_seconds=statistics.median(floor_seconds),
        ratio=statistics.median(ratios),
        ratio_low=low,
        ratio_high=high,
        target=target,
    )


def time_calls(name: str, call: Callable[[], object], calls: int) -> Timing:
    """Time `calls` calls after one that does not count."""
    call()
    seconds = sorted(seconds_of(call) for _ in range(calls))
    return Timing(name, calls, statistics.median(seconds), seconds[min(calls - 1, int(calls * 0.9))])


def seconds_of(call: Callable[[], object]) -> float:
    """Run once."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interval(values: list[float], generator: random.Random) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[int(RESAMPLES * 0.025)], medians[int(RESAMPLES * 0.975) - 1]


def machine_facts(directory: str) -> dict[str, Any]:
    """Return what a reader needs to judge the figures; nothing that tells whose machine it is."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30),
        "filesystem": filesystem_type(directory),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def filesystem_type(directory: str) -> str:
    """Return the type of the filesystem a directory is on, as far as Linux tells."""
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == wanted:
                    return fields[fields.index("-") + 1]
    except FileNotFoundError:
        pass
    return "unknown"
