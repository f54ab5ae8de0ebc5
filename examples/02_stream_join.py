"""Two streams joined: clicks with the orders that follow within ten minutes, into a database.

python examples/02_stream_join.py [FOLDER]
"""

import json
import sys
import tempfile
from pathlib import Path

import holdfast as hf

CLICKS = "click_id long, customer string, clicked timestamp"
ORDERS = "order_id long, buyer string, amount double, ordered timestamp"


def write_input(base: Path) -> None:
    """Write a file of clicks and one of orders: every second click becomes an order a minute later."""
    times = [f"2026-01-01T{i // 60:02d}:{i % 60:02d}:00Z" for i in range(121)]
    clicks = [{"click_id": i, "customer": f"c{i}", "clicked": times[i]} for i in range(120)]
    orders = [{"order_id": i, "buyer": f"c{i}", "amount": i / 2, "ordered": times[i + 1]} for i in range(0, 120, 2)]
    for name, rows in {"clicks": clicks, "orders": orders}.items():
        (base / name).mkdir(parents=True, exist_ok=True)
        hidden = base / name / ".0.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(base / name / "0.json")


def main(base: Path) -> None:
    """Run all there is, then stop."""
    write_input(base)
    pipeline = hf.Pipeline("journeys", store=base / "checkpoints")
    pipeline.source(
        "clicks", hf.sources.files(str(base / "clicks"), schema=CLICKS), watermark=("clicked", "1 minute")
    )
    pipeline.source(
        "orders", hf.sources.files(str(base / "orders"), schema=ORDERS), watermark=("ordered", "1 minute")
    )
    journeys = pipeline.view(
        "journeys",
        """SELECT click_id, order_id, customer, amount, clicked, ordered
           FROM clicks JOIN orders
           ON customer = buyer AND ordered BETWEEN clicked AND clicked + INTERVAL 10 MINUTES""",
    )
    pipeline.sink("db", journeys, hf.sinks.sqlite(str(base / "app.db"), table="journeys"))
    pipeline.sink("files", journeys, hf.sinks.files(str(base / "journeys")))
    pipeline.run(once=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="holdfast-example-")))
