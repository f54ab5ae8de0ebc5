"""The rows that a table had at a place of the log, kept as Parquet files beside the checkpoints.

Server and log go on meanwhile: a consistent view is opened together with the place it belongs to, and copied at once,
in pieces. Epochs that read the pieces can then be read again at any time. Every attempt has a folder of its own, so
that one that was thought dead cannot put its files among those of another.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.clock import Clock, new_token
from holdfast.connectors.change_rows import snapshot_rows
from holdfast.connectors.extras import pa, pq, pymysql_cursors
from holdfast.connectors.mysql_cdc.columns import CdcColumn, CdcTable, column_names, columns_of, fields_of, find_table
from holdfast.connectors.mysql_cdc.position import Place, Position, SnapshotCursor
from holdfast.connectors.mysql_cdc.session import Session, connect, hang_up, translated
from holdfast.connectors.mysql_cdc.settings import CdcSettings
from holdfast.connectors.mysql_cdc.texts import reader_of
from holdfast.core.sources import Materials
from holdfast.errors import SourceError, SourceHistoryLost

FOLDER = "snapshot"
CHUNK_ROWS = 100_000
_CHUNK_BYTES = 64 << 20
_BATCH_ROWS = 5000
_BATCH_BYTES = 8 << 20
_COMPLETE = "complete.json"
_LOCK_WAIT_SECONDS = 60
_SLOW_READER_SECONDS = 3600
"""How long the server waits for us to take the next rows: a piece may be on its way to an object store."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that is complete."""

    attempt: str
    position: Position
    """Where the log goes on after it."""
    taken_at_ms: int
    chunks: tuple[int, ...]
    """The number of rows in each file."""
    table_columns: tuple[str, ...] = ()
    """All columns that the table had, also those that were not read."""

    @property
    def beginning(self) -> Position:
        """Where reading it begins."""
        if not self.chunks:
            return self.position
        return replace(self.position, snapshot=SnapshotCursor(0, len(self.chunks), self.attempt))

    def chunks_within(self, first: int, most_rows: int | None) -> int:
        """Return how many chunks an epoch of so many rows takes, beginning with `first`: at least one."""
        count = rows = 0
        for size in self.chunks[first:]:
            if count and most_rows is not None and rows + size > most_rows:
                break
            count, rows = count + 1, rows + size
        return count


# Taking


def take_snapshot(settings: CdcSettings, session: Session, materials: Materials, clock: Clock) -> Snapshot:
    """Keep the table's rows; what an attempt that broke off left behind goes first."""
    remove_snapshots(materials)
    table = find_table(session, settings)
    columns = columns_of(session, table.name, settings.columns)
    there = tuple(sorted(column_names(session, table.name)))
    attempt = new_token()
    folder = materials.below(f"{FOLDER}/{attempt}")
    with _consistent_view(session, table, columns) as (position, rows):
        taken_at_ms = clock.now_ms()
        chunks = tuple(_keep(rows, columns, folder, settings.max_rows))
    snapshot = Snapshot(attempt, position, taken_at_ms, chunks, there)
    said = {
        "position": position.offsets(),
        "taken_at_ms": taken_at_ms,
        "chunks": chunks,
        "table_columns": there,
    }
    # Last: with it the snapshot is there.
    folder.put(_COMPLETE, json.dumps(said).encode())
    return snapshot


