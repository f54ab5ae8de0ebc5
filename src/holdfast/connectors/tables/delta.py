"""A Delta table as a reference table: its versions are its own, and can be read as long as it keeps them."""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.connectors.delta.folder import local_path, refuse_misread
from holdfast.connectors.delta.table import first_line
from holdfast.connectors.extras import delta_exceptions, deltalake, pa
from holdfast.connectors.tables.rows import write_rows
from holdfast.core.tables import TableForm, TableVersion
from holdfast.errors import SourceError, SourceHistoryLost, SourceUnavailable
from holdfast.secrets import scrub

_TABLE_ID = "table_id"
_SILENCE = re.compile(
    r"after \d+ retries|error sending request|operation timed out|connection (closed|refused|reset)", re.IGNORECASE
)
"""How `deltalake`'s storage says that it got no answer; errors of the rows have no class of their own."""


class DeltaReference:
    """A Delta table on a disk or on object storage. A version is read whole, in pieces, by this process."""

    connector = "delta"
    form = TableForm()

    def __init__(self, path: str, *, copy: bool, storage_options: Mapping[str, str] | None) -> None:
        deltalake.require()
        self._path = path if "://" in path else os.path.abspath(os.path.expanduser(path))
        if (local := local_path(self._path)) is not None:
            refuse_misread(local)
        self._options = None if storage_options is None else dict(storage_options)
        self.copied = copy

    def identity(self) -> dict[str, object]:
        """Return where the table is."""
        return {"path": self._path}

    def newest(self) -> TableVersion | None:
        """Ask the table's log."""
        try:
            return _version_of(self._open(None))
        except delta_exceptions.TableNotFoundError as error:
            raise SourceUnavailable(f"there is no Delta table at {scrub(self._path)}") from error
        except (delta_exceptions.DeltaError, OSError) as error:
            raise SourceUnavailable(self._message(error)) from error

    def fetch(self, version: TableVersion | None, directory: str) -> TableVersion:
        """Read a version, deletion vectors and renamed columns included."""
        wanted = version or self.newest()
        assert wanted is not None
        try:
            table = self._open(int(wanted.offsets["version"]))
            rows = self._pieces(table)
        except (delta_exceptions.DeltaError, OSError, pa.ArrowException) as error:
            raise self._gone(error) from error
        try:
            write_rows(pa.schema(table.schema().to_arrow()), rows, directory)
        except OSError as error:  # Of our own disk: what goes wrong at the table is named where its rows are read.
            raise SourceUnavailable(f"cannot copy {self._message(error)}") from error
        except pa.ArrowException as error:
            raise SourceError(self._message(error)) from error
        return _version_of(table)

    def _pieces(self, table: Any) -> Iterator[Any]:
        """Yield a table's rows."""
        try:
            yield from pa.RecordBatchReader.from_stream(table.scan())
        except (delta_exceptions.DeltaError, OSError, pa.ArrowException) as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> SourceError:
        """Return what it means that a version cannot be read: it is gone, unless the storage only did not answer.

        Who hears that it is gone is advised to give up an epoch, which silence is no reason for.
        """
        newest = self.newest()  # The table answers now, so it is this version that cannot be read.
        kind = SourceUnavailable if _SILENCE.search(str(error)) else SourceHistoryLost
        return kind(f"{self._message(error)}; it is at {newest} now")

    def _open(self, version: int | None) -> Any:
        return deltalake.DeltaTable(self._path, version=version, storage_options=self._options)

    def _message(self, error: Exception) -> str:
        return f"the Delta table at {scrub(self._path)}: {first_line(error)}"


def _version_of(table: Any) -> TableVersion:
    return TableVersion({"version": str(table.version())}, {_TABLE_ID: str(table.metadata().id)})
