"""Puts the commands together."""

import logging
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from holdfast.interfaces.cli import (
    carrying,
    deciding,
    judging,
    looking,
    pipelines,
    savepoints,
    serving,
    syncing,
    tidying,
)
from holdfast.interfaces.cli.parameters import OneLineGroup
from holdfast.interfaces.exit_codes import EPILOG

app = typer.Typer(
    name="holdfast",
    cls=OneLineGroup,
    help="Run pipelines, look at their checkpoints, verify them, and keep them in order. Only running needs Spark.",
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for group in (pipelines, serving, looking, judging, tidying, savepoints, carrying, syncing, deciding):
    group.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its code instead of stopping us.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    # Damage it meets while decoding is part of our answer; a second line about it would only confuse.
    logging.getLogger("holdfast.core.entries").setLevel(logging.ERROR)
    app(prog_name="holdfast")
