"""How rows become messages: which columns give key, value, headers and partition.

Rows are spooled with their value spelled out, so that what was sealed is what is sent, whoever sends it. In a spool
file stand the columns that a message is made of, and `_holdfast_value` when the value is JSON; the other columns of
the view are in that JSON.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

from holdfast.connectors.arrow_types import as_plain
from holdfast.connectors.extras import pa, pc, pq, spark_functions
from holdfast.connectors.json_values import json_objects
from holdfast.connectors.spark_json import JSON_OPTIONS, in_ticks, tellable_columns
from holdfast.connectors.text_values import json_lines
from holdfast.core.contracts import Rows
from holdfast.errors import PipelineDefinitionError, SinkError

VALUE = "_holdfast_value"
_ROWS_AT_ONCE = 10_000
_BYTES_AT_ONCE = 8 * 1024 * 1024
_FRAMING = 100
"""What a message takes beside its contents, at most, when it is alone in its batch."""
_HEADER_FRAMING = 10
_ANY_PARTITION = -1
_NEITHER_CALLBACKS_NOR_TIME = (repeat(None), repeat(None), repeat(0))


@dataclass(frozen=True)
class MessageColumns:
    """Which columns of the view a message is made of."""

    key: str | None = None
    value: str | None = None
    """None: a JSON object of all columns that are not in `omit`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    partition: str | None = None
    omit: tuple[str, ...] = ()

    def to_settings(self) -> dict[str, Any]:
        """Return JSON values for the form of a token. Headers keep their order, which an object would lose."""
        return {**asdict(self), "headers": [list(pair) for pair in self.headers.items()], "omit": list(self.omit)}

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> "MessageColumns":
        """Return what `to_settings` was made of."""
        return cls(**{**settings, "headers": dict(settings["headers"]), "omit": tuple(settings["omit"])})


@dataclass(frozen=True)
class TopicLimits:
    """What a topic takes."""

    partitions: int
    largest: int
    """Bytes of the largest message."""
    needs_key: bool
    """Whether it is compacted."""


@dataclass(frozen=True)
class MessageBatch:
    """Some messages, ready to be sent."""

    size: int
    calls: Iterable[tuple[Any, ...]]
    """For each message the arguments of `Producer.produce`, by position."""


class Messages:
    """The way from the rows of one view to the messages of one topic, and back."""

    def __init__(self, columns: MessageColumns, schema: Any) -> None:
        self._columns, self._schema = columns, schema
        _check(columns, schema)
        steering = dict.fromkeys(
            name for name in (columns.key, *columns.headers.values(), columns.partition) if name is not None
        )
        self._sent = list(dict.fromkeys([*steering, columns.value or VALUE]))
        self._told = [name for name in schema.names if name not in columns.omit]
        if columns.value is not None:
            self.spool_schema = schema
        else:
            kept = [schema.field(name) for name in dict.fromkeys([*steering, *columns.omit])]
            self.spool_schema = pa.schema([*kept, pa.field(VALUE, pa.string())])

    def spooled(self, rows: Rows) -> Rows:
        """Return the rows as they stand in the spool."""
        return SpooledRows(rows, self)

    def table(self, table: Any) -> Any:
        """Return a table of the view as it stands in the spool."""
        table = as_plain(table, self._schema)
        if self._columns.value is not None:
            return table
        batches = table.select(self._told).to_batches(max_chunksize=_ROWS_AT_ONCE)
        values = pa.chunked_array([json_objects(batch) for batch in batches], pa.string())
        return table.select(self.spool_schema.names[:-1]).append_column(VALUE, values)

    def frame(self, frame: Any) -> Any:
        """Return a DataFrame of the view as it stands in the spool: the same values, told by Spark."""
        if self._columns.value is not None:
            return frame
        kept = [spark_functions.col(in_ticks(name)) for name in self.spool_schema.names[:-1]]
        told = spark_functions.struct(*tellable_columns(frame, self._told))
        return frame.select(*kept, spark_functions.to_json(told, dict(JSON_OPTIONS)).alias(VALUE))

    def restored(self, table: Any) -> Any:
        """Return a spooled table as the view had it."""
        inside = [name for name in self._schema.names if name not in self.spool_schema.names]
        if inside:
            lines = table[VALUE].cast(pa.binary()).to_pylist()
            parsed = json_lines(lines, pa.schema([self._schema.field(name) for name in inside]))
            for name in inside:
                table = table.append_column(name, parsed[name])
        return as_plain(table.select(self._schema.names), self._schema)

    def check(self, batches: Iterable[Any], limits: TopicLimits) -> None:
        """Refuse rows that the topic would not take."""
        columns = self._columns
        for batch in batches:
            sizes = pc.add(self._size(batch, columns.value or VALUE), self._size(batch, columns.key))
            for name in columns.headers.values():
                sizes = pc.add(sizes, self._size(batch, name))
            fixed = _FRAMING + sum(len(name.encode()) + _HEADER_FRAMING for name in columns.headers)
            largest = (pc.max(sizes).as_py() or 0) + fixed
            if largest > limits.largest:
                raise SinkError(
                    f"a message of {largest} bytes is larger than the topic's max.message.bytes, {limits.largest}"
                )
            if limits.needs_key and (columns.key is None or batch[columns.key].null_count):
                raise SinkError("the topic is compacted and takes no message without a key")
            if columns.partition is not None:
                _check_partitions(batch[columns.partition], columns.partition, limits.partitions)

    def _size(self, batch: Any, name: str | None) -> Any:
        if name is None:
            return 0
        return pc.fill_null(pc.binary_length(_as_bytes(batch[name])), 0).cast(pa.int64())

    def read(self, path: str) -> Iterator[Any]:
        """Yield what messages are made of from a spool file, a bounded piece at a time; pages are verified."""
        file = pq.ParquetFile(path, page_checksum_verification=True)
        groups = (file.metadata.row_group(index) for index in range(file.metadata.num_row_groups))
        average = sum(group.total_byte_size for group in groups) // max(1, file.metadata.num_rows)
        rows = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // max(1, average)))
        yield from file.iter_batches(batch_size=rows, columns=self._sent)

    def batch(self, topic: str, batch: Any) -> MessageBatch:
        """Return a piece of a spool file as messages."""
        columns = self._columns
        parts: list[Iterable[Any]] = [repeat(topic), _values(batch[columns.value or VALUE])]
        parts.append(repeat(None) if columns.key is None else _values(batch[columns.key]))
        if columns.partition is None:
            parts.append(repeat(_ANY_PARTITION))
        else:
            parts.append(pc.fill_null(batch[columns.partition], _ANY_PARTITION).to_pylist())
        if columns.headers:
            rows = zip(*(_values(batch[name]) for name in columns.headers.values()), strict=True)
            headers = (list(zip(columns.headers, row, strict=True)) for row in rows)
            parts += [*_NEITHER_CALLBACKS_NOR_TIME, headers]
        return MessageBatch(batch.num_rows, zip(*parts, strict=False))


