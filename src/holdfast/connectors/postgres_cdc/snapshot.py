"""The rows that a table had when its slot was created, kept as Parquet files beside the checkpoints.

The slot and the rows belong together: what was committed before the slot's position is in the snapshot, everything
later in the slot. The server keeps such a snapshot only as long as a connection stays open, so it is copied at once,
in pieces; epochs that read the pieces can then be read again at any time.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.change_rows import snapshot_rows
from holdfast.connectors.extras import pa, pq, psycopg
from holdfast.connectors.postgres_cdc.positions import lsn_text, parse_lsn, sortable_lsn
from holdfast.connectors.postgres_cdc.session import Session, connect, translated
from holdfast.connectors.postgres_cdc.settings import CdcSettings
from holdfast.connectors.postgres_cdc.slots import limited_wait, naming_who_is_in_the_way
from holdfast.connectors.postgres_cdc.table import CdcTable, columns_to_read, numbers_of
from holdfast.connectors.postgres_cdc.values import column_of, holds
from holdfast.connectors.sql_statements import listed
from holdfast.core.sources import Materials
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable

FOLDER = "snapshot"
_COMPLETE = f"{FOLDER}/complete.json"
_CHUNK_BYTES = 64 << 20
_EPOCH_CHUNKS = 16
_BATCH_ROWS = 5000
_BATCH_BYTES = 8 << 20
_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_REWRITTEN = """
SELECT 1 FROM pg_class c WHERE c.relfilenode <> 0 AND c.relfilenode <> pg_relation_filenode(c.oid)
  AND (c.oid = $1::bigint::oid OR c.oid IN (SELECT relid FROM pg_partition_tree($1::bigint::oid)))"""
"""In a transaction with an older snapshot: a row of the catalog is as it was, a function tells what is now."""
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_MEANT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


class Overtaken(SourceUnavailable):
    """What was copied is not what the slot's snapshot has; another attempt may come through."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that is complete."""

    lsn: int
    taken_at: int
    """Microseconds since 1970."""
    chunks: tuple[int, ...]
    """The number of rows in each file."""
    numbers: Mapping[str, int]
    """The places of the table's columns at that moment, by name."""

    def chunk_after(self, chunk: int, most_rows: int | None) -> int:
        """Return the first chunk that an epoch of so many rows, beginning with `chunk`, leaves to the next."""
        rows, last = 0, min(chunk + _EPOCH_CHUNKS, len(self.chunks))
        while chunk < last and (most_rows is None or rows < most_rows):
            rows += self.chunks[chunk]
            chunk += 1
        return chunk


def find_snapshot(materials: Materials) -> Snapshot | None:
    """Return the snapshot that is kept, None when there is none or only a part of one."""
    data = materials.get(_COMPLETE)
    if data is None:
        return None
    found = json.loads(data)
    return Snapshot(parse_lsn(found["lsn"]), found["taken_at"], tuple(found["chunks"]), found.get("numbers", {}))


def check_snapshot(materials: Materials, chunk: int) -> None:
    """Raise `SourceHistoryLost` if this chunk, which comes next, or one after it is gone."""
    snapshot, names = find_snapshot(materials), set(materials.names(f"{FOLDER}/"))
    left = range(chunk, chunk + 1 if snapshot is None else len(snapshot.chunks))
    gone = [number for number in left if snapshot is None or _chunk_name(number) not in names]
    if gone:
        raise SourceHistoryLost(
            f"chunk {gone[0]} of the snapshot comes next, and it is gone from {materials.place}: start over with "
            "--fresh"
        )


def remove_snapshot(materials: Materials) -> None:
    """Remove what there is of a snapshot, whole or in part. It is incomplete from the first moment on."""
    materials.remove(_COMPLETE)
    for name in materials.names(f"{FOLDER}/"):
        materials.remove(name)


def take_snapshot(settings: CdcSettings, table: CdcTable, materials: Materials) -> Snapshot:
    """Create the slot, and keep the rows as they were at its position."""
    with (
        contextlib.closing(_connected_to_create(settings)) as creator,
        contextlib.closing(Session(settings.address)) as session,
    ):
        lsn, exported = _create_slot(creator, session, settings)
        ((taken_at,),) = session.run(_NOW)
        # The creator must not say anything more: what it exported would be gone.
        preparations = (
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
            f"SET TRANSACTION SNAPSHOT '{exported}'",
        )
        with session.transaction(*preparations):
            # Those of that moment: while the slot was waiting for others, these may have changed the table.
            columns = columns_to_read(session, settings, table)
            numbers = numbers_of(session, table.id)
            query = f"SELECT {listed(columns.names)} FROM {table.only}"
            _lock_as_it_was(session, table, query)
            with session.copying(query) as lines:
                chunks = tuple(_keep(lines, columns, materials))
    snapshot = Snapshot(lsn, taken_at, chunks, numbers)
    text = json.dumps({"lsn": lsn_text(lsn), "taken_at": taken_at, "chunks": chunks, "numbers": numbers})
    materials.put(_COMPLETE, text.encode())
    return snapshot


