"""The rows in pgoutput's Insert, Update and Delete messages, of thousands of messages at once.

A message says how long each value is before the value comes, so one can only be read from its beginning. Many can be
read side by side: the first column of all of them, then the second. That is done by numpy, not value by value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.connectors.extras import np, pa
from holdfast.connectors.postgres_cdc.messages import shown
from holdfast.errors import SourceError

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
_KEY, _OLD, _NEW = b"KON"
_NULL, _UNCHANGED, _TEXT = b"nut"
_ROW_AT = 6
"""Before a row stand the message's kind, four bytes for the table, and which row it is."""
_SHORTEST = _ROW_AT + 2
_BEHIND = bytes(8)
"""Stands behind the last message, so that a length can be looked at where none is."""
_LONG_VALUES = 256
"""Values that are longer than this on average are copied one by one."""


class Column(NamedTuple):
    """One column of one side of the messages: what there is, and where it lies."""

    kinds: Any
    starts: Any
    lengths: Any


@dataclass(frozen=True)
class Image:
    """One side of the messages, the row before or the row after; `present` tells which messages have it."""

    present: Any
    columns: list[Column]


class RowMessages:
    """Messages about rows with `columns` columns; those that are no Insert, Update or Delete have no rows."""

    def __init__(self, messages: Sequence[bytes], columns: int) -> None:
        self._data = np.frombuffer(b"".join([*messages, _BEHIND]), np.uint8)
        lengths = np.fromiter(map(len, messages), np.int64, len(messages))
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths
        self._columns = columns
        self.kinds = self._data[self._starts]
        with_rows = (self.kinds == INSERT) | (self.kinds == UPDATE) | (self.kinds == DELETE)
        self._refuse(with_rows & (lengths < _SHORTEST), "it is cut off")
        tags = np.where(with_rows, self._data[np.minimum(self._starts + _ROW_AT - 1, self._ends)], 0)
        has_before = (tags == _KEY) | (tags == _OLD)
        self._refuse((self.kinds == INSERT) & (tags != _NEW), "an insert without a new row")
        self._refuse((self.kinds == DELETE) & ~has_before, "a delete without an old row")
        self._refuse((self.kinds == UPDATE) & ~has_before & (tags != _NEW), "an update without a new row")
        self.before, behind = self._read(has_before, self._starts + _ROW_AT)
        for column in self.before.columns:
            self._refuse(not_sent(column), "an old row without all its values")
        has_after = with_rows & (self.kinds != DELETE)
        both = has_before & has_after
        self._refuse(both & (self._data[behind] != _NEW), "an update without a new row")
        self.after, end = self._read(has_after, np.where(both, behind + 1, self._starts + _ROW_AT))
        self._refuse_longer(with_rows, np.where(has_after, end, behind))

    def _read(self, present: Any, at: Any) -> tuple[Image, Any]:
        """Read a row at a place of each message that has one; return them, and where each ends."""
        self._refuse(present & (at + 2 > self._ends), "it is cut off")
        at = np.where(present, at, 0)
        self._refuse(present & (self._number(at, 2) != self._columns), "it has another number of columns")
        at = at + 2
        columns = []
        for _ in range(self._columns):
            self._refuse(present & (at >= self._ends), "it is cut off")
            kinds = np.where(present, self._data[at], _NULL)
            is_text = kinds == _TEXT
            self._refuse(~is_text & (kinds != _NULL) & (kinds != _UNCHANGED), "a value of an unknown kind")
            lengths = np.where(is_text, self._number(at + 1, 4), 0)
            columns.append(Column(kinds, at + 5, lengths))
            # What leads beyond a message is found before it is looked at.
            at = np.where(present, at + 1 + np.where(is_text, 4 + lengths, 0), at)
            self._refuse(present & (at > self._ends), "it is cut off")
        return Image(present, columns), at

    def _number(self, at: Any, size: int) -> Any:
        number = np.zeros(len(at), np.int64)
        for byte in range(size):
            number = (number << 8) | self._data[at + byte]
        return number

    def completed(self, place: int) -> Column:
        """Return a column after the change; what was not sent is that of the row before, as far as that has it.

        A value that is large enough to be left out is not NULL. So NULL there only means that the key does not have
        the column, whatever the Relation says: a partition may have another REPLICA IDENTITY than its table.
        """
        after, before = self.after.columns[place], self.before.columns[place]
        known = (after.kinds == _UNCHANGED) & (before.kinds == _TEXT)
        return Column(*(np.where(known, ours, theirs) for ours, theirs in zip(before, after, strict=True)))

    def texts(self, column: Column) -> Any:
        """Return the values of a column as they were printed, as a `pyarrow.BinaryArray`."""
        is_text = column.kinds == _TEXT
        offsets = np.zeros(len(is_text) + 1, np.int32)
        np.cumsum(column.lengths, out=offsets[1:])
        valid = pa.py_buffer(np.packbits(is_text, bitorder="little").tobytes())
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(self._values(column, offsets))]
        return pa.Array.from_buffers(pa.binary(), len(is_text), buffers)

    def _values(self, column: Column, offsets: Any) -> Any:
        size = int(offsets[-1])
        if size > _LONG_VALUES * len(column.starts):
            ends = column.starts + column.lengths
            return b"".join([self._data[start:end] for start, end in zip(column.starts, ends, strict=True)])
        moved = np.repeat(column.starts - offsets[:-1], column.lengths)
        moved += np.arange(size)
        return self._data[moved]

    def _refuse(self, bad: Any, why: str) -> None:
        if bad.any():
            raise SourceError(f"a pgoutput message cannot be read ({why}): {shown(self._message(bad))}")

    def _refuse_longer(self, with_rows: Any, ends: Any) -> None:
        if (bad := with_rows & (ends != self._ends)).any():
            message, expected = self._message(bad), int((ends - self._starts)[bad][0])
            raise SourceError(
                f"a pgoutput message has {len(message)} bytes, {expected} were expected: {shown(message)}"
            )

    def _message(self, bad: Any) -> bytes:
        first = int(np.argmax(bad))
        found: bytes = self._data[self._starts[first] : self._ends[first]].tobytes()
        return found


def not_sent(column: Column) -> Any:
    """Tell where a value was neither sent nor known otherwise."""
    return column.kinds == _UNCHANGED
