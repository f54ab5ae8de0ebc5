"""What the pipeline benchmark runs: the input, the query and the sinks, the same for every mode."""

import base64
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

SCHEMA = "id long, key long, amount double, payload string, ts timestamp"
WATERMARK = ("ts", "10 seconds")
START_SECONDS = 1_750_000_000
_PAYLOADS = 512

QUERIES = {
    "stateless": "SELECT id, key, amount * 1.2 AS amount, ts FROM orders WHERE amount >= 0",
    "windows": "SELECT window(ts, '10 seconds') w, key % 100 AS key, sum(amount) total FROM orders GROUP BY ALL",
    "keyed": "SELECT key, sum(amount) AS total, length(max(payload)) AS width FROM orders GROUP BY key",
}


@dataclass(frozen=True)
class Workload:
    """One row of the benchmark."""

    name: str
    query: str
    rows: int
    sinks: tuple[str, ...]
    rounds: int
    epochs: int
    """Measured epochs of each mode in each round; one more runs first and does not count."""
    keys: int = 10_000
    payload: int = 0
    """Bytes of text in each row: with `keyed` it is what the state is made of."""
    preload: bool = False
    """Whether a first epoch brings every key, so that the state has its size from the start."""
    store: str = "disk"

    @property
    def output_mode(self) -> str:
        """A running aggregate updates its rows, everything else appends."""
        return "update" if self.query == "keyed" else "append"

    @property
    def state_bytes(self) -> int:
        """Roughly what the state holds."""
        return self.keys * self.payload if self.query == "keyed" else 0

    def frame(self, orders: DataFrame) -> DataFrame:
        """Apply the query to a stream of orders."""
        orders.createOrReplaceTempView("orders")
        return orders.sparkSession.sql(QUERIES[self.query])


class Input:
    """Files of one workload, made once and linked into each mode's folder in the same order."""

    def __init__(self, workload: Workload, directory: Path, seed: int) -> None:
        self._workload, self._directory = workload, directory
        self._numbers = np.random.default_rng(seed)
        self._payloads = _texts(workload.payload, random.Random(seed))
        self._made = 0
        directory.mkdir(parents=True)

    def file(self, index: int) -> Path:
        """Return input file `index`, made when it is asked for first."""
        while self._made <= index:
            self._make(self._made)
            self._made += 1
        return self._directory / f"{index:06d}.parquet"

    def _make(self, index: int) -> None:
        workload = self._workload
        everything = workload.preload and index == 0
        rows = workload.keys if everything else workload.rows
        ids = np.arange(rows, dtype=np.int64) + index * max(workload.rows, workload.keys)
        keys = np.arange(rows) if everything else self._numbers.integers(0, workload.keys, rows)
        seconds = START_SECONDS + index * 10 + np.arange(rows) * 10 // max(rows, 1)
        table = pa.table(
            {
                "id": ids,
                "key": keys.astype(np.int64),
                "amount": self._numbers.random(rows),
                "payload": pa.array(self._payloads).take(pa.array(self._numbers.integers(0, _PAYLOADS, rows))),
                "ts": pa.array(seconds * 1_000_000, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        path = self._directory / f"{index:06d}.parquet"
        pq.write_table(table, path)


def _texts(length: int, generator: random.Random) -> list[str]:
    """Return texts that do not compress."""
    return [base64.b85encode(generator.randbytes(length)).decode()[:length] for _ in range(_PAYLOADS)]
