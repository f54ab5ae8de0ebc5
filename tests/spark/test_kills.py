"""SIGKILL at every named step of the protocol, one process after the other on the same data.

Each process is killed for real at its moment; the next one recovers and is killed at the next moment; the last one
runs to the end. Then every sink must hold exactly what an undisturbed run gives, value by value. All kinds of
operators, with kills during the recoveries too: `make chaos-matrix`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark.kills import moments, run_until
from spark.orders import contents, write_orders

FILES = 14


def run_killed_at_every_step(base: Path, kind: str) -> dict[str, Any]:
    write_orders(base, 0, FILES)
    for moment in moments(("lake", "db", "raw")):
        assert "killed" in run_until(moment, base, kind, "rocksdb")
    assert "finished" in run_until("never", base, kind, "rocksdb")
    return contents(base)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["windows", pytest.param("fan_out", marks=pytest.mark.long)])
def test_sinks_hold_every_row_once_after_a_kill_at_every_step(
    kind: str, tmp_path: Path, undisturbed: Callable[[str, int], dict[str, Any]]
) -> None:
    """A window aggregation, or a stateless fan-out, into three sinks."""
    assert run_killed_at_every_step(tmp_path, kind) == undisturbed(kind, FILES)