class SpooledRows:
    """The rows of an epoch on their way to the spool."""

    def __init__(self, rows: Rows, messages: Messages) -> None:
        self._rows, self._messages = rows, messages
        self.count, self.small = rows.count, rows.small

    def arrow(self) -> Any:
        """Return them as a table."""
        return self._messages.table(self._rows.arrow())

    def dataframe(self) -> Any:
        """Return them as a DataFrame."""
        return self._messages.frame(self._rows.dataframe())


def _check(columns: MessageColumns, schema: Any) -> None:
    is_ = pa.types
    texts = (is_.is_string, is_.is_binary)
    simple = (*texts, is_.is_integer)
    wanted = [("key", columns.key, simple), ("value", columns.value, texts)]
    wanted += [("partition", columns.partition, (is_.is_integer,))]
    wanted += [(f"header '{header}'", name, simple) for header, name in columns.headers.items()]
    wanted += [("omit", name, ()) for name in columns.omit]
    for what, name, types in wanted:
        if name is None:
            continue
        if name not in schema.names:
            raise PipelineDefinitionError(f"{what}: '{name}' is not among the columns {', '.join(schema.names)}")
        type_ = schema.field(name).type
        if types and not any(fits(type_) for fits in types):
            raise PipelineDefinitionError(f"{what}: column '{name}' has type {type_}; cast it in the view")
    if columns.value is not None and columns.omit:
        raise PipelineDefinitionError("omit is for the JSON value, and value names a column instead")
    if columns.value is None and set(schema.names) <= set(columns.omit):
        raise PipelineDefinitionError("no column is left for the value")
    if VALUE in schema.names:
        raise PipelineDefinitionError(f"'{VALUE}' is not a name for a column of yours")


def _check_partitions(column: Any, name: str, partitions: int) -> None:
    found = pc.min_max(column).as_py()
    for partition in (found["min"], found["max"]):
        if partition is not None and not 0 <= partition < partitions:
            raise SinkError(f"column '{name}' names partition {partition}, and the topic has 0 to {partitions - 1}")


def _values(column: Any) -> list[bytes | None]:
    values: list[bytes | None] = _as_bytes(column).to_pylist()
    return values


def _as_bytes(column: Any) -> Any:
    text = column.cast(pa.string()) if pa.types.is_integer(column.type) else column
    return text.cast(pa.binary())
