"""Chaos (`make chaos SECONDS=1800 SEED=1`): a running pipeline, and everything that can happen to it, at random.

The pipeline is killed, PostgreSQL is shut down at once, or both; between two lives its working directory may be
deleted and its newest checkpoint damaged; a second writer takes over while the first still runs; the clock jumps;
the disk fills up. Orders keep coming in a dense sequence. In between and at the end every sink must show each order
once, and at the end exactly what was computed without Spark.
"""

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rich.console import Console
from rich.table import Table

from chaos.chaos_lab import ChaosLab
from chaos.inspection import complaints_at_the_end, complaints_on_the_way

LOOK_EVERY = 8
PATIENCE = 4
"""How often in a row it may end by itself: the database is down, the disk is full."""


def act(lab: ChaosLab, action: str) -> None:
    """Do one bad thing to the running pipeline; afterwards it is dead or about to notice."""
    match action:
        case "kill":
            lab.kill()
        case "kill PostgreSQL":
            lab.restart_postgres()
        case "kill both":
            lab.kill()
            lab.restart_postgres()
        case "second writer":
            lab.second_writer()
        case "full disk":
            lab.fill_disk()
    if not lab.is_alive:
        lab.perhaps_delete_work()
        lab.perhaps_damage()


def run(lab: ChaosLab, seconds: float, console: Console, generator: random.Random) -> list[str]:
    """Go on until the time is over; returns what is wrong."""
    actions = {"kill": 6, "kill PostgreSQL": 2, "kill both": 1, "second writer": 1, "full disk": lab.can_fill_disk}
    deadline = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < deadline:
        lab.start()
        lab.let_it_run(generator.choice([0.0, 2.0, 5.0, 12.0]) * generator.random())
        action = generator.choices(list(actions), list(actions.values()))[0]
        act(lab, action)
        turns += 1
        if len(lab.stuck) > PATIENCE:
            return [f"it does not come back by itself: {lab.stuck[-1]}"]
        if turns % LOOK_EVERY == 0:
            complaints, lab.rows_seen = complaints_on_the_way(lab.base, lab.url)
            lab.count("looks at all sinks on the way")
            left = max(0, deadline - time.monotonic())
            console.print(f"{turns} turns, {lab.kills} kills, {lab.rows_seen} rows shown, no hole, {left:.0f} s left")
            if complaints:
                return complaints
    return lab.finish()


def report(lab: ChaosLab, rows: int, console: Console) -> None:
    """Print what was survived."""
    table = Table("what", "times")
    for name, times in sorted(lab.tally.items()):
        table.add_row(name, f"{times:,}")
    table.add_row("rows compared at the end", f"{rows:,}")
    console.print(table)


def main() -> int:
    """Run; exit 1 if a single row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    generator, console = random.Random(seed), Console()
    console.print(f"seed {seed}: repeat with make chaos SECONDS={arguments.seconds:.0f} SEED={seed}")
    with ChaosLab(generator) as lab:
        complaints = run(lab, arguments.seconds, console, generator)
        rows = 0
        if not complaints:
            complaints, rows = complaints_at_the_end(lab.base, lab.url, lab.rows_fed)
        report(lab, rows, console)
        for complaint in complaints:
            console.print(f"[bold red]WRONG[/] {complaint}")
        if complaints:
            lab.keep()
    console.print(f"seed {seed}: {'WRONG' if complaints else 'every row exactly once'}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
