"""A person's word about a pipeline: approving a change, and what to do with an epoch that a sink does not show."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from holdfast.core.contracts import Sink, SinkContext
from holdfast.engine.places import spool_root
from holdfast.engine.resolution import OwedEpoch, approve, discard_epoch, epoch_to_file, owed_epoch
from holdfast.errors import InvalidRequest
from holdfast.interfaces import late
from holdfast.interfaces.archive import translated
from holdfast.interfaces.opening import open_service
from holdfast.interfaces.pipeline_file import PipelineFile
from holdfast.interfaces.run_reports import ApprovalReceipt, ResolutionReceipt, SavedRows
from holdfast.stores.store import DurableCheckpointStore

_FINGERPRINT = re.compile(r"[0-9a-fA-F]{1,16}")


def approve_change(store: DurableCheckpointStore, fingerprint: str) -> ApprovalReceipt:
    """Let the pipeline with this fingerprint go on."""
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise InvalidRequest(
            f"'{fingerprint}' is no fingerprint: copy the 16 hexadecimal digits that 'holdfast run' printed"
        )
    fence = approve(store, int(fingerprint, 16))
    return ApprovalReceipt(store.describe(), f"{int(fingerprint, 16):016x}", fence.checkpoint_id, fence.epoch)


def discard(store: DurableCheckpointStore, sink: str, epoch: int, reason: str) -> ResolutionReceipt:
    """Give up what was sealed for a sink."""
    fence = discard_epoch(store, sink, epoch, reason=reason)
    outcome = "given up, its rows are lost for this sink"
    return ResolutionReceipt(store.describe(), sink, epoch, "discard", outcome, fence.checkpoint_id)


def to_file(file: PipelineFile, sink: str, epoch: int, path: str, reason: str | None) -> ResolutionReceipt:
    """Put what was sealed for a sink into a file instead of the sink. Needs no Spark: the sink reads its own rows."""
    row_file = late.connector("row_file")
    row_file.check_path(path)
    store = open_service(file.store, write=True).store
    owed = owed_epoch(store, sink, epoch)
    schema = row_file.read_schema(owed.schema)
    row_file.check_columns(path, schema)

    def write(rows: Any) -> Any:
        with translated(f"cannot write {path}"):
            return row_file.write_row_file(rows, path)

    with _bound(file, store, owed, schema) as target:
        done = epoch_to_file(store, owed, target, write, reason=reason)
    saved = done.file
    before = ", which was there already with the same content" if saved.existed else ""
    return ResolutionReceipt(
        store=store.describe(),
        sink=sink,
        epoch=epoch,
        action="to-file",
        outcome=f"not shown there, its rows are in {saved.path}{before}",
        checkpoint_id=done.fence.checkpoint_id,
        file=SavedRows(saved.path, saved.rows, saved.bytes, saved.sha256),
        note=None if done.doubt is None else file.environment.redact(done.doubt),
    )


@contextlib.contextmanager
def _bound(file: PipelineFile, store: DurableCheckpointStore, owed: OwedEpoch, schema: Any) -> Iterator[Sink]:
    """Lend the sink as the file describes it, bound to the columns that were sealed with the epoch."""
    entry = next((entry for entry in file.sinks if entry.name == owed.sink), None)
    if entry is None:
        raise InvalidRequest(f"{file.path} has no sink '{owed.sink}', whose settings say where its rows are")
    spool = spool_root(store, file.name).of(owed.sink)
    output_mode = str(file.settings.get("output_mode", "append"))
    entry.sink.bind(SinkContext(owed.sink, file.name, schema, output_mode, *spool))
    with contextlib.closing(entry.sink):
        yield entry.sink
