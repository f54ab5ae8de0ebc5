"""docs/sync.md leaves no setting out, tells the true defaults, and names every standing."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from holdfast import SyncSettings
from holdfast.engine.sync.standing import Standing
from holdfast.interfaces.pipeline_file.keys import KEYS

PAGE = (Path(__file__).parents[2] / "docs" / "sync.md").read_text()
ROWS = {
    match["key"]: match["default"]
    for match in re.finditer(r"^\| `(?P<key>\w+)` \| *(?P<default>[^|]*?) *\| .+ \|$", PAGE, re.MULTILINE)
}


def spelled(default: object) -> str:
    """Return a default as the page spells it."""
    if default is MISSING:
        return ""
    if default is None or default == {}:
        return "none"
    return f"`{str(default).lower()}`"


@pytest.mark.parametrize("field", fields(SyncSettings), ids=lambda field: field.name)
def test_every_setting_stands_there_with_its_default(field) -> None:  # type: ignore[no-untyped-def]
    default = field.default if field.default_factory is MISSING else field.default_factory()
    assert ROWS[field.name] == spelled(default)


def test_a_pipeline_file_has_the_same_settings() -> None:
    assert KEYS["sync"] == tuple(field.name for field in fields(SyncSettings))


def test_every_standing_is_explained() -> None:
    for standing in Standing:
        assert f"| `{standing.value}` |" in PAGE
