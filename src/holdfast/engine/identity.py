"""What a pipeline is, so that a checkpoint is not continued by another one without anybody noticing.

State knows nothing of the query that made it: a sum continued as a maximum passes every check of Spark and gives
wrong numbers. So the definition itself is compared, and the difference is shown to a person.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.core import canonical_json
from holdfast.core.spelling import Names


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
    relevant = {key: value for key, value in identity.items() if key not in ("spark", "python")}
    return int.from_bytes(hashlib.sha256(canonical_json.compact(relevant)).digest()[:8], "big")


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Change:
    """Sort the differences between two definitions by what they mean for the state.

    What one of them does not say is not compared: those of earlier versions say less.
    """
    old = _as_spelled_in(new, old)
    found = _Differences(bool(old.get("stateful")) or bool(new.get("stateful")))
    # What a select or a table is changes the rows of epochs to come, and no state.
    found.harmless += [*_differing("sink", old, new), *_differing("table", old, new)]
    for key, what in (("spark", "Spark"), ("python", "Python")):
        if old.get(key) != new.get(key) and None not in (old.get(key), new.get(key)):
            found.harmless.append(f"{what} was {old.get(key)}, is {new.get(key)}")
    found.with_state(_view_lines(old, new))
    found.questionable += _differing("source", old, new)
    if old.get("output_mode") != new.get("output_mode"):
        found.questionable.append(f"output mode was {old.get('output_mode')}, is {new.get('output_mode')}")
    _compare_plans(old, new, found)
    _compare_inputs(old, new, found)
    _compare_state(old, new, found)
    return Change(tuple(found.harmless), tuple(found.questionable), tuple(found.impossible))


class _Differences:
    """What was found so far."""

    def __init__(self, stateful: bool) -> None:
        self.stateful = stateful
        self.harmless: list[str] = []
        self.questionable: list[str] = []
        self.impossible: list[str] = []

    def with_state(self, lines: Iterable[str]) -> None:
        """Add what only matters to state."""
        (self.questionable if self.stateful else self.harmless).extend(lines)


def _as_spelled_in(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old definition with the names of sources and views as they are spelled in the new one."""
    known = [*(new.get("sources") or {}), *(new.get("views") or {}), *(new.get("tables") or {})]
    names = Names((name, None) for name in known)

    def now(name: str) -> str:
        plain, slash, number = name.partition("/")
        return f"{names.spelled(plain) or plain}{slash}{number}"

    by_name = {
        key: {now(name): value for name, value in old[key].items()}
        for key in ("sources", "views", "tables", "code")
        if old.get(key)
    }
    lists = {key: [now(name) for name in old[key]] for key in ("inputs", "streams") if old.get(key)}
    sinks = {
        name: {**sink, "takes": now(sink["takes"])} if "takes" in sink else sink
        for name, sink in (old.get("sinks") or {}).items()
    }
    branches = [{**branch, "output": now(branch["output"])} for branch in old.get("branches") or ()]
    return {**old, **by_name, **lists, "sinks": sinks, **({"branches": branches} if branches else {})}


