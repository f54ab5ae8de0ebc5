"""The API against its own description: nothing that it allows, and little that it does not, ends in a 500."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks

from holdfast.interfaces.http.app import create_app
from holdfast.interfaces.http.security import Security
from interfaces.http_client import Served, served
from interfaces.test_http_docs import Nobody

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = 15
REPEATABLE = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
NOT_TRIED = ("/events", "/stop")
"""One never ends, the other ends everything: they have tests of their own."""


def cases() -> Iterator[Any]:
    """Yield every operation as it is described, and those that take something also with what they do not take."""
    described = create_app(Nobody()).openapi()  # type: ignore[arg-type]
    for result in schemathesis.openapi.from_dict(described).get_all_operations():
        operation = result.ok()
        raw = described["paths"][operation.path][operation.method]
        if operation.path.endswith(NOT_TRIED):
            continue
        yield pytest.param(operation, GenerationMode.POSITIVE, id=operation.label)
        if "parameters" in raw or "requestBody" in raw:
            yield pytest.param(operation, GenerationMode.NEGATIVE, id=f"{operation.label} otherwise")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    unhurried = Security(requests_per_second=100_000)
    with served(tmp_path_factory.mktemp("fuzz") / "store", security=unhurried) as shop:
        shop.pipeline.feed_and_wait(6)
        yield shop


@pytest.mark.parametrize(("operation", "mode"), list(cases()))
def test_no_request_ends_in_a_fault(shop: Served, operation: Any, mode: GenerationMode) -> None:
    """Method: make requests from the description, as it says and otherwise; compare the answers with it."""

    @settings(REPEATABLE, max_examples=EXAMPLES)
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        # With other names everything would end in the same 404.
        if "name" in case.path_parameters and mode is GenerationMode.POSITIVE:
            case.path_parameters["name"] = shop.pipeline.name
        case.call_and_validate(base_url=shop.server.url, checks=CHECKS)

    ask()


def test_after_all_that_the_pipeline_still_works(shop: Served) -> None:
    shop.post("/resume")
    shop.pipeline.feed_and_wait(2)
    assert shop.get("/v0/pipelines/shop")["deployment_status"] == "Running"
    shop.checkpoint()
