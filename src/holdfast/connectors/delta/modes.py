"""How a Delta sink shows an epoch, and how it takes epochs back: by adding files, or by merging rows by key."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import unquote

from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.delta.history import LookBack, files_to_undo
from holdfast.connectors.delta.table import added_since, is_append_only
from holdfast.connectors.delta.writing import DataWriter, check_files, now_ms, pack_files, unpack_files
from holdfast.connectors.extras import delta_exceptions, delta_transaction
from holdfast.connectors.keys import refuse_repeated_keys
from holdfast.connectors.staging import StagedName
from holdfast.core.contracts import Rows, Token
from holdfast.stores import durable


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


def write_entry(table: Any, actions: list[Any], entry: Entry, *, strict: bool = False) -> None:
    """Add one log entry, or raise `LostRace`."""
    partition_by = table.metadata().partition_columns
    with racing():
        table.create_write_transaction(
            actions, "append", table.schema(), partition_by, commit_properties=entry.properties(strict=strict)
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

    def undo(self, table: Any, since: LookBack, timeline_tag: str, entry: Entry) -> bool:
        """Take back what happened since, with `entry`; False when that is not possible."""
        ...


class AppendMode:
    """Rows are files of the table from the start; showing them is naming them in the log."""

    def __init__(self, folder: TableFolder, writer: DataWriter) -> None:
        self._folder, self._writer = folder, writer

    def prepare(self, rows: Rows, staged: StagedName, required: set[str]) -> dict[str, Any]:
        """Write data files."""
        return {"files": pack_files(self._writer.write(rows, staged, required))}

    def check(self, token: Token, *, deeply: bool) -> int:
        """Check sizes, and digests of files written from here."""
        files = unpack_files(token.payload["files"])
        check_files(self._folder, files, token.rows, deeply=deeply)
        return len(files)

    def show(self, table: Any, token: Token, entry: Entry) -> None:
        """Add the files. Other writers' entries in between do no harm, unless they touch our ledger."""
        stamp = now_ms()
        write_entry(table, [file.action(stamp) for file in unpack_files(token.payload["files"])], entry)

    def undo(self, table: Any, since: LookBack, timeline_tag: str, entry: Entry) -> bool:
        """Remove the files of the epochs since, if every one of them is still as it was added.

        Strict, because Delta does not see a conflict between removing a file and rewriting it.
        """
        if is_append_only(table) or "deletionVectors" in (table.protocol().writer_features or []):
            return False
        active = (unquote(path) for path in table.get_add_actions().column("path").to_pylist())
        paths = files_to_undo(active, since.files, timeline_tag)
        if paths is None:
            return False
        stamp = now_ms()
        write_entry(table, [delta_transaction.RemoveAction(path, True, stamp) for path in paths], entry, strict=True)
        return True


class MergeMode:
    """Rows wait in hidden files; showing them is a MERGE that updates rows with the same key and adds the others."""

    def __init__(self, folder: TableFolder, writer: DataWriter, schema: Any, key: tuple[str, ...]) -> None:
        self._folder, self._writer = folder, writer
        self._schema, self._key = schema, key

    def prepare(self, rows: Rows, staged: StagedName, required: set[str]) -> dict[str, Any]:
        """Write hidden files; refuse rows that share a key."""
        refuse_repeated_keys(rows, self._key)
        return {"files": pack_files(self._writer.write(rows, staged, required))}

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

    def undo(self, table: Any, since: LookBack, timeline_tag: str, entry: Entry) -> bool:
        """Restore the earlier version, if nobody else wrote since and its files are still there."""
        if not since.files:
            write_entry(table, [], entry, strict=True)
            return True
        if not since.alone:
            return False
        with racing():
            try:
                table.restore(since.version, commit_properties=entry.properties())
            except delta_exceptions.CommitFailedError:
                raise
            except (delta_exceptions.DeltaError, OSError):
                return False
        return True

    def _condition(self) -> str:
        quoted = (name.replace('"', '""') for name in self._key)
        return " AND ".join(f'(t."{name}" IS NOT DISTINCT FROM s."{name}")' for name in quoted)
