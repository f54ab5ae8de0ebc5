"""What a file source costs as its log grows (`make bench-file-source`): one epoch after up to a million files.

Spark's log is written as Spark writes it, without the files that it names, and goes through the code that captures
and seals it. The code of another commit does the same, in a process of its own. Shown are the ten epochs up to each
size: nine of them find a small log file, one a compact file that repeats everything.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commits import code_of
from measuring import machine_facts

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "file_source.json"
SIZES = (10_000, 50_000, 100_000, 200_000, 400_000, 600_000, 800_000, 1_000_000)
BEFORE = "f6fcd95"
_COLOURS = {"before": "#b9c0c9", "present": "#0b7a75"}


def side(code: Path, directory: Path, per_epoch: int, sizes: list[int], *, every: bool) -> list[dict[str, Any]]:
    """Run one side; return a summary for each size."""
    command = [sys.executable, str(HERE / "file_source_side.py"), str(directory), str(per_epoch)]
    command += [",".join(map(str, sizes)), "every" if every else "windows"]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [summary(json.loads(line)) for line in run.stdout.splitlines()]


def summary(window: dict[str, Any]) -> dict[str, Any]:
    """Return the usual epoch of a window and the one with the compact file, which is its last."""
    *usual, compact = window["epochs"]
    return {
        "files": window["files"],
        "capture_seconds": round(statistics.median(epoch["capture"] for epoch in usual), 4),
        "compact_capture_seconds": round(compact["capture"], 4),
        "seal_seconds": round(statistics.median(epoch["seal"] for epoch in usual), 4),
        "compact_seal_seconds": round(compact["seal"], 4),
        "bytes_per_epoch": round(statistics.mean(epoch["bytes"] for epoch in window["epochs"])),
        "compact_bytes": compact["bytes"],
    }


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Write an SVG: for each size the time and the bytes of the epoch with a compact file, before and now."""
    rows = [(size, name) for size in zip(results["before"], results["present"], strict=True) for name in _COLOURS]
    longest = max(each["compact_capture_seconds"] for each in results["before"])
    parts = [_text(20, 20, "Capture of the epoch with a compact file, by files read so far (shorter is better)")]
    for number, (pair, name) in enumerate(rows):
        found, y = dict(zip(_COLOURS, pair, strict=True))[name], 40 + 16 * number + 8 * (number // 2)
        width = max(1, round(found["compact_capture_seconds"] / longest * 360))
        said = f"{found['compact_capture_seconds']:.3f} s, {found['compact_bytes'] / 2**20:.1f} MiB"
        parts.append(f'<rect x="130" y="{y}" width="{width}" height="13" fill="{_COLOURS[name]}"/>')
        parts.append(_text(20, y + 11, f"{found['files']:,} {name}") + _text(136 + width, y + 11, said))
    height = 56 + 20 * len(rows)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="680" height="{height}" font-family="sans-serif">'
    body = "\n".join([f'<rect width="680" height="{height}" fill="#ffffff"/>', *parts])
    path.write_text(f"{head}\n{body}\n</svg>\n")


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y}" font-size="11">{text}</text>'


def main() -> None:
    """Measure the present code, and that of a commit before."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base", default=BEFORE, help="the commit to compare with")
    parser.add_argument("--per-epoch", type=int, default=1000, help="files that an epoch reads")
    parser.add_argument("--files", type=int, default=SIZES[-1], help="how many files to end with")
    parser.add_argument("--directory", type=Path, default=None, help="where to work")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= options.files]
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="bench-") as scratch:
        place = Path(scratch)
        results: dict[str, Any] = {"machine": machine_facts(scratch), "files_per_epoch": options.per_epoch}
        results["present"] = side(HERE.parent / "src", place / "present", options.per_epoch, sizes, every=True)
        with code_of(options.base, place) as base:
            # What it seals does not depend on what it sealed before: epochs between the windows are passed over.
            results["before"] = side(base, place / "before", options.per_epoch, sizes, every=False)
    for before, present in zip(results["before"], results["present"], strict=True):
        print(
            f"{present['files']:>9,} files: compact epoch {before['compact_capture_seconds']:7.3f} s "
            f"and {before['compact_bytes'] / 2**20:6.1f} MiB before, {present['compact_capture_seconds']:.3f} s "
            f"and {present['compact_bytes'] / 2**20:.2f} MiB now"
        )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    plot(results, options.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
