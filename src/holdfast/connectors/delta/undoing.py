"""How epochs are taken back: by removing the files they added, or by restoring the version before they were merged.

Which of the two it is stands in the log beside each epoch, for the sink's mode may be another one since.
"""

from typing import Any
from urllib.parse import unquote

from holdfast.connectors.delta.folder import TableFolder
from holdfast.connectors.delta.history import LookBack, files_to_undo
from holdfast.connectors.delta.modes import MERGE, Entry, racing, write_entry
from holdfast.connectors.delta.table import is_append_only
from holdfast.connectors.delta.writing import now_ms
from holdfast.connectors.extras import delta_exceptions, delta_transaction, deltalake, pa


class Undoing:
    """What it takes to undo what a look back found."""

    def __init__(self, folder: TableFolder, since: LookBack, timeline_tag: str, today: str) -> None:
        self._folder, self._since, self._tag = folder, since, timeline_tag
        # Entries from before they told their mode were written in the sink's, as far as anybody knows.
        self._merged = MERGE in {mode or today for mode in since.modes}

    def is_possible(self, table: Any) -> bool:
        """Whether `act` would succeed on the table as it is."""
        if not self._since.files:
            return True
        return self._can_be_restored(table) if self._merged else self._removals(table) is not None

    def act(self, table: Any, entry: Entry) -> bool:
        """Take back what happened, with `entry`; False when that is not possible.

        Strict, because Delta does not see a conflict between removing a file and rewriting it.
        """
        if not self._since.files:
            write_entry(table, [], entry, strict=True)
            return True
        if self._merged:
            return self._restore(table, entry)
        removals = self._removals(table)
        if removals is None:
            return False
        write_entry(table, removals, entry, strict=True)
        return True

    def _removals(self, table: Any) -> list[Any] | None:
        """Return the actions that remove the epochs' files, None unless every file is still as it was added.

        A removal says how large the file is and of which partition: readers of changes need both.
        """
        if is_append_only(table) or "deletionVectors" in (table.protocol().writer_features or []):
            return None
        active = _active_files(table)
        paths = files_to_undo(active, self._since.files, self._tag)
        if paths is None:
            return None
        stamp = now_ms()
        return [delta_transaction.RemoveAction(path, True, stamp, *active[path]) for path in paths]

    def _restore(self, table: Any, entry: Entry) -> bool:
        if not self._since.alone:
            return False
        with racing():
            try:
                table.restore(self._since.version, commit_properties=entry.properties())
            except delta_exceptions.CommitFailedError:
                raise
            except (delta_exceptions.DeltaError, OSError):
                return False
        return True

    def _can_be_restored(self, table: Any) -> bool:
        """Whether nobody else wrote since, and the earlier version with its files is still there."""
        if not self._since.alone:
            return False
        try:
            options = self._folder.storage_options
            earlier = deltalake.DeltaTable(self._folder.uri, version=self._since.version, storage_options=options)
            needed = _active_files(earlier).keys() - _active_files(table).keys()
        except (delta_exceptions.DeltaError, FileNotFoundError):
            return False
        return all(self._folder.size(path) is not None for path in needed)


def _active_files(table: Any) -> dict[str, tuple[int, dict[str, str | None]]]:
    """Return the files of a table by their paths, each with its size and the values of its partition as text."""
    actions = pa.table(table.get_add_actions(flatten=True))
    partition_by = table.metadata().partition_columns
    columns = [actions[f"partition.{name}"].cast(pa.string()).to_pylist() for name in partition_by]
    partitions = [dict(zip(partition_by, values, strict=True)) for values in zip(*columns, strict=True)]
    paths, sizes = (actions[name].to_pylist() for name in ("path", "size_bytes"))
    found = zip(paths, sizes, partitions or [{} for _ in paths], strict=True)
    return {unquote(path): (size, partition) for path, size, partition in found}
