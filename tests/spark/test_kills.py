"""SIGKILL at the named steps of the protocol, one process after the other on the same data.

Each process is killed for real at its moment; the next one recovers and is killed at the next moment; the last one
runs to the end. Then every sink must hold exactly what an undisturbed run gives, value by value. `make test` kills at
five steps, `make test-all` before and after each in each sink; all kinds of operators, with kills during the
recoveries too: `make chaos-matrix`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuzz.judge import differences
from spark.kills import moments, run_until
from spark.orders import contents, write_orders

FILES = 12
"""Most kills leave one epoch behind them, and the last one needs another to be killed in."""
SINKS = ("lake", "db", "raw")
SLICE = ["1:after:prepare", "sidecar", "1:after:seal", "2:after:commit:db", "6:committed"]
"""One between any two steps that outlive the process; the record, which may be lost, is none of them."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        pytest.param("windows", SLICE, id="windows"),
        pytest.param("windows", moments(SINKS), id="windows, everywhere", marks=pytest.mark.long),
        pytest.param("fan_out", moments(SINKS), id="fan_out, everywhere", marks=pytest.mark.long),
    ],
)
def test_sinks_hold_every_row_once_after_a_kill_at_every_step(
    kind: str, kills: list[str], tmp_path: Path, undisturbed: Callable[[str, int], dict[str, Any]]
) -> None:
    """A window aggregation, or a stateless fan-out, into three sinks."""
    write_orders(tmp_path, 0, FILES)
    for moment in kills:
        assert "killed" in run_until(moment, tmp_path, kind, "rocksdb")
    assert "finished" in run_until("never", tmp_path, kind, "rocksdb")
    expected = undisturbed(kind, FILES)
    assert all(expected.values())
    assert differences(expected, contents(tmp_path)) == []
