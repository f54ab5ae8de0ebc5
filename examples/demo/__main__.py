"""The demo: a pipeline into three sinks that is killed, robbed and damaged, and is right in the end.

python examples/demo [FOLDER]
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from deltalake import DeltaTable
from orders import FILES, ROWS_PER_FILE, expected_revenue, expected_rows, write_files
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


@dataclass(frozen=True)
class Disaster:
    """Where the process is killed, and what happens to its files before the next one starts."""

    moment: str
    story: str
    afterwards: Callable[[Path], str | None] = lambda base: None


def delete_working_directory(base: Path) -> str:
    """Throw away what Spark keeps on disk."""
    shutil.rmtree(base / "checkpoints" / "work")
    return "and its working directory is deleted"


def damage_newest_checkpoint(base: Path) -> str:
    """Flip one bit in the newest checkpoint."""
    newest = max((base / "checkpoints" / "checkpoints").glob("checkpoint_*"))
    data = bytearray((newest / "state.bin").read_bytes())
    data[-5] ^= 1
    (newest / "state.bin").write_bytes(data)
    return f"and one bit of {newest.name}/state.bin is flipped"


DISASTERS = [
    Disaster("2:prepare:db", "while sinks prepare epoch 2"),
    Disaster("4:commit:lake", "between the seal of epoch 4 and its commits"),
    Disaster("6:commit:raw", "in the middle of the commits of epoch 6", delete_working_directory),
    Disaster("9:prepare:raw", "while sinks prepare epoch 9", damage_newest_checkpoint),
    Disaster("", "not at all"),
]


def main(base: Path) -> int:
    """Run the whole story; the exit code is 1 if a single row is wrong."""
    write_files(base / "in")
    console.print(
        f"{FILES * ROWS_PER_FILE:,} orders -> windowed revenue into Delta and SQLite, raw rows into Parquet\n"
    )
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,}/{task.total:,} orders"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task("starting Spark", total=FILES * ROWS_PER_FILE)
        for number, disaster in enumerate(DISASTERS, 1):
            progress.update(bar, description=f"process {number} of {len(DISASTERS)}")
            run_process(base, disaster, lambda rows: progress.update(bar, completed=rows))
    return show_verdict(base)


def run_process(base: Path, disaster: Disaster, on_rows: Callable[[int], None]) -> None:
    """Run the pipeline until it ends, or stands still at its moment and is killed there."""
    command = [sys.executable, str(Path(__file__).with_name("pipeline.py")), str(base), disaster.moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = parse(line)
            if event.get("event") == "Recovered":
                tell_recovery(event["report"])
            elif event.get("event") == "EpochCommitted":
                on_rows(min(FILES * ROWS_PER_FILE, rows_so_far(base)))
            elif event.get("event") == "Standing":
                os.kill(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
    if disaster.moment and process.returncode == -signal.SIGKILL:
        console.print(f"[red]SIGKILL[/] {disaster.story} {disaster.afterwards(base) or ''}")
    elif process.returncode != 0:
        console.print(errors[-2000:])
        sys.exit(f"the pipeline failed with exit code {process.returncode}")


def parse(line: str) -> dict[str, Any]:
    """Return an event; other output is none."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return event


def rows_so_far(base: Path) -> int:
    """Return how many orders the newest manifest has seen."""
    newest = max((base / "checkpoints" / "checkpoints").glob("checkpoint_*"))
    return int(json.loads((newest / "manifest.json").read_text()).get("processed_records", 0))


def tell_recovery(report: Mapping[str, Any]) -> None:
    """Say what a start found."""
    if report["chosen_id"] is None and not report["epoch"]:
        console.print("  started on an empty store")
        return
    for skipped in report["skipped"]:
        console.print(f"  checkpoint {skipped['checkpoint_id']} is not used: {skipped['reason'][:90]}")
    done = ", ".join(f"{sink} {action}" for sink, action in report["sinks"].items())
    console.print(f"  [green]recovered[/] from checkpoint {report['chosen_id']} (epoch {report['epoch']}): {done}")
    for replay in report["replays"]:
        console.print(f"  replays epoch {replay['epoch']}, whose range is in {replay['found_in']}")


def show_verdict(base: Path) -> int:
    """Compare every sink with what it must hold, row by row."""
    revenue, rows = expected_revenue(), expected_rows()
    found = {
        "lake (Delta)": (revenue, read_delta(base / "lake")),
        "db (SQLite)": (revenue, read_sqlite(base / "app.db")),
        "raw (Parquet)": (rows, read_files(base / "raw")),
    }
    table = Table("sink", box=None)
    for column in ("expected rows", "found", "expected sum", "found sum", "lost", "duplicated", "wrong"):
        table.add_column(column, justify="right", no_wrap=True)
    right = True
    for sink, (expected, got) in found.items():
        lost, duplicated, wrong = compare(expected, got)
        right = right and not (lost or duplicated or wrong)
        sums = f"{sum(expected.values()):,.2f}", f"{sum(value for _, value in got):,.2f}"
        table.add_row(sink, f"{len(expected):,}", f"{len(got):,}", *sums, str(lost), str(duplicated), str(wrong))
    console.print(table)
    killed = sum(1 for disaster in DISASTERS if disaster.moment)
    console.print(f"killed {killed} times, " + ("every row is there exactly once" if right else "ROWS ARE WRONG"))
    return 0 if right else 1


def compare(expected: Mapping[Any, float], got: list[tuple[Hashable, float]]) -> tuple[int, int, int]:
    """Return how many rows are lost, there more than once, or have another value."""
    counts = Counter(key for key, _ in got)
    lost = sum(1 for key in expected if key not in counts)
    duplicated = sum(count - 1 for count in counts.values())
    wrong = sum(1 for key, value in got if abs(expected.get(key, float("nan")) - value) > 1e-9 or key not in expected)
    return lost, duplicated, wrong


def read_delta(path: Path) -> list[tuple[Hashable, float]]:
    """Read the Delta table."""
    rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return [((row["w"]["start"], row["customer"]), row["total"]) for row in rows]


def read_sqlite(path: Path) -> list[tuple[Hashable, float]]:
    """Read the database."""
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT w_start, customer, total FROM revenue").fetchall()
    return [((datetime.fromisoformat(start), customer), total) for start, customer, total in rows]


def read_files(path: Path) -> list[tuple[Hashable, float]]:
    """Read the Parquet folders as any reader would."""
    rows = ds.dataset(str(path), format="parquet", partitioning="hive").to_table().to_pylist()
    return [(row["id"], row["amount"]) for row in rows]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        sys.exit(main(Path(folder)))
