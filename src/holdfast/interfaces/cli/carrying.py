"""Commands that carry checkpoints: export, import, export-spark."""

from typing import Annotated

import typer

from holdfast.interfaces.cli.parameters import Json, Reference, Store, StoreCommand
from holdfast.interfaces.cli.running import reporting
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.spark_export import export_to_spark


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("export", cls=StoreCommand, short_help="Write a checkpoint into one file.")(export)
    app.command("import", cls=StoreCommand, short_help="Take in a checkpoint as the newest one.")(import_checkpoint)
    app.command("export-spark", cls=StoreCommand, short_help="Write a plain Spark checkpoint.")(export_spark)


def export(
    store: Store,
    id: Reference,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to write the archive.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")] = False,
    json: Json = False,
) -> None:
    """Write one checkpoint and all the bytes it depends on into one file, verified while they are read.

    The file is a plain tar with manifest.json and state.bin. Beside it, space for the state is needed for a while.
    """
    with reporting(json) as output:
        service = open_service(store)
        with output.progress("exporting", lambda: service.bytes_to_verify([service.resolve(id)])) as on_bytes:
            receipt = service.export_file(id, file, overwrite=overwrite, on_bytes=on_bytes)
        output.exported(receipt)


def import_checkpoint(
    store: Store,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="An archive of 'holdfast export', or a checkpoint directory of another system."
        ),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Take a checkpoint of another timeline into a store that is not empty.")
    ] = False,
    json: Json = False,
) -> None:
    """Verify a checkpoint from elsewhere and seal it as the NEWEST of the store.

    A pipeline that is writing to the store is fenced by that and stops; the next start goes on from the imported
    checkpoint. In an empty store it keeps its id, otherwise it gets the next one. The store is made if need be.
    """
    with reporting(json) as output:
        service = open_service(store, write=True, create=True)
        with output.progress("verifying", lambda: None) as on_bytes:
            receipt = service.import_file(source, force=force, on_bytes=on_bytes)
        output.imported(receipt)


def export_spark(
    store: Store,
    id: Reference,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The directory to write; it must not exist.")],
    json: Json = False,
) -> None:
    """Write a checkpoint as a plain Spark checkpointLocation, verified while it is read. No way is locked.

    The same query goes on from it in plain Spark, without Holdfast, at the epoch after the checkpoint's.
    """
    with reporting(json) as output:
        output.exported_to_spark(export_to_spark(open_service(store), id, directory))