@contextlib.contextmanager
def _consistent_view(
    session: Session, table: CdcTable, columns: list[CdcColumn]
) -> Iterator[tuple[Position, Iterator[tuple[Any, ...]]]]:
    """Open the rows as they are at one place of the log, and yield that place with them."""
    address = session.address
    with translated(address), contextlib.ExitStack() as stack:
        reader = connect(address, cursorclass=pymysql_cursors.SSCursor, conv={})
        stack.callback(hang_up, reader)
        cursor = reader.cursor()
        cursor.execute("SET sql_mode = ''")  # One of them fills CHAR up with spaces, which the log has not.
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SET net_write_timeout = {_SLOW_READER_SECONDS}, lock_wait_timeout = {_LOCK_WAIT_SECONDS}")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if table.transactional and session.facts.mariadb:
            position = _mariadb_view(session, cursor)
        elif table.transactional:
            position = _view_behind_a_lock(session, cursor, table)
        else:
            # Nothing can be written as long as it is read.
            cursor.execute(f"LOCK TABLES {table.name.sql} READ")
            position = session.log_end()
        cursor.execute(f"SELECT {', '.join(column.selected for column in columns)} FROM {table.name.sql}")
        yield position, iter(cursor)


def _mariadb_view(session: Session, cursor: Any) -> Position:
    """Open a view; MariaDB says itself to which place of its log it belongs."""
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    cursor.execute("SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")
    said = {str(name).lower(): str(value) for name, value in cursor.fetchall()}
    return session.mariadb_position(Place(said["binlog_snapshot_file"], int(said["binlog_snapshot_position"])))


def _view_behind_a_lock(session: Session, cursor: Any, table: CdcTable) -> Position:
    """Open a view while nobody can write to the table: all that was committed is in both, view and log."""
    with connect(session.address) as locker, locker.cursor() as lock:
        lock.execute(f"SET lock_wait_timeout = {_LOCK_WAIT_SECONDS}")
        lock.execute(f"LOCK TABLES {table.name.sql} READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return session.log_end()


def _keep(
    rows: Iterator[tuple[Any, ...]], columns: list[CdcColumn], folder: Materials, most_rows: int | None
) -> Iterator[int]:
    """Write the rows as files of a bounded size; yield the number of rows in each."""
    schema, chunk_rows = fields_of(columns), min(most_rows or CHUNK_ROWS, CHUNK_ROWS)
    batches = _batches(rows, columns, schema, min(chunk_rows, _BATCH_ROWS))
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "chunk")
        for number, first in enumerate(batches):
            count, size, batch = 0, 0, first
            with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                while batch is not None:
                    writer.write_batch(batch)
                    count, size = count + batch.num_rows, size + batch.nbytes
                    full = size >= _CHUNK_BYTES or count + _BATCH_ROWS > chunk_rows
                    batch = None if full else next(batches, None)
            folder.put_file(_chunk_name(number), path)
            yield count


