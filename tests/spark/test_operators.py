"""Every kind of stateful operator on both kinds of state store, through crashes, damage and loss."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.engine.events import EpochCommitted, StepFinished, StepStarted
from marks import long
from spark.conftest import Lab, flip

Undisturbed = Callable[[str, int], dict[str, Any]]
Labs = Callable[[str], Lab]

OPERATORS = [
    ("python_state", "rocksdb"),
    *long(("several", "memory"), ("windows", "memory"), ("running", "rocksdb"), ("running", "memory")),
    *long(
        ("joined", "rocksdb"),
        ("joined", "memory"),
        ("deduplicated", "rocksdb"),
        ("deduplicated", "memory"),
        ("several", "rocksdb"),
    ),
    *long(("sessions", "rocksdb"), ("sessions", "memory"), ("pandas_state", "rocksdb"), ("pandas_state", "memory")),
]


@pytest.mark.parametrize(("kind", "state"), OPERATORS)
def test_crashes_damage_and_a_lost_working_directory_change_nothing(
    kind: str, state: str, lab: Labs, undisturbed: Undisturbed
) -> None:
    here = lab(kind)
    options = {"state": state}
    here.add(0, 3)
    assert not here.run((2, StepFinished, "seal", None), options=options)
    assert not here.run((3, StepStarted, "commit", "db"), options=options)
    shutil.rmtree(here.base / "work")
    assert not here.run((3, EpochCommitted, "", None), options=options)
    flip(here.checkpoints[-1] / "state.bin", (here.checkpoints[-1] / "state.bin").stat().st_size - 3)
    here.add(3, 5)
    assert here.run(options=options)
    assert len(here.last_report["replays"]) == 1
    assert here.contents() == undisturbed(kind, 5)
