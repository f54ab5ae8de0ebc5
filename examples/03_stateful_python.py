"""State in plain Python: each customer's running total and order count, kept up to date in a database.

python examples/03_stateful_python.py [FOLDER]
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import holdfast as hf

SCHEMA = "id long, customer string, amount double"
TOTALS = "customer string, orders long, total double"


class RunningTotal(StatefulProcessor):
    """Keeps a count and a sum for each customer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._totals = handle.getValueState("totals", "orders long, total double")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:
        """Add a batch of rows of one customer and return the new totals."""
        orders, total = self._totals.get() if self._totals.exists() else (0, 0.0)
        for frame in rows:
            orders, total = orders + len(frame), total + float(frame["amount"].sum())
        self._totals.update((orders, total))
        yield pd.DataFrame({"customer": [key[0]], "orders": [orders], "total": [total]})

    def close(self) -> None:
        """Nothing to let go."""


def totals(orders: DataFrame) -> DataFrame:
    """Apply the state to the stream."""
    return orders.groupBy("customer").transformWithStateInPandas(RunningTotal(), TOTALS, "Update", "None")


def main(base: Path) -> None:
    """Run all there is, then stop."""
    (base / "in").mkdir(parents=True, exist_ok=True)
    rows = [{"id": i, "customer": f"c{i % 5}", "amount": float(i)} for i in range(200)]
    (base / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = hf.Pipeline("totals", store=base / "checkpoints", output_mode="update")
    pipeline.source("orders", hf.sources.files(str(base / "in"), schema=SCHEMA))
    pipeline.sink(
        "db", pipeline.view("totals", totals), hf.sinks.sqlite(str(base / "app.db"), table="t", key="customer")
    )
    pipeline.run(once=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="holdfast-example-")))
