"""Commands by which a person decides: approve, resolve."""

import os
from collections.abc import Callable
from typing import Annotated

import typer

from holdfast.engine.resolution import owed_epoch
from holdfast.errors import InvalidRequest
from holdfast.interfaces import deciding
from holdfast.interfaces.cli.output import Output
from holdfast.interfaces.cli.parameters import Json, Store, StoreCommand
from holdfast.interfaces.cli.running import debugging, reporting
from holdfast.interfaces.cli.watching import LineWatcher, Watcher, logs_as_notes
from holdfast.interfaces.execution import recover_pipeline
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.redaction import Redact
from holdfast.interfaces.run_reports import ResolutionReceipt


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("approve", cls=StoreCommand, short_help="Let a changed pipeline go on.")(approve)
    app.command("resolve", cls=StoreCommand, short_help="Decide about an epoch that a sink does not show.")(resolve)


def approve(
    store: Store,
    fingerprint: Annotated[
        str, typer.Argument(metavar="FINGERPRINT", help="The 16 digits that 'holdfast run' printed with exit code 6.")
    ],
    json: Json = False,
) -> None:
    """Let the pipeline with this fingerprint go on from the newest good checkpoint.

    The approval is sealed into the store as a fence: a pipeline that is still running there stops.
    """
    with reporting(json) as output:
        output.approved(deciding.approve_change(open_service(store, write=True).store, fingerprint))


def resolve(
    target: Annotated[
        str,
        typer.Argument(
            metavar="STORE|FILE",
            help="The store, or the pipeline file; --retry and --to-file need the file.",
            show_default=False,
        ),
    ],
    sink: Annotated[str, typer.Option("--sink", metavar="NAME", help="The sink that does not show the epoch.")],
    epoch: Annotated[int, typer.Option("--epoch", metavar="N", min=1, help="The epoch.")],
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="Start Spark, recover as a start would (which commits what was sealed for every sink), and end "
            "before any new epoch.",
        ),
    ] = False,
    discard: Annotated[
        bool,
        typer.Option(
            "--discard", help="Give the epoch up for this sink: its rows are lost there, and the pipeline can go on."
        ),
    ] = False,
    to_file: Annotated[
        str | None,
        typer.Option(
            "--to-file",
            metavar="PATH",
            help="Write the epoch's rows into a new file (.parquet, .jsonl, .json or .csv), verified, and let the "
            "pipeline go on without them in this sink. Spark is not started.",
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; recorded. Required with --discard.")
    ] = None,
    json: Json = False,
) -> None:
    """Decide what happens with an epoch that is sealed but that a sink would not show. Stop the pipeline first.

    Repair the target and use --retry (or just start the pipeline again, which does the same and goes on); if it can
    never take the rows, keep them with --to-file or give them up with --discard.
    """
    with reporting(json) as output:
        if [retry, discard, to_file is not None].count(True) != 1:
            raise InvalidRequest("give one of --retry, --to-file and --discard")
        if retry:
            output.resolved(_retry(target, sink, epoch, output, Watcher if json else LineWatcher))
        elif to_file is not None:
            output.resolved(_to_file(target, sink, epoch, to_file, reason, output))
        else:
            output.resolved(_discard(target, sink, epoch, reason))


def _discard(target: str, sink: str, epoch: int, reason: str | None) -> ResolutionReceipt:
    if not reason or not reason.strip():
        raise InvalidRequest("--discard loses rows: say why with --reason")
    store = read_pipeline_file(target).store if os.path.isfile(target) else target
    return deciding.discard(open_service(store, write=True).store, sink, epoch, reason)


def _to_file(target: str, sink: str, epoch: int, path: str, reason: str | None, output: Output) -> ResolutionReceipt:
    file = _pipeline_file(target, output, "--to-file reads the rows through the sink")
    with output.progress(f"writing {path}", lambda: None):
        return deciding.to_file(file, sink, epoch, path, reason)


def _retry(
    target: str, sink: str, epoch: int, output: Output, watching: Callable[[Redact], Watcher]
) -> ResolutionReceipt:
    file = _pipeline_file(target, output, "--retry starts the pipeline's recovery")
    owed_epoch(open_service(file.store).store, sink, epoch)
    watcher = watching(file.environment.redact)
    with logs_as_notes(watcher, debug=debugging()):
        report = recover_pipeline(file, watcher, debug=debugging())
    store = open_service(file.store).store
    outcome = report["sinks"].get(sink, "is no sink of the pipeline any more")
    return ResolutionReceipt(store.describe(), sink, epoch, "retry", outcome, store.newest_id())


def _pipeline_file(target: str, output: Output, why: str) -> PipelineFile:
    if not os.path.isfile(target):
        raise InvalidRequest(f"{why}: give the pipeline file; {target} is none")
    file = read_pipeline_file(target)
    output.redact = file.environment.redact
    return file
