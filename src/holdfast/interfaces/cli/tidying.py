"""Commands that remove: prune, orphans."""

from typing import Annotated

import typer

from holdfast.interfaces.cli.output import Output
from holdfast.interfaces.cli.parameters import DryRun, Json, Store, StoreCommand
from holdfast.interfaces.cli.phrases import counted
from holdfast.interfaces.cli.running import confirm, reporting, stop
from holdfast.interfaces.exit_codes import ExitCode
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.service import CheckpointService


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("prune", cls=StoreCommand, short_help="Remove old checkpoints.")(prune)
    app.command("orphans", cls=StoreCommand, short_help="Remove what dead writers left behind.")(orphans)


def prune(
    store: Store,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="How many recent checkpoints to keep.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Remove old checkpoints, and orphans with them.

    Beyond the N newest these always stay: savepoints, the newest valid checkpoint, and one more that shares no
    sidecar with it. On a terminal you are asked first.
    """
    with reporting(json) as output:
        service = open_service(store, write=not dry_run)
        if dry_run:
            output.pruned(service.plan_prune(keep))
        else:
            _prune(service, keep, output, yes=yes)


def _prune(service: CheckpointService, keep: int, output: Output, *, yes: bool) -> None:
    planned = service.plan_prune(keep).removed
    if planned and not confirm(f"remove {counted(len(planned), 'checkpoint')}?", yes=yes):
        output.error("nothing was removed", ExitCode.NO)
        stop(ExitCode.NO)
    output.pruned(service.prune(keep))


def orphans(store: Store, dry_run: DryRun = False, json: Json = False) -> None:
    """Remove sidecars that no checkpoint needs and what dead writers left behind; never a living writer's."""
    with reporting(json) as output:
        service = open_service(store, write=not dry_run)
        output.orphans(service.find_orphans() if dry_run else service.remove_orphans())
