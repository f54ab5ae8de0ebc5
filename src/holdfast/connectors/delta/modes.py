"""How a Delta sink shows an epoch: by adding files, or by merging rows by key. The epoch's form says which."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.delta.table import added_since, required_columns
from holdfast.connectors.delta.writing import (
    DataWriter,
    check_files,
    now_ms,
    pack_files,
    refuse_nulls,
    unpack_files,
)
from holdfast.connectors.extras import delta_exceptions, delta_transaction, deltalake
from holdfast.connectors.forms import Form
from holdfast.connectors.keys import refuse_repeated_keys
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import Rows, Token
from holdfast.errors import SinkError
from holdfast.stores import durable

APPEND, MERGE = "append", "merge"
_MODE, _KEY, _PARTITION_BY = "mode", "key", "partition_by"
"""Keys in the form of staged rows."""
_NULLS = "nulls"
"""Key in an appended epoch's payload: the columns that have a NULL."""


class LostRace(Exception):
    """Another entry got in the way: nothing was written. Look at the table again."""


@dataclass(frozen=True)
class Entry:
    """What a log entry of ours carries besides files."""

    transactions: list[Any]
    metadata: dict[str, Any]

    def properties(self, *, strict: bool = False) -> Any:
        """Return `deltalake`'s form. `strict`: fail when anybody wrote since the table was read."""
        retries = 0 if strict else None
        return delta_transaction.CommitProperties(self.metadata, retries, self.transactions)


def write_entry(
    table: Any, actions: list[Any], entry: Entry, *, strict: bool = False, keep_log: bool = False
) -> None:
    """Add one log entry, or raise `LostRace`. `keep_log`: without what may follow, removing expired log entries."""
    partition_by = table.metadata().partition_columns
    hooks = deltalake.PostCommitHookProperties(cleanup_expired_logs=False if keep_log else None)
    with racing():
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by,
            commit_properties=entry.properties(strict=strict),
            post_commithook_properties=hooks,
        )


@contextlib.contextmanager
def racing() -> Iterator[None]:
    """Translate the error for an entry that another one made impossible."""
    try:
        yield
    except delta_exceptions.CommitFailedError as error:
        raise LostRace(str(error).splitlines()[0]) from error


class Mode(Protocol):
    """What differs between appending and merging."""

    def prepare(self, rows: Rows, staged: StagedName, required: set[str]) -> dict[str, Any]:
        """Write rows durably and invisibly; return what finds them again."""
        ...

    def check(self, token: Token, *, deeply: bool) -> int:
        """Compare what is staged with the token; return the number of files."""
        ...

    def show(self, table: Any, token: Token, entry: Entry) -> None:
        """Make staged rows visible with `entry`."""
        ...


class AppendMode:
    """Rows are files of the table from the start; showing them is naming them in the log."""

    def __init__(self, folder: TableFolder, writer: DataWriter) -> None:
        self._folder, self._writer = folder, writer

    def prepare(self, rows: Rows, staged: StagedName, required: set[str]) -> dict[str, Any]:
        """Write data files."""
        files, nulls = self._writer.write(rows, staged, required)
        return {"files": pack_files(files), _NULLS: nulls}

    def check(self, token: Token, *, deeply: bool) -> int:
        """Check sizes, and digests of files written from here."""
        files = unpack_files(token.payload["files"])
        check_files(self._folder, files, token.rows, deeply=deeply)
        return len(files)

    def show(self, table: Any, token: Token, entry: Entry) -> None:
        """Add the files. Other writers' entries in between do no harm, unless they touch our ledger or the columns.

        Readers believe a table that says that a column has no NULL, and nobody looks into files that are added.
        """
        refuse_nulls(token.payload.get(_NULLS, ()), required_columns(table))
        stamp = now_ms()
        write_entry(table, [file.action(stamp) for file in unpack_files(token.payload["files"])], entry)


class MergeMode:
    """Rows wait in hidden files; showing them is a MERGE that updates rows with the same key and adds the others."""

    def __init__(self, folder: TableFolder, writer: DataWriter, schema: Any, key: tuple[str, ...]) -> None:
        self._folder, self._writer = folder, writer
        self._schema, self._key = schema, key

    def prepare(self, rows: Rows, staged: StagedName, required: set[str]) -> dict[str, Any]:
        """Write hidden files; refuse rows that share a key."""
        refuse_repeated_keys(rows, self._key)
        files, _ = self._writer.write(rows, staged, required)
        return {"files": pack_files(files)}

    def check(self, token: Token, *, deeply: bool) -> int:
        """Check sizes, and digests of files written from here."""
        files = unpack_files(token.payload["files"])
        check_files(self._folder, files, token.rows, deeply=deeply)
        return len(files)

    def show(self, table: Any, token: Token, entry: Entry) -> None:
        """Merge by key, NULL being equal to NULL. The files it writes are flushed as soon as they can be known."""
        before = table.version()
        paths = [file.path for file in unpack_files(token.payload["files"])]
        source = self._folder.batches(paths, self._schema)
        merge = table.merge(
            source, self._condition(), source_alias="s", target_alias="t", commit_properties=entry.properties()
        )
        with racing():
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        if self._folder.root is not None:
            for path in added_since(self._folder, before):
                with contextlib.suppress(FileNotFoundError):
                    durable.sync_file(self._folder.local(path))

    def _condition(self) -> str:
        quoted = (name.replace('"', '""') for name in self._key)
        return " AND ".join(f'(t."{name}" IS NOT DISTINCT FROM s."{name}")' for name in quoted)


def form_of(schema: Any, mode: str, key: tuple[str, ...], partition_by: tuple[str, ...]) -> Form:
    """Return what rows are prepared as under these settings."""
    return Form(schema, {_MODE: mode, _KEY: list(key), _PARTITION_BY: list(partition_by)})


def mode_name(form: Form) -> str:
    """Return how rows of a form are shown."""
    return str(form.settings[_MODE])


def partition_columns(form: Form) -> tuple[str, ...]:
    """Return the columns that rows of a form are partitioned by."""
    return tuple(form.settings[_PARTITION_BY])


def mode_of(form: Form, folder: TableFolder, sink: str) -> Mode:
    """Return what prepares and shows rows of a form."""
    if mode_name(form) == MERGE:
        hidden = DataWriter(folder, sink, form.schema, hidden=True)
        return MergeMode(folder, hidden, form.schema, tuple(form.settings[_KEY]))
    if mode_name(form) == APPEND:
        return AppendMode(folder, DataWriter(folder, sink, form.schema, partition_columns(form)))
    raise SinkError(f"the rows were prepared for mode '{mode_name(form)}', which this version of Holdfast lacks")
