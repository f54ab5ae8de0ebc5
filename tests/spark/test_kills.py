"""SIGKILL at every named step of the protocol, one process after the other on the same data.

Each process is killed for real at its moment; the next one recovers and is killed at the next moment; the last one
runs to the end. Then every sink must hold exactly what an undisturbed run gives, value by value.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark.orders import contents, write_orders

SINKS = ("lake", "db", "raw")
MOMENTS = [
    "1:before:prepare",
    "1:after:prepare",
    "1:before:capture",
    "1:after:capture",
    "sidecar",
    "1:after:seal",
    *[f"2:{when}:commit:{sink}" for sink in SINKS for when in ("before", "after")],
    "4:before:record",
    "5:after:record",
    "6:committed",
    "1:after:recovery.claim",
    "7:before:begin",
]
FILES = 14


def run_until(moment: str, base: Path, kind: str, state: str) -> str:
    tests = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(tests)}
    command = [sys.executable, "-m", "spark.killed_pipeline", str(base), kind, state, moment]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    expected = 0 if moment == "never" else -9
    assert done.returncode == expected, f"{moment}: exit {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"
    return done.stdout


def run_killed_at_every_step(base: Path, kind: str) -> dict[str, Any]:
    write_orders(base, 0, FILES)
    for moment in MOMENTS:
        assert "killed" in run_until(moment, base, kind, "rocksdb")
    assert "finished" in run_until("never", base, kind, "rocksdb")
    return contents(base)


@pytest.mark.timeout(1800)
def test_sinks_hold_every_row_once_after_a_kill_at_every_step(
    tmp_path: Path, undisturbed: Callable[[str, int], dict[str, Any]]
) -> None:
    """Two chains of processes at a time: a window aggregation, and a stateless fan-out, each into three sinks."""
    kinds = ("windows", "fan_out")
    with ThreadPoolExecutor(max_workers=len(kinds)) as pool:
        chains = {kind: pool.submit(run_killed_at_every_step, tmp_path / kind, kind) for kind in kinds}
        for kind, chain in chains.items():
            assert chain.result() == undisturbed(kind, FILES)
