"""Reads what the sinks of the victim show, and says which row is lost or repeated."""

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from adbc_driver_postgresql import dbapi
from deltalake import DeltaTable

from chaos.sequence import expected_raw, expected_windows, holes
from fuzz.judge import differences, normal


def raw_rows(base: Path, url: str) -> dict[str, list[tuple[int, str, float]]]:
    """Return the orders each sink shows; a sink that nothing was written to yet is left out."""
    found = {}
    if DeltaTable.is_deltatable(str(base / "lake")):
        found["lake"] = _tuples(DeltaTable(str(base / "lake")).to_pyarrow_table())
    folders = sorted((base / "files").glob("holdfast_epoch=*"))
    if folders:
        tables = [ds.dataset(str(folder), format="parquet").to_table() for folder in folders]
        found["files"] = [row for table in tables for row in _tuples(table)]
    rows = query(url, "SELECT id, customer, amount FROM raw")
    if rows:
        found["table"] = rows
    return found


def _tuples(table: Any) -> list[tuple[int, str, float]]:
    return list(zip(*(table[name].to_pylist() for name in ("id", "customer", "amount")), strict=True))


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Ask the database; a table that is not there yet has no rows."""
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(statement)
        except dbapi.ProgrammingError:
            return []
        return [tuple(row) for row in cursor.fetchall()]


def complaints_on_the_way(base: Path, url: str) -> tuple[list[str], int]:
    """Return what is wrong now, and how many rows were looked at: every sink shows a part without holes, once."""
    found = raw_rows(base, url)
    complaints = []
    for sink, rows in found.items():
        missing, repeated = holes(row[0] for row in rows)
        complaints += [f"{sink}: {len(missing)} rows lost, the first is {missing[0]}"] if missing else []
        complaints += [f"{sink}: {len(repeated)} rows repeated, the first is {repeated[0]}"] if repeated else []
    return complaints, sum(map(len, found.values()))


def complaints_at_the_end(base: Path, url: str, rows: int) -> tuple[list[str], int]:
    """Compare every sink, value by value, with what was computed without Spark."""
    found: dict[str, list[Any]] = dict(raw_rows(base, url))
    expected: dict[str, set[Any]] = dict.fromkeys(("lake", "files", "table"), expected_raw(rows))
    windows = query(url, "SELECT begin, customer, total FROM windows")
    found["windows"] = windows
    expected["windows"] = expected_windows(rows)
    complaints = differences(
        {sink: map(normal, wanted) for sink, wanted in expected.items()},
        {sink: map(normal, shown) for sink, shown in found.items()},
    )
    return complaints, sum(map(len, expected.values()))
