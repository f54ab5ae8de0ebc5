"""Two writers at once, in an order that can be repeated."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Slot:
    """So many calls of one writer in a row; None is all the rest."""

    writer: str
    calls: int | None = None


@dataclass
class Outcome:
    """How a writer ended: what it returned or what it raised, and the calls it made."""

    result: object = None
    error: BaseException | None = None
    trace: list[str] = field(default_factory=list)


class Turns:
    """Runs writers in threads of which exactly one moves at a time, a call to the disk or bucket being one move.

    The slots say who moves; when they are used up, the writers finish one after the other. `blocked` tells from a
    call's label that it cannot go on now (it waits for a lock), and then somebody else moves.

        turns = Turns([Slot("a", 3), Slot("b")])
        outcomes = turns.run({"a": lambda gate: save(InterceptedDisk(disk, gate)), "b": ...})
    """

    def __init__(self, slots: Sequence[Slot], blocked: Callable[[str], bool] = lambda label: False) -> None:
        self._slots = [[slot.writer, slot.calls] for slot in slots]
        self._blocked = blocked
        self._condition = threading.Condition()
        self._waiting: dict[str, str] = {}
        self._unfinished: list[str] = []
        self._moving: str | None = None
        self._deadlock = False
        self._outcomes: dict[str, Outcome] = {}

    def run(self, writers: Mapping[str, Callable[["Gate"], object]]) -> dict[str, Outcome]:
        """Run every writer to its end and return how each ended."""
        self._unfinished = list(writers)
        self._outcomes = {name: Outcome() for name in writers}
        threads = [
            threading.Thread(target=self._live, args=(name, writer), daemon=True) for name, writer in writers.items()
        ]
        for thread in threads:
            thread.start()
        with self._condition:
            self._condition.wait_for(self._all_at_a_call)
            self._choose()
        for thread in threads:
            thread.join()
        return self._outcomes

    def _live(self, name: str, writer: Callable[["Gate"], object]) -> None:
        outcome = self._outcomes[name]
        try:
            outcome.result = writer(Gate(self, name))
        except BaseException as error:
            outcome.error = error
        with self._condition:
            self._unfinished.remove(name)
            if self._moving == name:
                self._choose()
            self._condition.notify_all()

    def _all_at_a_call(self) -> bool:
        return all(name in self._waiting for name in self._unfinished)

    def wait_for_turn(self, name: str, label: str) -> None:
        """Block the writer until it may make the call."""
        with self._condition:
            self._waiting[name] = label
            if self._moving == name:
                self._choose()
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._moving == name or self._deadlock)
            if self._deadlock:
                raise RuntimeError(f"every writer waits for a lock: {self._waiting}")
            del self._waiting[name]
            self._outcomes[name].trace.append(label)

    def _choose(self) -> None:
        while self._slots and (self._slots[0][0] not in self._unfinished or self._slots[0][1] == 0):
            self._slots.pop(0)
        first = [str(slot[0]) for slot in self._slots[:1]]
        for name in [*first, *self._unfinished]:
            if not self._blocked(self._waiting[name]):
                self._take(name)
                return
        self._moving = None
        self._deadlock = bool(self._unfinished)
        self._condition.notify_all()

    def _take(self, name: str) -> None:
        if self._slots and self._slots[0][0] == name and isinstance(self._slots[0][1], int):
            self._slots[0][1] -= 1
        self._moving = name
        self._condition.notify_all()


class Gate:
    """The interceptor of one writer: every call waits for its turn."""

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self._name = name

    def call(
        self, label: str, mutates: bool, run: Callable[[], _Result], half: Callable[[], object] | None = None
    ) -> _Result:
        """Wait, then carry out."""
        self._turns.wait_for_turn(self._name, label)
        return run()
