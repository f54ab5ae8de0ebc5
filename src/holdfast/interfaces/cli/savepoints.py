"""Commands on savepoints: create, release, list."""

from typing import Annotated

import typer

from holdfast.interfaces.cli.parameters import Json, OneLineGroup, Reference, Store, StoreCommand
from holdfast.interfaces.cli.running import reporting
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.service import LATEST

Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 63 of A-Z a-z 0-9 _ . -")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module, as a group."""
    group = typer.Typer(
        cls=OneLineGroup,
        rich_markup_mode=None,
        no_args_is_help=False,
        help="Name checkpoints, which pins them against pruning.",
    )
    group.command("create", cls=StoreCommand)(create)
    group.command("release", cls=StoreCommand)(release)
    group.command("list", cls=StoreCommand)(list_savepoints)
    app.add_typer(group, name="savepoint")


def create(
    store: Store,
    name: Name,
    id: Reference = LATEST,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not read the state first; its presence is checked anyway.")
    ] = False,
    json: Json = False,
) -> None:
    """Give a checkpoint a name, after verifying it. Pruning keeps it until the name is released."""
    with reporting(json) as output:
        service = open_service(store, write=True)
        with output.progress("verifying", lambda: None) as on_bytes:
            receipt = service.create_savepoint(name, id, verify=not no_verify, on_bytes=on_bytes)
        output.savepoint(receipt)


def release(store: Store, name: Name, json: Json = False) -> None:
    """Take a name away; the checkpoint becomes an ordinary one."""
    with reporting(json) as output:
        output.savepoint(open_service(store, write=True).release_savepoint(name))


def list_savepoints(store: Store, json: Json = False) -> None:
    """List the named checkpoints."""
    with reporting(json) as output:
        output.savepoints(open_service(store).savepoints())
