"""Commands that look: list, show, diff."""

from typing import Annotated

import typer

from holdfast.errors import InvalidRequest
from holdfast.interfaces.cli.parameters import Json, Reference, Store, StoreCommand
from holdfast.interfaces.cli.running import reporting
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.service import LATEST


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("list", cls=StoreCommand, short_help="List the checkpoints of a store.")(list_checkpoints)
    app.command("show", cls=StoreCommand, short_help="Report on one checkpoint.")(show)
    app.command("diff", cls=StoreCommand, short_help="Show what changed between two checkpoints.")(diff)


def list_checkpoints(
    store: Store,
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the newest N.")] = None,
    json: Json = False,
) -> None:
    """List the checkpoints of a store, oldest first; damaged ones are shown and marked.

    The condition comes from manifests and from which sidecars are there; `verify` reads every byte.
    """
    with reporting(json) as output:
        output.listing(open_service(store).listing(last))


def show(
    store: Store,
    id: Reference = LATEST,
    files: Annotated[bool, typer.Option("--files", help="List the state files instead.")] = False,
    manifest: Annotated[
        bool, typer.Option("--manifest", help="Print the manifest as it stands, damaged or not.")
    ] = False,
    json: Json = False,
) -> None:
    """Report on one checkpoint: age, offsets, watermarks, sinks, operators, and what it depends on."""
    with reporting(json) as output:
        if files and manifest:
            raise InvalidRequest("--files and --manifest exclude each other")
        service = open_service(store)
        if files:
            output.state_files(service.state_files(id))
        elif manifest:
            output.manifest(service.manifest_text(id))
        else:
            output.report(service.report(id))


def diff(
    store: Store,
    before: Annotated[str, typer.Argument(metavar="A", help="The earlier checkpoint: id, 'latest' or name.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The later checkpoint: id, 'latest' or name.")],
    json: Json = False,
) -> None:
    """Show what changed from checkpoint A to checkpoint B."""
    with reporting(json) as output:
        output.difference(open_service(store).compare(before, after))
