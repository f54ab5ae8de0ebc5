"""What can happen, as plain values: a history is a list of steps, drawn from a seed before anything runs.

A step never depends on what came of an earlier one: it picks among what there is when its turn comes (`pick`), or
does nothing. So any of them can be left out, which is how a history that fails is made short.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from simulate.gates import CRASHES, FAULTS, PAUSE

WEIGHTS = {
    "run": 30,
    "start": 6,
    "stop": 4,
    "wake": 5,
    "go back": 5,
    "fresh": 1,
    "savepoint": 4,
    "release": 2,
    "prune": 8,
    "clean": 2,
    "damage": 5,
    "restore": 2,
    "sinks": 5,
    "trouble": 4,
    "repair": 4,
    "rewindable": 4,
    "trim": 3,
    "copy": 1,
    "switch": 3,
    "clock": 2,
    "move": 2,
    "discard": 3,
    "take again": 3,
}
"""How often each is drawn where it is drawn at all."""
WITH_MACHINES = {"push": 14, "follow": 5, "take over": 5, "empty": 1, "damage bucket": 2, "cut off": 1}
"""What else is drawn where there are machines and a bucket."""
ALWAYS = ("run", "start", "push", "take over")
NOT_GATED = {
    "stop",
    "damage",
    "restore",
    "sinks",
    "trouble",
    "repair",
    "rewindable",
    "trim",
    "copy",
    "switch",
    "clock",
    "move",
    "empty",
    "damage bucket",
    "cut off",
}
"""What makes no calls that could meet something."""


@dataclass(frozen=True)
class Step:
    """One thing that happens. Values that do not matter are left out of a repro."""

    do: str
    pick: int = 0
    count: int = 1
    how: str = ""
    at: int = 0
    meets: str = ""
    """What its call number `at` meets: a crash, a fault, a pause."""
    during: "tuple[Step, ...]" = ()
    """What happens in the pause."""

    def __repr__(self) -> str:
        changed = [f"{f.name}={value!r}" for f in fields(self)[1:] if (value := getattr(self, f.name)) != f.default]
        return f"Step({', '.join([repr(self.do), *changed])})"

    def simpler(self) -> "list[Step]":
        """Return the same step with less in it."""
        values: list[dict[str, Any]] = []
        if self.meets:
            values.append({"meets": "", "at": 0, "during": ()})
        if self.at:
            values += [{"at": 0}, {"at": self.at // 2}, {"at": self.at - 1}]
        if self.count > 1:
            values += [{"count": 1}, {"count": self.count - 1}]
        if self.pick:
            values += [{"pick": 0}, {"pick": self.pick // 2}]
        values += [{"during": self.during[:n] + self.during[n + 1 :]} for n in range(len(self.during))]
        now = {field.name: getattr(self, field.name) for field in fields(self)}
        return [Step(**{**now, **value}) for value in values]


@dataclass(frozen=True)
class History:
    """One life of a pipeline, as it was drawn."""

    seed: int
    kind: str
    retain: int | None
    steps: tuple[Step, ...]
    sync: str = ""
    """Whether there are machines with a bucket between them, and what it hears of: `standby`, `starts`."""


class Draw:
    """Draws histories. Each turns some kinds of steps off altogether, so that the others meet more often."""

    def __init__(self, seed: int) -> None:
        self._seed, self._random = seed, random.Random(seed)
        self._weights = {
            name: weight * self._random.choice([0.3, 1, 1, 3])
            for name, weight in WEIGHTS.items()
            if name in ALWAYS or self._random.random() < 0.55
        }
        self._meets = self._random.choice([0.0, 0.1, 0.25, 0.5])
        self._ways = [w for w in (*CRASHES, *FAULTS, PAUSE, PAUSE) if self._random.random() < 0.6] or [PAUSE]
        aside = random.Random(f"machines {seed}")  # Drawn apart, so that a history without them stays what it is.
        self._sync = aside.choice(["", "", "", "standby", "starts"])
        if self._sync:
            self._weights |= {
                name: weight * aside.choice([0.3, 1, 1, 3])
                for name, weight in WITH_MACHINES.items()
                if name in ALWAYS or aside.random() < 0.7
            }

    def history(self, steps: int) -> History:
        kind = self._random.choice(["bucket", "bucket", "directory"])
        retain = self._random.choice([None, None, 1, 2, 5])
        return History(self._seed, kind, retain, tuple(self.steps(steps)), self._sync)

    def steps(self, count: int, depth: int = 0) -> Sequence[Step]:
        names = [name for name in self._weights if not depth or name not in ("copy", "switch")]
        drawn = self._random.choices(names, [self._weights[name] for name in names], k=count)
        return [self._step(name, depth) for name in drawn]

    def _step(self, name: str, depth: int) -> Step:
        pick, count = self._random.randrange(1000), self._random.choice([1, 1, 1, 2, 3])
        how = self._random.choice(HOWS.get(name, [""]))
        if name in NOT_GATED or self._random.random() >= self._meets:
            return Step(name, pick, count, how)
        meets, at = self._random.choice(self._ways), self._random.randrange(self._random.choice([5, 25, 60]))
        if meets != PAUSE:
            return Step(name, pick, count, how, at, meets)
        if depth > 1:
            return Step(name, pick, count, how)
        during = tuple(self.steps(self._random.choice([1, 1, 2, 4]), depth + 1))
        return Step(name, pick, count, how, at, meets, during)


HOWS = {
    "go back": ["", "", "any"],
    "damage": ["flip", "cut", "lost"],
    "fresh": ["rewind", "rewind", "append", "refuse"],
    "trouble": ["prepare broken", "commit broken", "prepare busy", "commit busy", "open broken", "rewind broken"],
    "sinks": ["added", "removed", "renamed"],
    "trim": ["acknowledged", "acknowledged", "lost"],
    "push": ["", "", "asked"],
    "take over": ["standby", "standby", "run"],
    "damage bucket": ["flip", "cut", "lost"],
}
