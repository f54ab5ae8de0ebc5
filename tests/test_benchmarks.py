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


@pytest.mark.parametrize("script", ["pipeline", "commits", "connector_rates", "control"])
def test_the_others_can_be_started(script: str) -> None:
    """They take minutes, and some need servers: here only what they import and the options they take."""
    command = [sys.executable, f"benchmarks/{script}.py", "--help"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "--seed" in run.stdout