def _lock_as_it_was(session: Session, table: CdcTable, query: str) -> None:
    """Keep the table from being rewritten from here on; refuse it if it was since the slot was created.

    To a snapshot from before, a table with new files looks empty.
    """
    session.run(f"{query} LIMIT 0")
    if session.run(_REWRITTEN, table.id):
        raise Overtaken(
            f"table {table.sql} was rewritten or emptied (ALTER TABLE, TRUNCATE, VACUUM FULL) between the creation "
            "of the slot and the copy of its rows: start again"
        )


def _connected_to_create(settings: CdcSettings) -> Any:
    return connect(settings.address, replication="database")


def _create_slot(creator: Any, session: Session, settings: CdcSettings) -> tuple[int, str]:
    """Create the slot and export its snapshot; this waits for every transaction that has written already."""
    with naming_who_is_in_the_way(session):
        try:
            creator.execute(limited_wait())
            created = creator.execute(
                f"CREATE_REPLICATION_SLOT {settings.slot} LOGICAL pgoutput EXPORT_SNAPSHOT"
            ).fetchone()
        except psycopg.Error as error:
            raise translated(error, settings.address) from error
    _, lsn, exported, _ = created
    return parse_lsn(lsn), exported


def _keep(lines: Iterator[bytes], columns: Any, materials: Materials) -> Iterator[int]:
    """Write the rows as files of a bounded size; yield the number of rows in each."""
    batches = _batches(lines, columns)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "chunk")
        for number, first in enumerate(batches):
            rows, size = 0, 0
            with pq.ParquetWriter(path, columns, compression="zstd") as writer:
                batch = first
                while batch is not None:
                    writer.write_batch(batch)
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    batch = next(batches, None) if size < _CHUNK_BYTES else None
            materials.put_file(_chunk_name(number), path)
            yield rows


def _chunk_name(number: int) -> str:
    return f"{FOLDER}/{number:06}.parquet"


def _batches(lines: Iterable[bytes], columns: Any) -> Iterator[Any]:
    rows: list[list[bytes | None]] = []
    size = 0
    for line in lines:
        rows.append(copied_values(line))
        size += len(line)
        if len(rows) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _batch(rows, columns)
            rows, size = [], 0
    if rows:
        yield _batch(rows, columns)


def _batch(rows: list[list[bytes | None]], columns: Any) -> Any:
    values = zip(columns, zip(*rows, strict=True), strict=True)
    arrays = [column_of(pa.array(column, pa.binary()), field.type, field.name) for field, column in values]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def copied_values(line: bytes) -> list[bytes | None]:
    r"""Return the values of a row in COPY's text form: tabs between them, `\N` for NULL."""
    values: list[bytes | None] = list(line.removesuffix(b"\n").split(b"\t"))
    if b"\\" not in line:
        return values
    return [None if value == b"\\N" else _ESCAPED.sub(_meant, value or b"") for value in values]


def _meant(escaped: re.Match[bytes]) -> bytes:
    return _MEANT.get(escaped[1], escaped[1])


# Reading


def read_chunk(materials: Materials, snapshot: Snapshot, number: int, columns: Any) -> Iterator[Any]:
    """Yield the rows of a file, numbered so that those of the whole snapshot end with -1, before every change."""
    seq = sum(snapshot.chunks[:number]) - sum(snapshot.chunks)
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = materials.local_copy(_chunk_name(number), folder)
        except FileNotFoundError:
            raise SourceHistoryLost(f"chunk {number} of the snapshot is gone: {materials.place}") from None
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield _rows(batch, snapshot, seq, columns)
                seq += batch.num_rows


def _rows(batch: Any, snapshot: Snapshot, seq: int, columns: Any) -> Any:
    after, position = [_column(batch, field) for field in columns], sortable_lsn(snapshot.lsn)
    return snapshot_rows(after, columns, position=position, seq=seq, taken_at_us=snapshot.taken_at)


def _column(batch: Any, field: Any) -> Any:
    """Return a column as it is read now; one that the table got later is NULL."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    if not holds(field.type, column.type) or pa.types.is_string(field.type) != pa.types.is_string(column.type):
        raise SourceError(
            f"column '{field.name}' is {column.type} in the snapshot, not {field.type}: start over with --fresh"
        )
    return column.cast(field.type)
