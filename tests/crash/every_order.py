"""Every order in which the calls of two writers can happen.

Two orders that lead to the same stored bytes, with each writer having seen the same answers, go on alike: from each
such state each writer moves next once. What is found by running to the end, starting over every time.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from crash_lab import DiskWorld, World

from holdfast.stores.objects import StoredObject
from holdfast.testing import Gate, Outcome, Slot, Turns

Job = Callable[[World, "Watched"], object]


class Watched:
    """An interceptor that waits for its turn and notes in which state each call was made."""

    def __init__(self, gate: Gate, name: str, path: "Path") -> None:
        self._gate, self._name, self._path = gate, name, path

    def call(self, label: str, mutates: bool, run: Callable[[], Any], half: object = None) -> Any:
        return self._gate.call(label, mutates, lambda: self._path.step(self._name, label, run))


class Path:
    """One run: who moved, and in which state."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._heard: dict[str, str] = {}
        self.moves: list[tuple[str, str, bool]] = []

    def step(self, name: str, label: str, run: Callable[[], Any]) -> Any:
        self.moves.append((name, self._state(), label.startswith("sync ")))
        answer: object = "an error"
        try:
            answer = run()
            return answer
        except BaseException as error:
            answer = repr(error)
            raise
        finally:
            self._heard[name] = _digest(self._heard.get(name), label, _told(answer))

    def _state(self) -> str:
        return _digest(sorted(self._heard.items()), _stored(self._world))


def _stored(world: World) -> object:
    """Return every byte; what of it is flushed does not matter where nobody loses power."""
    if isinstance(world, DiskWorld):
        nodes: Any = world.disk.fingerprint()[0]
        return [(path, node and node[0]) for path, node in nodes]
    return world.objects.fingerprint()


def _told(answer: object) -> object:
    if isinstance(answer, StoredObject):
        return answer.data
    return answer if isinstance(answer, bytes | str | int | list | dict | tuple) else type(answer).__name__


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def every_order(
    base: World, jobs: Mapping[str, Job], begin: Callable[[], object]
) -> Iterator[tuple[list[str], World, dict[str, Outcome]]]:
    """Run the jobs in every order; yield who moved when, what is stored then, and how each ended.

    Those with few switches come first. To flush commutes with all that others do, so nobody cuts in before.
    """
    tried: set[tuple[str, str]] = set()
    open_orders: deque[list[str]] = deque([[]])
    while open_orders:
        begun = open_orders.popleft()
        begin()
        world = base.copy()
        path = Path(world)
        turns = Turns([*(Slot(name, 1) for name in begun), *(Slot(name) for name in begun[-1:])], world.blocked)
        outcomes = turns.run({name: _placed(job, name, world, path) for name, job in jobs.items()})
        names = [name for name, _, _ in path.moves]
        for at, (name, state, flushes) in enumerate(path.moves):
            tried.add((state, name))
            for other in set(names[at + 1 :]) - {name}:
                if not flushes and (state, other) not in tried:
                    tried.add((state, other))
                    open_orders.append([*names[:at], other])
        yield names, world, outcomes


def _placed(job: Job, name: str, world: World, path: Path) -> Callable[[Gate], object]:
    return lambda gate: job(world, Watched(gate, name, path))
