"""Commands on the copies in a bucket: push, pull, status."""

from typing import Annotated
from uuid import UUID

import typer

from holdfast.errors import InvalidRequest
from holdfast.interfaces import syncing
from holdfast.interfaces.cli.parameters import Json, OneLineGroup
from holdfast.interfaces.cli.running import reporting, stop
from holdfast.interfaces.exit_codes import ExitCode

Target = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A pipeline file with a section 'sync', or a store; then give --bucket."),
]
Bucket = Annotated[
    str | None, typer.Option("--bucket", metavar="URL", help="The bucket, when the file does not name it.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module, as a group."""
    group = typer.Typer(
        cls=OneLineGroup,
        rich_markup_mode=None,
        no_args_is_help=False,
        help="Copy checkpoints into a bucket and back.",
    )
    group.command("push")(push)
    group.command("pull")(pull)
    group.command("status")(status)
    app.add_typer(group, name="sync")


def push(target: Target, bucket: Bucket = None, json: Json = False) -> None:
    """Copy the newest checkpoint into the bucket: what is missing there, verified, its manifest last.

    Nothing is written when the bucket belongs to another pipeline, or when another machine took this one over.
    """
    with reporting(json) as output:
        copy = syncing.Push(syncing.sync_target(target, bucket))
        with output.progress("pushing", copy.bytes_to_move) as on_bytes:
            receipt = copy.run(on_bytes)
        output.copied("pushed", receipt)


def pull(
    target: Target,
    bucket: Bucket = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="UUID", help="Bring this one; the newest when left out.")
    ] = None,
    json: Json = False,
) -> None:
    """Bring the newest whole checkpoint of the bucket here, verified, with what was decided after it.

    A store that went on by itself is left alone: it cannot follow the bucket any more.
    """
    with reporting(json) as output:
        wanted = syncing.sync_target(target, bucket)
        with output.progress("pulling", lambda: None) as on_bytes:
            receipt = syncing.pull(wanted, _uuid(checkpoint), on_bytes)
        output.copied("pulled", receipt)


def status(target: Target, bucket: Bucket = None, json: Json = False) -> None:
    """Show how store and bucket stand to each other. Exits with 1 when the copies are not in order."""
    with reporting(json) as output:
        report = syncing.status(syncing.sync_target(target, bucket))
        output.sync_status(report)
    if not report.in_order:
        stop(ExitCode.NO)


def _uuid(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise InvalidRequest(f"'{text}' is no uuid of a checkpoint; 'holdfast show' tells it") from None
