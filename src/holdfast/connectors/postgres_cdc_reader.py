"""The Python data source through which Spark reads a PostgreSQL table's changes. Imported where Spark asks for it."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.connectors.extras import pa
from holdfast.connectors.postgres_cdc_positions import Position
from holdfast.connectors.postgres_cdc_settings import FORMAT, MATERIALS, STARTING_OFFSET, CdcSettings
from holdfast.connectors.postgres_cdc_stream import ChangeStream, read_part, schema_of
from holdfast.connectors.postgres_cdc_table import row_schema
from holdfast.errors import SourceError


class PostgresCdcDataSource(DataSource):
    """One table of a PostgreSQL database."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """Ask the server for the table's columns; they stay what they are for the life of the query."""
        columns = schema_of(CdcSettings.of_options(self.options))
        return from_arrow_schema(row_schema(columns), prefer_timestamp_ntz=True)

    def streamReader(self, schema: StructType) -> "PostgresCdcReader":
        """Return the reader for the columns that the query was planned with."""
        return PostgresCdcReader(dict(self.options), schema)


class PostgresCdcReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions are Spark's offsets, in the form of the manifest."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._settings = CdcSettings.of_options(options)
        self._options = options
        self._columns = pa.schema(list(to_arrow_schema(schema, timezone="UTC").field("after").type))
        self._stream: ChangeStream | None = None

    def initialOffset(self) -> dict[str, str]:
        """Return where the engine decided that the pipeline begins."""
        if STARTING_OFFSET not in self._options:
            raise SourceError("a postgres_cdc source is read by a Holdfast pipeline, which says where it begins")
        found: dict[str, str] = json.loads(self._options[STARTING_OFFSET])
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        """Bound an epoch by rows, if the user does."""
        most_rows = self._settings.max_rows
        return ReadAllAvailable() if most_rows is None else ReadMaxRows(most_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the head of the log as the end."""
        self._changes().aim()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """Return where the next epoch ends."""
        most_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._changes().next_position(Position.parse(start), most_rows).offsets()

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Return the parts of an epoch: the files of the snapshot, or one range of the log."""
        parts = self._changes().parts(Position.parse(start), Position.parse(end))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a part, in a worker."""
        return read_part(self._settings, partition.value, self._columns)

    def stop(self) -> None:
        """Let the connection go."""
        if self._stream is not None:
            self._stream.close()

    def _changes(self) -> ChangeStream:
        if self._stream is None:
            self._stream = ChangeStream(self._settings, self._options.get(MATERIALS))
        return self._stream
