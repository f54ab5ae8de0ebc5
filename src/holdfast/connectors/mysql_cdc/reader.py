"""The Python data source through which Spark reads a MySQL table's changes. Imported where Spark asks for it."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from holdfast.connectors.change_reader import ChangeReader, Changes, Offsets, spark_schema
from holdfast.connectors.mysql_cdc.position import Position
from holdfast.connectors.mysql_cdc.settings import FORMAT, CdcSettings
from holdfast.connectors.mysql_cdc.stream import ChangeStream, read_part, schema_of


class MysqlCdcDataSource(DataSource):
    """One table of a MySQL or MariaDB server."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Ask the server for the table's columns; they stay what they are for the life of the query."""
        return spark_schema(schema_of(CdcSettings.of_options(self.options)))

    def streamReader(self, schema: StructType) -> "MysqlCdcReader":
        """Return the reader for the columns that the query was planned with."""
        return MysqlCdcReader(dict(self.options), schema)


class MysqlCdcReader(ChangeReader):
    """Reads the log, after the snapshot."""

    format = FORMAT

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._settings = CdcSettings.of_options(options)
        super().__init__(options, schema, self._settings.max_rows)

    def _opened(self, materials: str | None) -> Changes:
        return ChangeStream(self._settings, self._columns, materials)

    @staticmethod
    def _position(offsets: Offsets) -> Position:
        return Position.from_offsets(offsets)

    def _rows(self, part: Any) -> Iterator[Any]:
        return read_part(self._settings, part, self._columns)
