"""Files in, windowed revenue out: into a Delta table and a database, both exactly once.

    python examples/01_files_to_lake_and_database.py [FOLDER]

Run it again, kill it, add files to FOLDER/in: the two sinks always agree.
"""

import json
import sys
import tempfile
from pathlib import Path

import holdfast as hf


def write_input(folder: Path) -> None:
    """Write two small files of orders, each moved into place whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        rows = [
            {"id": i, "customer": f"c{i % 3}", "amount": float(i), "ts": f"2026-01-01T00:{i // 60:02d}:{i % 60:02d}Z"}
            for i in range(number * 300, number * 300 + 300)
        ]
        hidden = folder / f".{number}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(folder / f"{number}.json")


def main(base: Path) -> None:
    """Run all there is, then stop."""
    write_input(base / "in")
    pipeline = hf.Pipeline("orders", store=base / "checkpoints")
    pipeline.source(
        "orders",
        hf.sources.files(str(base / "in"), schema="id long, customer string, amount double, ts timestamp"),
        watermark=("ts", "1 minute"),
    )
    revenue = pipeline.view(
        "revenue", "SELECT window(ts, '1 minute') w, customer, sum(amount) total FROM orders GROUP BY ALL"
    )
    pipeline.sink("lake", revenue, hf.sinks.delta(str(base / "lake")))
    pipeline.sink("db", revenue, hf.sinks.sqlite(str(base / "app.db"), table="revenue"))
    pipeline.run(once=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="holdfast-example-")))
