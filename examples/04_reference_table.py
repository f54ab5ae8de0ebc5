"""Orders joined with a table of products that changes: every order keeps the price it was delivered with.

python examples/04_reference_table.py [FOLDER]
"""

import csv
import json
import sys
import tempfile
from pathlib import Path

import holdfast as hf

SELECT = """
SELECT o.id, o.product, p.price * o.pieces AS amount
FROM orders o LEFT JOIN products p ON p.product = o.product
"""


def write_products(base: Path, price: float) -> None:
    """Replace the products: a file is moved into place whole."""
    hidden = base / ".products.csv"
    with open(hidden, "w", newline="") as file:
        csv.writer(file).writerows([("product", "price"), ("kelp", price), ("nori", price / 2)])
    hidden.rename(base / "products.csv")


def write_orders(base: Path, number: int) -> None:
    """Add a file of orders."""
    (base / "in").mkdir(parents=True, exist_ok=True)
    orders = [{"id": number * 10 + i, "product": ("kelp", "nori")[i % 2], "pieces": i + 1} for i in range(10)]
    hidden = base / "in" / f".{number}.json"
    hidden.write_text("".join(json.dumps(order) + "\n" for order in orders))
    hidden.rename(base / "in" / f"{number}.json")


def run(base: Path) -> None:
    """Run all there is, then stop. Without `refresh` the products are looked at once in every run."""
    pipeline = hf.Pipeline("orders", store=base / "checkpoints")
    pipeline.source("orders", hf.sources.files(str(base / "in"), schema="id long, product string, pieces int"))
    pipeline.table(
        "products",
        hf.tables.files(str(base / "products.csv"), format="csv", schema="product string, price double", header=True),
    )
    pipeline.sink("db", "orders", hf.sinks.sqlite(str(base / "app.db"), table="invoices"), select=SELECT)
    pipeline.run(once=True)


def main(base: Path) -> None:
    """Deliver orders at two prices."""
    for number, price in enumerate([2.0, 3.0]):
        write_products(base, price)
        write_orders(base, number)
        run(base)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="holdfast-example-")))
