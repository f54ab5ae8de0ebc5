"""What the Python data sources of changes have in common. Imported where Spark asks for one of them."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.connectors.change_rows import MATERIALS, STARTING_OFFSET, row_schema
from holdfast.connectors.extras import pa
from holdfast.errors import SourceError

Offsets = dict[str, str]


class Position(Protocol):
    """Where a stream of changes stands."""

    def offsets(self) -> Offsets:
        """Return it as it stands in a manifest."""
        ...


class Changes(Protocol):
    """The changes of a table, as a stream that the driver plans and workers read. Positions are the stream's own."""

    def aim(self) -> None:
        """Take the end of the log as the end."""
        ...

    def next_position(self, start: Any, most_rows: int | None) -> Position:
        """Return where the next epoch ends."""
        ...

    def parts(self, start: Any, end: Any) -> Sequence[Any]:
        """Return what an epoch is made of."""
        ...

    def close(self) -> None:
        """Let the connection go."""
        ...


def spark_schema(columns: Any) -> StructType:
    """Return the schema of the rows for a table with these columns."""
    return from_arrow_schema(row_schema(columns), prefer_timestamp_ntz=True)


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Positions are Spark's offsets, in the form of the manifest."""

    format: ClassVar[str]

    def __init__(self, options: dict[str, str], schema: StructType, max_rows: int | None) -> None:
        self._options, self._max_rows = options, max_rows
        self._columns = pa.schema(list(to_arrow_schema(schema, timezone="UTC").field("after").type))
        self._stream: Changes | None = None

    @abstractmethod
    def _opened(self, materials: str | None) -> Changes:
        """Return the stream."""

    @staticmethod
    @abstractmethod
    def _position(offsets: Offsets) -> Position:
        """Read offsets."""

    @abstractmethod
    def _rows(self, part: Any) -> Iterator[Any]:
        """Yield the rows of a part, as `pyarrow.RecordBatch`."""

    def initialOffset(self) -> Offsets:
        """Return where the engine decided that the pipeline begins."""
        if STARTING_OFFSET not in self._options:
            raise SourceError(f"a {self.format} source is read by a Holdfast pipeline, which says where it begins")
        found: Offsets = json.loads(self._options[STARTING_OFFSET])
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        """Bound an epoch by rows, if the user does."""
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the end of the log as the end."""
        self._changes().aim()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return where the next epoch ends."""
        most_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._changes().next_position(self._position(start), most_rows).offsets()

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the parts of an epoch: the files of the snapshot, or ranges of the log."""
        parts = self._changes().parts(self._position(start), self._position(end))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a part, in a worker."""
        return self._rows(partition.value)

    def stop(self) -> None:
        """Let the connection go."""
        if self._stream is not None:
            self._stream.close()

    def _changes(self) -> Changes:
        if self._stream is None:
            self._stream = self._opened(self._options.get(MATERIALS))
        return self._stream
