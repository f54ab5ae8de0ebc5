"""Epochs without Spark: rows, offsets and state that are written down before, so that a replay gives the same again.

source = ScriptedSource(records, {"lake": lambda record, seen: record})
work = source.epoch(1, range(0, 5))       # an `EpochWork`: records 0 to 4 as epoch 1
coordinator.run_epoch(work)
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.contracts import Rows
from holdfast.core.entries import ConnectorCheckpoint
from holdfast.core.sidecar import CapturedFile
from holdfast.engine.coordinator import CapturedEpoch
from holdfast.testing.recording_sink import Row

SOURCE = "script"
STATE_OPERATOR = "state/0"
_SEEN = "seen"

Output = Callable[[Row, int], Row | None]
"""From a record, and how many were read up to and including it, to a sink's row; None for no row."""


class ScriptedRows:
    """Rows that are in this process."""

    small = True

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = list(rows)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def arrow(self) -> Any:
        """Return a `pyarrow.Table`."""
        return importlib.import_module("pyarrow").Table.from_pylist(self._rows)

    def dataframe(self) -> Any:
        """Refuse: there is no Spark here."""
        raise NotImplementedError("scripted rows are small: use arrow()")


class ScriptedEpoch:
    """An `EpochWork` that was written down before. `calls` says what the engine asked of it, in order.

    Put an error into `fails` under the name of a call, and that call raises it.
    """

    def __init__(
        self,
        epoch: int,
        rows: Mapping[str, Sequence[Row]],
        *,
        span: range = range(0),
        state: Mapping[str, bytes] | None = None,
        rows_in: int = 0,
    ) -> None:
        self.epoch = epoch
        self.span = span
        self.state = dict(state or {})
        self.calls: list[str] = []
        self.fails: dict[str, BaseException] = {}
        self._rows, self._rows_in = rows, rows_in

    @property
    def recorded_range(self) -> dict[str, bytes]:
        """What a working directory would hold of this epoch once its range was chosen: as with Spark, its end."""
        return {f"offsets/{self.epoch - 1}": json.dumps({"next": self.span.stop}).encode()}

    @property
    def digest(self) -> str:
        """Digest of the range, start and end."""
        return hashlib.sha256(f"{self.span.start} {self.span.stop}".encode()).hexdigest()

    def range_digest(self) -> str:
        """Return the digest of the source range."""
        self._called("range_digest")
        return self.digest

    def rows(self) -> Mapping[str, Rows]:
        """Return the rows; sinks without rows are left out."""
        self._called("rows")
        return {name: ScriptedRows(rows) for name, rows in self._rows.items() if rows}

    def capture(self) -> CapturedEpoch:
        """Return range and state files."""
        self._called("capture")
        files = [_captured(path, data) for path, data in self.state.items()]
        return CapturedEpoch(
            parts=self.recorded_range,
            operators={STATE_OPERATOR: files} if files else {},
            source_offsets={SOURCE: ConnectorCheckpoint.with_offsets(self.epoch, {"next": str(self.span.stop)})},
            source_watermarks={},
            watermark_ms=None,
            rows_in=self._rows_in,
        )

    def sealed(self) -> None:
        """Hear that the epoch was decided."""
        self._called("sealed")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]


class ScriptedSource:
    """Numbered records, and a rule for each sink that turns them into rows.

    The pipeline has state, a count of the records it has read, and rules see it: a pipeline that goes on from the
    wrong state gives other rows. `records` may grow while the pipeline runs.
    """

    def __init__(self, records: Sequence[Row], outputs: Mapping[str, Output]) -> None:
        self.records = records
        self.outputs = dict(outputs)

    def epoch(self, epoch: int, span: range, seen: int | None = None) -> ScriptedEpoch:
        """Return the records of `span` as an epoch; `seen` is the restored state, when it may be another one."""
        before = span.start if seen is None else seen
        rows: dict[str, list[Row]] = {name: [] for name in self.outputs}
        for number, record in enumerate(self.records[span.start : span.stop], before + 1):
            for name, output in self.outputs.items():
                row = output(record, number)
                if row is not None:
                    rows[name].append(row)
        return ScriptedEpoch(
            epoch,
            rows,
            span=span,
            state={_SEEN: str(before + len(span)).encode()},
            rows_in=len(span),
        )

    def expected(self, sink: str) -> list[Row]:
        """Return everything that a sink shows when all records were read and nothing went wrong."""
        rows = (self.outputs[sink](record, number) for number, record in enumerate(self.records, 1))
        return [row for row in rows if row is not None]


def recorded_end(parts: Mapping[str, bytes], epoch: int) -> int:
    """Return where a scripted epoch ends, from what was recorded of it: the next record to read."""
    return int(json.loads(parts[f"offsets/{epoch - 1}"])["next"])


def restored_count(files: Mapping[str, bytes]) -> int:
    """Return how many records the state says were read."""
    return int(files.get(_SEEN, b"0"))


def _captured(path: str, data: bytes) -> CapturedFile:
    return CapturedFile(path, len(data), hashlib.sha256(data).hexdigest(), lambda: data)