def _view_lines(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return how the views differ. A function is its code, as long as it is that of one version of Python."""
    code_before, code_after = _code_of(old, new)
    alike = {name for name in code_before.keys() & code_after.keys() if code_before[name] == code_after[name]}
    lines = [line for name, line in _by_name("view", old, new) if name not in alike]
    told = {name for name, _ in _by_name("view", old, new)}
    return lines + [
        f"view '{name}': the code of its function, or of what that calls, changed; its text did not"
        for name in sorted((code_before.keys() & code_after.keys()) - alike - told)
    ]


def _code_of(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    if old.get("python") != new.get("python"):
        return {}, {}
    return old.get("code") or {}, new.get("code") or {}


def _compare_plans(old: Mapping[str, Any], new: Mapping[str, Any], found: _Differences) -> None:
    """Compare what the plans of branches are; those without state may change."""
    if found.stateful and None not in (old.get("plan"), new.get("plan")) and old["plan"] != new["plan"]:
        if not found.questionable:
            found.questionable.append("the plan of the query differs, although its text does not")
        return
    before = {branch["output"]: branch for branch in old.get("branches") or ()}
    for after in new.get("branches") or ():
        branch = before.get(after["output"])
        if branch is None:
            continue
        stateful = bool(branch.get("stateful")) or bool(after.get("stateful"))
        lines = _functions_that_differ(branch, after) if old.get("python") == new.get("python") else []
        differs = old.get("spark") == new.get("spark") and branch.get("plan") != after.get("plan")
        if differs and stateful and not lines and not found.questionable:
            lines.append(f"the plan of '{after['output']}' differs, although its text does not")
        (found.questionable if stateful else found.harmless).extend(lines)


def _functions_that_differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = old.get("functions") or {}, new.get("functions") or {}
    return [
        f"the Python function '{name}' in '{new['output']}', or what it calls, changed"
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]


def _compare_inputs(old: Mapping[str, Any], new: Mapping[str, Any], found: _Differences) -> None:
    """Compare which sources are read. How often each one is, and in which order, is set right at the start."""
    before, after = _read(old), _read(new)
    for name in sorted(after - before):
        if name in (old.get("sources") or {}):
            found.questionable.append(f"source '{name}' was not read until now: it is read from its beginning")
    for name in sorted(before - after):
        if name in (new.get("sources") or {}):
            found.harmless.append(f"source '{name}' is not read any more")


def _read(identity: Mapping[str, Any]) -> set[str]:
    return set(identity.get("inputs") or ())


def _compare_state(old: Mapping[str, Any], new: Mapping[str, Any], found: _Differences) -> None:
    """Refuse what state cannot be continued by: other operators, or the same ones for other outputs."""
    for key, what in (("stateful", "stateful operators"), ("state", "state store")):
        if old.get(key) != new.get(key):
            found.impossible.append(f"{what}: was {_brief(old.get(key))}, is {_brief(new.get(key))}")
    if found.stateful and old.get("state_partitions") != new.get("state_partitions"):
        before, after = old.get("state_partitions"), new.get("state_partitions")
        found.impossible.append(f"state partitions: was {before}, is {after}")
    before_owners, after_owners = _owners(old), _owners(new)
    for before, after in dict.fromkeys(zip(before_owners, after_owners, strict=False)):
        if before != after and (before in after_owners or after in before_owners):
            found.impossible.append(f"the state of '{before}' would be taken for that of '{after}'")


def _owners(identity: Mapping[str, Any]) -> list[str]:
    """Return the output that each stateful operator belongs to, in the order of Spark's operator ids."""
    return [branch["output"] for branch in identity.get("branches") or () for _ in branch.get("stateful") or ()]


def _differing(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [line for _, line in _by_name(kind, old, new)]


def _by_name(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str]]:
    before: Mapping[str, Any] = old.get(f"{kind}s") or {}
    after: Mapping[str, Any] = new.get(f"{kind}s") or {}
    lines = [(name, f"{kind} '{name}' is new") for name in sorted(after.keys() - before.keys())]
    lines += [(name, f"{kind} '{name}' is gone") for name in sorted(before.keys() - after.keys())]
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            lines.append((name, f"{kind} '{name}' changed: {_detail(before[name], after[name])}"))
    return lines


def _detail(before: Any, after: Any) -> str:
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return f"was {_brief(before)}, is {_brief(after)}"
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return "; ".join(f"{key} was {_brief(before.get(key))}, is {_brief(after.get(key))}" for key in keys)


def _brief(value: Any) -> str:
    text = str(value) if isinstance(value, str | int | float | None) else canonical_json.compact(value).decode()
    return text if len(text) <= 200 else text[:197] + "..."
