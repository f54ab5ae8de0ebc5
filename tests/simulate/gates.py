"""What one process does to the outside, call by call: each is counted, and one of them can meet something.

`how` says what: a crash before, in the middle of or after the call, a power loss, an answer that is lost, a request
that is carried out late, or a pause in which other things happen.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.errors import RetryableSinkError, TransientStoreError, UnknownOutcome
from holdfast.stores.objects import ObjectChanged, ObjectExists
from holdfast.testing import SimulatedCrash

_Result = TypeVar("_Result")
CRASHES = ("before", "torn", "after", "power")
FAULTS = ("unavailable", "unanswered", "late")
PAUSE = "pause"


@dataclass
class Trace:
    """Everything that happened, in order: two runs of one history have the same."""

    lines: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        self.lines.append(line)


@dataclass
class Plan:
    """What the first fitting call from `at` on meets."""

    at: int
    how: str
    during: Callable[[], object] = lambda: None
    """What happens in a pause."""

    def fits(self, label: str, mutates: bool) -> bool:
        return mutates or self.how == PAUSE


def on_its_way(label: str) -> bool:
    """Whether a call is a request to a bucket, which can be carried out after nobody waits for it any more."""
    operation, _, key = label.partition(" ")
    return operation in ("create", "replace", "upload", "delete") and not key.startswith("/")


class Gate:
    """Everything that one process does to stores and sinks passes here. The dead do nothing more."""

    def __init__(self, name: str, trace: Trace) -> None:
        self.name, self.trace = name, trace
        self.plan: Plan | None = None
        self.dead = False
        self.faulted = False
        """Whether something went wrong with a call that the process survived."""
        self.locks = 0
        self.late: list[Callable[[], object]] = []
        self.on_crash: list[Callable[[str], object]] = []
        self._count = 0

    def arm(self, plan: Plan | None) -> None:
        """Let a call meet something, counted from now."""
        self.plan, self._count = plan, 0

    def check(self) -> None:
        if self.dead:
            raise SimulatedCrash("a call after the crash")

    def call(
        self, label: str, mutates: bool, run: Callable[[], _Result], half: Callable[[], object] | None = None
    ) -> _Result:
        """Carry a call out, or let it meet what was planned."""
        self.check()
        self.trace.add(f"{self.name}: {label}")
        number, self._count = self._count, self._count + 1
        plan = self.plan
        if plan is None or number < plan.at or not plan.fits(label, mutates) or (plan.how == PAUSE and self.locks):
            return run()
        self.plan = None
        self.trace.add(f"{self.name}: {plan.how}")
        if plan.how == PAUSE:
            plan.during()
            self.check()
            return run()
        if plan.how in CRASHES:
            self._crash(plan.how, run, half)
        self.faulted = True
        return self._fail(label, plan.how, run, half)

    def die(self) -> None:
        """End the process from outside."""
        self.dead = True
        for act in self.on_crash:
            act("killed")

    def _crash(self, how: str, run: Callable[[], Any], half: Callable[[], object] | None) -> None:
        if how == "torn" and half is not None:
            half()
        if how == "after":
            run()
        self.dead = True
        for act in self.on_crash:
            act(how)
        raise SimulatedCrash(how)

    def _fail(self, label: str, how: str, run: Callable[[], _Result], half: Callable[[], object] | None) -> _Result:
        if how == "unanswered":
            run()
        elif how == "late" and on_its_way(label):
            self.late.append(run)
        elif half is not None:
            half()
        if label.startswith("sink "):
            raise UnknownOutcome(label) if label.startswith("sink commit") else RetryableSinkError(label)
        if half is not None or label.startswith(("rename", "link", "unlink", "mkdir", "rmdir", "sync", "lock")):
            raise OSError(errno.EIO, os.strerror(errno.EIO), label)
        raise TransientStoreError(label)

    def deliver_late(self) -> None:
        """Carry out what is still on its way."""
        late, self.late = self.late, []
        for run in late:
            try:
                run()
            except (ObjectExists, ObjectChanged):
                continue  # Nobody waits for the answer any more.
