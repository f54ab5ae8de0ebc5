"""Around every command: choose the output, turn errors into one line and an exit code, ask before removing."""

import contextlib
import os
import sys
from collections.abc import Iterator

import typer

from holdfast.errors import HoldfastError, InvalidRequest, PipelineError
from holdfast.interfaces.cli.human import HumanOutput
from holdfast.interfaces.cli.output import JsonOutput, Output
from holdfast.interfaces.exit_codes import ExitCode, exit_code_of
from holdfast.secrets import scrub

_REMOVES = "this removes checkpoints and nobody can be asked here: give --yes, or --dry-run to look"


@contextlib.contextmanager
def reporting(as_json: bool, *, in_lines: bool = False) -> Iterator[Output]:
    """Lend an output to a command, and let no traceback through. HOLDFAST_DEBUG=1 does let it through.

    With `in_lines` each JSON document is one line, for a command that prints several.
    """
    output: Output = JsonOutput(in_lines=in_lines) if as_json else HumanOutput()
    try:
        yield output
        sys.stdout.flush()
    except HoldfastError as error:
        _debug()
        code = exit_code_of(error)
        output.error(scrub(str(error)), code, in_lines=isinstance(error, PipelineError))
        raise typer.Exit(code) from None
    except KeyboardInterrupt:
        output.error("interrupted", ExitCode.INTERRUPTED)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough (`| head`). Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(ExitCode.OK) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        _debug()
        fault = f"{type(error).__name__}: {scrub(str(error))}"
        output.error(f"fault in holdfast: {fault}; run again with HOLDFAST_DEBUG=1 and report it", ExitCode.INTERNAL)
        raise typer.Exit(ExitCode.INTERNAL) from None


def debugging() -> bool:
    """Whether a developer wants to see everything."""
    return bool(os.environ.get("HOLDFAST_DEBUG"))


def _debug() -> None:
    """Raise what is being handled again when a developer asked for it."""
    if debugging():
        raise


def stop(code: ExitCode) -> None:
    """End the command with an exit code other than 0."""
    raise typer.Exit(code)


def someone_can_answer() -> bool:
    """Whether a person sits at a terminal."""
    return sys.stdin.isatty()


def confirm(question: str, *, yes: bool, otherwise: str = _REMOVES) -> bool:
    """Ask on stderr, unless the answer was given; without a terminal there is nobody to ask."""
    if yes:
        return True
    if not someone_can_answer():
        raise InvalidRequest(otherwise)
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
