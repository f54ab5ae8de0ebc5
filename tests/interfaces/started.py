"""A command as a process whose lines are read as they come."""

import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

from interfaces.test_cli_process import CLI, environment


class Started:
    """`lines` are those read so far, without their ends."""

    def __init__(self, *arguments: object, **variables: str) -> None:
        self.lines: list[str] = []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            [*CLI, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment(**variables),
        )
        assert self.process.stdout is not None
        self._output = self.process.stdout

    def until(self, wanted: Callable[[str], Any]) -> str:
        """Read until a line is as wanted."""
        for line in self._output:
            self.lines.append(line.rstrip("\n"))
            if wanted(self.lines[-1]):
                return self.lines[-1]
        raise AssertionError(f"it ended with {self.ended()} after {self.lines}")

    def ended(self) -> tuple[int, str]:
        """Read on until the end; return the exit code and what is on stderr."""
        # Not with `communicate`, which misses what was read ahead of the last line.
        self.lines += [line.rstrip("\n") for line in self._output]
        code = self.process.wait()
        self._errors.seek(0)
        return code, self._errors.read()

    def kill(self) -> None:
        """End it if it still runs, and let go of what it wrote."""
        self.process.kill()
        self.process.wait()
        self._output.close()
        self._errors.close()
