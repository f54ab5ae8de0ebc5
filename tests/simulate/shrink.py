"""Makes a history that fails short: first steps are left out, then what is left is made simpler."""

from collections.abc import Callable
from dataclasses import replace

from simulate.steps import History, Step

Fails = Callable[[History], bool]


def shrunk(history: History, fails: Fails, *, most_runs: int = 2000) -> History:
    """Return a history that still fails, of which nothing can be left out, unless that takes too many runs."""
    return _Shrinker(history, fails, most_runs).run()


class _Shrinker:
    def __init__(self, history: History, fails: Fails, most_runs: int) -> None:
        self._best, self._fails, self._left = history, fails, most_runs

    def run(self) -> History:
        before = None
        while before != self._best and self._left > 0:
            before = self._best
            self._leave_out()
            self._simplify()
        return self._best

    def _leave_out(self) -> None:
        """Drop halves, quarters, ... and single steps."""
        size = max(1, len(self._best.steps) // 2)
        while True:
            start = len(self._best.steps) - size
            while start > -size:
                steps = self._best.steps
                self._try(steps[: max(0, start)] + steps[max(0, start) + size :])
                start -= size
            if size == 1:
                return
            size //= 2

    def _simplify(self) -> None:
        for number in range(len(self._best.steps)):
            progress = True
            while progress:
                steps = self._best.steps
                progress = any(
                    self._try((*steps[:number], simpler, *steps[number + 1 :])) for simpler in steps[number].simpler()
                )
        self._try(self._best.steps, retain=None)

    def _try(self, steps: tuple[Step, ...], **changes: None) -> bool:
        if self._left <= 0 or (steps == self._best.steps and not changes) or len(steps) > len(self._best.steps):
            return False
        candidate = replace(self._best, steps=steps, **changes)
        if candidate == self._best:
            return False
        self._left -= 1
        if not self._fails(candidate):
            return False
        self._best = candidate
        return True


def as_text(history: History) -> str:
    """Return a history as it can stand in a test."""
    steps = "".join(f"        {step!r},\n" for step in history.steps)
    sync = f"    {history.sync!r},\n" if history.sync else ""
    values = f"    {history.seed},\n    {history.kind!r},\n    {history.retain!r},\n"
    return f"History(\n{values}    (\n{steps}    ),\n{sync})"
