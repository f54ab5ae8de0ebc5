"""A Delta table as a reference table: its versions are its own, and can be read as long as it keeps them."""

import os
from collections.abc import Mapping
from typing import Any

from holdfast.connectors.delta.table import first_line
from holdfast.connectors.extras import delta_exceptions, deltalake, pa
from holdfast.connectors.tables.rows import write_rows
from holdfast.core.tables import TableForm, TableVersion
from holdfast.errors import SourceHistoryLost, SourceUnavailable
from holdfast.secrets import scrub

_TABLE_ID = "table_id"


class DeltaReference:
    """A Delta table on a disk or on object storage. A version is read whole, in pieces, by this process."""

    connector = "delta"
    form = TableForm()

    def __init__(self, path: str, *, copy: bool, storage_options: Mapping[str, str] | None) -> None:
        deltalake.require()
        self._path = path if "://" in path else os.path.abspath(os.path.expanduser(path))
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
            rows = pa.RecordBatchReader.from_stream(table.scan())
            write_rows(pa.schema(table.schema().to_arrow()), rows, directory)
        except (delta_exceptions.DeltaError, OSError, pa.ArrowException) as error:
            newest = self.newest()  # The table answers, so it is this version that cannot be read.
            raise SourceHistoryLost(f"{self._message(error)}; it is at {newest} now") from error
        return _version_of(table)

    def _open(self, version: int | None) -> Any:
        return deltalake.DeltaTable(self._path, version=version, storage_options=self._options)

    def _message(self, error: Exception) -> str:
        return f"the Delta table at {scrub(self._path)}: {first_line(error)}"


def _version_of(table: Any) -> TableVersion:
    return TableVersion({"version": str(table.version())}, {_TABLE_ID: str(table.metadata().id)})
