"""Which containers of a process grow with what it does: found by walking its objects, whatever they are called."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.core.manifest import CheckpointManifest

_CONTAINERS = (dict, list, set, deque)
_NOT_OURS = ("holdfast.testing",)


def sizes(*roots: object) -> dict[str, int]:
    """Return how many items each container holds that our own objects below `roots` hold, by the way to it."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    pending: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    while pending:
        path, value = pending.pop()
        if id(value) in seen or isinstance(value, CheckpointManifest):  # A document: as long as what it describes.
            continue
        seen.add(id(value))
        if isinstance(value, _CONTAINERS):
            found[path] = len(value)
            pending += [(f"{path}[]", item) for item in _items(value)]
        elif _is_ours(value):
            pending += [(f"{path}.{name}", part) for name, part in _attributes(value)]
    return found


def grown(before: dict[str, int], after: dict[str, int], *, by: int) -> dict[str, tuple[int, int]]:
    """Return the containers that became longer by at least so much."""
    return {path: (before.get(path, 0), size) for path, size in after.items() if size - before.get(path, 0) >= by}


def _items(value: Any) -> Iterable[Any]:
    return [*value.values()] if isinstance(value, dict) else [*value]


def _is_ours(value: Any) -> bool:
    module = type(value).__module__
    return module.startswith("holdfast.") and not module.startswith(_NOT_OURS)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            if hasattr(value, name):
                yield name, getattr(value, name)
