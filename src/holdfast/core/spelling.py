"""Names of sources, views and tables as Spark tells them apart: `Orders` and `orders` are one name, spelled twice."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TypeVar

Value = TypeVar("Value")


class Names(MutableMapping[str, Value]):
    """Values by name. A name is found however it is spelled, and keeps the spelling it came with."""

    def __init__(self, values: Mapping[str, Value] | Iterable[tuple[str, Value]] = ()) -> None:
        self._values: dict[str, tuple[str, Value]] = {}
        self.update(values)

    def __getitem__(self, name: str) -> Value:
        """Return the value of a name."""
        return self._values[name.lower()][1]

    def __setitem__(self, name: str, value: Value) -> None:
        """Set the value of a name. The first spelling stays."""
        self._values[name.lower()] = (self.spelled(name) or name, value)

    def __delitem__(self, name: str) -> None:
        """Remove a name."""
        del self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order and spelling they came with."""
        return (name for name, _ in self._values.values())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._values)

    def spelled(self, name: str) -> str | None:
        """Return a name as it is spelled here; None when it is not here."""
        found = self._values.get(name.lower())
        return None if found is None else found[0]


def spelled(name: str, known: Iterable[str]) -> str | None:
    """Return a name as it is spelled among those that are known; None when it is not among them."""
    return Names((other, None) for other in known).spelled(name)


def respelled(values: Mapping[str, Value], known: Iterable[str]) -> dict[str, Value]:
    """Return values by name as the names are spelled now; those that are not known keep their spelling."""
    names = Names((name, None) for name in known)
    return {names.spelled(name) or name: value for name, value in values.items()}


def taken(kind: str, name: str, other: str) -> str:
    """Say that a name cannot be given to two things."""
    if name == other:
        return f"the name '{name}' is taken: sources, views and tables share their names"
    return (
        f"the {kind} '{name}' and '{other}' have one name in two spellings: Spark does not tell them apart, so one "
        "would be read for the other. Sources, views and tables share their names"
    )