def _batches(rows: Iterator[tuple[Any, ...]], columns: list[CdcColumn], schema: Any, most: int) -> Iterator[Any]:
    readers = [reader_of(column.type) for column in columns]
    for taken in _taken(rows, most):
        values = zip(readers, zip(*taken, strict=True), schema, strict=True)
        arrays = [
            pa.array([None if answer is None else read(answer) for answer in answers], field.type)
            for read, answers, field in values
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _taken(rows: Iterator[tuple[Any, ...]], most: int) -> Iterator[list[tuple[Any, ...]]]:
    """Divide rows by their number and their size."""
    taken, size = [], 0
    for row in rows:
        taken.append(row)
        size += sum(len(answer) for answer in row if answer is not None)
        if len(taken) >= most or size >= _BATCH_BYTES:
            yield taken
            taken, size = [], 0
    if taken:
        yield taken


def _chunk_name(number: int) -> str:
    return f"{number:06}.parquet"


# Finding


def find_snapshot(materials: Materials) -> Snapshot | None:
    """Return a snapshot of which everything is there; None when there is none."""
    names = set(materials.names(f"{FOLDER}/"))
    for attempt in sorted(name.split("/")[1] for name in names if name.endswith(f"/{_COMPLETE}")):
        snapshot = open_snapshot(materials, attempt)
        chunks = {f"{FOLDER}/{attempt}/{_chunk_name(number)}" for number in range(len(snapshot.chunks))}
        if chunks <= names:
            return snapshot
    return None


def open_snapshot(materials: Materials, attempt: str) -> Snapshot:
    """Return the snapshot that a position names."""
    data = materials.get(f"{FOLDER}/{attempt}/{_COMPLETE}")
    if data is None:
        raise SourceHistoryLost(
            f"snapshot {attempt} comes next, and it is not below {materials.place}: start over with --fresh"
        )
    said = json.loads(data)
    return Snapshot(
        attempt,
        Position.from_offsets(said["position"]),
        said["taken_at_ms"],
        tuple(said["chunks"]),
        tuple(said.get("table_columns", ())),
    )


def check_snapshot(materials: Materials, cursor: SnapshotCursor) -> None:
    """Raise `SourceHistoryLost` if a chunk that comes next is gone."""
    names = materials.below(f"{FOLDER}/{cursor.attempt}").names()
    for number in range(cursor.chunk, cursor.chunks):
        if _chunk_name(number) not in names:
            raise SourceHistoryLost(
                f"chunk {number} of {cursor.chunks} of snapshot {cursor.attempt} comes next, and it is not below "
                f"{materials.place}: start over with --fresh"
            )


def remove_snapshots(materials: Materials) -> None:
    """Remove what there is of snapshots. Each is incomplete from the first moment on."""
    names = materials.names(f"{FOLDER}/")
    for name in sorted(names, key=lambda name: not name.endswith(_COMPLETE)):
        materials.remove(name)


# Reading


def read_chunk(materials: Materials, snapshot: Snapshot, number: int, columns: Any) -> Iterator[Any]:
    """Yield the rows of a file, numbered so that those of the whole snapshot end with -1, before every change."""
    seq = sum(snapshot.chunks[:number]) - sum(snapshot.chunks)
    with tempfile.TemporaryDirectory() as directory:
        try:
            path = materials.local_copy(f"{FOLDER}/{snapshot.attempt}/{_chunk_name(number)}", directory)
        except FileNotFoundError:
            raise SourceHistoryLost(
                f"chunk {number} of snapshot {snapshot.attempt} is gone: {materials.place}"
            ) from None
        with pq.ParquetFile(path) as file:
            _check_columns(snapshot, file.schema_arrow.names, columns.names)
            for batch in file.iter_batches(_BATCH_ROWS):
                yield _rows(batch, snapshot, seq, columns)
                seq += batch.num_rows


def _check_columns(snapshot: Snapshot, kept: Sequence[str], read: Sequence[str]) -> None:
    """Refuse columns whose values the snapshot would have, but has not; those that the table got later are NULL."""
    missing = [name for name in read if name not in kept]
    if left_out := [name for name in missing if name in snapshot.table_columns]:
        raise SourceError(f"column '{left_out[0]}' was left out of the snapshot: start over with --fresh")
    gone = [name for name in kept if name not in read]
    if missing and gone:
        raise SourceError(
            f"the snapshot has a column '{gone[0]}' and '{missing[0]}' is read: if it was renamed, its values would "
            "be lost; start over with --fresh"
        )


def _rows(batch: Any, snapshot: Snapshot, seq: int, columns: Any) -> Any:
    after = [_column(batch, field) for field in columns]
    position, taken_at_us = snapshot.position.place.sortable, snapshot.taken_at_ms * 1000
    return snapshot_rows(after, columns, position=position, seq=seq, taken_at_us=taken_at_us)


def _column(batch: Any, field: Any) -> Any:
    """Return a column as it is read now; one that the table got later is NULL."""
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    if column.type.equals(field.type):
        return column
    if _is_narrower(column.type, field.type):
        return column.cast(field.type)
    raise SourceError(
        f"column '{field.name}' is {column.type} in the snapshot, not {field.type}: start over with --fresh"
    )


def _is_narrower(kept: Any, read: Any) -> bool:
    """Whether every number of one type is one of the other."""
    of_one_kind = any(is_(kept) and is_(read) for is_ in (pa.types.is_signed_integer, pa.types.is_floating))
    return of_one_kind and kept.bit_width < read.bit_width
