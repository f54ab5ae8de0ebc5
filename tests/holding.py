"""Another process that holds a lock for as long as a block goes on."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

SINCE = "2023-11-14T22:13:20Z"
HOLD = """
import sys
from holdfast.stores import locks
from holdfast.testing.clock import ManualClock
lock = locks.take(sys.argv[1], clock=ManualClock(1_700_000_000_000))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def other_process(code: str, *arguments: str) -> Iterator[tuple[int, str]]:
    """Run code until the block ends, then close its input; yields the process's id and its first line."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait()


@contextlib.contextmanager
def held_elsewhere(path: str) -> Iterator[int]:
    """Hold a lock, since `SINCE` by the other process's clock; yields its id."""
    with other_process(HOLD, path) as (pid, said):
        assert said == "held"
        yield pid
