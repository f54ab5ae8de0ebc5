"""Every example runs, and gives what it says."""

import importlib.util
import shutil
import sqlite3
from pathlib import Path
from types import ModuleType

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def load(name: str) -> ModuleType:
    (path,) = EXAMPLES.glob(f"{name}*.py")
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchall()


def test_files_to_lake_and_database_agree(tmp_path: Path, spark: SparkSession) -> None:
    load("01").main(tmp_path)
    in_database = rows(tmp_path / "app.db", "SELECT customer, total FROM revenue ORDER BY 1, 2")
    in_lake = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().to_pylist()
    assert in_database == sorted((row["customer"], row["total"]) for row in in_lake)
    assert len(in_database) > 10


def test_a_stream_join_finds_every_pair_once(tmp_path: Path, spark: SparkSession) -> None:
    load("02").main(tmp_path)
    found = rows(tmp_path / "app.db", "SELECT click_id, order_id FROM journeys ORDER BY 1")
    assert found == [(i, i) for i in range(0, 120, 2)]


def test_python_state_survives_the_loss_of_its_working_directory(tmp_path: Path, spark: SparkSession) -> None:
    """Its metadata names schema files by absolute path, and a restart never uses the old place."""
    example = load("03")
    example.main(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "work")
    (tmp_path / "in" / "0.json").rename(tmp_path / "in" / "old.json")
    example.main(tmp_path)
    found = rows(tmp_path / "app.db", "SELECT customer, orders, total FROM t ORDER BY 1")
    # A file under a new name is a new file: 40 orders of each customer before, and 40 of old.json after.
    assert [row[1] for row in found] == [80] * 5


def test_every_order_keeps_the_price_it_was_delivered_with(tmp_path: Path, spark: SparkSession) -> None:
    load("04").main(tmp_path)
    found = rows(tmp_path / "app.db", "SELECT id, amount FROM invoices WHERE product = 'kelp' ORDER BY id")
    pieces = [1, 3, 5, 7, 9]
    assert [amount for _, amount in found] == [2.0 * n for n in pieces] + [3.0 * n for n in pieces]


@pytest.mark.parametrize("name", ["01", "02", "03", "04"])
def test_an_example_fits_on_a_page(name: str) -> None:
    (path,) = EXAMPLES.glob(f"{name}*.py")
    assert len(path.read_text().splitlines()) <= 65
