"""What `make test` leaves to `make test-all`."""

from typing import Any

import pytest


def long(*cases: Any) -> list[Any]:
    """Return cases for `make test-all` only: they differ little from one that `make test` runs."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long) for case in cases]
