"""Arguments and options that commands share, and how a missing STORE is filled in."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.interfaces.cli.phrases import printable
from holdfast.interfaces.exit_codes import ExitCode

STORE_VARIABLE = "HOLDFAST_STORE"

Store = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help=f"Path or URL of the store; may be left out when {STORE_VARIABLE} is set.",
        show_default=False,
    ),
]
Reference = Annotated[str, typer.Argument(metavar="ID", help="A checkpoint id, 'latest' or the name of a savepoint.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would happen and change nothing.")]


class StoreCommand(TyperCommand):
    """A command whose first argument is the store. If that is left out, the environment's store comes first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the environment's store in front when the caller left it out."""
        store = os.environ.get(STORE_VARIABLE)
        if store and not self._names_a_store(self._positional(ctx, args)):
            args = [store, *args]
        return super().parse_args(ctx, args)

    def _positional(self, ctx: Any, args: Sequence[str]) -> list[str]:
        """Return the arguments that are not options, as the parser sees them."""
        options, rest, _ = self.make_parser(ctx).parse_args(args=list(args))
        values: list[str] = []
        for parameter in self._arguments():
            value = options.get(parameter.name)
            values += list(value) if isinstance(value, tuple | list) else [value] if isinstance(value, str) else []
        return [*values, *rest]

    def _names_a_store(self, given: Sequence[str]) -> bool:
        """Whether the first argument is the store: by how many there are, and if that leaves a doubt, by its look."""
        others = self._arguments()[1:]
        if len(given) <= sum(parameter.required for parameter in others):
            return False
        if not any(parameter.nargs == -1 for parameter in others) and len(given) > len(others):
            return True
        return "/" in given[0] or os.path.isdir(os.path.join(given[0], "checkpoints"))

    def _arguments(self) -> list[Any]:
        return [parameter for parameter in self.params if parameter.param_type_name == "argument"]


class OneLineGroup(TyperGroup):
    """A group of commands whose usage errors are one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and end the process with the right code."""
        run = partial(super().main, args, prog_name, complete_var, False, windows_expand_args, **extra)
        if not standalone_mode:
            return run()
        try:
            result = run()
        except typer.Abort:
            print("holdfast: stopped, nothing was done", file=sys.stderr)
            sys.exit(ExitCode.NO)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            print(f"holdfast: {_usage_line(error)}", file=sys.stderr)
            sys.exit(ExitCode.USAGE)
        sys.exit(result if isinstance(result, int) else ExitCode.OK)


def _usage_line(error: Any) -> str:
    message = printable(" ".join(error.format_message().split())).rstrip(".").replace(": Value error, ", ": ")
    context = getattr(error, "ctx", None)
    if "'STORE'" in message:
        message += f": give the path or URL of a store, or set {STORE_VARIABLE}"
    return f"{message}; see '{context.command_path} --help'" if context else message
