"""docs/cli.md leaves nothing out and promises nothing that is not there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from holdfast.interfaces.cli import app
from holdfast.interfaces.exit_codes import MEANINGS
from holdfast.interfaces.reports import Standing

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def commands(command: Any, path: str = "holdfast") -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its full name."""
    children = getattr(command, "commands", None)
    if not children:
        yield path, command
        return
    for name, child in children.items():
        yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands(get_command(app)))


def section(name: str) -> str:
    """Return what the page says under a command's heading."""
    match = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"docs/cli.md has no heading '## {name}'"
    return match[1]


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("-")}


def test_every_command_is_there() -> None:
    wanted = (
        "list show verify recover diff prune orphans export import savepoint_create savepoint_release savepoint_list "
        "run plan serve check init approve resolve export-spark history recoveries health "
        "sync_push sync_pull sync_status"
    )
    assert set(COMMANDS) == {f"holdfast {name.replace('_', ' ')}" for name in wanted.split()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_an_example(name: str) -> None:
    text = section(name)
    assert f"\n$ {name} " in text or f"$ {name} " in text
    signature = next(line for line in text.splitlines() if line.startswith(f"`{name} "))
    for parameter in COMMANDS[name].params:
        if parameter.param_type_name == "argument":
            metavar = parameter.metavar or parameter.name.upper()
            assert metavar in signature, f"{name}: {metavar} is not in the signature"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    shared = {"--json", "--help"}
    missing = {option for option in options(COMMANDS[name]) - shared if f"`{option}" not in section(name)}
    missing = {option for option in missing if f" {option}" not in section(name)}
    assert not missing
    assert "--json" in options(COMMANDS[name])


def test_what_all_commands_share_is_documented() -> None:
    for word in ("`--json`", "`--help`", "--version", "HOLDFAST_STORE", "HOLDFAST_DEBUG", "NO_COLOR"):
        assert word in section("What all commands share")


def test_every_exit_code_and_condition_is_documented_in_the_same_words() -> None:
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in PAGE
    for standing in Standing:
        assert f"| {standing.value} |" in section("holdfast list")


@pytest.mark.parametrize("line", re.findall(r"^\$ (holdfast .*)$", PAGE, re.MULTILINE))
def test_examples_use_what_exists(line: str) -> None:
    name = max((name for name in COMMANDS if line.startswith(name + " ")), key=len)
    words = shlex.split(line.removeprefix(name))
    assert {word for word in words if word.startswith("-")} <= options(COMMANDS[name])


def test_help_of_every_command_explains_every_parameter() -> None:
    for name, command in COMMANDS.items():
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name}: {parameter.name}"
