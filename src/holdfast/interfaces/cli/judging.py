"""Commands that judge: health, verify, recover."""

import os
from typing import Annotated

import typer

from holdfast.errors import InvalidRequest
from holdfast.interfaces.cli.parameters import Json, Store, StoreCommand
from holdfast.interfaces.cli.pipelines import ask_for_plan
from holdfast.interfaces.cli.running import debugging, reporting, stop
from holdfast.interfaces.execution import RunOptions
from holdfast.interfaces.exit_codes import ExitCode
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import PipelineFile, read_pipeline_file
from holdfast.interfaces.service import LATEST
from holdfast.interfaces.verdict import Recoverable, StoreHealth
from holdfast.stores.store import DurableCheckpointStore


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("health", cls=StoreCommand, short_help="Say whether we could recover now.")(health)
    app.command("verify", cls=StoreCommand, short_help="Read every byte and give a verdict.")(verify)
    app.command("recover", cls=StoreCommand, short_help="Show what recovery would choose, and why.")(recover)


def health(store: Store, json: Json = False) -> None:
    """Say whether a start would recover now: from which checkpoint, how old, verified when, and in what time.

    Reads no state, so it is quick; what reading found comes from the history that running pipelines write. Exits with
    0 for yes, 9 when something needs a look, 1 when there is nothing to recover, 3 when recovery would refuse.
    """
    with reporting(json) as output:
        found = open_service(store).health()
        output.health(found)
        if (code := _code(found)) is not ExitCode.OK:
            stop(code)


def _code(health: StoreHealth) -> ExitCode:
    match health.recoverable:
        case Recoverable.YES:
            return ExitCode.OK
        case Recoverable.DEGRADED:
            return ExitCode.DEGRADED
    return ExitCode.REFUSED if health.refused else ExitCode.NO


def verify(
    store: Store,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Ids, 'latest' or names; all when none is given.", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Verify every checkpoint (the default).")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="Verify the newest checkpoint only.")] = False,
    json: Json = False,
) -> None:
    """Read every byte that checkpoints depend on, compare all checksums, and give a verdict.

    Exits with 1 when anything is damaged.
    """
    with reporting(json) as output:
        if sum((bool(ids), every, latest)) > 1:
            raise InvalidRequest("give ids, --all or --latest, not several of them")
        service = open_service(store)
        wanted = service.references_to_ids([LATEST] if latest else ids or [])
        with output.progress("verifying", lambda: service.bytes_to_verify(wanted)) as on_bytes:
            verification = service.verify(wanted, on_bytes)
        output.verification(verification)
        if not verification.sound:
            stop(ExitCode.NO)


def recover(
    store: Store,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Required: the command line only shows what recovery would do.")
    ] = False,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Ask the sinks and sources of this pipeline too, with Spark."),
    ] = None,
    json: Json = False,
) -> None:
    """Show which checkpoint recovery would choose now, and why it would skip each newer one.

    Exits with 3 when recovery would refuse to start; with --file it is 'holdfast plan FILE', with its exit codes.
    """
    with reporting(json) as output:
        if not dry_run:
            raise InvalidRequest(
                "recovery happens when a pipeline starts, not here; give --dry-run to see what it would do"
            )
        service = open_service(store)
        if file is not None:
            pipeline = read_pipeline_file(file)
            output.redact = pipeline.environment.redact
            _refuse_another_store(pipeline, service.store)
            output.planned(ask_for_plan(pipeline, RunOptions(debug=debugging()), quiet=json))
            return
        with output.progress("reading checkpoints", lambda: None):
            preview = service.preview_recovery()
        output.recovery(preview)
        if preview.outcome == "refuse":
            stop(ExitCode.REFUSED)


def _refuse_another_store(pipeline: PipelineFile, store: DurableCheckpointStore) -> None:
    named, meant = open_service(pipeline.store).store.describe(), store.describe()
    if _place(named) != _place(meant):
        raise InvalidRequest(f"{pipeline.path} is a pipeline on {named}, not on {meant}")


def _place(store: str) -> str:
    return store.rstrip("/") if "://" in store else os.path.realpath(store)
