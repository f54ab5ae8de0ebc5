"""Commands that look: list, show, diff, history, recoveries."""

from typing import Annotated

import typer

from holdfast.clock import SYSTEM_CLOCK
from holdfast.errors import InvalidRequest
from holdfast.interfaces.cli.parameters import Json, Reference, Store, StoreCommand
from holdfast.interfaces.cli.running import reporting
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import read_pipeline_file
from holdfast.interfaces.service import LATEST
from holdfast.interfaces.source_lag import with_lag_now

Newest = Annotated[int, typer.Option("--last", metavar="N", min=1, help="Only the newest N.")]
_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("list", cls=StoreCommand, short_help="List the checkpoints of a store.")(list_checkpoints)
    app.command("show", cls=StoreCommand, short_help="Report on one checkpoint.")(show)
    app.command("diff", cls=StoreCommand, short_help="Show what changed between two checkpoints.")(diff)
    app.command("history", cls=StoreCommand, short_help="List the epochs, also those that were pruned.")(history)
    app.command("recoveries", cls=StoreCommand, short_help="List the starts, or report on one.")(recoveries)


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
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", metavar="FILE", help="Ask this pipeline's sources for their lag now.")
    ] = None,
    json: Json = False,
) -> None:
    """Report on one checkpoint: age, offsets, lag, watermarks, sinks, operators, and what it depends on.

    The lag is the one that was known when the checkpoint was sealed, unless a pipeline file is given.
    """
    with reporting(json) as output:
        if files and manifest:
            raise InvalidRequest("--files and --manifest exclude each other")
        if pipeline and (files or manifest):
            raise InvalidRequest("--pipeline goes with neither --files nor --manifest")
        service = open_service(store)
        if files:
            output.state_files(service.state_files(id))
        elif manifest:
            output.manifest(service.manifest_text(id))
        else:
            report = service.report(id)
            if pipeline:
                report = with_lag_now(report, read_pipeline_file(pipeline), SYSTEM_CLOCK)
            output.report(report)


def diff(
    store: Store,
    before: Annotated[str, typer.Argument(metavar="A", help="The earlier checkpoint: id, 'latest' or name.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The later checkpoint: id, 'latest' or name.")],
    json: Json = False,
) -> None:
    """Show what changed from checkpoint A to checkpoint B."""
    with reporting(json) as output:
        output.difference(open_service(store).compare(before, after))


def history(store: Store, last: Newest = _SHOWN, json: Json = False) -> None:
    """List the epochs of a pipeline, oldest first, from the history beside its checkpoints.

    It goes back further than the checkpoints that are kept. It is written on the side: a process that was killed may
    have left out the last seconds.
    """
    with reporting(json) as output:
        output.epoch_history(open_service(store).history(last))


def recoveries(
    store: Store,
    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The id of a start's fence, or 'latest'.", show_default=False),
    ] = None,
    last: Newest = _SHOWN,
    json: Json = False,
) -> None:
    """List the starts of a pipeline, oldest first: what each went on from, and how its run ended.

    With an ID it reports on one start: which checkpoints were passed over and why, what was done about each sink,
    what was replayed.
    """
    with reporting(json) as output:
        service = open_service(store)
        if id is None:
            output.start_history(service.recoveries(last))
        else:
            output.start_record(service.recovery(id))
