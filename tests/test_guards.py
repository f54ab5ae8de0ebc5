"""The list of guards (`make guards`) stays true: each is in the code, and the tests that should notice it exist."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from remove_guards import GUARDS, Guard  # noqa: E402


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_can_be_taken_out(guard: Guard) -> None:
    assert guard.old in (ROOT / "src" / "holdfast" / guard.file).read_text()
    assert guard.old != guard.new
    files = [word for word in guard.tests if word.startswith("tests/")]
    assert files
    assert all((ROOT / file.partition("::")[0]).exists() for file in files)
