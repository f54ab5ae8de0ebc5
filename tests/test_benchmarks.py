"""The benchmarks still run. Nothing here looks at a clock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_a_quick_run_of_the_store_benchmark_writes_its_results(tmp_path: Path) -> None:
    """Goal: it does not rot. Method: run it with tiny sizes and look at the form of what it writes."""
    output = tmp_path / "results" / "store.json"
    work = tmp_path / "work"
    work.mkdir()
    command = [sys.executable, "benchmarks/store.py", "--quick", "--seed", "7"]
    command += ["--directory", str(work), "--output", str(output)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    text = output.read_text()
    results = json.loads(text)
    assert {"date", "python", "cores", "filesystem"} <= results["machine"].keys()
    assert (results["seed"], results["quick"]) == (7, True)
    for comparison in results["comparisons"]:
        assert 0 < comparison["ratio_low"] <= comparison["ratio"] <= comparison["ratio_high"]
        assert comparison["name"] in run.stdout
    names = [comparison["name"] for comparison in results["comparisons"]]
    for start in ("save_with_state", "load + verify", "small saves", "list_ids"):
        assert any(name.startswith(start) for name in names)
    assert all(timing["median_seconds"] <= timing["p90_seconds"] for timing in results["timings"])
    assert str(tmp_path) not in text
    assert list(work.iterdir()) == []


def test_a_log_of_files_is_captured_and_sealed_as_in_a_run(tmp_path: Path) -> None:
    """Goal: the benchmark of a file source does not rot. Method: run a side of it with a small log."""
    command = [sys.executable, "benchmarks/file_source_side.py", str(tmp_path / "x"), "20", "400,1200", "every"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    windows = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(window["files"], len(window["epochs"])) for window in windows] == [(400, 10), (1200, 10)]
    assert all(epoch["bytes"] < 100 * 1200 for window in windows for epoch in window["epochs"])


@pytest.mark.parametrize(
    ("script", "option"),
    [
        *((script, "--seed") for script in ("pipeline", "commits", "connector_rates", "control")),
        ("file_source", "--files"),
        ("memory", "--epochs"),
    ],
)
def test_the_others_can_be_started(script: str, option: str) -> None:
    """They take minutes, and some need servers: here only what they import and the options they take."""
    command = [sys.executable, f"benchmarks/{script}.py", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert option in run.stdout
