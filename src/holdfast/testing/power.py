"""What a power loss may leave behind.

Between two syncs a disk may do as it likes. A `PowerLoss` is one thing it may have done: which of the names that
were still pending arrived, and what became of the bytes that were still pending.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class NameChange:
    """One directory operation that no `sync_directory` has made durable yet.

    `effects` are (directory, name, node or None for "gone"); a rename has two and happens as a whole, as it does
    on every journaling filesystem. `moves` is the directory that was created, moved or removed, if it was one.
    """

    label: str
    effects: tuple[tuple[int, str, int | None], ...]
    moves: int | None = None

    def needs(self, earlier: "NameChange") -> bool:
        """Whether this can only have arrived if `earlier` has: same name, or the same directory moved twice."""
        if self.moves is not None and self.moves == earlier.moves:
            return True
        places = {(directory, name) for directory, name, _ in earlier.effects}
        return any((directory, name) in places for directory, name, _ in self.effects)


def with_what_they_need(changes: Sequence[NameChange], wanted: set[int]) -> set[int]:
    """Return the wanted positions and every earlier one that one of them needs."""
    closed = set(wanted)
    for position in range(len(changes) - 1, -1, -1):
        if position in closed:
            closed |= {i for i in range(position) if changes[position].needs(changes[i])}
    return closed


def _none(tail: bytes) -> bytes:
    return b""


def _all(tail: bytes) -> bytes:
    return tail


def _half(tail: bytes) -> bytes:
    return tail[: len(tail) // 2]


def _zeros(tail: bytes) -> bytes:
    return bytes(len(tail))


Keep = Callable[[Sequence[NameChange]], set[int]]
Tail = Callable[[bytes], bytes]


@dataclass(frozen=True)
class PowerLoss:
    """One outcome: `keep` chooses pending names, `tail` turns a file's pending bytes into what is found later."""

    name: str
    keep: Keep
    tail: Tail

    def __str__(self) -> str:
        return self.name


def _nothing_kept(changes: Sequence[NameChange]) -> set[int]:
    return set()


def _everything_kept(changes: Sequence[NameChange]) -> set[int]:
    return set(range(len(changes)))


NOTHING = PowerLoss("nothing", _nothing_kept, _none)
EVERYTHING = PowerLoss("everything", _everything_kept, _all)
NAMES_WITHOUT_BYTES = PowerLoss("names without bytes", _everything_kept, _none)
NAMES_WITH_ZEROS = PowerLoss("names with zeros", _everything_kept, _zeros)
NAMES_WITH_HALF_THE_BYTES = PowerLoss("names with half the bytes", _everything_kept, _half)
BYTES_WITHOUT_NAMES = PowerLoss("bytes without names", _nothing_kept, _all)

NAMED_LOSSES = (
    NOTHING,
    EVERYTHING,
    NAMES_WITHOUT_BYTES,
    NAMES_WITH_ZEROS,
    NAMES_WITH_HALF_THE_BYTES,
    BYTES_WITHOUT_NAMES,
)


def single_losses(changes: Sequence[NameChange]) -> Iterator[PowerLoss]:
    """Yield, for each pending change, that it alone was lost and that it alone arrived (with what each implies)."""
    for position, change in enumerate(changes):
        yield PowerLoss(f"lost: {change.label}", _without(position), _all)
        yield PowerLoss(f"kept: {change.label}", _only(position), _none)


def _only(position: int) -> Keep:
    return lambda changes: {position}


def _without(position: int) -> Keep:
    def keep(changes: Sequence[NameChange]) -> set[int]:
        return {i for i in range(len(changes)) if position not in with_what_they_need(changes, {i})}

    return keep


class Chance(Protocol):
    """Where randomness comes from, for example `random.Random(seed)`."""

    def random(self) -> float:
        """Return a number from 0 to 1."""
        ...


def seeded_loss(chance: Chance, name: str = "seeded") -> PowerLoss:
    """Return an outcome that tosses a coin for every name and chooses one of four fates for every file's bytes."""

    def keep(changes: Sequence[NameChange]) -> set[int]:
        return {i for i in range(len(changes)) if chance.random() < 0.5}

    def tail(pending: bytes) -> bytes:
        fate = (_none, _all, _zeros, _half)[int(chance.random() * 4) % 4]
        return fate(pending)

    return PowerLoss(name, keep, tail)
