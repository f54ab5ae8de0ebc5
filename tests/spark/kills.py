"""Real processes that are killed at named moments, one after the other on the same data."""

import os
import subprocess
import sys
from pathlib import Path

RECOVERY_STEPS = ("fence", "claim", "settle", "restore")


def moments(sinks: tuple[str, ...]) -> list[str]:
    """Return the moments of the protocol, in an order in which each still finds input to work on."""
    return [
        "1:before:prepare",
        "1:after:prepare",
        "1:before:capture",
        "1:after:capture",
        "sidecar",
        "1:after:seal",
        *[f"2:{when}:commit:{sink}" for sink in sinks for when in ("before", "after")],
        "4:before:record",
        "5:after:record",
        "6:committed",
        "1:after:recovery.claim",
        "7:before:begin",
    ]


def recovery_moments() -> list[str]:
    """Return the moments of a recovery."""
    return [f"0:{when}:recovery.{step}" for step in RECOVERY_STEPS for when in ("before", "after")]


def run_until(moment: str, base: Path, kind: str, state: str) -> str:
    """Run a pipeline in a process of its own until it kills itself at `moment`, or to the end with `never`."""
    tests = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(tests)}
    command = [sys.executable, "-m", "spark.killed_pipeline", str(base), kind, state, moment]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    expected = 0 if moment == "never" else -9
    assert done.returncode == expected, f"{moment}: exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout
