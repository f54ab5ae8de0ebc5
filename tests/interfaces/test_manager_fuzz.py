"""What only a manager has, against its own description: nothing that it allows ends in a 500."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis import GenerationMode, checks

from holdfast.interfaces.http.security import Security
from holdfast.interfaces.manager.fleet import build_fleet
from holdfast.interfaces.manager.serving import manager_app
from holdfast.interfaces.manager.settings import FleetSettings
from interfaces.test_http_fuzz import CHECKS as ALL_CHECKS
from interfaces.test_http_fuzz import REPEATABLE
from interfaces.test_manager_http import PIPELINE, Manager

FAILS_AT_ONCE = (sys.executable, "-c", "raise SystemExit(2)")
EXAMPLES = 10
# A pipeline without a process answers 503, which is no fault.
CHECKS = [check for check in ALL_CHECKS if check is not checks.not_a_server_error]
TRIED = ("manager", "life", "pipelines")
NOT_TRIED = ("/logs", "/events")
"""They may never end, and have tests of their own."""


def cases() -> Iterator[Any]:
    """Yield what is described of a manager of nothing, as it is said and otherwise."""
    described = manager_app(build_fleet([], FleetSettings(), lambda *notice: None), Security()).openapi()
    for result in schemathesis.openapi.from_dict(described).get_all_operations():
        operation = result.ok()
        tags = described["paths"][operation.path][operation.method]["tags"]
        if "{name}" in operation.path and set(tags) & set(TRIED) and not operation.path.endswith(NOT_TRIED):
            yield pytest.param(operation, GenerationMode.POSITIVE, id=operation.label)
            yield pytest.param(operation, GenerationMode.NEGATIVE, id=f"{operation.label} otherwise")


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    file: Path = tmp_path_factory.mktemp("fuzz") / "orders.yaml"
    file.write_text(PIPELINE)
    manager = Manager(file, command=FAILS_AT_ONCE)
    yield manager
    manager.close()


@pytest.mark.parametrize(("operation", "mode"), list(cases()))
def test_no_request_to_a_manager_ends_in_a_fault(manager: Manager, operation: Any, mode: GenerationMode) -> None:
    @settings(REPEATABLE, max_examples=EXAMPLES)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        if "name" in case.path_parameters and mode is GenerationMode.POSITIVE:
            case.path_parameters["name"] = "orders"
        answer = case.call_and_validate(base_url=str(manager.client.base_url), checks=CHECKS)
        assert answer.status_code != 500

    ask()
