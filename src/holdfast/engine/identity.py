"""What a pipeline is, so that a checkpoint is not continued by another one without anybody noticing.

State knows nothing of the query that made it: a sum continued as a maximum passes every check of Spark and gives
wrong numbers. So the definition itself is compared, and the difference is shown to a person.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.core import canonical_json


class OnChange(StrEnum):
    """What to do when a pipeline changed in a way that its state may not survive."""

    REJECT = "reject"
    APPROVE = "approve"
    ALLOW = "allow"


@dataclass(frozen=True)
class Change:
    """How a pipeline differs from the one a checkpoint was made by."""

    harmless: tuple[str, ...] = ()
    questionable: tuple[str, ...] = ()
    """Spark would go on; whether the result is right, only a person can say."""
    impossible: tuple[str, ...] = ()
    """Spark cannot go on from this state."""

    def lines(self) -> list[str]:
        """Return the difference, one line each."""
        return [*self.impossible, *self.questionable, *self.harmless]


def fingerprint(identity: Mapping[str, Any]) -> int:
    """Return 64 bits that are the same for the same definition, on every machine."""
    relevant = {key: value for key, value in identity.items() if key != "spark"}
    return int.from_bytes(hashlib.sha256(canonical_json.compact(relevant)).digest()[:8], "big")


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    """Sort the differences between two definitions by what they mean for the state."""
    harmless: list[str] = []
    questionable: list[str] = []
    impossible: list[str] = []
    # What a select or a table is changes the rows of epochs to come, and no state.
    for line in [*_differing("sink", old, new), *_differing("table", old, new)]:
        harmless.append(line)
    if old.get("spark") != new.get("spark"):
        harmless.append(f"Spark was {old.get('spark')}, is {new.get('spark')}")
    stateful = bool(old.get("stateful")) or bool(new.get("stateful"))
    for line in _differing("view", old, new):
        (questionable if stateful else harmless).append(line)
    for line in _differing("source", old, new):
        questionable.append(line)
    if old.get("output_mode") != new.get("output_mode"):
        questionable.append(f"output mode was {old.get('output_mode')}, is {new.get('output_mode')}")
    if stateful and old.get("plan") != new.get("plan") and not questionable:
        questionable.append("the plan of the query differs, although its text does not")
    for key, what in (
        ("inputs", "inputs of the query"),
        ("stateful", "stateful operators"),
        ("state", "state store"),
    ):
        if old.get(key) != new.get(key):
            impossible.append(f"{what}: was {_brief(old.get(key))}, is {_brief(new.get(key))}")
    if stateful and old.get("state_partitions") != new.get("state_partitions"):
        impossible.append(f"state partitions: was {old.get('state_partitions')}, is {new.get('state_partitions')}")
    return Change(tuple(harmless), tuple(questionable), tuple(impossible))


def _differing(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before: Mapping[str, Any] = old.get(f"{kind}s") or {}
    after: Mapping[str, Any] = new.get(f"{kind}s") or {}
    lines = [f"{kind} '{name}' is new" for name in sorted(after.keys() - before.keys())]
    lines += [f"{kind} '{name}' is gone" for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            lines.append(f"{kind} '{name}' changed: {_detail(before[name], after[name])}")
    return lines


def _detail(before: Any, after: Any) -> str:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return f"was {_brief(before)}, is {_brief(after)}"
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return "; ".join(f"{key} was {_brief(before.get(key))}, is {_brief(after.get(key))}" for key in keys)


def _brief(value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float | None) else canonical_json.compact(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."
