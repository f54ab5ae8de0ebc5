"""Mutants that may live, each with the reason: `tests/mutants.toml`.

[[mutant]]
file = "core/planning.py"
within = "prune_plan"
line = "if len(ids) <= keep:"
change = "<= -> <"
reason = "with as many as are kept there is nothing to remove either way"
"""

import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from mutation.mutants import Mutant

_KEYS = {"file", "within", "line", "change", "reason"}


class Stale(Exception):
    """The list speaks of something that is not so any more."""


def read(path: Path) -> dict[str, str]:
    """Return the reason of each justified mutant, by the mutant's name."""
    found: dict[str, str] = {}
    for number, entry in enumerate(tomllib.loads(path.read_text()).get("mutant", []), 1):
        if set(entry) != _KEYS or not entry["reason"].strip():
            raise Stale(f"{path.name}: entry {number} must say {', '.join(sorted(_KEYS))}, and nothing else")
        name = " | ".join(entry[key] for key in ("file", "within", "line", "change"))
        if name in found:
            raise Stale(f"{path.name}: twice: {name}")
        found[name] = entry["reason"]
    return found


def refuse_stale(justified: dict[str, str], mutants: Iterable[Mutant], killed: Collection[str]) -> None:
    """Raise when an entry fits no mutant of the code, or one that a test notices by now."""
    gone = justified.keys() - {mutant.name for mutant in mutants}
    if gone:
        raise Stale("no such mutant any more, remove it from the list: " + "; ".join(sorted(gone)))
    noticed = justified.keys() & set(killed)
    if noticed:
        raise Stale("a test notices this by now, remove it from the list: " + "; ".join(sorted(noticed)))
